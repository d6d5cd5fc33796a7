"""How much of the planted waste in ordinary programs `torchyard values` finds, and its false alarms.

    python benchmarks/value_recall.py [planted] [clean] [held_out] [--mode fast|deep|both] [--json] [--only NAME]

Each program of tests/values/recall runs under the worker of `torchyard values --once`, in a process
forked from one that has imported torch. A waste is found if a finding names one of the marked lines
of the program with one of the patterns that describe it. In a clean program every finding in its own
operators is a false alarm; findings inside operators of torch (deep) are counted separately.

Exit code 1 below the goal: 95 % found, no false alarm.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from tests.values.recall import CORPORA, CorpusProgram, programs
from torchyard.results.directory import home_folder
from torchyard.values.model import ProfilingOptions
from torchyard.worker.values.program import main as run_worker

GOAL = 0.95


@dataclass(kw_only=True)
class Recall:
    """Results of one corpus in one mode."""

    corpus: str
    mode: str
    planted: int = 0
    missed: list[str] = field(default_factory=list)
    clean: int = 0
    false_alarms: list[str] = field(default_factory=list)
    inside: int = 0
    """Findings inside operators of torch in clean programs."""

    @property
    def share(self) -> float:
        """Share of the planted wastes that were found."""
        return 1 - len(self.missed) / self.planted if self.planted else 1.0


def profile(program: CorpusProgram, *, deep: bool) -> list[dict[str, Any]]:
    """Return the findings of one profiled run in a child process."""
    with tempfile.TemporaryDirectory() as folder:
        script, output = Path(folder, f"{program.name}.py"), Path(folder, "profiled.json")
        script.write_text(program.source, encoding="utf-8")
        options = asdict(ProfilingOptions(deep=deep))
        plan = Path(folder, "plan.json")
        cache = str(home_folder() / "scan")
        plan.write_text(
            json.dumps({"options": options, "output": str(output), "cache": cache}),
            encoding="utf-8",
        )
        child = os.fork()
        if child == 0:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os._exit(run_worker(str(plan), [str(script)]))
        _, status = os.waitpid(child, 0)
        if status:
            raise SystemExit(f"{program.name} failed: {os.waitstatus_to_exitcode(status)}")
        result = json.loads(output.read_bytes())
        if failed := [note for note in result["notes"] if "profiler failed" in note]:
            raise SystemExit(f"{program.name}: {failed[0]}")
        findings: list[dict[str, Any]] = result["findings"]
        return [item for item in findings if item["place"]["file"] == str(script)]


def names(finding: dict[str, Any], program: CorpusProgram) -> bool:
    """Return whether a finding is the planted waste.

    Without an optimizer there are no steps: what is unchanged across iterations is a duplicate of an earlier call.
    """
    patterns = {finding["pattern"].replace(" ", "-")}
    if "in an earlier call of this line" in finding["detail"]:
        patterns.add("unchanged-across-steps")
    return not patterns.isdisjoint(program.patterns) and finding["place"]["line"] in program.lines


def measure(corpus: str, *, deep: bool, only: str = "") -> Recall:
    """Run a corpus in one mode."""
    result = Recall(corpus=corpus, mode="deep" if deep else "fast")
    for program in programs(corpus):
        if only and only not in program.name:
            continue
        findings = profile(program, deep=deep)
        texts = list(_texts(findings))
        if program.patterns:
            result.planted += 1
            if not any(names(finding, program) for finding in findings):
                result.missed.append(f"{program.name} {program.lines}: {texts}")
        else:
            result.clean += 1
            own = [finding for finding in findings if not finding["path"]]
            result.inside += len(findings) - len(own)
            result.false_alarms += [f"{program.name}: {text}" for text in _texts(own)]
        if only:
            print(program.name, *texts, sep="\n    ")
    return result


def _texts(findings: list[dict[str, Any]]) -> Iterator[str]:
    for item in findings:
        where = " > ".join((*item["path"], item["operator"]))
        yield f"{item['pattern']} line {item['place']['line']} {where}: {item['detail']}"


def main() -> int:
    """Run the corpora and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("corpora", nargs="*", metavar="CORPUS", default=["planted", "clean"])
    parser.add_argument("--mode", choices=("fast", "deep", "both"), default="both")
    parser.add_argument("--only", default="", metavar="NAME")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if unknown := set(arguments.corpora) - set(CORPORA):
        parser.error(f"no such corpus: {', '.join(unknown)}; there are {', '.join(CORPORA)}")
    depths = {"fast": (False,), "deep": (True,), "both": (False, True)}[arguments.mode]
    torch.set_num_threads(1)
    results = [
        measure(corpus, deep=deep, only=arguments.only)
        for corpus in arguments.corpora
        for deep in depths
    ]
    if arguments.json:
        print(json.dumps([{**asdict(result), "share": result.share} for result in results]))
    else:
        for result in results:
            found = result.planted - len(result.missed)
            print(
                f"{result.corpus}, {result.mode}: found {found} of {result.planted} ({result.share:.0%}), "
                f"false alarms {len(result.false_alarms)} in {result.clean} clean programs, "
                f"{result.inside} findings inside torch operators"
            )
            for line in (*result.missed, *result.false_alarms):
                print("   ", line)
    good = all(result.share >= GOAL and not result.false_alarms for result in results)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""How much planted waste `torchyard values` finds, how much of what it finds is false, what it costs.

    python benchmarks/values.py [corpus|overhead|all] [--json] [--rounds 9] [--steps 8] [--threads 1]

corpus: every program of tests/values/corpus is watched from the same random numbers, fast and deep,
with proofs (trials while it is watched, then a run that nobody watches, by `v.prove`), and counted per
pattern. In a clean program every finding is false; in a planted one, others follow from the waste or
are true on their own, so they are only counted. What is found inside operators of torch in clean
programs is waste of torch's own if tests/values/test_corpus.py lists it, and false otherwise.
overhead: see values_overhead.py.

Exit code 1 when a goal is missed: everything planted is found, at most one false finding, none of
them proven; CPU time of a step at most 1.3 times the native one fast, 2 times deep.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from tests.values.corpus import CLEAN, PLANTED, Program, Waste
from tests.values.corpus.known_waste import TRUE_INSIDE
from tests.values.corpus.profiling import SEED
from torchyard.values.context_manager import ValueProfiler
from torchyard.values.model import Certainty, ValueFinding, ValueProfile
from torchyard.values.pattern_texts import pattern_names
from values_overhead import GOALS, MODELS, Overhead, measure_overhead, overhead_table

MOST_FALSE = 1


@dataclass(kw_only=True)
class CorpusResult:
    """What the corpus gave at one depth."""

    depth: str
    planted: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    proven: Counter[str] = field(default_factory=Counter)
    """Of what was planted."""
    beside: Counter[str] = field(default_factory=Counter)
    false: Counter[str] = field(default_factory=Counter)
    false_proven: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    inside: list[str] = field(default_factory=list)
    """In clean programs, inside operators of torch: waste of torch's own."""

    @property
    def good(self) -> bool:
        """Whether the goals are reached."""
        false = sum(self.false.values())
        return not self.missed and false <= MOST_FALSE and not self.false_proven


def measure_corpus(*, deep: bool, say: Callable[[str], None]) -> CorpusResult:
    """Run all programs."""
    result = CorpusResult(depth="deep" if deep else "fast")
    programs = (*PLANTED, *CLEAN)
    for number, program in enumerate(programs, start=1):
        say(f"{result.depth}: program {number} of {len(programs)}, {program.name}")
        profile = _profile(program, deep=deep)
        if program.wastes:
            _count_planted(result, program, profile, deep=deep)
        else:
            _count_clean(result, program, profile)
    return result


def _profile(program: Program, *, deep: bool) -> ValueProfile:
    torch.manual_seed(SEED)
    with ValueProfiler(deep=deep, approximate=program.approximate) as values:
        program.run()
    torch.manual_seed(SEED)
    return values.prove(program.run, timed_runs=0, price=False)


def _count_planted(
    result: CorpusResult, program: Program, profile: ValueProfile, *, deep: bool
) -> None:
    planted = {(waste.pattern, waste.line) for waste in program.wastes}
    for waste in program.wastes:
        if waste.deep and not deep:
            continue
        result.planted[waste.pattern] += 1
        found = [one for one in profile.findings if _is(one, waste, program)]
        if not found:
            result.missed.append(f"{program.name}: {waste.pattern} in line {waste.line}")
            continue
        result.found[waste.pattern] += 1
        if any(one.proof.certainty is Certainty.PROVEN for one in found):
            result.proven[waste.pattern] += 1
    result.beside.update(
        one.pattern for one in profile.findings if (one.pattern, one.place.line) not in planted
    )


def _is(found: ValueFinding, waste: Waste, program: Program) -> bool:
    """Whether a finding is the planted waste; as `tests.values.corpus.profiling.Outcome` says it."""
    return (
        found.pattern == waste.pattern
        and found.place.line == waste.line
        and found.place.file == program.file
        and waste.operator in (found.operator, *([] if waste.deep else found.path[:1]))
        and (bool(found.path) or not waste.deep)
    )


def _count_clean(result: CorpusResult, program: Program, profile: ValueProfile) -> None:
    for one in profile.findings:
        operators = " > ".join((*one.path, one.operator))
        said = f"{program.name}: {one.pattern}, {operators} in line {one.place.line}"
        if one.path and (one.pattern, one.path[0]) in TRUE_INSIDE:
            result.inside.append(said)
            continue
        result.false[one.pattern] += 1
        result.wrong.append(said)
        if one.proof.certainty is Certainty.PROVEN:
            result.false_proven[one.pattern] += 1


def corpus_table(result: CorpusResult) -> str:
    """As Markdown."""
    names = ("planted", "found", "proven", "others in planted programs", "false in clean programs")
    heading = (f"pattern ({result.depth})", *names, "false and proven")
    lines = ["| " + " | ".join(heading) + " |", "|---|---|---|---|---|---|---|"]
    counts = (
        result.planted,
        result.found,
        result.proven,
        result.beside,
        result.false,
        result.false_proven,
    )
    lines += [
        f"| {name} | " + " | ".join(str(count[name]) for count in counts) + " |"
        for name in pattern_names()
    ]
    lines.append("| all | " + " | ".join(str(sum(count.values())) for count in counts) + " |")
    lines += ["", f"{len(PLANTED)} planted and {len(CLEAN)} clean programs."]
    for title, said in (
        ("Missed", result.missed),
        ("False", result.wrong),
        ("Waste of torch's own in clean programs", result.inside),
    ):
        lines += [f"{title}: " + ("; ".join(said) or "nothing") + "."]
    return "\n".join(lines)


def _good(one: Overhead) -> bool:
    return one.cpu.median <= GOALS[one.kind]


def _facts() -> dict[str, Any]:
    load = os.getloadavg()[0]
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": load,
        "quiet": load < 1.0,
    }


def _facts_line(facts: dict[str, Any]) -> str:
    state = "quiet" if facts["quiet"] else "busy with other work"
    return (
        f"torch {facts['torch']}, Python {facts['python']}, {facts['processor']} with "
        f"{facts['cores']} cores, {facts['threads']} thread(s); when it began, the machine was {state} "
        f"(load {facts['load']:.1f})."
    )


def main() -> int:
    """Print tables or JSON; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "part", nargs="?", choices=["corpus", "overhead", "all"], default="all", help="what to run"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--models", default=",".join(MODELS), help="of the overhead; all")
    parser.add_argument("--rounds", type=int, default=9, help="of the overhead; 9")
    parser.add_argument("--steps", type=int, default=8, help="in each block; 8")
    parser.add_argument("--threads", type=int, default=1, help="of torch; 1")
    parser.add_argument("--seed", type=int, default=0, help="of the order of blocks")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    warnings.simplefilter("ignore")
    facts = _facts()
    corpora: list[CorpusResult] = []
    overheads: list[Overhead] = []
    if given.part in {"corpus", "all"}:
        corpora = [measure_corpus(deep=deep, say=_talk) for deep in (False, True)]
    if given.part in {"overhead", "all"}:
        chance = random.Random(given.seed)
        overheads = measure_overhead(
            models=given.models.split(","),
            rounds=given.rounds,
            steps=given.steps,
            chance=chance,
            say=_talk,
        )
    if given.json:
        document = {
            "machine": facts,
            "corpus": [asdict(one) for one in corpora],
            "overhead": [asdict(one) for one in overheads],
        }
        print(json.dumps(document, indent=2))
    else:
        print(_facts_line(facts))
        for corpus in corpora:
            print(f"\n{corpus_table(corpus)}")
        if overheads:
            print(f"\n{overhead_table(overheads)}")
    return 0 if all(one.good for one in corpora) and all(map(_good, overheads)) else 1


def _talk(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    raise SystemExit(main())

"""How much planted waste `torchyard values` finds, how much of what it finds is false, what it costs.

    python benchmarks/values.py corpus [--deep]

Runs every program of tests/values/corpus under the watch, from the same random numbers, and counts
per pattern what was planted, found and found beside it. In a clean program every finding is false;
in a planted one, others follow from the waste or are true on their own, so they are only counted.
CPU time is that of this process, with one thread, each program natively and watched in turn. Goals:
everything planted is found, at most one false finding.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "values"))

import torch
from corpus import CLEAN, PLANTED, Program
from corpus.watching import SEED, Outcome, watch

from torchyard.values.pattern_texts import pattern_names

MOST_FALSE = 1


@dataclass(kw_only=True)
class CorpusResult:
    """What the corpus gave."""

    planted: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    beside: Counter[str] = field(default_factory=Counter)
    false: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    inside: list[str] = field(default_factory=list)
    """In clean programs, inside operators of torch: waste of torch's own, or false."""
    native_s: float = 0.0
    watched_s: float = 0.0

    @property
    def good(self) -> bool:
        """Whether the goals are reached."""
        return not self.missed and sum(self.false.values()) <= MOST_FALSE


def measure_corpus(*, deep: bool) -> CorpusResult:
    """Run all programs."""
    result = CorpusResult()
    for program in (*PLANTED, *CLEAN):
        result.native_s += _native_s(program)
        began_s = time.process_time()
        outcome = watch(program, deep=deep)
        result.watched_s += time.process_time() - began_s
        if program.wastes:
            _count_planted(result, outcome, deep=deep)
        else:
            _count_clean(result, outcome)
    return result


def _native_s(program: Program) -> float:
    torch.manual_seed(SEED)
    program.run()  # first time: imports, allocations
    torch.manual_seed(SEED)
    began_s = time.process_time()
    program.run()
    return time.process_time() - began_s


def _count_planted(result: CorpusResult, outcome: Outcome, *, deep: bool) -> None:
    missed = {waste for waste in outcome.missed if deep or not waste.deep}
    for waste in outcome.program.wastes:
        if waste.deep and not deep:
            continue
        result.planted[waste.pattern] += 1
        if waste in missed:
            result.missed.append(f"{outcome.program.name}: {waste.pattern} in line {waste.line}")
        else:
            result.found[waste.pattern] += 1
    result.beside.update(found.pattern for found in outcome.others)


def _count_clean(result: CorpusResult, outcome: Outcome) -> None:
    for found in outcome.findings:
        said = (
            f"{outcome.program.name}: {found.pattern}, {found.operator} in line {found.place.line}"
        )
        if found.path:
            result.inside.append(f"{said}, inside {found.path[0]}")
        else:
            result.false[found.pattern] += 1
            result.wrong.append(said)


def corpus_table(result: CorpusResult) -> str:
    """As Markdown."""
    lines = ["| pattern | planted | found | others in planted programs | false in clean programs |"]
    lines += ["|---|---|---|---|---|"]
    for name in pattern_names():
        counts = (result.planted, result.found, result.beside, result.false)
        lines.append(f"| {name} | " + " | ".join(str(count[name]) for count in counts) + " |")
    totals = (result.planted, result.found, result.beside, result.false)
    lines.append("| all | " + " | ".join(str(sum(count.values())) for count in totals) + " |")
    lines += [
        "",
        f"{len(PLANTED)} planted and {len(CLEAN)} clean programs, torch {torch.__version__}.",
    ]
    ratio = result.watched_s / result.native_s
    lines.append(
        f"CPU time {result.native_s:.2f} s natively, {result.watched_s:.2f} s watched ({ratio:.1f}x): "
        "tensors are small here, so that this is the cost for each operator, not for each byte."
    )
    for title, said in (
        ("Missed", result.missed),
        ("False", result.wrong),
        ("Inside operators of torch", result.inside),
    ):
        lines += [f"{title}: " + ("; ".join(said) or "nothing") + "."]
    return "\n".join(lines)


def main() -> int:
    """Print the table; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("part", choices=["corpus"])
    parser.add_argument("--deep", action="store_true", help="also inside operators")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    result = measure_corpus(deep=options.deep)
    print(corpus_table(result))
    return 0 if result.good else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""Held against the truth: what `torchyard values` says a fix saves, and what the fixed program saves.

    python benchmarks/value_prices.py [NAME ...] [--repeats 9] [--json FILE]

Every program of `value_price_programs.py` is profiled and priced in this process
(`torchyard.profile_values()` and `prove`), or with --processes as the command does it, in processes of its
own. Then the program and its fixed version run interleaved, in random order within each pair, and the
measured saving is the median over pairs: of CPU time with one thread, of wall time with two. The
bound is broken when the measured saving is larger; the range covers it when it overlaps the middle
half of the pairs. With --processes, programs with an optimizer are compared by step; otherwise
programs are compared as a whole, because that is what `prove` is given.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import value_price_programs as programs
from torchyard.core.study import Target
from torchyard.values import Values
from torchyard.values.model import ProfileRequest, Saving, ValueProfile
from torchyard.values.profiled_run import profile_values
from torchyard.values.report.findings_text import values_text

WARM_UP = 3
"""Iterations that count for no step: first allocations, and gradients that are not there yet."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the profile says of the planted lines."""

    low: float | None = None
    high: float | None = None
    bound: float | None = None
    findings: int = 0
    steps: bool = False
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One program."""

    name: str
    told: Told
    measured: tuple[float, float, float]
    """Lower quartile, median and upper quartile of the pairs."""
    clock: str
    bound: str
    covers: str


def planted_lines() -> set[int]:
    """Return the lines that are marked."""
    lines = Path(programs.__file__).read_text(encoding="utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# waste")}


def profile_in_processes(name: str) -> ValueProfile:
    """Profile one program as the command does it."""
    request = ProfileRequest(
        target=Target(name="here", python=sys.executable), program=(str(programs.__file__), name)
    )
    with tempfile.TemporaryDirectory() as folder:
        return profile_values(request, folder=Path(folder) / "run", say=lambda _: None)[0]


def profile_here(name: str) -> ValueProfile:
    """Profile one program in this process."""

    def run() -> None:
        torch.manual_seed(0)
        for _ in programs.PROGRAMS[name](False):
            pass

    run()
    values = Values()
    with values:
        run()
    return values.prove(run, timed_runs=3)


def told_of(name: str, *, processes: bool, verbose: bool) -> Told:
    """Profile one program and add up the findings on planted lines."""
    profile = (profile_in_processes if processes else profile_here)(name)
    planted = planted_lines()
    found = [one for one in profile.findings if one.place.line in planted]
    if verbose:
        sys.stderr.write(values_text(profile))
    best: dict[tuple[int, str, bool], Saving] = {}
    for one in found:
        if one.worth.saving is not None:
            key = (one.place.line, one.operator, one.place.backward)
            known = best.get(key)
            if known is None or known.high_share < one.worth.saving.high_share:
                best[key] = one.worth.saving
    why = "; ".join(sorted({one.worth.unavailable for one in found if one.worth.unavailable}))
    steps = processes and profile.steps > 1
    if not best:
        return Told(findings=len(found), steps=steps, why=why or "not found")
    bounds = [one.bound_share for one in best.values()]
    whole = [bound for bound in bounds if bound is not None]
    return Told(
        low=min(1.0, sum(one.low_share for one in best.values())),
        high=min(1.0, sum(one.high_share for one in best.values())),
        bound=min(1.0, sum(whole)) if len(whole) == len(bounds) else None,
        findings=len(found),
        steps=steps,
        why=why,
    )


def measured(name: str, repeats: int, steps: bool) -> tuple[str, tuple[float, float, float]]:
    """Run the program and its fixed version in pairs; the clock, and quartiles of the saving."""
    clock = int(name in programs.TWO_THREADS)
    chance = random.Random(name)
    pairs = []
    for number in range(repeats + 1):
        took: dict[bool, float] = {}
        for fixed in chance.sample((False, True), 2):
            torch.manual_seed(0)
            marks = [_now()]
            marks += [_now() for _ in programs.PROGRAMS[name](fixed)]
            took[fixed] = (_step if steps else _whole)(marks)[clock]
        if number:  # the first pair warms up
            pairs.append(1 - took[True] / took[False])
    low, middle, high = statistics.quantiles(pairs, n=4, method="inclusive")
    return ("CPU", "wall")[clock], (low, middle, high)


def _now() -> tuple[float, float]:
    return time.process_time(), time.perf_counter()


def _whole(marks: list[tuple[float, float]]) -> tuple[float, float]:
    return marks[-1][0] - marks[0][0], marks[-1][1] - marks[0][1]


def _step(marks: list[tuple[float, float]]) -> tuple[float, float]:
    steps = list(zip(marks[WARM_UP:], marks[WARM_UP + 1 :], strict=False))
    cpu = statistics.median(after[0] - before[0] for before, after in steps)
    return cpu, statistics.median(after[1] - before[1] for before, after in steps)


def judged(name: str, told: Told, clock: str, found: tuple[float, float, float]) -> Row:
    """Hold what was told against what was measured."""
    bound = "none" if told.bound is None else "holds" if found[1] <= told.bound else "BROKEN"
    covers = "not measured"
    if told.low is not None and told.high is not None:
        covers = "yes" if told.low <= found[2] and found[0] <= told.high else "no"
    return Row(name=name, told=told, measured=found, clock=clock, bound=bound, covers=covers)


def line(row: Row) -> str:
    """Format one row of the table."""

    def percent(share: float | None) -> str:
        return "-" if share is None else f"{100 * share:.1f}"

    told = f"{percent(row.told.low)}-{percent(row.told.high)}"
    low, middle, high = (percent(share) for share in row.measured)
    text = f"{row.name:32} {told:>12} {percent(row.told.bound):>6}  {middle:>6} [{low}, {high}]"
    return f"{text:76} {row.clock:5} {row.bound:7} {row.covers:12} {row.told.why[:60]}".rstrip()


def main() -> int:
    """Run the programs that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--processes", action="store_true", help="profile as the command does")
    given = parser.parse_args()
    rows = []
    head = f"{'program':32} {'told %':>12} {'bound':>6}  measured %"
    print(f"{head:76} clock bound   range covers", flush=True)
    for name in given.names or programs.PROGRAMS:
        torch.set_num_threads(2 if name in programs.TWO_THREADS else 1)
        told = told_of(name, processes=given.processes, verbose=given.verbose)
        rows.append(judged(name, told, *measured(name, given.repeats, told.steps)))
        print(line(rows[-1]), flush=True)
    bounds, ranges = Counter(row.bound for row in rows), Counter(row.covers for row in rows)
    print(f"{len(rows)} programs; bound: {dict(bounds)}; range covers: {dict(ranges)}")
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 1 if bounds["BROKEN"] else 0


if __name__ == "__main__":
    sys.exit(main())

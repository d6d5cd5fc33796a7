"""Held against the truth: what `torchyard values` says a fix saves, and what the fixed program saves.

    python benchmarks/value_prices.py [NAME ...] [--held-out] [--repeats 9] [--json FILE]

Every program of `value_price_programs.py`, or with --held-out of `value_price_held_out.py`, is profiled and priced in this process
(`torchyard.profile_values()` and `prove`), or with --processes as the command does it, in processes of its
own. Then the program and its fixed version run interleaved, in random order within each pair, and the
measured saving is the median over pairs: of CPU time with one thread, of wall time with two. The
bound is broken when the measured saving is larger; the range covers it when it overlaps the middle
half of the pairs. With --processes, programs with an optimizer are compared by step, and others as a
whole in processes of their own, which have first calls and first allocations as the profiled runs have.
Otherwise programs are compared as a whole in this process, because that is what `prove` is given. With --fixes the fix is also
applied mechanically, as `torchyard values --gains` does, and that saving stands beside the others.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

import torch

import value_price_held_out as held_out
import value_price_programs as programs
from torchyard.core.study import Target
from torchyard.values.context_manager import ValueProfiler
from torchyard.values.fix_runs import measure_fixes
from torchyard.values.model import ProfileRequest, Saving, ValueProfile
from torchyard.values.profiled_run import profile_program
from torchyard.values.report.descriptions import measured_text
from torchyard.values.report.findings_text import values_text

IN_PROCESS = """
import runpy, sys, time, torch
sys.argv = sys.argv[1:]
cpu, wall = time.process_time(), time.perf_counter()
runpy.run_path(sys.argv[0], run_name="__main__")
print(time.process_time() - cpu, time.perf_counter() - wall)
"""
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
    fix: str = ""
    """What the mechanically applied fixes have saved."""


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


def corpus_of(name: str) -> ModuleType:
    """Return the module that has a program."""
    return programs if name in programs.PROGRAMS else held_out


def planted_lines(corpus: ModuleType = programs) -> set[int]:
    """Return the lines that are marked."""
    lines = Path(str(corpus.__file__)).read_text(encoding="utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# waste")}


def profile_in_processes(name: str, *, fixes: bool = False) -> ValueProfile:
    """Profile one program as the command does it."""
    request = ProfileRequest(
        target=Target(name="here", python=sys.executable),
        program=(str(corpus_of(name).__file__), name),
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        profile = profile_program(request, folder=folder, say=lambda _: None)[0]
        return measure_fixes(request, folder, profile, say=lambda _: None) if fixes else profile


def profile_here(name: str) -> ValueProfile:
    """Profile one program in this process."""

    def run() -> None:
        torch.manual_seed(0)
        for _ in corpus_of(name).PROGRAMS[name](False):
            pass

    run()
    values = ValueProfiler()
    with values:
        run()
    return values.prove(run, timed_runs=3)


def told_of(name: str, *, processes: bool, fixes: bool, verbose: bool) -> Told:
    """Profile one program and add up the findings on planted lines."""
    profile = profile_in_processes(name, fixes=fixes) if processes else profile_here(name)
    planted = planted_lines(corpus_of(name))
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
        fix="; ".join(measured_text(one.worth) for one in found if one.worth.measured),
    )


def measured(
    name: str, repeats: int, *, steps: bool, processes: bool
) -> tuple[str, tuple[float, float, float]]:
    """Run the program and its fixed version in pairs; the clock, and quartiles of the saving."""
    corpus = corpus_of(name)
    clock = int(name in corpus.TWO_THREADS)
    chance = random.Random(name)
    pairs = []
    for number in range(repeats + 1):
        took: dict[bool, float] = {}
        for fixed in chance.sample((False, True), 2):
            if processes and not steps:
                took[fixed] = _process(corpus, name, fixed)[clock]
                continue
            torch.manual_seed(0)
            marks = [_now()]
            marks += [_now() for _ in corpus.PROGRAMS[name](fixed)]
            took[fixed] = (_step if steps else _whole)(marks)[clock]
        if number:  # the first pair warms up
            pairs.append(1 - took[True] / took[False])
    low, middle, high = statistics.quantiles(pairs, n=4, method="inclusive")
    return ("CPU", "wall")[clock], (low, middle, high)


def _process(corpus: ModuleType, name: str, fixed: bool) -> tuple[float, float]:
    """Run a program in a process of its own; CPU time and wall time without the start of torch."""
    words = [str(corpus.__file__), name, *(["--fixed"] if fixed else [])]
    done = subprocess.run(
        [sys.executable, "-c", IN_PROCESS, *words], check=True, capture_output=True, text=True
    )
    cpu, wall = done.stdout.split()[-2:]
    return float(cpu), float(wall)


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
    parser.add_argument("--held-out", action="store_true", help="programs that tuned no constant")
    parser.add_argument("--fixes", action="store_true", help="apply fixes, too; with --processes")
    given = parser.parse_args()
    rows = []
    head = f"{'program':32} {'told %':>12} {'bound':>6}  measured %"
    print(f"{head:76} clock bound   range covers", flush=True)
    processes = given.processes or given.fixes
    for name in given.names or (held_out if given.held_out else programs).PROGRAMS:
        torch.set_num_threads(2 if name in corpus_of(name).TWO_THREADS else 1)
        told = told_of(name, processes=processes, fixes=given.fixes, verbose=given.verbose)
        found = measured(name, given.repeats, steps=told.steps, processes=processes)
        rows.append(judged(name, told, *found))
        print(line(rows[-1]), flush=True)
        if told.fix:
            print(f"    {told.fix}", flush=True)
    bounds, ranges = Counter(row.bound for row in rows), Counter(row.covers for row in rows)
    print(f"{len(rows)} programs; bound: {dict(bounds)}; range covers: {dict(ranges)}")
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 1 if bounds["BROKEN"] else 0


if __name__ == "__main__":
    sys.exit(main())

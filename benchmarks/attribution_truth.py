"""Does `torchyard why` find a planted difference? Programs in which one operator is slower by design.

Each case is a small transformer (`attribution_program.py`) and a copy of it with one change in a known
module: more work, a slower implementation, a copy of a tensor, a detour over another data type, code
that is excluded from compilation, a graph break, many small launches, a synchronization, time on the
host. Reported for each case: whether the planted part is named first, whether the interval of its
contribution holds the true time (known for busy-waiting operators and host code), whether the parts
sum to a time within the end-to-end interval, and whether identical programs name nobody.

    python benchmarks/attribution_truth.py --cases 40 --launches 5 --seconds 8
    python benchmarks/attribution_truth.py --device cuda --quick
    taskset -c 3 python benchmarks/attribution_truth.py --shard 1/8 --data truth.jsonl
    python benchmarks/attribution_truth.py --report --data truth.jsonl
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torchyard.core.study import Environment, MeasureSettings, Target, Variant, Workload
from torchyard.errors import TorchyardError
from torchyard.why.attribution import attribute
from torchyard.why.measurement import AttributionSession
from torchyard.why.model import Attribution, Part

PROGRAM = Path(__file__).with_name("attribution_program.py")
UNIT_NS = 2e5
"""Busy-waiting time of each unit of work, as in the program."""
REMAINDERS = {"host", "idle"}
TOLERANCE_NS = {"cpu": 3e3, "cuda": 5e3}
TOLERANCE_SHARE = {"cpu": 0.0, "cuda": 0.01}
"""CPU: uncertainty of the measured cost of the operator. GPU: start of a kernel, resolution of its clock."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A planted difference; `kind` is empty for identical programs."""

    place: str = ""
    kind: str = ""
    amount: int = 0
    sides: tuple[str, str] = ("eager", "eager")
    size: str = "small"

    @property
    def name(self) -> str:
        """Name of the case: `eager-inductor:spin:head:5`."""
        first, second = self.sides
        sides = first if first == second else f"{first}-{second}"
        return (
            f"{sides}:{self.kind}:{self.place}:{self.amount}" if self.kind else f"{sides}:identical"
        )

    @property
    def true_ns(self) -> float | None:
        """The planted time where it is known."""
        one_process = self.sides == ("eager", "eager")
        exact = self.kind == "spin" or (self.kind == "sleep" and one_process)
        return UNIT_NS * self.amount if exact and self.sides[0] == self.sides[1] else None

    def is_guilty(self, part: Part) -> bool:
        """Whether a part is the planted one.

        Graph breaks and small launches cost host time, and kernels in the planted module.
        """
        if self.kind in {"sleep", "item", "break", "launches"} and part.kind in REMAINDERS:
            return True
        if self.kind in {"sleep", "item"}:
            return False
        module = ".".join("*" if word.isdecimal() else word for word in self.place.split("."))
        return any(
            source.module == module or source.module.startswith(module + ".")
            for source in part.sources
        )


def _cases(sides: tuple[str, str], size: str, *texts: str) -> list[Case]:
    """Return cases written as `kind place amount`."""
    words = [text.split() for text in texts]
    return [
        Case(kind=kind, place=place, amount=int(amount), sides=sides, size=size)
        for kind, place, amount in words
    ]


EAGER = ("eager", "eager")
COMPILED = ("inductor", "inductor")
MIXED = ("eager", "inductor")
GRAPHS = ("inductor:reduce-overhead", "inductor:reduce-overhead")

CPU_CASES = [
    *_cases(
        EAGER,
        "small",
        *(f"spin {place} {amount}" for place in ("blocks.1.norm", "head") for amount in (2, 5)),
        *(f"work {place} 5" for place in ("blocks.1.norm", "blocks.0.attention", "blocks.1.act")),
        *(f"copy {place} 5" for place in ("blocks.0.attention", "blocks.0.down")),
        *(f"detour {place} 5" for place in ("blocks.1.act", "blocks.0.down")),
        *(f"matmul {place} 2" for place in ("blocks.0.down", "blocks.0.attention", "head")),
        *(f"again {place} 2" for place in ("blocks.1.act", "head", "blocks.0.attention")),
        *(f"slow {place} 1" for place in ("blocks.1.norm", "blocks.0.down", "blocks.1.act")),
        *(f"sleep {place} 5" for place in ("blocks.1.norm", "head", "blocks.1.act")),
        *("loop blocks.1.act 2", "launches blocks.0.down 10", "launches head 20"),
    ),
    *_cases(
        COMPILED,
        "small",
        *(f"spin {place} 5" for place in ("blocks.1.norm", "head")),
        *(f"matmul {place} 2" for place in ("blocks.0.attention", "blocks.0.down")),
        *(f"fallback {place} 1" for place in ("blocks.1.act", "blocks.0.attention")),
        *("slow blocks.1.norm 1", "slow blocks.0.down 1", "sleep head 10"),
        *("break blocks.1.act 3", "break blocks.0.attention 5", "work blocks.1.norm 20"),
    ),
    *_cases(
        MIXED,
        "small",
        *("spin blocks.1.act 20", "spin head 20", "matmul blocks.0.down 10", "sleep head 20"),
        *("slow blocks.0.down 1", "matmul blocks.0.attention 10"),
    ),
]
CUDA_CASES = [
    *_cases(EAGER, "large", "work blocks.1.act 5", "slow blocks.1.norm 1", "spin blocks.1.act 2"),
    *_cases(EAGER, "small", "sleep blocks.1.norm 5", "launches blocks.0.down 10"),
    *_cases(COMPILED, "large", "fallback blocks.1.act 1", "spin blocks.0.down 5"),
    *_cases(EAGER, "large", "copy blocks.0.attention 5", "again blocks.0.attention 1"),
    *_cases(EAGER, "small", "item blocks.1.act 5", "sleep head 2"),
    *_cases(MIXED, "large", "spin blocks.1.act 20", "matmul blocks.0.down 10"),
    *_cases(COMPILED, "small", "break blocks.1.norm 2"),
    *_cases(EAGER, "large", "detour blocks.0.down 5", "spin head 5", "matmul blocks.0.down 1"),
    *_cases(COMPILED, "large", "matmul blocks.0.attention 1"),
    *_cases(GRAPHS, "large", "matmul blocks.0.down 1"),
    *_cases(COMPILED, "small", "item head 2"),
]


def cases_of(device: str, count: int, identical: int, seed: int) -> list[Case]:
    """Return planted cases with those of identical programs among them.

    On the CPU in random order; on a GPU in the order of the list, which begins with all families.
    """
    planted = list(CPU_CASES if device == "cpu" else CUDA_CASES)
    if device == "cpu":
        random.Random(seed).shuffle(planted)
    chosen = planted[:count]
    for index in range(identical):
        sides = COMPILED if index % 3 == 2 else EAGER
        size = "large" if device != "cpu" and index % 2 == 0 else "small"
        chosen.insert((index + 1) * 4, Case(sides=sides, size=size))
    return chosen


def measure(
    case: Case, *, device: str, launches: int, seconds: float, threads: int | None, preload: str
) -> Attribution:
    """Return the attribution of a case."""
    planted = f"{case.place} {case.kind} {case.amount}" if case.kind else ""
    variables = (("PLANTED", planted), ("PLANTED_SIZE", case.size))
    one_process = case.sides == EAGER
    changed = () if one_process else (("PLANTED_NET", "1"),)
    target = Target(name="here", python=sys.executable)
    libraries = (preload,) if preload else ()
    baseline, candidate = (
        Variant(
            name=name,
            target=target,
            environment=Environment(name=place, variables=own, preload=libraries),
            backend=backend,
        )
        for name, place, own, backend in (
            ("baseline", "same", variables, case.sides[0]),
            (
                "candidate",
                "same" if one_process else "planted",
                (*variables, *changed),
                f"{PROGRAM}:planted" if one_process else case.sides[1],
            ),
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        session = AttributionSession(
            Workload(suite="file", name=f"{PROGRAM}:Net", device=device),
            baseline,
            candidate,
            MeasureSettings(threads=threads),
            launches=launches,
            seconds=seconds,
            folder=Path(folder),
            listener=lambda _event: None,
        )
        measured = session.run()
    workload = Workload(suite="file", name="planted", device=device)
    return attribute(workload, "baseline", "candidate", measured.rounds)


@cache
def spin_cost_ns(amount: int) -> float:
    """Return the measured time of the busy-waiting operator, which includes its call from Python."""
    command = [sys.executable, str(PROGRAM), str(amount)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


class Score:
    """Counts of all cases so far; each case is printed as it ends."""

    def __init__(self, device: str, data: Path | None) -> None:
        self._device = device
        self._data = data
        self._judged: dict[str, bool] = {}
        self.counts: dict[str, list[int]] = {}

    def _count(self, what: str, holds: bool) -> str:
        count = self.counts.setdefault(what, [0, 0])
        count[0] += holds
        count[1] += 1
        self._judged[what] = holds
        return "yes" if holds else "NO"

    def add_record(self, line: str) -> None:
        """Count a case that another process judged, and print its row."""
        record = json.loads(line)
        for what, holds in record["judged"].items():
            self._count(what, holds)
        print(record["row"])

    def add(self, case: Case, result: Attribution, duration_s: float) -> None:
        """Judge a case and print its row."""
        named = [part for part in result.parts if part.named]
        columns = [f"{case.name:45} {duration_s:4.0f} s"]
        if case.kind:
            guilty = [part for part in result.parts if case.is_guilty(part)]
            own_ns = sum(part.difference_ns for part in guilty)
            truth = self._truth_ns(case) or ()
            text = " to ".join(dict.fromkeys(f"{one / 1e3:.0f}" for one in truth)) or "-"
            columns.append(f"planted {own_ns / 1e3:8.1f} us, true {text:>12}")
            is_first = bool(named) and case.is_guilty(named[0])
            columns.append(f"first {self._count('planted part named first', is_first)}")
            columns.append(f"holds {self._holds(case, guilty)}")
        else:
            columns.append(f"silent {self._count('identical: nobody named', not named)}")
        columns.append(f"sum {self._count('sum within the end-to-end interval', _sums(result))}")
        columns.append(
            f"end to end {result.difference_ns / 1e3:.1f} [{result.low_ns / 1e3:.1f}, "
            f"{result.high_ns / 1e3:.1f}] of {result.baseline_ns / 1e3:.0f} us"
        )
        if named and (not case.kind or not case.is_guilty(named[0])):
            columns.append(f"named {named[0].name} {named[0].difference_ns / 1e3:+.1f} us")
        if result.untrusted:
            columns.append(f"untrusted: {result.untrusted}")
        row = "  ".join(columns)
        print(row, flush=True)
        if self._data is not None:
            with self._data.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"row": row, "judged": self._judged}) + "\n")
        self._judged = {}

    def _truth_ns(self, case: Case) -> tuple[float, float] | None:
        """Return the planted time as a range: the call of an operator from Python is host time in part.

        None for host time on a GPU: how much of it is hidden is unknown.
        """
        true_ns = case.true_ns
        if true_ns is None or (self._device == "cuda" and case.kind == "sleep"):
            return None
        called = self._device == "cpu" and case.kind == "spin"
        return true_ns, spin_cost_ns(case.amount) if called else true_ns

    def _holds(self, case: Case, guilty: list[Part]) -> str:
        truth = self._truth_ns(case)
        if truth is None:
            return "-"
        exact = [
            part
            for part in guilty
            if case.kind == "sleep" or any(source.operator == "spin" for source in part.sources)
        ]
        low_ns, high_ns = sum(part.low_ns for part in exact), sum(part.high_ns for part in exact)
        margin_ns = TOLERANCE_NS[self._device] + TOLERANCE_SHARE[self._device] * truth[1]
        holds = low_ns - margin_ns <= truth[1] and truth[0] <= high_ns + margin_ns
        text = f"[{low_ns / 1e3:.1f}, {high_ns / 1e3:.1f}] "
        return text + self._count("interval holds the true time", holds)

    def summary(self) -> str:
        """Return one line for each question."""
        return "\n".join(f"{what}: {yes} of {all_}" for what, (yes, all_) in self.counts.items())


def _sums(result: Attribution) -> bool:
    """Whether the parts sum to a time within the end-to-end interval, without the profiler bias.

    On a GPU they do so by construction: there, the GPU time must fit into the time of an iteration.
    """
    if result.workload.device == "cpu":
        attributed_ns = sum(part.difference_ns for part in result.parts if part.kind != "profiler")
        return result.low_ns <= attributed_ns <= result.high_ns
    idle = [part for part in result.parts if part.kind == "idle"]
    return all(
        part.baseline_ns >= -0.02 * result.baseline_ns
        and part.candidate_ns >= -0.02 * result.candidate_ns
        for part in idle
    )


def main() -> None:
    """Measure all cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--identical", type=int, help="comparisons of identical programs")
    parser.add_argument("--launches", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--quick", action="store_true", help="3 launches and 2 s of measuring")
    parser.add_argument("--threads", type=int, help="1 on the CPU by default")
    parser.add_argument(
        "--preload", default="", help="allocator of both sides, such as libjemalloc.so.2"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e9, help="start no case after this time")
    parser.add_argument("--shard", default="1/1", help="such as 2/8: the second of eight parts")
    parser.add_argument(
        "--data", type=Path, help="file of cases: those in it are left out, others appended"
    )
    parser.add_argument("--report", action="store_true", help="measure nothing, show --data")
    options = parser.parse_args()
    device = options.device
    shard, shards = (int(number) for number in options.shard.split("/"))
    identical = options.identical if options.identical is not None else 10 if device == "cpu" else 5
    started_s = time.monotonic()
    has_data = options.data is not None and options.data.exists()
    score = Score(device, options.data)
    if options.report:
        for line in options.data.read_text(encoding="utf-8").splitlines():
            score.add_record(line)
        print(score.summary())
        return
    done = Counter(
        json.loads(line)["row"].split()[0]
        for line in (options.data.open(encoding="utf-8") if has_data else ())
    )
    missing = []
    for case in cases_of(device, options.cases, identical, options.seed):
        if options.only in case.name and not done[case.name]:
            missing.append(case)
        done[case.name] -= done[case.name] > 0
    for case in missing[shard - 1 :: shards]:
        if time.monotonic() - started_s > 60.0 * options.minutes:
            print("stopped: --minutes is over", flush=True)
            break
        case_s = time.monotonic()
        try:
            result = measure(
                case,
                device=device,
                launches=options.launches or (3 if options.quick else 5),
                seconds=options.seconds or (2.0 if options.quick else 8.0),
                threads=options.threads or (1 if device == "cpu" else None),
                preload=options.preload,
            )
        except TorchyardError as error:
            print(f"{case.name:45} failed: {error}", flush=True)
            continue
        score.add(case, result, time.monotonic() - case_s)
    print(score.summary())


if __name__ == "__main__":
    main()

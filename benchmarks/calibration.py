"""Does Torchyard keep its promises on this machine? Real comparisons with a known answer.

    python benchmarks/calibration.py collect --data calibration.jsonl --minutes 60
    python benchmarks/calibration.py report --data calibration.jsonl

`collect` takes, in turn, comparisons of one process and of two processes, each with a candidate that
is the same code (A/A) and one with two layers more in a hundred (2 %), and rival rules on the same
workload at the same time. It appends a line per comparison and can be stopped and continued.
`report` prints one table: false alarms, slowdowns found, coverage of the intervals, overhead.

Comparisons run for their whole time with a single look at the end; `report` then replays the
sequential rule on the recorded launches, so that both are judged on the same data.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from calibration_report import print_report
from torchyard.bench.launch import LaunchProcesses, draw_launch
from torchyard.bench.preparation import PreparationState, warm_up
from torchyard.bench.session import WorkloadSession
from torchyard.core.block import Block
from torchyard.core.events import ignore_events
from torchyard.core.study import (
    Budget,
    Environment,
    MeasureSettings,
    Study,
    Target,
    Variant,
    Workload,
)
from torchyard.stats.pairs import pair_blocks

INJECTED = Path(__file__).with_name("injected.py")
CHAIN = Workload(suite="kernels", name="layered-mlp")
REPEATS = 30
TIMES_S = {"one process": 12.0, "two processes": 15.0, "two processes, before": 15.0}
"""Shorter than the default minute: what holds with few launches holds with many."""
EVERY = {"one process": 1, "two processes": 1, "two processes, before": 3}
"""Of so many turns one is taken; rivals are taken every second turn."""


class LaunchRecorder:
    """Keeps blocks and the measuring time at the end of each launch."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.launches: list[tuple[int, float]] = []
        self._ready: float | None = None

    def add_target(self, name: str, facts: Mapping[str, object]) -> None:
        """Not needed here."""

    def add_launch(self, record: Mapping[str, object]) -> None:
        """The launch's number and when it ended."""
        now = time.monotonic()
        if self._ready is None:
            timing: Any = record["timing"]
            self._ready = now - float(timing["wall_s"])
        self.launches.append((int(str(record["launch"])), now - self._ready))

    def add_blocks(self, workload: Workload, blocks: Sequence[Block]) -> None:  # noqa: ARG002
        """Blocks of a round."""
        self.blocks.extend(blocks)


def sides(kind: str) -> tuple[Variant, Variant, Variant]:
    """Baseline, the same again, and two percent slower; in one process or in three."""
    target = Target(name="here", python=sys.executable)
    plain = Environment(name="plain")

    def variant(name: str, function: str) -> Variant:
        own = plain if kind == "one process" else Environment(name=name)
        backend = f"{INJECTED}:{function}"
        return Variant(name=name, target=target, backend=backend, environment=own)

    return variant("base", "plus_0"), variant("again", "plus_0"), variant("slower", "plus_2")


def settings(kind: str) -> MeasureSettings:
    """One thread; `before` is without re-seating and with the kernel's own address layout."""
    before = kind.endswith("before")
    return MeasureSettings(
        threads=1,
        check_accuracy=False,
        reseat="off" if before else "auto",
        paired_layout=not before,
    )


def compare(kind: str, seed: int) -> dict[str, Any]:
    """One comparison of the base with both others, with every launch's pairs."""
    base, again, slower = sides(kind)
    study = Study(
        name="calibration",
        baseline=base,
        candidates=(again, slower),
        workloads=(CHAIN,),
        budget=Budget(time_s=TIMES_S[kind], precision_goal=0.0),
        settings=settings(kind),
    )
    recorder = LaunchRecorder()
    with tempfile.TemporaryDirectory(prefix="torchyard-") as folder:
        session = WorkloadSession(
            study,
            CHAIN,
            recorder=recorder,
            log_folder=Path(folder) / "logs",
            scratch=Path(folder) / "scratch",
            listener=ignore_events,
            chance=random.Random(seed),
        )
        rows = session.run()
    result: dict[str, Any] = {"kind": kind, "seed": seed, "launch_ends_s": recorder.launches}
    for row, candidate in zip(rows, (again, slower), strict=True):
        if row.estimate is None or row.estimate.interval is None:
            continue
        paired = pair_blocks(recorder.blocks, base.name, candidate.name)
        result[candidate.name] = {
            "verdict": str(row.verdict),
            "speedup": row.estimate.speedup,
            "low": row.estimate.interval.low,
            "high": row.estimate.interval.high,
            "p": row.estimate.p_value,
            "launches": [list(launch) for launch in paired.medians if launch],
            "disturbed": paired.disturbed,
            "pairs": paired.pairs,
            "timed_share": row.timed_share,
            "elapsed_s": row.elapsed_s,
        }
    return result


def rivals(kind: str, seed: int) -> dict[str, Any]:
    """Raw times of the same code twice, as other harnesses take them."""
    base, again, _ = sides(kind)
    chance = random.Random(seed)
    prepared = PreparationState()
    with tempfile.TemporaryDirectory(prefix="torchyard-") as folder:
        logs = Path(folder) / "logs"
        logs.mkdir()
        with LaunchProcesses(
            CHAIN,
            (base, again),
            settings(kind + ", before"),
            draw=draw_launch(chance),
            log_folder=logs,
            scratch=Path(folder),
        ) as crew:
            for variant in (base, again):
                warm_up(crew, variant, prepared)

            def once(variant: Variant) -> float:
                answer = crew.ask(
                    variant,
                    "block",
                    phase="timing",
                    limit_s=60.0,
                    variant=variant.name,
                    inner=1,
                    samples=1,
                    prime=0,
                    settle=False,
                    flush_l2=False,
                )
                return float(answer["samples_ns"][0])

            alternating = [(once(base), once(again)) for _ in range(REPEATS)]
            first = [once(base) for _ in range(REPEATS)]
            second = [once(again) for _ in range(REPEATS)]
    return {
        "kind": kind + " rivals",
        "seed": seed,
        "alternating": alternating,
        "sequential": [first, second],
    }


def collect(data: Path, minutes: float, kinds: list[str]) -> None:
    """Append comparisons until the time is used."""
    deadline = time.monotonic() + 60 * minutes
    seed = sum(1 for _ in data.open()) if data.exists() else 0
    turn = 0
    with data.open("a", encoding="utf-8") as file:
        while time.monotonic() < deadline:
            turn += 1
            for kind in kinds:
                if turn % EVERY[kind]:
                    continue
                seed += 1
                records = [compare(kind, seed)]
                if not kind.endswith("before") and turn % 2:
                    records.append(rivals(kind, seed))
                for record in records:
                    file.write(json.dumps(record) + "\n")
                    file.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["collect", "report"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--kind", action="append", choices=list(TIMES_S), default=None)
    options = parser.parse_args()
    if options.action == "collect":
        collect(options.data, options.minutes, options.kind or list(TIMES_S))
    else:
        print_report([json.loads(line) for line in options.data.open(encoding="utf-8")])


if __name__ == "__main__":
    main()

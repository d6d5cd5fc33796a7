"""What the watch of values costs on a CPU: blocks of steps watched beside blocks of steps alone.

A part of `benchmarks/values.py`, which runs it. Each round has one block of native, one of fast and
one of deep steps of the same model, in random order, and ratios are taken within the round: a busy
machine slows all three. A watch looks closely at its first steps and surveys the later ones; both are
told apart. Left out of both are the first step of a block, which learns operators and places, and the
first two surveyed ones, in which the follower learns the order of operators.
Proofs are off: they run once for each cause, not in each step.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torchyard.worker.values.exchange import Options
from torchyard.worker.values.profiling_session import ProfilingSession

Step = Callable[[], None]
KINDS = ("native", "fast", "deep")
GOALS = {"fast": 1.3, "deep": 2.0}
CONFIDENCE = 0.95
LEARNING = 2


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Watched over native: the median over rounds, with an interval for it."""

    median: float
    low: float
    high: float
    rounds: int


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """Of one model and one kind of watch."""

    model: str
    kind: str
    phase: str
    """`close` or `surveyed`."""
    native_ms: float
    """CPU time of a native step: the median."""
    cpu: Ratio
    wall: Ratio


class Residual(torch.nn.Module):  # type: ignore[misc]
    """Two convolutions around a shortcut."""

    def __init__(self, narrow: int, wide: int, stride: int) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(narrow, wide, 3, stride, 1, bias=False),
            torch.nn.BatchNorm2d(wide),
            torch.nn.ReLU(),
            torch.nn.Conv2d(wide, wide, 3, 1, 1, bias=False),
            torch.nn.BatchNorm2d(wide),
        )
        self.short: torch.nn.Module = torch.nn.Identity()
        if stride != 1 or narrow != wide:
            self.short = torch.nn.Conv2d(narrow, wide, 1, stride, bias=False)

    def forward(self, x: Any) -> Any:
        """The sum of both ways."""
        return torch.relu(self.body(x) + self.short(x))


def resnet() -> Step:
    """A ResNet-18 training step: batch 4 of 64x64 pictures."""
    stages = ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1))
    layers: list[torch.nn.Module] = [
        torch.nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        torch.nn.BatchNorm2d(64),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(3, 2, 1),
    ]
    before = 64
    for wide, stride in stages:
        layers.append(Residual(before, wide, stride))
        before = wide
    head = (torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(512, 1000))
    model = torch.nn.Sequential(*layers, *head)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    def step() -> None:
        pictures, labels = torch.randn(4, 3, 64, 64), torch.randint(0, 1000, (4,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(pictures), labels).backward()
        optimizer.step()

    return step


def transformer(*, width: int = 512, sequences: int = 8) -> Step:
    """A transformer training step: 4 layers, sequences of 128."""
    layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.1, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(sequences, 128, width)).square().mean().backward()
        optimizer.step()

    return step


MODELS: dict[str, Callable[[], Step]] = {
    "resnet18": resnet,
    "transformer-256": lambda: transformer(width=256, sequences=2),
    "transformer-512": transformer,
}
"""ResNet-18 with 4 images of 64x64; encoders of width 256 (2 sequences of 128) and 512 (8)."""

Times = dict[str, list[tuple[float, float]]]
"""Phase -> (CPU seconds, wall seconds) of each step."""


def measure_overhead(
    *,
    models: list[str],
    rounds: int,
    steps: int,
    chance: random.Random,
    say: Callable[[str], None],
) -> list[Overhead]:
    """Every kind and phase of the models; after Ctrl-C, what the rounds gave that were finished."""
    found: list[Overhead] = []
    for name in models:
        torch.manual_seed(0)
        step = MODELS[name]()
        taken: list[dict[str, Times]] = []
        stopped = False
        try:
            for _ in range(2):
                step()
            for number in range(rounds):
                say(f"{name}: round {number + 1} of {rounds}")
                order = chance.sample(KINDS, len(KINDS))
                taken.append({kind: _block(step, kind, steps) for kind in order})
        except KeyboardInterrupt:
            stopped = True
        if taken:
            phases = _phases(taken)
            found += [_overhead(name, kind, phase, taken) for kind in GOALS for phase in phases]
        if stopped:
            break
    return found


def _block(step: Step, kind: str, steps: int) -> Times:
    """A block of steps of one kind; the phase of each is what the watch says."""
    if kind == "native":
        step()
        return {"native": [_cost_s(step) for _ in range(steps - 1)]}
    times: Times = defaultdict(list)
    session = ProfilingSession(Options(deep=kind == "deep", prove=False))
    if session.library is not None:
        session.library.wait()  # compiled once for each torch, beside the program
    session.start()
    try:
        step()
        surveyed = 0
        for _ in range(steps - 1):
            surveyed = surveyed + 1 if session.mode.surveying else 0
            cost = _cost_s(step)
            if surveyed == 0 or surveyed > LEARNING:
                times["surveyed" if surveyed else "close"].append(cost)
    finally:
        session.stop()
    return times


def _cost_s(step: Step) -> tuple[float, float]:
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    step()
    return time.process_time() - cpu_s, time.perf_counter() - wall_s


def _phases(taken: list[dict[str, Times]]) -> list[str]:
    seen = {phase for block in taken for kind in GOALS for phase in block[kind]}
    return [phase for phase in ("close", "surveyed") if phase in seen]


def _overhead(model: str, kind: str, phase: str, taken: list[dict[str, Times]]) -> Overhead:
    ratios: tuple[list[float], list[float]] = ([], [])
    natives: list[float] = []
    for block in taken:
        natives.append(_middle(block["native"]["native"], 0))
        if block[kind].get(phase):
            for clock, values in enumerate(ratios):
                native = _middle(block["native"]["native"], clock)
                values.append(_middle(block[kind][phase], clock) / native)
    return Overhead(
        model=model,
        kind=kind,
        phase=phase,
        native_ms=statistics.median(natives) * 1e3,
        cpu=ratio_of(ratios[0]),
        wall=ratio_of(ratios[1]),
    )


def _middle(times: list[tuple[float, float]], clock: int) -> float:
    return statistics.median(one[clock] for one in times)


def ratio_of(values: list[float]) -> Ratio:
    """The median with an interval between two of the values that holds it, whatever the distribution.

    With too few values for the confidence the interval is all of them.
    """
    ordered, count = sorted(values), len(values)
    outside = (1 - CONFIDENCE) / 2
    rank, below = 0, 0.0
    while rank < count // 2:
        below += math.comb(count, rank) / 2**count
        if below > outside:
            break
        rank += 1
    low = max(0, rank - 1)
    return Ratio(
        median=statistics.median(ordered),
        low=ordered[low],
        high=ordered[count - 1 - low],
        rounds=count,
    )


def overhead_table(found: list[Overhead]) -> str:
    """As Markdown."""
    lines = [
        "| training step | native, CPU | watch | steps | CPU time | wall time | rounds | goal |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.model} | {one.native_ms:.0f} ms | {one.kind} | {one.phase} | {_said(one.cpu)} "
        f"| {_said(one.wall)} | {one.cpu.rounds} | {GOALS[one.kind]:.1f}x |"
        for one in found
    ]
    return "\n".join(lines)


def _said(ratio: Ratio) -> str:
    return f"{ratio.median:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]"

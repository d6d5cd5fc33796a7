"""What the watch of values costs: a step watched over a step alone, side by side in one run.

python benchmarks/values_overhead.py [--rounds 8] [--threads 1] [--device cpu]

Each round runs a native step, a fast and a deep one of the same model, in random order; the ratio is
taken within the round, and its median with the range of the middle half is shown. Times are CPU
time of the process on the CPU, so that neighbours matter less, and wall time between two
synchronisations on a GPU. Proofs are off: they run once per cause, not per step.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from torchyard.worker.values.options import Options
from torchyard.worker.values.session import Session

Step = Callable[[], None]


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


def resnet(device: str) -> Step:
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
    model = torch.nn.Sequential(*layers, *head).to(device)
    pictures = torch.randn(4, 3, 64, 64, device=device)
    labels = torch.randint(0, 1000, (4,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(pictures), labels).backward()
        optimizer.step()

    return step


def transformer(device: str) -> Step:
    """A transformer training step: 4 layers of width 512, 8 sequences of 128."""
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.1, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to(device)
    words = torch.randn(8, 128, 512, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

    def step() -> None:
        optimizer.zero_grad()
        model(words).square().mean().backward()
        optimizer.step()

    return step


MODELS: dict[str, Callable[[str], Step]] = {"resnet18": resnet, "transformer": transformer}


def cost_s(step: Step, device: str) -> float:
    """One step: CPU time of the process, or wall time to the end of the GPU's work."""
    if device == "cpu":
        started = time.process_time()
        step()
        return time.process_time() - started
    torch.cuda.synchronize()
    started = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def watched(step: Step, device: str, *, deep: bool) -> float:
    """One step under the watch, without the cost of opening it."""
    session = Session(Options(deep=deep, prove=False))
    session.start()
    try:
        step()  # the first step under a new watch learns operators and places
        return cost_s(step, device)
    finally:
        session.stop()


def measure(name: str, device: str, rounds: int) -> None:
    """Print one line."""
    step = MODELS[name](device)
    for _ in range(2):
        step()
    ratios: dict[str, list[float]] = {"fast": [], "deep": []}
    natives: list[float] = []
    for _ in range(rounds):
        times: dict[str, float] = {}
        for kind in random.sample(["native", "fast", "deep"], 3):
            if kind == "native":
                times[kind] = cost_s(step, device)
            else:
                times[kind] = watched(step, device, deep=kind == "deep")
        natives.append(times["native"])
        for kind, values in ratios.items():
            values.append(times[kind] / times["native"])
    said = "  ".join(f"{kind} {_spread(values)}" for kind, values in ratios.items())
    print(f"{name:12} {device} native {statistics.median(natives) * 1e3:7.1f} ms  {said}")


def _spread(values: list[float]) -> str:
    quarters = statistics.quantiles(values, n=4)
    return f"{statistics.median(values):.2f}x ({quarters[0]:.2f}-{quarters[2]:.2f})"


def main() -> None:
    """Measure every model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(given.threads)
    for name in MODELS:
        measure(name, given.device, given.rounds)


if __name__ == "__main__":
    main()

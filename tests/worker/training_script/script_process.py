"""A training script in real worker processes, one per variant."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

from torchyard.bench.launch import LaunchProcesses, draw_launch
from torchyard.bench.preparation import PreparationState, check_accuracy
from torchyard.core.comparison import Accuracy
from torchyard.core.study import Environment, MeasureSettings, Target, Variant, Workload

HERE = Target(name="here", python=sys.executable)
EAGER = Variant(name="eager", target=HERE)
LIMITS = MeasureSettings(threads=1, step_limit_s=300.0)

MODEL = """
    import sys
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(number):
        inputs = torch.full((4, 8), 0.01 * (number % 7))
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss
"""


def other(name: str, **fields: Any) -> Variant:
    """A candidate in its own process."""
    return replace(EAGER, name=name, environment=Environment(name=name), **fields)


def write_script(folder: Path, *parts: str) -> Path:
    path = folder / "train.py"
    path.write_text("".join(dedent(part) for part in parts), encoding="utf-8")
    return path


@contextmanager
def running(
    script: Path,
    *variants: Variant,
    folder: Path | None = None,
    settings: MeasureSettings = LIMITS,
    **parameters: str,
) -> Iterator[LaunchProcesses]:
    """The script after its first step, in one process per variant."""
    scratch = script.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    values = {"folder": str(folder or script.parent), **parameters}
    with LaunchProcesses(
        Workload(
            suite="steps",
            name=str(script),
            mode="training",
            parameters=tuple(sorted(values.items())),
        ),
        variants or (EAGER,),
        settings,
        draw=draw_launch(random.Random(1)),
        log_folder=scratch,
        scratch=scratch,
    ) as processes:
        yield processes


def ask(
    processes: LaunchProcesses, verb: str, variant: Variant = EAGER, **fields: object
) -> dict[str, Any]:
    limit_s = processes.settings.step_limit_s
    return processes.ask(variant, verb, phase=verb, limit_s=limit_s, variant=variant.name, **fields)


def run_steps(processes: LaunchProcesses, count: int, variant: Variant = EAGER) -> dict[str, Any]:
    """Time a block of that many steps."""
    return ask(
        processes,
        "block",
        variant,
        inner=count,
        samples=1,
        prime=0,
        settle=False,
        flush_l2=False,
        probe=False,
    )


def checked(processes: LaunchProcesses, *candidates: Variant) -> Sequence[Accuracy]:
    """The accuracy of the candidates against the first variant."""
    prepared = PreparationState()
    reference = processes._scratch / "reference.pt"
    for candidate in candidates:
        check_accuracy(processes, processes.variants[0], candidate, reference, prepared)
    return [prepared.accuracy[one.name] for one in candidates]

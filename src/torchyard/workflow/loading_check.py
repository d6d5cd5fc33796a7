"""Which workloads of a suite can be made in a target, and why the others cannot.

Each is built in a process of its own, with a limit of time and memory, so that one which crashes or
hangs costs only its own line. Nothing is compiled or measured.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchyard.core.records import encode
from torchyard.core.variant import Target
from torchyard.core.workload import Workload
from torchyard.process.group import WorkerGroup
from torchyard.process.launch import LaunchSpec
from torchyard.process.trouble import WorkerTrouble

__all__ = ["LOADS", "Loading", "check_loading"]

LOADS: Final = "loads"
_SEED: Final = 1337


@dataclass(frozen=True, kw_only=True)
class Loading:
    """What came of building one workload."""

    name: str
    mode: str
    state: str
    """`loads`, or the kind of trouble: `cannot-build`, `crashed`, `timeout`, `out-of-memory`, ..."""
    reason: str = ""
    hint: str = ""
    parameters: int | None = None
    """How many parameters the module has."""
    loss: str = ""
    """Which loss training would start from."""
    duration_s: float = 0.0
    """Wall time, with the start of the process."""


def check_loading(
    workloads: Sequence[Workload],
    target: Target,
    *,
    limit_s: float,
    memory_limit_bytes: int | None = None,
) -> Iterator[Loading]:
    """One result for each workload, as they come."""
    with tempfile.TemporaryDirectory(prefix="torchyard-") as folder:
        for number, workload in enumerate(workloads):
            spec = LaunchSpec(
                name=workload.name,
                python=target.python,
                variables=(("HF_HUB_OFFLINE", "1"), *target.variables),
                memory_limit_bytes=memory_limit_bytes,
                start_limit_s=limit_s,
                working_folder=folder,
            )
            yield _load(workload, spec, Path(folder) / f"{number}.log", limit_s)


def _load(workload: Workload, spec: LaunchSpec, log: Path, limit_s: float) -> Loading:
    began = time.monotonic()
    try:
        with WorkerGroup() as group:
            worker = group.start(spec, log_path=log)
            worker.ask("hello", limit_s=limit_s)
            answer = worker.ask(
                "build", limit_s=limit_s, workload=encode(workload), variants=[], seed=_SEED
            )
    except WorkerTrouble as trouble:
        return Loading(
            name=workload.name,
            mode=workload.mode,
            state=trouble.kind,
            reason=trouble.message.removeprefix(f"{spec.name}: "),
            hint=trouble.hint,
            duration_s=time.monotonic() - began,
        )
    return Loading(
        name=workload.name,
        mode=workload.mode,
        state=LOADS,
        parameters=answer["parameters"],
        loss=answer["loss"],
        duration_s=time.monotonic() - began,
    )

"""Preparation of a variant before timing: energy, recompilations, and the notes in the row."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from torchyard.bench.launch import LaunchProcesses, draw_launch
from torchyard.bench.preparation import (
    ENERGY_RUN_S,
    PreparationState,
    measure_energy,
    measure_metrics,
    note_shared_caches,
    warm_up,
)
from torchyard.core.study import MeasureSettings, Target, Variant, Workload
from torchyard.machine.gpu.library import GpuLibraries
from torchyard.machine.guards.gpu_guard import GpuGuard
from torchyard.machine.system.file_tree import FileTree

TARGET = Target(name="here", python=sys.executable)
EAGER = Variant(name="eager", target=TARGET)
CHANGING = Variant(
    name="changing", target=TARGET, backend="dynamo:eager", options=(("other-batch", True),)
)
DYNAMIC = Variant(
    name="dynamic", target=TARGET, backend="dynamo:eager", options=(("dynamic", True),)
)
WATTS = 200.0

CODE = """
    import torch
    def make(batch_size=8):
        return torch.nn.Linear(64, 64), torch.randn(batch_size, 64)
"""


class Meter:
    """NVML of a card that takes 200 W all the time."""

    def __init__(self) -> None:
        self.refuses = False

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802 - NVML's name
        return index

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - NVML's name
        return 1

    def nvmlDeviceGetName(self, card: int) -> str:  # noqa: N802 - NVML's name
        return f"card {card}"

    def nvmlDeviceGetTotalEnergyConsumption(self, _card: int) -> int:  # noqa: N802 - NVML's name
        if self.refuses:
            raise RuntimeError("Not Supported")
        return int(time.monotonic() * WATTS * 1000)

    def nvmlShutdown(self) -> None:  # noqa: N802 - NVML's name
        pass


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaunchProcesses]:
    folder = tmp_path_factory.mktemp("prepared")
    (folder / "own.py").write_text(dedent(CODE))
    (folder / "scratch").mkdir()
    with LaunchProcesses(
        Workload(suite="file", name=str(folder / "own.py"), batch_size=8),
        [EAGER, CHANGING, DYNAMIC],
        MeasureSettings(threads=1),
        draw=draw_launch(random.Random(1)),
        log_folder=folder,
        scratch=folder / "scratch",
    ) as processes:
        yield processes


@pytest.fixture(scope="module")
def prepared(processes: LaunchProcesses) -> PreparationState:
    state = PreparationState()
    for variant in processes.variants:
        warm_up(processes, variant, state)
    for variant in processes.variants:
        measure_metrics(processes, variant, state)
    return state


def guard(meter: Any, root: Path) -> GpuGuard:
    return GpuGuard(
        "cuda", libraries=GpuLibraries(nvml=meter), files=FileTree(root), environment={}
    )


@pytest.mark.torch
def test_energy_of_an_iteration_is_power_times_its_time(
    processes: LaunchProcesses, prepared: PreparationState, tmp_path: Path
) -> None:
    started = time.monotonic()
    measure_energy(processes, EAGER, prepared, guard(Meter(), tmp_path))
    assert time.monotonic() - started >= ENERGY_RUN_S
    energy_j = prepared.metrics["eager"].energy_j
    assert energy_j is not None
    # The blocks' own time is less than the stretch; messages and untimed work are in the energy.
    assert energy_j >= 0.5 * WATTS * prepared.iteration_ns["eager"] / 1e9


@pytest.mark.torch
def test_without_a_counter_the_reason_is_kept(
    processes: LaunchProcesses, prepared: PreparationState, tmp_path: Path
) -> None:
    meter = Meter()
    meter.refuses = True
    for gpu in (guard(meter, tmp_path), GpuGuard("cpu")):
        measure_energy(processes, DYNAMIC, prepared, gpu)
    reasons = [why for name, why in prepared.metrics["dynamic"].unavailable if name == "energy_j"]
    assert reasons == ["NVML reports Not Supported", "the device is not a CUDA device"]
    assert prepared.metrics["dynamic"].energy_j is None


@pytest.mark.torch
def test_the_row_reports_recompilations_and_their_sizes(
    processes: LaunchProcesses, prepared: PreparationState
) -> None:
    changing, dynamic = prepared.metrics["changing"], prepared.metrics["dynamic"]
    assert prepared.metrics["eager"].recompiles is None
    assert dynamic.recompiles == 0
    assert changing.recompiles == 1
    ((reason, count),) = changing.recompile_reasons
    assert reason.startswith("batch size 4: ")
    assert "size mismatch at index 0" in reason
    assert count == 1
    (note,) = prepared.notes_about(CHANGING)
    assert note == f"changing was recompiled: {reason} (1)"
    (note,) = prepared.notes_about(DYNAMIC)
    assert note == "dynamic was not recompiled for batch size 4 and 12"


def test_compiling_without_empty_caches_is_noted(tmp_path: Path) -> None:
    other = Target(name="other", python=sys.executable)
    variants = [
        EAGER,
        Variant(name="first", target=TARGET, backend="inductor"),
        Variant(name="second", target=TARGET, backend="aot-inductor"),
        Variant(name="apart", target=other, backend="inductor"),
    ]
    processes = LaunchProcesses(
        Workload(suite="kernels", name="matmul"),
        variants,
        MeasureSettings(),
        draw=draw_launch(random.Random(1)),
        log_folder=tmp_path,
        scratch=tmp_path,
    )
    state = PreparationState()
    for variant in variants:
        note_shared_caches(processes, variant, state)
    note = "was compiled after first in one process, so not from empty caches"
    assert state.notes == [("second", note)]

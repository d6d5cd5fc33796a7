"""Calibration of each workload before a sweep: results, storage, and reuse."""

from __future__ import annotations

import json
import sys
import venv
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.tiny_bench import HERE, QUICK, write_file
from tests.sweep.sample_sweeps import cell, study, workload
from torchyard.core.study import Target, Variant, Workload
from torchyard.errors import ResultsDamaged
from torchyard.sweep.cost_estimate import (
    CALIBRATION_FILE,
    Calibration,
    calibrate,
    read_calibrations,
)
from torchyard.sweep.model import SweepPlan

LINEAR = """
    import torch

    def make():
        return torch.nn.Linear(4, 4), (torch.ones(2, 4),)
"""


def plan_with(target: Target, *workloads: Workload) -> SweepPlan:
    baseline = Variant(name="eager", target=target)
    cells = tuple(
        cell(number, replace(study(one), baseline=baseline, settings=QUICK))
        for number, one in enumerate(workloads, start=1)
    )
    return SweepPlan(name="sweep", cells=cells)


@pytest.fixture(scope="module")
def without_torch(tmp_path_factory: pytest.TempPathFactory) -> Target:
    folder = tmp_path_factory.mktemp("bare") / "venv"
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    return Target(name="bare", python=str(folder / "bin" / "python"))


def test_a_workload_that_cannot_run_is_kept_with_its_reason(
    tmp_path: Path, without_torch: Target
) -> None:
    plan = plan_with(without_torch, workload("matmul"), workload("softmax"))
    progress: list[tuple[str, int, int]] = []
    calibration = calibrate(
        plan, tmp_path, listener=lambda one, at, of: progress.append((one.workload.name, at, of))
    )
    assert progress == [("matmul", 1, 2), ("softmax", 2, 2)]
    for one in calibration:
        assert one.failure is not None
        assert one.failure.kind == "no-torch"
        assert one.ready_s > 0.0
        assert one.worker_bytes is None
    assert read_calibrations(tmp_path) == calibration
    assert not (tmp_path / "scratch").exists()
    # Where the reason came from stays beside the sweep.
    assert calibration[0].failure is not None
    assert Path(calibration[0].failure.log).is_file()


def test_known_workloads_are_not_calibrated_again(tmp_path: Path) -> None:
    nowhere = Target(name="gone", python=str(tmp_path / "no-python"))
    plan = plan_with(nowhere, workload("matmul"), workload("softmax"))
    calibrations = [Calibration(workload=workload("matmul"), ready_s=3.0, worker_bytes=5)]
    calibration = calibrate(plan, tmp_path, earlier=calibrations, listener=lambda *_: None)
    assert calibration[0] == calibrations[0]
    assert calibration[1].failure is not None
    again = calibrate(plan, tmp_path, earlier=calibration, listener=lambda *_: None)
    assert again == calibration


def test_each_workload_is_calibrated_once_for_all_precisions(tmp_path: Path) -> None:
    nowhere = Target(name="gone", python=str(tmp_path / "no-python"))
    one = plan_with(nowhere, workload("matmul")).cells[0]
    amp = replace(one, id="0002-amp")
    calibration = calibrate(
        SweepPlan(name="sweep", cells=(one, amp)), tmp_path, listener=lambda *_: None
    )
    assert len(calibration) == 1


def test_files_of_other_versions_and_damaged_ones(tmp_path: Path) -> None:
    assert read_calibrations(tmp_path) == []
    path = tmp_path / CALIBRATION_FILE
    path.write_text(json.dumps({"format": 99, "workloads": [{"no": "such"}]}))
    assert read_calibrations(tmp_path) == []
    path.write_text("{")
    with pytest.raises(ResultsDamaged, match="cannot be read") as caught:
        read_calibrations(tmp_path)
    assert "--calibrate" in caught.value.hint
    path.write_text(json.dumps({"format": 1, "workloads": [{"ready_s": "soon"}]}))
    with pytest.raises(ResultsDamaged, match="not a calibration"):
        read_calibrations(tmp_path)


@pytest.mark.slow
@pytest.mark.torch
def test_time_and_memory_of_one_iteration(tmp_path: Path) -> None:
    assert HERE.python == sys.executable
    mine = write_file(tmp_path, "mine.py", LINEAR)
    plan = plan_with(HERE, Workload(suite="file", name=mine))
    (calibration,) = calibrate(plan, tmp_path, listener=lambda *_: None)
    assert calibration.failure is None, calibration.failure
    assert calibration.ready_s > 0.1
    assert calibration.iteration_s is not None
    assert 0.0 < calibration.iteration_s < 10.0
    assert calibration.worker_bytes is not None
    assert calibration.worker_bytes > 50 << 20  # torch alone takes more
    assert calibration.device_bytes is None
    assert read_calibrations(tmp_path) == [calibration]

"""Real searches with a real memory limit: small models whose memory grows with the batch."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.tiny_bench import HERE, QUICK, leftover_processes, write_file
from torchyard.bench.batch_search import BatchTry, find_batch_size, with_largest_batches
from torchyard.core.study import Budget, Environment, Study, Target, Variant, Workload
from torchyard.errors import StepFailed, WorkerFailed

pytestmark = pytest.mark.torch

EAGER = Variant(name="eager", target=HERE)
MIB = 2**20
LIMIT = 1024 * MIB

HUNGRY = """
    import torch

    def hold(samples):
        # A quarter of a GiB for each sample, written, while the iteration lasts.
        return torch.ones(samples.shape[0], 2**26).sum(1)

    def make(batch_size=1):
        return hold, torch.ones(batch_size, 8)
"""
SHY = """
    import torch
    from torch import nn

    def make(batch_size=1):
        if batch_size < 2:
            raise ValueError("expected more than 1 value per channel")
        return nn.Linear(8, 8), torch.randn(batch_size, 8)
"""
PLAIN = """
    import torch
    from torch import nn

    def make(batch_size=1):
        return nn.Linear(8, 8), torch.randn(batch_size, 8)
"""
FIXED = """
    import torch
    from torch import nn

    def make():
        return nn.Linear(8, 8), torch.randn(3, 8)
"""


def workload(folder: Path, text: str) -> Workload:
    return Workload(suite="file", name=write_file(folder, "mine.py", text))


def test_only_memory_bounds_the_search(tmp_path: Path) -> None:
    """Torch alone takes some hundred MiB, so that two or three samples fit into one GiB."""
    tries: list[BatchTry] = []
    settings = replace(QUICK, memory_limit_bytes=LIMIT)
    search = find_batch_size(workload(tmp_path, HUNGRY), [EAGER], settings, on_try=tries.append)
    assert search.batch_size in {1, 2, 3}
    assert search.memory_limit_bytes == LIMIT
    assert search.tries == tuple(tries)
    obstacle = search.obstacle
    assert obstacle is not None
    assert (obstacle.kind, obstacle.variant) == ("out-of-memory", "eager")
    assert "above its memory limit of 1.00 GiB" in obstacle.reason
    assert obstacle.reason.startswith(("used ", "held ")), "without the name of its process"
    fitting = [one for one in search.tries if one.fits]
    for one in fitting:
        assert one.used_bytes is not None
        assert 256 * MIB * one.batch_size < one.used_bytes <= LIMIT
        assert one.peak_memory_bytes is not None
        assert one.peak_memory_bytes >= 256 * MIB * one.batch_size
        assert one.samples_per_second is not None
        assert one.left_bytes is not None
    assert leftover_processes(os.getpid()) == []


def test_a_size_that_the_workload_refuses_is_passed_over(tmp_path: Path) -> None:
    search = find_batch_size(workload(tmp_path, SHY), [EAGER], QUICK, largest=2)
    assert [(one.batch_size, one.fits) for one in search.tries] == [(1, False), (2, True)]
    assert "more than 1 value per channel" in search.tries[0].reason
    assert search.batch_size == 2
    assert search.obstacle is None
    assert search.memory_limit_bytes is not None, "without a limit the machine's memory is one"


def test_a_workload_without_a_batch(tmp_path: Path) -> None:
    with pytest.raises(StepFailed, match="every batch size tried, from 1 to 1") as caught:
        find_batch_size(workload(tmp_path, FIXED), [EAGER], QUICK, largest=1)
    assert "has no argument batch_size" in caught.value.why
    assert "add the argument batch_size" in caught.value.hint


def test_processes_share_what_the_job_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "2000")
    crowd = Environment(name="crowd", instances=2)
    variants = [EAGER, replace(EAGER, name="again"), replace(EAGER, name="two", environment=crowd)]
    search = find_batch_size(workload(tmp_path, PLAIN), variants, QUICK, largest=1, together=True)
    assert search.memory_limit_bytes == pytest.approx(1600 * MIB / 3, abs=MIB)


def test_an_invalid_target_is_not_searched(tmp_path: Path) -> None:
    nowhere = Variant(name="eager", target=Target(name="nowhere", python="/nowhere/python"))
    with pytest.raises(WorkerFailed):
        find_batch_size(workload(tmp_path, SHY), [nowhere], QUICK)


@pytest.mark.slow
def test_a_study_gets_the_largest_batches_it_can_hold(tmp_path: Path) -> None:
    """Both variants in one process, with the accuracy check; what has no batch stays as it is."""
    (tmp_path / "other").mkdir()
    study = Study(
        name="tiny",
        baseline=EAGER,
        candidates=(Variant(name="again", target=HERE),),
        workloads=(workload(tmp_path, HUNGRY), workload(tmp_path / "other", FIXED)),
        budget=Budget(time_s=2.0),
        settings=replace(QUICK, memory_limit_bytes=LIMIT),
    )
    tries: list[BatchTry] = []
    studies, notes = with_largest_batches(study, largest=2, told=tries.append)
    assert {one.variant for one in tries} <= {"eager and again", "eager", "again"}
    size = studies.workloads[0].batch_size
    assert size is not None
    assert studies.workloads[1] == study.workloads[1]
    assert f"batch size {size}, the largest" in notes[0]
    assert "not searched, because" in notes[1]
    assert leftover_processes(os.getpid()) == []

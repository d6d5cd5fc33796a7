"""The choice of the executor of a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchyard.errors import MissingTool, UsageError
from torchyard.sweep.executors.interface import check_choice, open_executor
from torchyard.sweep.executors.local import LocalExecutor
from torchyard.sweep.model import ExecutorChoice


def opened(choice: ExecutorChoice, folder: Path) -> object:
    return open_executor(choice, folder, lambda cell: [cell], lambda _: folder / "log")


def test_local(tmp_path: Path) -> None:
    assert isinstance(opened(ExecutorChoice(), tmp_path), LocalExecutor)


def test_options_of_slurm_without_slurm(tmp_path: Path) -> None:
    choice = ExecutorChoice(options=(("partition", "gpu"), ("gpus", 1)))
    with pytest.raises(UsageError) as caught:
        opened(choice, tmp_path)
    assert caught.value.what == "the local executor does not support partition, gpus"


def test_slurm_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingTool):
        opened(ExecutorChoice(name="slurm"), tmp_path)


def test_wrong_options_are_found_before_anything_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="Slurm: unknown option 'partitions'"):
        opened(ExecutorChoice(name="slurm", options=(("partitions", "gpu"),)), tmp_path)
    check_choice(ExecutorChoice(name="slurm", options=(("partition", "gpu"),)))

"""Workloads of a checkout of pytorch/benchmark, from options and study files. Nothing is loaded."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from torchyard.bench.request import SpecText, WorkloadChoice
from torchyard.bench.workload_text import SUITE, choose_workload, expand
from torchyard.core.study import Workload
from torchyard.errors import UsageError

TREE = Path(__file__).parents[1] / "torchbench_tree"
VARIABLE = "TORCHYARD_TORCHBENCH"


def workloads(choice: WorkloadChoice) -> list[Workload]:
    return expand(replace(choice, modes=("inference", "training")))


def chosen(text: str, folder: Path = TREE) -> WorkloadChoice:
    return choose_workload(SpecText(text=text, where="--only", folder=folder))


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def test_a_relative_path_starts_where_it_was_written() -> None:
    listed = workloads(chosen(f"torchbench/tiny_cnn:path={TREE.name}", TREE.parent))
    assert [each.mode for each in listed] == ["inference", "training"]
    assert {each.parameters for each in listed} == {(("path", str(TREE)),)}


def test_the_folder_of_the_package_means_the_checkout() -> None:
    listed = workloads(chosen(f"torchbench/tiny_cnn:path={TREE}/torchbenchmark"))
    assert listed[0].parameters == (("path", str(TREE)),)


def test_the_variable_becomes_the_parameter_and_an_own_path_wins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, os.path.relpath(TREE))
    assert workloads(chosen("torchbench/tiny_cnn"))[0].parameters == (("path", str(TREE)),)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "elsewhere"))
    own = workloads(chosen(f"torchbench/tiny_cnn:path={TREE}"))
    assert own[0].parameters == (("path", str(TREE)),)


def test_without_either_the_target_must_have_it() -> None:
    assert workloads(chosen("torchbench/tiny_cnn"))[0].parameters == ()


def test_the_whole_suite_is_every_model_of_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(TREE))
    listed = workloads(WorkloadChoice(where="--suite", suite=SUITE))
    assert len(listed) == 2 * 10
    assert {each.name for each in listed} >= {"tiny_cnn", "downloads", "aborts"}
    assert all(each.parameters == (("path", str(TREE)),) for each in listed)


def test_the_whole_suite_needs_a_checkout(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="none is given") as caught:
        workloads(WorkloadChoice(where="--suite", suite=SUITE))
    assert VARIABLE in caught.value.hint
    (tmp_path / "torchbenchmark").mkdir()
    (tmp_path / "torchbenchmark" / "__init__.py").touch()
    empty = WorkloadChoice(where="--suite", suite=SUITE, parameters=(("path", str(tmp_path)),))
    with pytest.raises(UsageError, match="has no models"):
        workloads(empty)


def test_a_folder_that_is_no_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--only: .* is not a checkout of pytorch/benchmark"):
        workloads(chosen(f"torchbench/tiny_cnn:path={tmp_path}"))
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(UsageError, match=f"{VARIABLE}: .* is not a checkout"):
        workloads(chosen("torchbench/tiny_cnn"))

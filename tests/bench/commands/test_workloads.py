"""`torchyard workloads --torchbench`: the models of a checkout, and which of them load."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.command_line import call

Capture = pytest.CaptureFixture[str]
TREE = Path(__file__).parents[2] / "torchbench_tree"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Three models: one that loads, one that says why not, one that takes its process with it."""
    root = tmp_path / "benchmark"
    shutil.copytree(TREE, root, ignore=shutil.ignore_patterns("__pycache__"))
    for model in (root / "torchbenchmark" / "models").iterdir():
        if model.is_dir() and model.name not in {"tiny_cnn", "needs_package"}:
            shutil.rmtree(model)
    return root


def test_the_models_of_a_checkout(capsys: Capture) -> None:
    completed = call(capsys, "workloads", "--torchbench", str(TREE))
    lines = completed.out.splitlines()
    assert len(lines) == 10
    assert lines[1].split() == [
        "torchbench/cpu_train_refused",
        "not",
        "device",
        "cpu",
        "test",
        "train",
    ]
    assert lines[-2].split() == ["torchbench/with_install", "has", "an", "install.py"]
    assert lines[-1].split() == ["torchbench/aborts", "canary"]


def test_the_variable_counts_when_the_suite_is_named(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHYARD_TORCHBENCH", str(TREE))
    assert "torchbench/tiny_cnn" in call(capsys, "workloads", "--suite", "torchbench").out
    assert "torchbench/tiny_cnn" not in call(capsys, "workloads").out


def test_the_list_as_json(capsys: Capture) -> None:
    document = json.loads(call(capsys, "workloads", "--torchbench", str(TREE), "--json").out)
    assert document["torchbench"] == str(TREE)
    rows = {row["name"]: row for row in document["models"]}
    assert rows["with_install"]["install"] is True
    assert rows["tiny_cnn"]["not_implemented"] == [{"jit": True}]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--torchbench", "/nowhere"), "is not a checkout of pytorch/benchmark"),
        (("--torchbench", str(TREE), "--suite", "timm"), "the suite 'timm' has no checkout"),
        (("--check",), "--check loads the models of a checkout"),
        (("--torchbench", str(TREE), "--check", "--limit", "long"), "--limit"),
    ],
)
def test_invalid_arguments(capsys: Capture, arguments: tuple[str, ...], said: str) -> None:
    completed = call(capsys, "workloads", *arguments)
    assert completed.code == 2
    assert said in completed.err


@pytest.mark.torch
def test_check_loads_each_model_in_a_process_of_its_own(capsys: Capture, checkout: Path) -> None:
    words = ("workloads", "--torchbench", str(checkout), "--check", "--mode", "training")
    completed = call(capsys, *words, "--json")
    document = completed.document
    assert (document["models"], document["checked"], document["load"]) == (3, 3, 1)
    missing, good, crashed = document["loadings"]
    assert (good["name"], good["state"], good["parameters"]) == ("tiny_cnn", "loads", 1570)
    assert good["loss"] == "the model's own (CrossEntropyLoss)"
    assert missing["state"] == "cannot-build"
    assert missing["reason"].startswith("torchbench/needs_package requires the package")
    assert "--set model=needs_package" in missing["hint"]
    assert crashed["state"] == "crashed"
    assert "SIGABRT" in crashed["reason"]
    assert "3/3 aborts: crashed" in completed.err


@pytest.mark.torch
@pytest.mark.slow
def test_a_model_that_hangs_does_not_delay_the_others(capsys: Capture, checkout: Path) -> None:
    shutil.rmtree(checkout / "torchbenchmark" / "canary_models")
    shutil.rmtree(checkout / "torchbenchmark" / "models" / "needs_package")
    hanging = checkout / "torchbenchmark" / "models" / "hangs"
    hanging.mkdir()
    (hanging / "__init__.py").write_text("import time\ntime.sleep(1000)\n")
    out = call(
        capsys, "workloads", "--torchbench", str(checkout), "--check", "--limit", "25s"
    ).out.splitlines()
    assert out[0].split()[:2] == ["hangs", "timeout"]
    assert out[1].split() == ["tiny_cnn", "loads", "1570", "parameters"]
    assert out[2] == "1 of 2 models load for inference"

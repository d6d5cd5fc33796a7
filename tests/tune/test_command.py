"""`torchyard tune` and `torchyard perf-test`: output, errors, and one real race."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import call
from torchyard.tune.perf_test.command import _study, perf_test

Capture = pytest.CaptureFixture[str]

SPACE = """
[[choices]]
dimension = "threads"
name = "one-thread"
threads = 1

[[choices]]
dimension = "compiler"
name = "no-backend"
backend = "no_such_backend"

[[choices]]
dimension = "gradients"
name = "inference-mode"
options = { inference-mode = true }
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def space(tmp_path: Path) -> str:
    path = tmp_path / "space.toml"
    path.write_text(SPACE)
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ((), "no workload given"),
        (("models/gqt",), "no workload 'gqt'"),
        (("models/gpt", "--budget", "soon"), "--budget"),
        (("models/gpt", "--resume", "x"), "both a workload and --resume"),
        (("--resume", "nowhere"), "not a race folder"),
        (("--resume", "x", "--space", "y", "--env", "a=B=1"), "--space, --env would change it"),
        (("--resume", "x", "--goal", "latency"), "--goal would change it"),
        (("none.py", "--program"), "no such file: 'none.py'"),
    ],
)
def test_bad_input(capsys: Capture, arguments: tuple[str, ...], what: str) -> None:
    completed = call(capsys, "tune", *arguments)
    assert completed.code == 2
    assert what in completed.err
    assert "hint:" in completed.err
    assert completed.out == ""


@pytest.mark.slow
@pytest.mark.torch
def test_a_dry_run_lists_the_space(capsys: Capture, space: str) -> None:
    completed = call(capsys, "tune", "kernels/matmul", "--space", space, "--dry-run", "--json")
    assert completed.code == 0
    choices = json.loads(completed.out)["space"]["choices"]
    assert [one["name"] for one in choices] == ["one-thread", "no-backend", "inference-mode"]


@pytest.mark.torch
@pytest.mark.slow
def test_a_race_of_a_program_is_stored_and_resumed(
    capsys: Capture, space: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text("import torch\nx = torch.ones(64, 64)\nfor _ in range(20): x @ x\n")
    folder = tmp_path / "race"
    html = tmp_path / "race.html"
    completed = call(
        capsys,
        *("tune", str(program), "--program", "--space", space, "--budget", "20s"),
        *("--run-dir", str(folder), "--html", str(html), "--json", "-q"),
    )
    assert completed.code in (0, 6), completed.err
    race = json.loads(completed.out)["race"]
    assert race["state"] == "finished"
    failed = [
        one
        for heat in race["heats"]
        for one in heat["found"]
        if one["state"] == "failed" and one["contender"] == "no-backend"
    ]
    assert failed
    assert "no_such_backend" in failed[0]["why"]
    assert "<h1>Fastest settings for " in html.read_text()
    assert not (folder / "cache").exists(), "what was compiled is of no use any more"
    before = {path: path.stat().st_mtime_ns for path in folder.glob("heats/*/run.json")}
    again = call(capsys, "tune", "--resume", str(folder), "--json", "-q")
    assert again.code in (0, 6), again.err
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len(json.loads(again.out)["race"]["heats"]) == len(race["heats"])
    longer = call(capsys, "tune", "--resume", str(folder), "--budget", "30s", "--json", "-q")
    assert longer.code in (0, 6), longer.err
    more = json.loads(longer.out)["race"]
    assert more["budget_s"] == 30.0
    kept = {path: path.stat().st_mtime_ns for path in before}
    assert kept == before, "what was measured is neither measured again nor lost"
    less = call(capsys, "tune", "--resume", str(folder), "--budget", "5s")
    assert less.code == 2
    assert "5 s is less than the current budget of 30 s" in less.err
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_performance_test_compares_eager_with_inductor_by_default() -> None:
    options: dict[str, Any] = perf_test.make_context("perf-test", []).params
    assert (options["batch_size"], options["iterations"]) == ("256", 100)
    study = _study(options)
    assert [one.backend for one in study.variants] == ["eager", "inductor"]
    assert [one.batch_size for one in study.workloads] == [None, 256]
    study = _study({**options, "environments": ("one=OMP_NUM_THREADS=1",)})
    assert [(one.name, one.backend) for one in study.variants] == [
        ("current", "eager"),
        ("one", "eager"),
    ]


@pytest.mark.torch
@pytest.mark.slow
def test_a_performance_test(capsys: Capture) -> None:
    completed = call(
        capsys,
        *("perf-test", "--size", "64", "--batch-size", "1", "--time", "1s", "--iterations", "2"),
        *("--env", "one=OMP_NUM_THREADS=1", "-q", "--json"),
    )
    assert completed.code in (0, 6), completed.err
    document = json.loads(completed.out)["perf_test"]
    assert [row["workload"]["name"] for row in document["comparisons"]] == ["matmul", "mlp"]
    assert all(row["baseline_metrics"]["flops"] for row in document["comparisons"])
    assert document["peak"]["flops_per_second"] > 0
    assert [table["variant"] for table in document["tables"]] == ["current", "one"]
    assert any(row["name"] == "aten::addmm" for row in document["tables"][0]["rows"])


def test_a_race_without_a_winner_is_no_tuned_setting(capsys: Capture, tmp_path: Path) -> None:
    completed = call(capsys, "perf-test", "--tuned", str(tmp_path))
    assert completed.code == 2
    assert "not a race folder" in completed.err
    both = call(capsys, "perf-test", "--tuned", str(tmp_path), "--env", "a=B=1")
    assert both.code == 2
    assert "both --tuned and an environment" in both.err

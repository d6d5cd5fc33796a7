"""`torchyard bisect --workload`: revisions and settings as targets, with all metrics and `--why`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.bisect.git_project import make_project
from tests.cli.command_line import CompletedCommand, call

Capture = pytest.CaptureFixture[str]
pytestmark = [pytest.mark.torch, pytest.mark.long, pytest.mark.timeout(1200)]
CULPRIT = 3
REVISIONS = 5
MODEL = """
import os
import time

import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(64, 64)
        self.repeats = int(os.environ.get("REPEATS", "{repeats}"))

    def forward(self, x):
        x = self.first(x)
        for _ in range(self.repeats):
            x = torch.sort(x, -1)[0]
        {line}
        return x


def net():
    return Net().eval(), (torch.randn(256, 64),)
"""

BACKEND = """
from torch._dynamo import register_backend


@register_backend(name="planted")
def planted(graph_module, inputs):
    time.sleep(float(os.environ.get("SLOW", "0")))
    return graph_module.forward
"""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for name in ("REPEATS", "SLOW"):
        monkeypatch.delenv(name, raising=False)


def bisect(capsys: Capture, *options: str) -> CompletedCommand:
    return call(capsys, "bisect", "--time", "900s", "--threads", "1", *options)


def write_model(folder: Path, *, repeats: int = 1, line: str = "x = x + 0") -> str:
    text = MODEL.format(repeats=repeats, line=line)
    (folder / "model.py").write_text(text, encoding="utf-8")
    return text


def project(tmp_path: Path, line: str) -> tuple[Path, list[str]]:
    """Return a repository whose model has another line since the culprit."""
    folder = tmp_path / "project"
    revisions = [
        {"model.py": MODEL.format(repeats=1, line=line if number >= CULPRIT else "x = x + 0")}
        for number in range(REVISIONS)
    ]
    return folder, make_project(folder, revisions)


def test_settings_with_the_parts_of_the_change(capsys: Capture, tmp_path: Path) -> None:
    write_model(tmp_path)
    settings = ["--settings", "REPEATS=1 OTHER=1 THIRD=1", "REPEATS=12 OTHER=2 THIRD=2"]
    options = [*settings, "--workload", "model.py:net"]
    files = ["--html", "a.html", "--issue", "a.md"]
    document = bisect(capsys, *options, "--why", "--json", *files).document
    assert [one["name"] for one in document["settings"]] == ["REPEATS"]
    assert document["effect"]["low"] > 2.0
    parts = document["why"]["parts"]
    largest = max(parts, key=lambda one: one["candidate_ns"] - one["baseline_ns"])
    assert "sort" in json.dumps(largest)
    page, issue = ((tmp_path / name).read_text("utf-8") for name in ("a.html", "a.md"))
    assert 'href="a-why.html"' in page
    assert "Why:" in issue
    assert "sort" in (tmp_path / "a-why.html").read_text("utf-8")
    # The attribution is kept: the same command measures nothing.
    before = sorted((tmp_path / "home").rglob("*.json*"))
    again = bisect(capsys, *options, "--why", "--json").document
    assert again["why"] == document["why"]
    assert sorted((tmp_path / "home").rglob("*.json*")) == before


@pytest.mark.parametrize(
    ("metric", "line"),
    [
        ("failure", "raise ValueError('planted')"),
        ("accuracy", "x = x * 1.01"),
        ("memory", "y = torch.ones(1 << 20); x = x + y.sum() * 0"),
    ],
)
def test_revisions(capsys: Capture, tmp_path: Path, metric: str, line: str) -> None:
    folder, commits = project(tmp_path, line)
    workload = f"{folder}/model.py:net"
    options = ["--repo", str(folder), "--good", commits[0], "--bad", commits[-1]]
    options += ["--workload", workload, "--metric", metric]
    # The working tree, which is neither good nor bad, does not matter.
    write_model(folder, line="x = x - 0")
    document = bisect(capsys, *options, "--json").document
    assert [one["commit"] for one in document["candidates"]] == [commits[CULPRIT]]
    text = bisect(capsys, *options).out
    if metric == "accuracy":
        assert re.search(r"bad was wrong in (\d+) of \1 runs, good in 0 of", text)
    if metric == "memory":
        assert document["effect"]["low"] > 1.5
        assert "memory (95 % CI" in text


@pytest.mark.slow
def test_compile_time(capsys: Capture, tmp_path: Path) -> None:
    text = write_model(tmp_path)
    (tmp_path / "model.py").write_text(text + BACKEND, "utf-8")
    settings = ["--settings", "SLOW=0 OTHER=1", "SLOW=6 OTHER=2"]
    options = ["--workload", "model.py:net", "--variant", "dynamo:planted"]
    ended = bisect(capsys, *settings, *options, "--metric", "compile-time", "--json")
    assert [one["name"] for one in ended.document["settings"]] == ["SLOW"]


def test_equal_results_name_nobody(capsys: Capture, tmp_path: Path) -> None:
    folder, commits = project(tmp_path, "x = x * 1")
    options = ["--repo", str(folder), "--good", commits[0], "--workload", f"{folder}/model.py:net"]
    ended = bisect(capsys, *options, "--metric", "accuracy")
    assert ended.code == 3, ended.err
    assert "was wrong in 0 of" in ended.err


def test_a_setting_that_the_environment_sets(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path)
    monkeypatch.setenv("REPEATS", "3")
    ended = bisect(capsys, "--settings", "A=1", "A=1 REPEATS=2", "--workload", "model.py:net")
    assert ended.code == 2
    assert "REPEATS is set" in ended.err


def test_signatures_of_revisions(capsys: Capture, tmp_path: Path) -> None:
    line = "x = [torch.sort(x, -1)[0] for _ in range(12)][-1]"
    folder, commits = project(tmp_path, line)
    options = ["--repo", str(folder), "--good", commits[0], "--bad", commits[-1]]
    options += ["--workload", f"{folder}/model.py:net"]
    document = bisect(capsys, *options, "--json").document
    assert [one["commit"] for one in document["candidates"]] == [commits[CULPRIT]]
    assert "operators" in document["signature"]
    records = (tmp_path / "home").rglob("records-*.jsonl")
    rounds = [json.loads(one) for path in records for one in path.read_text("ascii").splitlines()]
    signatures = {k: v for one in rounds for k, v in one.get("signatures", {}).items()}
    # Revisions that do the same work have the same signature, whatever their folders are.
    work = [signatures[one] for one in commits if one in signatures]
    assert len({json.dumps(one, sort_keys=True) for one in work}) == 2
    assert "signature   differs in" in bisect(capsys, *options).out

"""`torchyard reduce` on a model with a backend that makes one operator slow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command_line import call
from tests.reduce.planted_model import MODEL

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.torch

STEPS = "        x = torch.relu(x)\n        x = F.gelu(x)\n        x = torch.tanh(x)\n        x = x.abs()"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def write_model(tmp_path: Path, planted: str, effect: str = "slow") -> None:
    text = MODEL.format(
        backend="planted", planted=planted, effect=effect, seconds=0.004, steps=STEPS
    )
    (tmp_path / "model.py").write_text(text, encoding="utf-8")


def test_the_planted_operator_remains(capsys: Capture, tmp_path: Path) -> None:
    write_model(tmp_path, "gelu")
    ended = call(
        capsys,
        *("reduce", "--file", "model.py:net", "--candidate", "dynamo:planted", "--threads", "1"),
        *("--output", "slow.py", "--issue", "slow.md", "--json", "--time", "2m"),
    )
    document = json.loads(ended.out)
    # The backend is registered by the model, so the script cannot run by itself.
    assert ended.code == 6, ended.err
    assert document["confirmed"] is False
    assert any("gelu" in one for one in document["operators"])
    assert len(document["operators"]) < document["operators_before"] == 4
    assert document["share"] > 0.3
    script, issue = ((tmp_path / name).read_text("utf-8") for name in ("slow.py", "slow.md"))
    compile(script, "slow.py", "exec")
    assert "gelu" in script
    assert script.rstrip("\n") in issue
    assert str(tmp_path) not in script + issue


def test_a_row_of_a_run(capsys: Capture, tmp_path: Path) -> None:
    write_model(tmp_path, "tanh")
    options = ["--candidate", "dynamo:planted", "--threads", "1", "--time", "3s", "--launches", "2"]
    ended = call(capsys, "bench", "model.py:net", *options)
    assert ended.code in {0, 6}, ended.err
    assert call(capsys, "reduce", "latest", "--row", "2").code == 2
    ended = call(capsys, "reduce", "latest", "--row", "1", "--time", "2m")
    assert ended.code == 6, ended.err
    assert "torch.tanh" in ended.out
    assert "It cannot be run by itself here" in ended.out
    assert "tanh" in (tmp_path / "reduced.py").read_text("utf-8")


def test_a_model_that_is_not_slower(capsys: Capture, tmp_path: Path) -> None:
    write_model(tmp_path, "softmax")
    text = (tmp_path / "model.py").read_text("utf-8")
    slow = "        x = torch.sort(x.repeat(200, 1), 0)[0][:32] if not torch.compiler.is_compiling() else x\n"
    (tmp_path / "model.py").write_text(text.replace("        x = torch.relu(x)\n", slow), "utf-8")
    ended = call(
        capsys,
        *("reduce", "--file", "model.py:net", "--candidate", "dynamo:planted", "--threads", "1"),
    )
    assert ended.code == 3, ended.err
    assert "not shown to be slower" in ended.err
    assert not (tmp_path / "reduced.py").exists() or not (tmp_path / "reduced.py").read_text()


def test_what_is_refused(capsys: Capture, tmp_path: Path) -> None:
    write_model(tmp_path, "gelu")
    ended = call(capsys, "reduce", "--file", "model.py:net", "--candidate", "inductor+bfloat16")
    assert ended.code == 2
    assert "different precisions" in ended.err
    assert call(capsys, "reduce", "--file", "missing.py").code == 2
    assert call(capsys, "reduce", "no-such-run").code == 2

"""`torchyard reduce` on a model with a backend that makes one operator slow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.command_line import call
from tests.reduce.planted_model import MODEL
from torchyard.results.commands.options import find_run
from torchyard.results.run_reader import read_run
from torchyard.why.model import Attribution, Part, Source, save

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.torch

STEPS = "        x = torch.relu(x)\n        x = F.gelu(x)\n        x = torch.tanh(x)\n        x = x.abs()"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def write_model(tmp_path: Path, planted: str, effect: str = "slow") -> None:
    text = MODEL.format(
        backend="planted",
        planted=(planted,),
        effect=effect,
        seconds=0.004,
        steps=STEPS,
        shape="32, 64",
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


@pytest.mark.parametrize(
    ("effect", "metric", "mode"),
    [
        ("wrong", "wrong", "inference"),
        ("memory", "memory", "inference"),
        ("slow", "time", "training"),
    ],
)
def test_other_effects(
    capsys: Capture, tmp_path: Path, effect: str, metric: str, mode: str
) -> None:
    write_model(tmp_path, "tanh", effect)
    # Training needs an operator with a parameter.
    text = (tmp_path / "model.py").read_text("utf-8")
    (tmp_path / "model.py").write_text(
        text.replace("x = torch.relu(x)", "x = F.linear(x, self.weight)"), "utf-8"
    )
    ended = call(
        capsys,
        *("reduce", "--file", "model.py:net", "--candidate", "dynamo:planted", "--threads", "1"),
        *("--metric", metric, "--mode", mode, "--issue", "a.md", "--json", "--time", "2m"),
    )
    document = json.loads(ended.out)
    assert ended.code == 6, ended.err
    assert [one.rpartition(".")[2] for one in document["operators"]] == ["tanh"]
    assert document["operators_before"] == 4
    assert document["end_to_end"]["candidate"] > document["end_to_end"]["baseline"]
    script, issue = ((tmp_path / name).read_text("utf-8") for name in ("reduced.py", "a.md"))
    compile(script, "reduced.py", "exec")
    assert ("TRAINING = True" in script) == (mode == "training")
    assert ("gradient=True" in script) == (mode == "training")
    titles = {"wrong": "has wrong results", "memory": "uses more memory", "time": "is slower"}
    assert titles[metric] in issue.splitlines()[0]


@pytest.mark.parametrize("metric", ["wrong", "memory"])
def test_a_model_without_the_effect(capsys: Capture, tmp_path: Path, metric: str) -> None:
    write_model(tmp_path, "softmax", "memory")  # the model has no softmax
    ended = call(
        capsys,
        *("reduce", "--file", "model.py:net", "--candidate", "dynamo:planted", "--threads", "1"),
        *("--metric", metric),
    )
    assert ended.code == 3, ended.err


def test_the_wrong_row_of_a_run(capsys: Capture, tmp_path: Path) -> None:
    write_model(tmp_path, "gelu", "wrong")
    options = ["--candidate", "dynamo:planted", "--threads", "1", "--time", "2s", "--launches", "2"]
    assert call(capsys, "bench", "model.py:net", *options).code == 9
    ended = call(capsys, "reduce", "latest", "--row", "1", "--json")
    document = json.loads(ended.out)
    assert document["metric"] == "wrong", ended.err
    assert [one.rpartition(".")[2] for one in document["operators"]] == ["gelu"]


def source(phase: str, text: str, operator: str, module: str = "") -> Source:
    lines = Path("model.py").read_text("utf-8").splitlines()
    line = 1 + next((n for n, one in enumerate(lines) if one.strip() == text), 0)
    return Source(
        phase=phase,
        module=module,
        kind="Net",
        file=str(Path("model.py").resolve()),
        line=line,
        text=text,
        operator=operator,
    )


def part_of(name: str, loss_ns: float, *sources: Source) -> Part:
    return Part(
        kind="operators" if sources else "host",
        name=name,
        baseline_ns=1e6,
        candidate_ns=1e6 + loss_ns,
        low_ns=loss_ns,
        high_ns=loss_ns,
        p_value=0.01,
        adjusted_p=0.01,
        named=True,
        sources=sources,
    )


def test_parts_of_an_attribution(capsys: Capture, tmp_path: Path) -> None:
    """The run is in training, so that parts can be in the backward pass."""
    write_model(tmp_path, "tanh")
    text = (tmp_path / "model.py").read_text("utf-8")
    (tmp_path / "model.py").write_text(
        text.replace("x = torch.relu(x)", "x = F.linear(x, self.weight)"), "utf-8"
    )
    options = ["--candidate", "dynamo:planted", "--threads", "1", "--time", "3s", "--launches", "2"]
    ended = call(capsys, "bench", "model.py:net", "--mode", "training", *options)
    assert ended.code in {0, 6}, ended.err
    ended = call(capsys, "reduce", "latest", "--row", "1", "--part", "1")
    assert ended.code == 2
    assert "row 1 has no attribution" in ended.err
    run = read_run(find_run("latest"))
    row = run.comparisons[0]
    tanh = source("backward", "x = torch.tanh(x)", "tanh_backward")
    parts = (
        part_of("Net backward: tanh_backward", 4e6, tanh),
        part_of("Net: gelu", 4e6, source("forward", "x = F.gelu(x)", "gelu")),
        part_of("Old: gelu", 4e6, source("forward", "x = F.gelu(x)", "gelu", "old")),
        part_of("Net: abs", -1e5, source("forward", "x = x.abs()", "abs")),
        part_of("host time outside of operators", 1e5),
    )
    assert row.estimate is not None
    save(
        Attribution(
            workload=row.workload,
            baseline=row.baseline,
            candidate=row.candidate,
            launches=2,
            rounds=8,
            rounds_dropped=0,
            baseline_ns=row.baseline_metrics.time_ns or 1e6,
            candidate_ns=17e6,
            low_ns=1e6,
            high_ns=2e7,
            parts=parts,
            baseline_overhead=0.0,
            candidate_overhead=0.0,
        ),
        run.folder,
        1,
    )
    reduce = ["reduce", "latest", "--row", "1", "--part"]
    for number, error, hint in (
        ("3", "the captured graph has no operator of part 3: Old: gelu", "has changed"),
        ("4", "part 4 has no loss: Net: abs", "takes more time"),
        ("5", "part 5 has no operators: host time", "a part with operators"),
    ):
        ended = call(capsys, *reduce, number)
        assert ended.code == 6, ended.err
        assert error in ended.err
        assert hint in ended.err
    assert call(capsys, *reduce, "6").code == 2
    assert call(capsys, *reduce, "1", "--metric", "wrong").code == 2
    assert call(capsys, "reduce", "--file", "model.py:net", "--part", "1").code == 2
    ended = call(capsys, *reduce, "2")
    assert ended.code == 6
    assert "the operators of part 2 do not show its loss" in ended.err
    assert "without --part" in ended.err
    ended = call(capsys, *reduce, "1", "--json", "--time", "2m", "--issue", "a.md")
    assert ended.code == 6, ended.err
    document = json.loads(ended.out)
    assert [one.rpartition(".")[2] for one in document["operators"]] == ["tanh"]
    assert document["part"] == "Net backward: tanh_backward"
    assert document["part_loss"] == 4.0
    assert "operators of the part" in (tmp_path / "a.md").read_text("utf-8")
    assert str(tmp_path) not in (tmp_path / "a.md").read_text("utf-8")


def stored_lines(home: Path) -> list[str]:
    lines = [
        line
        for path in sorted(home.glob("reduce/*/records-*.jsonl"))
        for line in path.read_text("ascii").splitlines(keepends=True)
    ]
    return [line for line in lines if line.endswith("\n")]


def test_a_killed_search_resumes(tmp_path: Path) -> None:
    write_model(tmp_path, "gelu")
    home = tmp_path / "home"
    argv = [sys.executable, "-m", "torchyard", "reduce", "--file", "model.py:net", "--threads", "1"]
    argv += ["--candidate", "dynamo:planted", "--time", "2m"]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline_s = time.monotonic() + 300.0
    while len(stored_lines(home)) < 4 and process.poll() is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    before = stored_lines(home)
    assert len(before) >= 4
    done = subprocess.run(
        [*argv, "--resume", "--json"], capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 6, done.stderr
    rounds = sum(len(json.loads(line).get("rounds", ())) for line in before)
    assert f"resumed after {rounds} rounds" in done.stderr
    assert "gelu" in str(json.loads(done.stdout)["operators"])
    assert stored_lines(home)[: len(before)] == before
    # Another model has another graph: nothing of the stored rounds is used.
    text = (tmp_path / "model.py").read_text("utf-8")
    (tmp_path / "model.py").write_text(text.replace("x = x.abs()", "x = x.sin()"), "utf-8")
    done = subprocess.run(
        [*argv, "--resume"], capture_output=True, text=True, check=False, timeout=280
    )
    assert "resumed after" not in done.stderr


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

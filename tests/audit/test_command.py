"""`torchyard machine audit`: errors, a short real audit, Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command_line import call
from tests.results.run_directories import compared, day, write_run
from torchyard.audit.audit_files import latest_audit, read_audit, write_audit
from torchyard.audit.model import Audit, Spread

GOLDEN = Path(__file__).parents[1] / "golden"
Capture = pytest.CaptureFixture[str]
EARLIER = Audit(
    started="2025-01-02T03:04:05+00:00",
    asked_s=60.0,
    measured_s=0.0,
    kernel="kernels/matmul inference",
    threads=1,
    time_ns=None,
    launches=(),
    pairs=0,
    blocks=0,
    dirty_blocks=0,
    within=Spread(),
    between=Spread(),
    unpaired=Spread(),
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def without_torch(folder: Path) -> Path:
    """An interpreter that sees no installed package."""
    program = folder / "bare-python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--seconds", "1"], 2, "1.0"),
        (["--threads", "0"], 2, "--threads"),
        (["--target", "/nowhere/python"], 2, "was not found"),
        (["--target", "build:nothing-of-this-name"], 2, "nothing-of-this-name"),
        (["--cores", "many"], 2, "invalid CPU list"),
        (["--cores", ""], 2, "invalid CPU list"),
        (["--against", "last"], 2, "there is no earlier audit"),
        (["--against", "/nowhere.json"], 2, "no audit at"),
        (["--html", "/proc/audit.html"], 2, "cannot be written"),
        (["--keep", "/proc/audit.json"], 2, "cannot be written"),
    ],
)
def test_wrong_options_cost_no_time(
    capsys: Capture, arguments: list[str], code: int, said: str
) -> None:
    completed = call(capsys, "machine", "audit", *arguments)
    assert completed.code == code
    assert said in completed.err
    assert "hint:" in completed.err
    assert completed.out == ""


def test_a_damaged_audit_to_compare_with(capsys: Capture, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.json"
    damaged.write_text("{")
    completed = call(capsys, "machine", "audit", "--against", str(damaged))
    assert completed.code == 8
    assert "damaged.json, line 1: not JSON" in completed.err


def test_cores_that_are_not_there(capsys: Capture) -> None:
    completed = call(capsys, "machine", "audit", "-q", "--cores", "4095")
    assert completed.code == 2
    assert "may not run on 4095" in completed.err


def test_without_torch_it_says_what_to_install(capsys: Capture, tmp_path: Path, home: Path) -> None:
    python = without_torch(tmp_path)
    before = os.sched_getaffinity(0)
    cores = str(min(before))
    completed = call(
        capsys, "machine", "audit", "-q", "--json", "--target", str(python), "--cores", cores
    )
    assert completed.code == 4
    error = json.loads(completed.out)["error"]
    assert error["kind"] == "MissingTool"
    assert "torch" in error["why"]
    assert f"{python} -m pip install torch" in error["hint"]
    assert "--target build:NAME" in error["hint"]
    assert latest_audit(home / "audits") is None
    assert os.sched_getaffinity(0) == before


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit that measures nothing."""
    monkeypatch.setattr("torchyard.audit.command._measure", lambda *_, **__: (EARLIER, False))


@pytest.mark.usefixtures("measured")
def test_spread_of_earlier_comparisons(capsys: Capture, home: Path) -> None:
    completed = call(capsys, "machine", "audit", "-q")
    assert (
        "No earlier comparison in the results directory has three or more launches."
        in completed.out
    )
    write_run(home / "runs", day(1), [compared()])
    write_run(home / "runs", day(2), [compared()])
    completed = call(capsys, "machine", "audit", "-q", "--json")
    (spread,) = json.loads(completed.out)["earlier_comparisons"]
    assert spread["machine"].startswith("example-9000-4c-")
    assert (spread["device"], spread["suite"]) == ("cpu", "kernels")
    assert (spread["comparisons"], spread["launches"]) == (2, 10)
    assert spread["observed_sd"] == pytest.approx(0.01)
    # 50 pairs of 2 % in 5 launches explain 0.79 %.
    assert spread["launch_sd"] == pytest.approx(0.0061, abs=1e-4)
    completed = call(capsys, "machine", "audit", "-q")
    assert re.search(r"of earlier comparisons on example-9000-4c-\w+", completed.out)
    assert re.search(r"\n +cpu +kernels +2 +10 +0.61% +1.0%", completed.out)


@pytest.mark.usefixtures("measured")
def test_an_unreadable_results_directory_does_not_fail_an_audit(
    capsys: Capture, home: Path
) -> None:
    home.mkdir()
    (home / "runs").write_text("not a folder")
    completed = call(capsys, "machine", "audit", "-q", "--json")
    assert json.loads(completed.out)["earlier_comparisons"] == []


@pytest.fixture
def spinner(tmp_path: Path) -> Iterator[str]:
    """A busy process with a name of its own that is not a child of ours."""
    program = tmp_path / "yardspinner"
    program.write_text(
        f"#!{sys.executable}\nimport os\nprint(os.getpid(), flush=True)\nwhile 1: 0\n"
    )
    program.chmod(0o755)
    subprocess.run(["sh", "-c", '"$0" >"$1" &', program, tmp_path / "pid"], check=True)
    deadline = time.monotonic() + 30
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield program.name
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


@pytest.mark.torch
def test_a_real_audit_names_the_disturbing_process(
    capsys: Capture, tmp_path: Path, home: Path, spinner: str
) -> None:
    page, earlier = tmp_path / "audit.html", tmp_path / "earlier.json"
    write_audit(EARLIER, earlier)
    completed = call(
        capsys,
        *("machine", "audit", "--seconds", "6", "--threads", "1", "--json"),
        *("--html", str(page), "--against", str(earlier)),
    )
    document = json.loads(completed.out)
    assert completed.code == (6 if document["complaints"] else 0)
    kept = Path(document["kept"])
    assert kept.parent == home / "audits"
    assert str(kept) in completed.err
    audit = read_audit(kept)
    check_real(audit)
    assert not audit.interrupted
    assert spinner in {one.what for one in audit.disturbances}
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert document["against"]["file"] == str(earlier)
    changes = document["against"]["changes"]
    assert [change["name"] for change in changes] == [
        "within launches",
        "between launches",
        "without pairing",
    ]
    # The earlier audit has no launches: nothing is claimed.
    assert {change["verdict"] for change in changes} == {"unknown"}
    assert "Compared with the audit of 2025" in page.read_text()


def check_real(audit: Audit) -> None:
    assert len(audit.launches) >= 2
    assert audit.pairs + audit.dirty_blocks > 0
    assert audit.blocks == len(audit.series)
    assert audit.time_ns is not None
    assert 1e5 < audit.time_ns < 1e10
    assert dict(audit.target)["torch"]
    assert audit.threads == 1
    assert dict(audit.watched)["load samples"] != "0"
    assert audit.within.sd is not None


@pytest.mark.torch
def test_ctrl_c_reports_what_was_measured(tmp_path: Path, home: Path) -> None:
    # A shell starts background jobs with SIGINT ignored, and the child would inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    talk = (tmp_path / "talk").open("w")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "torchyard", "machine", "audit", "--seconds", "120"),
            *("--threads", "1", "--json"),
        ],
        stdout=subprocess.PIPE,
        stderr=talk,
        text=True,
    )
    signal.signal(signal.SIGINT, before)
    talk.close()
    deadline = time.monotonic() + 240  # torch starts slowly beside other tests
    try:
        # Not every launch has a line of its own.
        while not re.search(r"launch ([2-9]|\d\d)", (tmp_path / "talk").read_text()):
            assert process.poll() is None, (tmp_path / "talk").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == 130
    document = json.loads(out)
    assert document["audit"]["interrupted"] is True
    assert document["audit"]["blocks"] >= 12
    audit_path = latest_audit(home / "audits")
    assert audit_path is not None
    assert read_audit(audit_path).interrupted
    assert "interrupted" in (tmp_path / "talk").read_text()

"""`torchyard machine quiet --measure`: options that exclude each other, and a real measurement."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command_line import call, program
from torchyard.audit.audit_files import read_audit

Capture = pytest.CaptureFixture[str]
RATE = Path("/proc/sys/kernel/perf_event_max_sample_rate")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TORCHYARD_MACHINE_JOURNAL", str(tmp_path / "journal"))
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--measure", "--", "true"], "cannot be combined with a command"),
        (["--measure", "--dry-run"], "cannot be combined with --dry-run"),
        (["--measure", "--root", "/tmp"], "cannot be combined with --root"),
        (["--each"], "--each requires --measure"),
        (["--target", "python3"], "--target requires --measure"),
        (["--measure", "--seconds", "1"], "10"),
        (["--measure", "--only", "no-such-knob"], "unknown knob 'no-such-knob'"),
    ],
)
def test_options_that_exclude_each_other(capsys: Capture, arguments: list[str], said: str) -> None:
    completed = call(capsys, "machine", "quiet", *arguments)
    assert completed.code == 2
    assert said in completed.err
    assert completed.out == ""


def test_nothing_to_measure(capsys: Capture) -> None:
    """Whether as root or not: an unavailable knob changes nothing."""
    if Path("/sys/devices/system/cpu/cpufreq/boost").exists():
        pytest.skip("this machine has a turbo")
    if Path("/sys/devices/system/cpu/intel_pstate").exists():
        pytest.skip("this machine has a turbo")
    completed = call(capsys, "machine", "quiet", "--measure", "--only", "turbo", "--json")
    assert completed.code == 3
    assert json.loads(completed.out)["error"]["kind"] == "NothingToDo"


def test_an_audit_that_cannot_run_ends_it(tmp_path: Path) -> None:
    completed = program(
        *("machine", "quiet", "--user", "--measure", "--only", "pinning"),
        *("--target", str(tmp_path / "no-python")),
    )
    assert completed.code == 5
    assert "failed with exit code 2" in completed.err


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_real_quieting_is_measured_and_restored(home: Path) -> None:
    before = RATE.read_text()
    completed = subprocess.run(
        [
            *(sys.executable, "-m", "torchyard", "machine", "quiet", "--measure"),
            *("--only", "perf-rate", "--seconds", "10", "--json"),
        ],
        capture_output=True,
        text=True,
        timeout=1000,  # beside other work each launch takes its time
        check=False,
    )
    assert RATE.read_text() == before
    assert completed.returncode == 0, completed.stderr
    document = json.loads(completed.stdout)["tune_effect"]
    (effect,) = document["effects"]
    assert effect["what"] == "everything"
    assert effect["written"] == ["perf-rate"]
    audits = [read_audit(Path(path)) for path in document["audits"]]
    assert [audit.label for audit in audits] == ["plain", "everything", "plain"]
    assert all(Path(path).parent == home / "audits" for path in document["audits"])
    assert len({audit.threads for audit in audits}) == 1

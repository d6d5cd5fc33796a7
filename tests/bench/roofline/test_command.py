"""`torchyard machine peak`: help, errors, and reuse of a stored peak."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.cli.command_line import call
from tests.sample_records import made_peak
from torchyard.bench.roofline.machine_peak import (
    PeakRequest,
    machine_of,
    peak_of_machine,
    peaks_home,
    write_peak,
)
from torchyard.bench.target_checks import inspect_target
from torchyard.core.roofline import MachinePeak, ProductRate, StreamRate
from torchyard.core.study import Target
from torchyard.machine.facts import read_facts

GOLDEN = Path(__file__).parents[2] / "golden"
Capture = pytest.CaptureFixture[str]
HERE = Target(name="here", python=sys.executable)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def peak_of_here(*, days: float = 0.0, torch_version: str | None = None) -> MachinePeak:
    """A peak of this machine with made-up rates, measured so many days ago."""
    hello = inspect_target(HERE)
    measured = datetime.now(UTC) - timedelta(days=days)
    return made_peak(
        123e9,
        45e9,
        machine=machine_of(read_facts(), hello, "cpu"),
        products=(ProductRate(size=512, flops_per_second=123e9),),
        streams=(StreamRate(kind="copy", working_set_bytes=2**27, bytes_per_second=45e9),),
        torch_version=torch_version or str(hello["torch"]),
        measured=measured.isoformat(timespec="seconds"),
    )


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--threads", "0"], 2, "--threads"),
        (["--precision", "float8"], 2, "float8"),
        (["--target", "/nowhere/python"], 2, "was not found"),
        (["--target", "build:nothing-of-this-name"], 2, "nothing-of-this-name"),
    ],
)
def test_errors_come_before_work(
    capsys: Capture, arguments: list[str], code: int, said: str
) -> None:
    completed = call(capsys, "machine", "peak", *arguments)
    assert completed.code == code
    assert said in completed.err
    assert completed.out == ""
    assert not peaks_home().exists()


def test_an_interpreter_without_torch(capsys: Capture, tmp_path: Path) -> None:
    program = tmp_path / "bare-python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    program.chmod(0o755)
    completed = call(capsys, "machine", "peak", "--target", str(program), "--quiet")
    assert completed.code == 4
    assert "measuring a peak needs a working torch" in completed.err
    assert "--target build:NAME" in completed.err


@pytest.mark.torch
def test_a_kept_peak_is_shown_again(capsys: Capture) -> None:
    kept = peak_of_here(days=3)
    path = write_peak(kept)
    completed = call(capsys, "machine", "peak", "--threads", "1")
    assert completed.code == 0
    assert "123 GFLOP/s" in completed.out
    assert "45.0 GB/s" in completed.out
    assert "--measure measures again" in completed.out
    assert f"stored: {path}" in completed.err
    document = call(capsys, "machine", "peak", "--threads", "1", "--json").document
    assert document["fresh"] is False
    assert document["kept"] == str(path)
    assert document["peak"]["flops_per_second"] == 123e9


@pytest.mark.torch
@pytest.mark.slow
def test_an_old_peak_and_one_of_another_torch_are_measured_again() -> None:
    request = PeakRequest(target=HERE, threads=1, duration_factor=0.01, longest_call_s=1e-4)
    write_peak(peak_of_here(days=31))
    write_peak(peak_of_here(torch_version="1.13.0"))
    peak = peak_of_machine(request)
    assert peak.fresh
    assert peak.peak.flops_per_second != 123e9
    assert peak.path.is_file()
    again = peak_of_machine(request)
    assert again.peak == peak.peak
    assert not again.fresh

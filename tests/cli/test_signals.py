"""SIGTERM and SIGHUP end long commands as Ctrl-C does, in real processes.

`bench` is in tests/bench/test_interrupts.py, `build` in tests/builds/e2e/test_interrupted.py,
`machine quiet` in tests/machine.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

LIMIT_S = 120.0
ENDING = [signal.SIGTERM, signal.SIGHUP]
STEP = """
import time
import torch

def step(x):
    time.sleep(0.001)
    return x + 1

def make():
    return step, torch.ones(4)
"""
PROGRAM = """
import time
import torch

x = torch.zeros(4096)
x.zero_()
print("ready", flush=True)
time.sleep(600)
"""


def until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not done():
        assert time.monotonic() < deadline, f"waited too long for: {what}"
        time.sleep(0.05)


@contextmanager
def started(
    folder: Path, *words: str, ignoring: signal.Signals | None = None, terminal: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A command of the program; with `ignoring` as `nohup` starts it."""
    before = signal.signal(ignoring, signal.SIG_IGN) if ignoring is not None else None
    environment = {**os.environ, "TORCHYARD_HOME": str(folder / "home")}
    try:
        with (folder / "said").open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "torchyard", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if terminal is None else terminal,
                stderr=output if terminal is None else terminal,
                text=True,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )
    finally:
        if ignoring is not None:
            signal.signal(ignoring, before)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def sweep_words(folder: Path) -> list[str]:
    (folder / "step.py").write_text(STEP)
    return [
        *("sweep", "--workload", str(folder / "step.py"), "--backends", "eager", "--time", "5m"),
        *("--precision-goal", "0%", "--threads", "1", "--run-dir", str(folder / "sweep")),
    ]


def samples_in(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.rglob("samples.jsonl"))


@pytest.mark.torch
@pytest.mark.parametrize("number", ENDING)
def test_a_sweep_keeps_its_cell_and_says_how_to_resume(
    tmp_path: Path, number: signal.Signals
) -> None:
    with started(tmp_path, *sweep_words(tmp_path)) as process:
        until(lambda: process.poll() is not None or samples_in(tmp_path) > 5, "samples")
        assert process.poll() is None, (tmp_path / "said").read_text()
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        process.send_signal(number)
        assert process.wait(timeout=LIMIT_S) == 128 + number
    output = (tmp_path / "said").read_text()
    assert f"torchyard sweep --resume {tmp_path / 'sweep'}" in output
    until(lambda: not any(child.is_running() for child in children), "no process is left")
    (attempt,) = (tmp_path / "sweep").rglob("attempt-1.json")
    assert json.loads(attempt.read_text())["outcome"] == "interrupted"
    (facts,) = (tmp_path / "sweep").rglob("run.json")
    assert json.loads(facts.read_text())["state"] == "interrupted"


@pytest.mark.torch
@pytest.mark.parametrize("number", ENDING)
def test_values_keeps_the_profile(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with started(tmp_path, "values", str(tmp_path / "program.py")) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        code = process.wait(timeout=LIMIT_S)
    output = (tmp_path / "said").read_text()
    assert code == 143, output
    assert "Traceback (most recent call last)" not in output
    (profile,) = (tmp_path / "home" / "values").rglob("profile.json")
    assert json.loads(profile.read_text())["state"] == "interrupted"


@pytest.mark.torch
def test_a_lost_terminal_ends_with_the_results_kept(tmp_path: Path) -> None:
    """Output cannot be written any more, which must not hide what was measured."""
    own, other = pty.openpty()
    words = ["bench", "--only", sweep_words(tmp_path)[2], "--candidate", "eager", "--time", "5m"]
    words += ["--precision-goal", "0%", "--threads", "1", "--run-dir", str(tmp_path / "run")]
    with started(tmp_path, *words, terminal=other) as process:
        os.close(other)
        os.set_blocking(own, False)

        def measured() -> bool:
            with suppress(OSError):
                os.read(own, 1 << 16)  # a full terminal would hold the program up
            return process.poll() is not None or samples_in(tmp_path) > 5

        until(measured, "samples")
        assert process.poll() is None
        os.close(own)  # the terminal is gone: every write fails from here on
        process.send_signal(signal.SIGHUP)
        assert process.wait(timeout=LIMIT_S) == 129
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["state"] == "interrupted"


@pytest.mark.parametrize("number", ENDING)
def test_a_dashboard_ends(tmp_path: Path, number: signal.Signals) -> None:
    pytest.importorskip("uvicorn")
    with started(tmp_path, "serve", "--port", "0") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://")
        process.send_signal(number)
        code = process.wait(timeout=LIMIT_S)
    assert code in (0, 128 + number)
    assert "Traceback" not in (tmp_path / "said").read_text()

"""Ctrl-C, SIGTERM, SIGHUP and SIGKILL during a run: results are kept, no process is left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.bench.tiny_bench import leftover_processes, write_file
from torchyard.results.run_reader import read_run

pytestmark = pytest.mark.torch

STEP = """
    import time
    import torch

    def step(x):
        time.sleep(0.001)
        return x + 1

    def make():
        return step, torch.ones(4)
"""
_EITHER = {signal.SIGHUP: (143,), signal.SIGTERM: (129,)}
"""Signals that are sent together are seen in the order of their numbers, or one after the other."""
HEALTHY = "def healthy(module):\n    return lambda x: module(x)\n"


def until(done: Callable[[], bool], *, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)


@contextmanager
def running(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A bench of the command line that would go on for minutes, once it has samples."""
    mine = write_file(tmp_path, "mine.py", HEALTHY)
    options = ["--only", write_file(tmp_path, "step.py", STEP), "--candidate", f"{mine}:healthy"]
    options += ["--time", "5m", "--precision-goal", "0%", "--threads", "1", "--json"]
    # A shell starts background jobs with SIGINT ignored, and the child would inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [sys.executable, "-m", "torchyard", "bench", "--run-dir", str(tmp_path / "run"), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    signal.signal(signal.SIGINT, before)
    samples = tmp_path / "run/samples.jsonl"

    def measured() -> bool:
        assert process.poll() is None, process.communicate()[1]
        return samples.exists() and samples.read_bytes().count(b"\n") >= 10

    try:
        until(measured, limit_s=60)
        yield process, tmp_path / "run"
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_keeps_what_was_measured(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C, `kill`, Slurm, systemd, CI and a lost terminal; also when they send it twice."""
    with running(tmp_path) as (process, folder):
        assert leftover_processes(process.pid)
        process.send_signal(number)
        if number is not signal.SIGINT:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGHUP)
        assert process.wait(timeout=60) in {128 + number, *_EITHER.get(number, ())}
        assert process.stdout is not None
        document = json.loads(process.stdout.read())
    until(lambda: leftover_processes(process.pid) == [], limit_s=60)
    run = read_run(folder)
    assert run.state == "interrupted"
    (row,) = run.comparisons
    assert row.estimate is not None
    assert row.estimate.pairs >= 3
    assert len(list(run.blocks())) >= 10
    assert document["comparisons"][0]["candidate"] == row.candidate
    assert not (folder / "scratch").exists()


def test_a_lost_terminal_does_not_end_what_nohup_started(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with running(tmp_path) as (process, folder):
            signal.signal(signal.SIGHUP, before)
            process.send_signal(signal.SIGHUP)
            samples = folder / "samples.jsonl"
            count = samples.read_bytes().count(b"\n")
            until(lambda: samples.read_bytes().count(b"\n") > count + 10, limit_s=60)
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 143
    finally:
        signal.signal(signal.SIGHUP, before)
    assert read_run(folder).state == "interrupted"


def test_sigkill_keeps_the_samples(tmp_path: Path) -> None:
    with running(tmp_path) as (process, folder):
        assert leftover_processes(process.pid)
        process.kill()
    until(lambda: leftover_processes(process.pid) == [], limit_s=60)
    run = read_run(folder)
    assert run.state == "interrupted"
    assert run.comparisons == ()
    assert len(list(run.blocks())) >= 10

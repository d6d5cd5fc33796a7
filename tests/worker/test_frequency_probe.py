"""The frequency probe: the fastest try counts, and slow results are repeated."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.in_process_service import make_service, write_file
from torchyard.worker.bench import timing as frequency_probe
from torchyard.worker.bench.timing import RETRY_RATIO, TRIES, FrequencyProbe


class Clock:
    """The system's clock: each piece of work takes what is next."""

    def __init__(self) -> None:
        self.now = 0
        self.durations: Iterator[int] = iter(())
        self.works = 0

    def work(self) -> None:
        self.works += 1
        self.now += next(self.durations)

    def probe(self) -> FrequencyProbe:
        return FrequencyProbe(self.work, lambda: self.now)


def test_the_fastest_try_counts() -> None:
    clock = Clock()
    probe = clock.probe()
    clock.durations = iter([9000, 1200, 1010, 1000, 8000, 1005, 1001, 1003] + [1500] * TRIES)
    assert probe.read() == 1000
    assert clock.works == 2 * TRIES  # nothing is known yet, so it looks twice


def test_slow_probe_is_repeated_once() -> None:
    clock = Clock()
    probe = clock.probe()
    clock.durations = iter([1000] * 10_000)
    probe.read()
    clock.works = 0
    clock.durations = iter([1000] * TRIES)
    assert probe.read() == 1000
    assert clock.works == TRIES
    # An interrupt that takes longer than all tries.
    clock.durations = iter([1300] * TRIES + [1000] * TRIES)
    assert probe.read() == 1000
    # A clock that fell.
    clock.durations = iter([1300] * 2 * TRIES)
    assert probe.read() == 1300
    just_below = int(1000 * RETRY_RATIO)
    clock.durations = iter([just_below] * TRIES)
    assert probe.read() == just_below


def test_a_core_that_speeds_up_moves_what_counts_as_slow() -> None:
    clock = Clock()
    probe = clock.probe()
    clock.durations = iter([1000] * 2 * TRIES)
    probe.read()
    clock.durations = iter([800] * TRIES)
    assert probe.read() == 800
    clock.durations = iter([1000] * 2 * TRIES)
    assert probe.read() == 1000
    with pytest.raises(StopIteration):
        clock.work()


def test_the_work_is_a_hash_of_a_fixed_text(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []

    def counted(text: bytes) -> object:
        hashed.append(text)
        return hashlib_sha256(text)

    hashlib_sha256 = hashlib.sha256
    monkeypatch.setattr(hashlib, "sha256", counted)
    probe = FrequencyProbe()
    probe.read()
    # A reading hashes a quarter of a megabyte at most: well under a millisecond of CPU time. How long
    # it takes is measured by benchmarks/, since a shared machine may take any time for it.
    assert len(hashed) == 2 * TRIES
    assert set(hashed) == {frequency_probe.WORK}
    assert sum(map(len, hashed)) <= 256 << 10


BUSY_LOOP = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True:\n    pass"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen here")
def test_core_contention_does_not_appear_as_a_lower_clock() -> None:
    """One undisturbed try of hundreds is enough, so a machine that is busy by itself passes too."""
    own = os.sched_getaffinity(0)
    core = min(own)
    probe = FrequencyProbe()

    def readings() -> list[int]:
        found = []
        for _ in range(30):
            deadline = time.perf_counter() + 0.005
            while time.perf_counter() < deadline:
                pass
            found.append(probe.read())
        return found

    os.sched_setaffinity(0, {core})
    fighter = subprocess.Popen([sys.executable, "-c", BUSY_LOOP, str(core)])
    try:
        beside = readings()
    finally:
        fighter.kill()
        fighter.wait()
        os.sched_setaffinity(0, own)
    alone = readings()
    # Every try would take a time slice more if waiting counted, which is hundreds of times as long.
    assert min(beside) < 4 * min(alone)


@pytest.mark.torch
def test_block_is_probed_only_when_requested(
    tmp_path: Path,
) -> None:
    code = """
        import torch
        def make():
            return torch.nn.Linear(8, 8), torch.ones(8)
    """
    service = make_service(write_file(tmp_path, "linear.py", code))
    request = {"inner": 1, "samples": 3, "prime": 1, "settle": False, "flush_l2": False}
    probed = service.block("eager", **request, probe=True)["readings"]
    assert 1000 < probed["probe_before_ns"] < 10**9
    assert 1000 < probed["probe_after_ns"] < 10**9
    plain = service.block("eager", **request)["readings"]
    assert plain["probe_before_ns"] is None
    assert plain["probe_after_ns"] is None


@pytest.mark.torch
def test_the_probe_is_outside_the_timed_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe that takes 160 ms must show neither in the samples nor in the block's readings."""
    from torchyard.worker.bench import timing

    def slow_work() -> None:
        deadline = time.thread_time_ns() + 20_000_000
        while time.thread_time_ns() < deadline:
            pass

    monkeypatch.setattr(timing, "PROBE", FrequencyProbe(slow_work))
    code = """
        import torch
        def make():
            return torch.nn.Linear(8, 8), torch.ones(8)
    """
    service = make_service(write_file(tmp_path, "linear.py", code))
    block = service.block(
        "eager", inner=1, samples=3, prime=1, settle=False, flush_l2=False, probe=True
    )
    assert block["readings"]["probe_before_ns"] >= 20_000_000
    assert block["readings"]["cpu_ns"] < 160_000_000
    assert min(block["samples_ns"]) < 20_000_000

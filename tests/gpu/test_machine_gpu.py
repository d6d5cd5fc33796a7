"""A real GPU: facts, surveys of knobs, guards with and without another process. Changes nothing.

Never run by `make test`; run by hand on a machine with a GPU: `python -m pytest -m gpu tests/gpu`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from torchyard.machine.advice import advise_reading
from torchyard.machine.facts import gpu_facts, read_gpus
from torchyard.machine.gpu.library import GpuLibraries, open_gpu_libraries
from torchyard.machine.guards.gpu_guard import OTHER_PROCESSES_EVERY_S, GpuGuard
from torchyard.machine.knob import Machine
from torchyard.machine.knobs import KNOBS
from torchyard.machine.model import QuietRequest

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

WORK = """
import sys, time, torch
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
torch.cuda.synchronize()
print("ready", flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    if sys.argv[1] == "busy":
        for _ in range(10):
            a @ a
        torch.cuda.synchronize()
    else:
        time.sleep(0.1)
"""


@pytest.fixture
def libraries() -> Iterator[GpuLibraries]:
    with open_gpu_libraries() as opened:
        assert opened.nvml is not None, opened.nvml_because
        yield opened


@contextmanager
def worker(kind: str, *, ours: bool) -> Iterator[int]:
    """A process on the GPU; one that is not ours has lost its parent."""
    command = [sys.executable, "-c", WORK, kind]
    if not ours:
        # The shell starts it and is gone, so that its parent is not this process.
        script = 'exec 3>&1; "$@" >&3 3>&- & echo $!'
        command = ["setsid", "sh", "-c", script, "sh", *command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        pid = started.pid if ours else int(started.stdout.readline())
        try:
            assert started.stdout.readline() == "ready\n"
            yield pid
        finally:
            os.kill(pid, 9)


def test_facts_of_a_real_card(libraries: GpuLibraries) -> None:
    view = read_gpus(Machine(gpus=libraries))
    assert view.nvidia
    facts = {fact.name: fact for fact in gpu_facts(view) if fact.section == "gpu 0"}
    for fact in facts.values():
        print(f"{fact.name}: {fact.text}")
    for name in ("name", "UUID", "driver", "graphics clock", "power", "temperature", "memory"):
        assert facts[name].value, facts[name].unavailable
    assert view.nvidia[0].processes.value is not None
    for advice in advise_reading(view):
        print(advice.effect, advice.what, "unfit" if advice.unfit else "")


def test_knobs_survey_a_real_card_without_changing_it(libraries: GpuLibraries) -> None:
    machine = Machine(gpus=libraries)
    for name, knob in KNOBS.items():
        if not name.startswith("nvidia-"):
            continue
        state = knob.survey(machine, QuietRequest(profiles=("gpu",)))
        print(name, state.unavailable, state.settings, state.notes)
        for setting in state.settings:
            assert knob.same(setting.place, knob.read(machine, setting.place), setting.found)


def test_own_processes_are_not_other_processes() -> None:
    with worker("busy", ours=True):
        guard = GpuGuard("cuda")
        assert guard.why_not == ""
        time.sleep(OTHER_PROCESSES_EVERY_S)
        reading = guard.read()
        print(reading)
        assert reading is not None
        assert reading.other_processes == 0
        assert reading.sm_clock_mhz is not None
        assert reading.sm_clock_mhz > 500
        assert reading.power_w is not None
        assert reading.power_w > 100
        assert reading.temperature_c is not None
        guard.close()
        assert guard.read() is None


@pytest.mark.parametrize(("kind", "counted"), [("busy", 1), ("idle", 0)])
def test_another_process_counts_while_it_computes(kind: str, counted: int) -> None:
    with worker(kind, ours=False) as pid:
        guard = GpuGuard("cuda")
        time.sleep(OTHER_PROCESSES_EVERY_S + 1)
        guard.read()
        time.sleep(OTHER_PROCESSES_EVERY_S + 1)
        reading = guard.read()
        assert reading is not None
        assert reading.other_processes == counted
        view = read_gpus(Machine(gpus=open_gpu_libraries()))
        assert pid in [process.pid for process in view.nvidia[0].processes.value or ()]
        assert any(
            advice.name == "gpu-processes" and advice.unfit for advice in advise_reading(view)
        )
        guard.close()


def test_what_a_reading_costs() -> None:
    with worker("busy", ours=True):
        guard = GpuGuard("cuda")
        guard.read()
        durations_us = []
        for _ in range(200):
            started_ns = time.perf_counter_ns()
            guard.read()
            durations_us.append((time.perf_counter_ns() - started_ns) / 1000)
        durations_us.sort()
        print(f"median {durations_us[100]:.0f} us, slowest {durations_us[-1]:.0f} us")
        assert durations_us[100] < 20_000
        guard.close()


def test_blocks_of_a_run_carry_the_readings(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torchyard", "bench", "--run-dir", str(tmp_path / "run")]
    command += ["--only", "kernels/matmul", "--device", "cuda", "--candidate", "inductor"]
    done = subprocess.run(
        [*command, "--time", "8s", "--json"], capture_output=True, text=True, check=False
    )
    print(done.stderr[-3000:])
    assert done.returncode in {0, 6}, done.stderr
    lines = (tmp_path / "run" / "samples.jsonl").read_text().splitlines()
    guards = [json.loads(line)["block"]["guard"] for line in lines]
    assert guards
    for guard in guards:
        assert guard["sm_clock_mhz"] > 500
        assert guard["gpu_power_w"] > 50
        assert 10 < guard["gpu_temperature_c"] < 100
        assert guard["other_gpu_processes"] == 0

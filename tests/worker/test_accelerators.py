"""Accelerators other than CUDA, on a small device of our own: see toy_device/toy_device.cpp."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.worker.toy_device import WORKLOAD, ToyMachine, toy_library

pytestmark = pytest.mark.torch
KERNEL_NS = 2_000_000
"""Much longer than a call takes on the host, so that a time without synchronization would be obvious."""
Machines = Callable[..., ToyMachine]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machines:
    folder = tmp_path_factory.getbasetemp()
    parallel = "PYTEST_XDIST_WORKER" in os.environ
    library = toy_library(folder.parent if parallel else folder)

    def create(**variables: str) -> ToyMachine:
        return ToyMachine(library, tmp_path_factory.mktemp("toy"), **variables)

    return create


BLOCKS = """
import json, time, torch
from toy_workload import build
from torchyard.worker.bench.timing import run_block
from torchyard.worker.bench.model import Model
from torchyard.worker.bench.variant import VariantRunner
from torchyard.worker.devices import device_of
from torchyard.worker.workload import BuiltWorkload
found = {}
for name in ("toy", "toy:1"):
    device_of(name).check()
    module, args = build(name)
    model = Model(BuiltWorkload(module, args), training=False, step=False)
    runner = VariantRunner("eager", "eager", "float32", model, name)
    runner.first_call()
    found[name] = run_block(runner, 2, 10, 1, settle=False, flush_l2=True)["samples_ns"]
    started = time.perf_counter_ns()
    submitted = []
    with runner.context():
        call = runner.caller()
        for _ in range(10):
            started = time.perf_counter_ns()
            call()
            submitted.append(time.perf_counter_ns() - started)
            runner.synchronize()
    found["host " + name] = submitted
    found["notes " + name] = device_of(name).notes
found["current"] = torch.accelerator.current_device_index()
print(json.dumps(found))
"""


@pytest.mark.parametrize("lacking", ["", "events", "clock"])
def test_each_device_is_timed_on_itself(machine: Machines, lacking: str) -> None:
    document = machine(TOY_KERNEL_NS=str(KERNEL_NS), TOY_WITHOUT=lacking).program(BLOCKS)
    kernels = 3
    for index, name in enumerate(("toy", "toy:1")):
        device_ns = kernels * (index + 1) * KERNEL_NS
        assert min(document[name]) >= 0.999 * device_ns
        assert min(document[f"host {name}"]) < 0.5 * device_ns, "the device is not asynchronous"
        notes = document[f"notes {name}"]
        assert "never tested on" in notes[0]
        assert any("clock of the host" in note for note in notes) is bool(lacking)
    assert min(document["toy"]) < 2 * kernels * KERNEL_NS, "toy was timed like toy:1"
    assert document["current"] == 0


def test_events_that_do_not_measure_time_are_detected(machine: Machines) -> None:
    code = """
import json
from torchyard.worker.devices import device_of
device_of("toy").check()
print(json.dumps(device_of("toy").notes))
"""
    (_, note) = machine(TOY_WITHOUT="clock").program(code)
    assert "they measured 0.00 ms in an interval of" in note


MEMORY = """
import json, torch
from toy_workload import build
from torchyard.worker.bench.metrics import measure
from torchyard.worker.bench.model import Model
from torchyard.worker.bench.variant import VariantRunner
from torchyard.worker.devices import device_of
from torchyard.worker.workload import BuiltWorkload
device = device_of("toy:1")
device.check()
module, args = build("toy:1")
model = Model(BuiltWorkload(module, args), training=False, step=False)
found = measure(VariantRunner("eager", "eager", "float32", model, "toy:1"))
found["other"] = device_of("toy:0").allocated_bytes() if not device.why_no_memory else None
found["free"] = device.free_bytes()
print(json.dumps(found))
"""


def test_memory_is_that_of_the_device(machine: Machines) -> None:
    document = machine().program(MEMORY)
    hidden_bytes, output_bytes = 4 * 32 * 4, 4 * 8 * 4
    assert hidden_bytes + output_bytes <= document["peak_memory_bytes"] < 100 * hidden_bytes
    assert document["memory_method"].endswith("toy allocator")
    assert document["free"] == 2**33


@pytest.mark.parametrize(
    ("lacking", "reason"),
    [
        ("memory", "torch.accelerator has no memory statistics of toy"),
        ("counting", "the memory statistics of toy do not follow allocations"),
    ],
)
def test_memory_without_statistics_is_unavailable_and_not_0(
    machine: Machines, lacking: str, reason: str
) -> None:
    document = machine(TOY_WITHOUT=lacking).program(MEMORY)
    assert document["peak_memory_bytes"] is None
    assert ["peak_memory_bytes", reason] in document["unavailable"]


def test_random_state_of_devices_in_use_is_restored(machine: Machines) -> None:
    code = """
import json, torch
from torchyard.worker.bench.process_state import RandomState
from torchyard.worker.devices import device_of
def seeds():
    return [int(torch.toy.get_rng_state(index)) for index in (0, 1)]
unused = RandomState()
torch.toy.manual_seed_all(5)
unused.restore()
before = seeds()
device_of("toy:1").check()
state = RandomState()
torch.manual_seed(11)
changed = seeds()
state.restore()
notes = device_of("toy:1").notes
del type(torch.toy).get_rng_state
device_of("toy:0").check()
RandomState().restore()
print(json.dumps([before, changed, seeds_now := torch.toy.states[1].tolist(), notes, device_of("toy:0").notes]))
"""
    before, changed, restored, notes, without = machine().program(code)
    assert (before, changed, restored) == ([5, 5], [11, 11], [5])
    assert not any("random" in note for note in notes)
    assert any("random number generator of toy cannot be restored" in note for note in without)


@pytest.mark.parametrize(
    ("device", "reason", "variables"),
    [
        ("toy:7", "there is no toy:7: this target has toy:0 to toy:1", {}),
        ("toy", "no toy device is available", {"TOY_COUNT": "0"}),
        ("toy:1", "there is no toy:1: this target has toy:0", {"TOY_COUNT": "1"}),
        ("xpu", "'xpu' is not an accelerator of this target's torch", {}),
        ("nosuch", "nosuch", {}),
        ("meta", "have no data to compute with", {}),
        ("meta:0", "have no data to compute with", {}),
        ("Toy", "the name is not exact", {}),
    ],
)
def test_other_devices_are_refused_before_measuring(
    machine: Machines, device: str, reason: str, variables: dict[str, str]
) -> None:
    completed = machine(**variables).torchyard("bench", f"{WORKLOAD}:build", "--device", device)
    assert completed.returncode == 2
    assert reason in " ".join(completed.stderr.split())
    assert "hint: " in completed.stderr
    assert "run folder" not in completed.stderr


def test_backend_that_no_file_registers_is_not_visible(machine: Machines) -> None:
    completed = machine().torchyard("bench", "kernels/softmax", "--device", "toy")
    assert completed.returncode == 2
    assert "'toy' is not visible to the target" in completed.stderr


@pytest.mark.parametrize("lacking", ["", "events,memory"])
def test_bench_gives_a_verdict_with_notes(machine: Machines, lacking: str) -> None:
    toy = machine(TOY_KERNEL_NS="300000", TOY_WITHOUT=lacking)
    words = [f"{WORKLOAD}:build", "--device", "toy:1", "--candidate", f"{WORKLOAD}:twice"]
    completed = toy.torchyard("bench", *words, "--time", "3s", "--json")
    assert completed.returncode in (0, 6), completed.stderr  # 6: a busy machine
    (comparison,) = json.loads(completed.stdout)["comparisons"]
    # On a busy machine the time suffices for one launch only.
    assert comparison["verdict"] in ("slower", "undecided", "untrusted")
    assert comparison["estimate"]["speedup"] < 0.95  # three kernels against four
    notes = "\n".join(comparison["notes"])
    assert "measured on toy, a kind of device that Torchyard was never tested on" in notes
    assert ("timed by the clock of the host" in notes) is bool(lacking)
    metrics: dict[str, Any] = comparison["candidate_metrics"]
    assert (metrics["peak_memory_bytes"] is None) is bool(lacking)
    for form in ("terminal", "markdown", "csv", "html"):
        text = " ".join(toy.torchyard("report", "--format", form).stdout.split())
        assert "never tested on" in text, form
        if lacking and form == "html":
            assert "torch.accelerator has no memory statistics of toy" in text
    why = toy.torchyard("why", "latest")
    assert why.returncode == 2
    assert "its operators cannot be profiled" in " ".join(why.stderr.split())


def test_training_on_the_device(machine: Machines) -> None:
    words = [f"{WORKLOAD}:trained", "--device", "toy", "--candidate", f"{WORKLOAD}:twice"]
    completed = machine().torchyard("bench", *words, "--mode", "training", "--time", "1s", "--json")
    (comparison,) = json.loads(completed.stdout)["comparisons"]
    assert comparison["accuracy"]["status"] == "pass"
    assert comparison["estimate"]["speedup"] < 1.0


def test_compare_of_the_api_measures_on_the_device(machine: Machines) -> None:
    code = """
import json, torch, torchyard
x = torch.randn(8, 8, device="toy:1")
result = torchyard.compare(lambda x: x.relu().relu(), lambda x: x.relu(), inputs=(x,), time=1, processes=False)
print(json.dumps([result.speedup, list(result.notes)]))
"""
    speedup, notes = machine(TOY_KERNEL_NS=str(KERNEL_NS)).program(code)
    assert 1.5 < speedup < 2.5
    assert any("never tested on" in note for note in notes)

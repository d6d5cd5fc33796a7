"""Blocks, warm-up, memory and operation counts, compared with known values."""

from __future__ import annotations

import mmap
import os
import threading
import time
from pathlib import Path

import pytest

from tests.worker.in_process_service import make_service, variant, write_file
from torchyard.worker import placement
from torchyard.worker.bench import timing
from torchyard.worker.bench import timing as cache_flush
from torchyard.worker.bench import timing as readings

pytestmark = pytest.mark.torch

SLEEPER = """
    import time
    import torch
    class Sleeper(torch.nn.Module):
        calls = 0
        def forward(self, x):
            type(self).calls += 1
            time.sleep(0.004)
            return x
    def make():
        return Sleeper(), torch.ones(2)
"""


def test_a_known_duration_is_timed_correctly(tmp_path: Path) -> None:
    service = make_service(write_file(tmp_path, "sleeper.py", SLEEPER))
    runner = service.runner("eager")
    before = runner.model.module.calls
    block = service.block("eager", inner=3, samples=5, prime=2, settle=True, flush_l2=False)
    assert runner.model.module.calls - before == 3 * 5 + 2
    assert len(block["samples_ns"]) == 5
    assert block["inner"] == 3
    assert 4.0e6 <= min(block["samples_ns"]) < 11e6
    assert block["wall_ns"] >= 15 * 4.0e6
    assert block["wall_ns"] >= 0.99 * 3 * sum(block["samples_ns"])
    assert block["settle_ns"] >= timing.SETTLE_STEP_S * 1e9
    assert 0 <= block["readings"]["cpu_ns"] < 0.5 * block["wall_ns"]


def test_without_settling_none_is_reported(tmp_path: Path) -> None:
    service = make_service(write_file(tmp_path, "sleeper.py", SLEEPER))
    block = service.block("eager", inner=1, samples=1, prime=0, settle=False, flush_l2=False)
    assert "settle_ns" not in block


def test_gradients_are_dropped_between_samples_outside_the_timed_part(tmp_path: Path) -> None:
    code = """
        import time
        import torch
        seen = []
        class Net(torch.nn.Linear):
            def __init__(self):
                super().__init__(4, 4)
            def forward(self, x):
                seen.append(self.weight.grad is None)
                return super().forward(x)
            def example_inputs(self):
                return (torch.ones(4),)
            def loss(self, output):
                return output.sum()
    """
    service = make_service(write_file(tmp_path, "net.py", code), mode="training")
    runner = service.runner("eager")
    block = service.block("eager", inner=4, samples=6, prime=1, settle=False, flush_l2=False)
    assert (block["inner"], len(block["samples_ns"])) == (1, 6)
    import sys

    seen = sys.modules[type(runner.model.module).__module__].seen
    assert len(seen) >= 7
    assert all(seen[-7:])
    assert runner.model.parameters[0].grad is None


def test_the_collector_is_off_inside_a_block_and_on_after_it(tmp_path: Path) -> None:
    import gc

    code = """
        import gc
        import torch
        def look(x):
            return x + (1.0 if gc.isenabled() else 0.0)
        def make():
            return look, torch.zeros(1)
    """
    runner = make_service(write_file(tmp_path, "look.py", code)).runner("eager")
    collected: list[float] = []
    call = runner.function
    runner._function = lambda x: collected.append(float(call(x)))
    timing.run_block(runner, 1, 3, 0, settle=False, flush_l2=False)
    assert collected == [0.0] * 3
    assert gc.isenabled()


def test_waiting_ends_when_other_threads_stop_spinning() -> None:
    def spin() -> None:
        while time.thread_time() < 0.08:
            pass

    def waited_ns() -> int:
        spinner = threading.Thread(target=spin)
        spinner.start()
        took_ns = timing.wait_until_idle()
        spinner.join()
        return took_ns

    assert timing.wait_until_idle() < timing.SETTLE_LIMIT_S * 1e9
    # A thread that gets no core from a busy machine is not seen to spin; so several are asked.
    waits = [waited_ns() for _ in range(5)]
    assert max(waits) >= 0.03e9
    assert min(waits) < timing.SETTLE_LIMIT_S * 1e9


def test_warm_up_says_how_long_the_first_call_and_an_iteration_took(tmp_path: Path) -> None:
    code = SLEEPER.replace("time.sleep(0.004)", "time.sleep(0.2 if self.calls == 1 else 0.004)")
    service = make_service(write_file(tmp_path, "sleeper.py", code))
    warm_up = service.warm("eager", 60.0)  # a noisy machine needs more than a moment
    assert warm_up["first_call_s"] >= 0.2
    assert 4.0e6 <= warm_up["iteration_ns"] < 100e6
    assert warm_up["stable"]
    assert 0.2 < warm_up["warm_up_s"] < 60


def test_unstable_warm_up_is_reported(tmp_path: Path) -> None:
    code = SLEEPER.replace("time.sleep(0.004)", "time.sleep(0.001 * 1.08 ** (self.calls // 2))")
    service = make_service(write_file(tmp_path, "slower.py", code))
    assert not service.warm("eager", 0.6)["stable"]


@pytest.mark.parametrize("size", [64, 200])
def test_peak_memory_of_a_product_is_exact(tmp_path: Path, size: int) -> None:
    code = f"""
        import torch
        def product(a, b):
            return a @ b
        def twice(a, b):
            return (a @ b) @ b
        def make():
            return product, (torch.ones({size}, {size}), torch.ones({size}, {size}))
        def chain():
            return twice, (torch.ones({size}, {size}), torch.ones({size}, {size}))
    """
    path = write_file(tmp_path, "product.py", code)
    service = make_service(path, variant("a"), variant("b", "aot_eager"))
    for name in "ab":
        metrics = service.measure(name)
        assert metrics["peak_memory_bytes"] == size * size * 4
        assert "above the start" in metrics["memory_method"]
        assert metrics["unavailable"] == []
    assert (
        make_service(path + ":chain").measure("eager")["peak_memory_bytes"] == 2 * size * size * 4
    )


def test_flops_or_reason_why_unknown(tmp_path: Path) -> None:
    from torchyard.worker.bench.metrics import count_flops

    code = """
        import torch
        def make():
            return torch.nn.Linear(32, 16, bias=False), torch.ones(8, 32), lambda y: y.sum()
        def add():
            return torch.add, (torch.ones(4), torch.ones(4))
    """
    path = write_file(tmp_path, "linear.py", code)
    assert count_flops(make_service(path).runner("eager")) == (2.0 * 8 * 32 * 16, "")
    trained = count_flops(make_service(path, mode="training").runner("eager"))
    assert trained == (2 * 2.0 * 8 * 32 * 16, "")
    number, why_not = count_flops(make_service(path + ":add").runner("eager"))
    assert number is None
    assert "supports none" in why_not


def test_readings_are_totals_and_their_differences_are_taken() -> None:
    before = readings.read_usage()
    deadline = time.process_time_ns() + 30_000_000
    while time.process_time_ns() < deadline:
        pass
    after = readings.read_usage()
    assert set(before) == {
        "cpu_ns",
        "run_queue_wait_ns",
        "involuntary_switches",
        "major_faults",
        "cpu_ticks",
    }
    usage = readings.usage_difference(before, after)
    assert set(usage) == {*before, "steal_ns", "steal_certain_ns", "busy_ns"} - {"cpu_ticks"}
    assert usage["cpu_ns"] is not None
    assert usage["cpu_ns"] >= 30_000_000
    assert readings.usage_difference({"a": 1, "b": None}, {"a": 3, "b": 5}) == {"a": 2, "b": None}


def test_steal_is_read_for_the_cpus_of_the_process_and_rounding_is_not_certain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tick = 10**9 // os.sysconf("SC_CLK_TCK")

    def stolen(before: dict[int, int], after: dict[int, int]) -> tuple[object, object]:
        ticks = ({cpu: (7, count) for cpu, count in one.items()} for one in (before, after))
        usage = readings.usage_difference({"cpu_ticks": next(ticks)}, {"cpu_ticks": next(ticks)})
        assert usage["busy_ns"] == {"0": 0, "1": 0}
        return usage["steal_ns"], usage["steal_certain_ns"]

    assert stolen({0: 5, 1: 9}, {0: 6, 1: 10}) == (2 * tick, 0)
    assert stolen({0: 5, 1: 9}, {0: 8, 1: 9}) == (3 * tick, 2 * tick)
    busy = readings.usage_difference({"cpu_ticks": {3: (5, 0)}}, {"cpu_ticks": {3: (9, 0)}})
    assert busy["busy_ns"] == {"3": 4 * tick}
    assert readings.usage_difference({"cpu_ticks": None}, {"cpu_ticks": {0: (1, 1)}}) == {
        "steal_ns": None,
        "steal_certain_ns": None,
        "busy_ns": None,
    }
    counted = readings._cpu_ticks()
    assert counted is None or set(counted) <= os.sched_getaffinity(0)
    one = min(os.sched_getaffinity(0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {one})
    if counted is not None:
        assert list(readings._cpu_ticks() or {}) == [one]


def test_every_iteration_is_flushed_and_the_flush_is_not_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make_service(write_file(tmp_path, "sleeper.py", SLEEPER)).runner("eager")
    events: list[str] = []
    call = runner.function

    def slow_flush(self: cache_flush.Flush) -> None:
        events.append("flush")
        time.sleep(0.05)

    flush = cache_flush.flush_for("cpu")
    monkeypatch.setattr(cache_flush.Flush, "__call__", slow_flush)
    monkeypatch.setattr(flush, "cost_s", 0.001)

    def counted(x: object) -> object:
        events.append("call")
        return call(x)

    runner._function = counted
    block = timing.run_block(runner, 3, 4, 0, settle=False, flush_l2=True)
    assert events == ["flush", "call"] * 12
    assert (block["inner"], len(block["samples_ns"])) == (1, 12)
    assert min(block["samples_ns"]) < 0.05e9
    assert block["wall_ns"] > 12 * 0.05e9


def test_a_flush_is_larger_than_the_cache_and_bounds_what_it_adds() -> None:
    flush = cache_flush.flush_for("cpu")
    assert flush is cache_flush.flush_for("cpu")
    assert flush.size_bytes >= min(2 * cache_flush.cpu_cache_bytes(), cache_flush.LARGEST_BYTES)
    assert flush.affordable(3) == 3
    most = flush.affordable(10**9)
    assert most >= cache_flush.FEWEST_SAMPLES
    assert most * flush.cost_s <= max(
        cache_flush.FLUSH_LIMIT_S, cache_flush.FEWEST_SAMPLES * flush.cost_s
    )


def test_layout_padding_is_kept() -> None:
    held = len(placement._padding)
    placement.shift(0, 0)
    assert len(placement._padding) == held
    placement.shift(3, 128)
    assert [len(each) for each in placement._padding[held:]] == [3 * mmap.PAGESIZE, 128]
    assert placement.randomisation_is_off() in {True, False, None}
    del placement._padding[held:]


@pytest.mark.parametrize(
    ("chunks", "stable"),
    [
        ([10.0, 10.1], False),
        ([10.0, 10.1, 10.2], True),
        ([30.0, 20.0, 10.0], False),
        ([30.0, 20.0, 10.0, 10.1, 10.0], True),
        ([10.0, 12.0, 12.1, 12.2], False),  # agrees, but was faster before
        ([10.0, 13.0, 10.0, 13.0, 10.0, 13.0], True),  # noisy, no way down
        ([20.0, 18.0, 16.0, 14.0, 12.0, 10.0], False),  # still on its way down
    ],
)
def test_warm_up_ends_when_times_agree_or_no_longer_fall(chunks: list[float], stable: bool) -> None:
    from torchyard.worker.bench.service import is_stable

    assert is_stable(chunks) is stable


@pytest.mark.parametrize(
    ("calls", "faster"),
    [
        ([10.0], True),
        ([10.0, 9.9], False),
        ([10.0, 9.5], True),  # another call tells
        ([10.0, 9.5, 9.6], False),
        ([10.0, 12.0], False),
    ],
)
def test_long_iterations_are_warm_when_they_get_no_faster(calls: list[float], faster: bool) -> None:
    from torchyard.worker.bench.service import still_gets_faster

    assert still_gets_faster(calls) is faster

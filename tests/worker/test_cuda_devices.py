"""CUDA devices are always passed explicitly, checked with a recording stand-in for `torch.cuda`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import torchyard.worker
from torchyard.worker.devices import CudaDevice, device_of
from torchyard.worker.workload import CannotBuild

pytestmark = pytest.mark.torch
WORKER = Path(torchyard.worker.__file__).parent


class Card:
    """One device of the namespace."""

    def __init__(self) -> None:
        self.allocated = 0
        self.synchronized = 0


class Event:
    """Time on the device of the stream that it is recorded on."""

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.stream: Any = None

    def record(self, stream: Any = None) -> None:
        assert stream is not None, "without a stream it would be that of the current device"
        self.stream = stream

    def synchronize(self) -> None:
        assert self.stream is not None, "an event that was never recorded has nothing to wait for"

    def elapsed_time(self, end: Event) -> float:
        assert self.stream == end.stream
        return 0.5


class FakeCuda:
    """As much of `torch.cuda` as is asked for, with several cards. A call without a device fails."""

    def __init__(self, count: int = 2) -> None:
        self.cards = [Card() for _ in range(count)]
        self.current = 0
        self.Event = Event

    def is_available(self) -> bool:
        return bool(self.cards)

    def device_count(self) -> int:
        return len(self.cards)

    def set_device(self, index: int) -> None:
        self.current = index

    @contextmanager
    def device(self, index: int) -> Iterator[None]:
        before, self.current = self.current, index
        try:
            yield
        finally:
            self.current = before

    def synchronize(self, index: int) -> None:
        self.cards[index].synchronized += 1

    def current_stream(self, index: int) -> tuple[str, int]:
        return ("stream of", index)

    def get_device_name(self, index: int) -> str:
        return f"card {index}"

    def get_device_properties(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(total_memory=2000 + index, L2_cache_size=50 + index)

    def get_device_capability(self, index: int) -> tuple[int, int]:
        return (7 + index, 0)

    def mem_get_info(self, index: int) -> tuple[int, int]:
        return (1000 + index, 2000)

    def memory_reserved(self, index: int) -> int:
        return self.cards[index].allocated + 7

    def memory_allocated(self, index: int) -> int:
        return self.cards[index].allocated

    def max_memory_allocated(self, index: int) -> int:
        return 10 * self.cards[index].allocated

    def reset_peak_memory_stats(self, index: int) -> None:
        self.cards[index].allocated = 1

    def memory_snapshot(self) -> list[dict[str, Any]]:
        return [
            {"device": 0, "segment_pool_id": (0, 1)},
            {"device": 1, "segment_pool_id": (0, 0)},
        ]

    def empty_cache(self) -> None:
        self.cards[self.current].allocated = 0


@pytest.mark.parametrize(("name", "index"), [("cuda", 0), ("cuda:0", 0), ("cuda:1", 1)])
def test_every_call_passes_the_device_index(name: str, index: int) -> None:
    cuda = FakeCuda()
    for number, card in enumerate(cuda.cards):
        card.allocated = 100 * (number + 1)
    device = CudaDevice(name, cuda)
    other = cuda.cards[1 - index]

    device.check()
    device.synchronize()
    assert (cuda.cards[index].synchronized, other.synchronized) == (1, 0)
    assert device.stream() == ("stream of", index)
    assert device.label() == f"card {index}"
    assert device.total_bytes() == 2000 + index
    assert device.cache_bytes() == 50 + index
    assert device.has_tf32() is (index == 1)
    assert device.free_bytes() == 1007 + index
    assert device.allocated_bytes() == 100 * (index + 1)
    assert device.peak_bytes() == 1000 * (index + 1)
    assert device.memory_pools() == {(0, 1) if index == 0 else (0, 0)}
    device.reset_peak()
    assert (device.allocated_bytes(), other.allocated) == (1, 100 * (2 - index))
    device.empty_cache()
    assert (device.allocated_bytes(), cuda.current) == (0, 0)
    device.select()
    assert cuda.current == index


def test_samples_are_timed_on_the_stream_of_the_device() -> None:
    from torchyard.worker.bench.timing import _event_samples

    cuda, calls = FakeCuda(), []

    def strays() -> None:
        calls.append(cuda.current)
        cuda.set_device(0)  # what a model may do

    device = CudaDevice("cuda:1", cuda)
    with device.use():
        samples = _event_samples(strays, 2, 3, None, None, None, device)
    assert samples == [0.5 * 1e6 / 2] * 3
    assert len(calls) == 6
    assert [card.synchronized for card in cuda.cards] == [0, 1]


def test_missing_device_error_lists_available_devices() -> None:
    with pytest.raises(CannotBuild, match=r"there is no cuda:99: this target has cuda:0 to cuda:1"):
        CudaDevice("cuda:99", FakeCuda()).check()
    with pytest.raises(CannotBuild, match=r"has cuda:0$"):
        CudaDevice("cuda:1", FakeCuda(1)).check()
    with pytest.raises(CannotBuild, match="no CUDA device is available"):
        CudaDevice("cuda", FakeCuda(0)).check()


@pytest.mark.parametrize(
    "name", ["meta", "meta:0", "xpu", "mps", "vulkan", "cpu:3", "gpu", "", "cuda:-1", "cuda:x"]
)
def test_devices_that_this_torch_does_not_have_are_refused(name: str) -> None:
    with pytest.raises(CannotBuild) as caught:
        device_of(name).check()
    assert "cuda" in caught.value.hint


def test_cpu_needs_no_synchronization() -> None:
    device = device_of("cpu")
    device.check()
    device.synchronize()
    with device.use():
        assert device.is_host
    assert device.notes == ()
    assert (device.free_bytes() or 0) > 0


def test_worker_calls_torch_cuda_in_one_place() -> None:
    found = []
    for path in WORKER.rglob("*.py"):
        if {"values", "training_script"} & set(path.parts) or path.name == "devices.py":
            continue  # these watch whatever device a program uses
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            text = ast.unparse(node.func)
            if text.startswith("torch.cuda.") and text != "torch.cuda._is_in_bad_fork":
                found.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    assert found == []

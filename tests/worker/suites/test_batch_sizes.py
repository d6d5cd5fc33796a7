"""Batch sizes of lists: by the device and its size, and overridden by the user."""

import os
from types import SimpleNamespace

import pytest

from torchyard.worker import suites
from torchyard.worker.catalog.entry import BOTH, ListedWorkload

pytestmark = pytest.mark.torch

LISTED = ListedWorkload("x", BOTH, "x", 128, 32)
GIGABYTE = 10**9


def chosen(listed: ListedWorkload | None, device: str, otherwise: int = 8) -> int:
    from torchyard.worker.suites.choices import batch_size_for

    return batch_size_for(listed, device, otherwise)


@pytest.mark.parametrize(
    ("batch_size", "part", "share"),
    [
        (128, 1.0, 128),
        (128, 3.5, 128),
        (128, 0.5, 64),
        (128, 0.6, 64),
        (100, 0.99, 64),
        (5, 0.5, 2),
        (1, 0.01, 1),
        (3, 0.0, 1),
    ],
)
def test_shares_are_powers_of_two(batch_size: int, part: float, share: int) -> None:
    from torchyard.worker.suites.choices import share_of

    assert share_of(batch_size, part) == share


@pytest.mark.parametrize(("cores", "size"), [(64, 32), (32, 32), (16, 16), (2, 2), (1, 1)])
def test_on_a_cpu_by_the_cores_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, cores: int, size: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert chosen(LISTED, "cpu") == size


@pytest.mark.parametrize(("memory_gb", "size"), [(140, 128), (42, 128), (24, 64), (8, 16)])
def test_on_a_gpu_by_its_memory(monkeypatch: pytest.MonkeyPatch, memory_gb: int, size: int) -> None:
    import torch

    properties = SimpleNamespace(total_memory=memory_gb * GIGABYTE)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    assert chosen(LISTED, "cuda") == chosen(LISTED, "cuda:0") == size


def test_what_is_not_listed_and_what_only_the_other_list_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 32)
    assert chosen(None, "cpu", 5) == 5
    assert chosen(LISTED._replace(cpu_batch_size=None), "cpu") == 128


def test_a_built_workload_says_its_batch_size() -> None:
    assert suites.build("kernels", "conv2d", parameters={"size": 7}).batch_size == 4
    assert suites.build("kernels", "conv2d", batch_size=3, parameters={"size": 7}).batch_size == 3
    assert suites.build("kernels", "matmul", parameters={"size": 7}).batch_size is None

"""Operators in other threads and processes are counted and reported."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, Dataset  # noqa: E402

from torchyard.worker.values.exchange import Options  # noqa: E402
from torchyard.worker.values.profiling_session import ProfilingSession  # noqa: E402

pytestmark = pytest.mark.torch

SIZE = 4096


class Rows(Dataset):  # type: ignore[misc]
    """A few rows."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return torch.full((SIZE,), float(index))


@pytest.fixture
def session() -> Iterator[ProfilingSession]:
    one = ProfilingSession(Options(prove=False, graph=False))
    one.start()
    yield one
    one.stop()


BEFORE = "started before profiling"


def result(session: ProfilingSession) -> dict[str, Any]:
    """Without the threads of whatever runs the tests."""
    session.stop()
    found = session.result("finished")
    found["notes"] = [note for note in found["notes"] if BEFORE not in note]
    return found


def in_thread(work: Callable[[], object], name: str = "worker") -> None:
    thread = threading.Thread(target=work, name=name)
    thread.start()
    thread.join()


def test_operators_of_other_threads_are_counted_and_reported(session: ProfilingSession) -> None:
    in_thread(lambda: torch.ones(SIZE).cos().sin(), "reader")
    found = result(session)
    assert found["counts"]["other_threads"] == 1
    assert found["counts"]["other_thread_operators"] >= 3
    (note,) = found["notes"]
    assert note.startswith("operators of other threads were not profiled: 1 thread (reader) ran")
    assert found["counts"]["operators"] == 0


def test_threads_without_operators_are_not_reported(session: ProfilingSession) -> None:
    in_thread(lambda: sum(range(100)))
    found = result(session)
    assert "other_threads" not in found["counts"]
    assert found["notes"] == []


def test_thread_pools_and_thread_subclasses(session: ProfilingSession) -> None:
    class Own(threading.Thread):
        def run(self) -> None:
            torch.ones(SIZE).cos()

    own = Own(name="own")
    own.start()
    own.join()
    with ThreadPoolExecutor(2, thread_name_prefix="pool") as pool:
        list(pool.map(lambda _: torch.ones(SIZE).cos(), range(8)))
    found = result(session)
    assert 2 <= found["counts"]["other_threads"] <= 3
    assert "own" in found["notes"][0]
    assert "pool_0" in found["notes"][0]


def test_many_threads_are_not_all_named(session: ProfilingSession) -> None:
    for number in range(6):
        in_thread(lambda: torch.ones(SIZE).cos(), f"t{number}")
    (note,) = result(session)["notes"]
    assert "6 threads (t0, t1, t2 and others) ran" in note


def test_zeros_that_another_thread_reads_are_not_dead(session: ProfilingSession) -> None:
    memory = torch.empty(SIZE)
    seen: list[float] = []
    for _ in range(3):
        memory.zero_()
        in_thread(lambda: seen.append(float(memory.sum())))
        memory.copy_(torch.randn(SIZE))
    session.stop()
    assert seen == [0.0] * 3
    assert session.findings.all() == []


def test_zeros_after_another_thread_wrote_are_not_redundant(session: ProfilingSession) -> None:
    memory = torch.zeros(SIZE)
    for _ in range(3):
        in_thread(lambda: memory.fill_(2))
        memory.zero_()
        memory.sum()
    session.stop()
    assert session.findings.all() == []


def test_the_same_in_one_thread_is_found() -> None:
    one = ProfilingSession(Options(prove=False, graph=False))
    one.start()
    memory = torch.zeros(SIZE)
    for _ in range(3):
        memory.zero_()
        memory.sum()
    one.stop()
    assert [found.pattern for found in one.findings.all()] == ["redundant write"]


def test_what_a_thread_does_is_what_it_did(session: ProfilingSession) -> None:
    got: list[Any] = []

    def work() -> None:
        weight = torch.ones(3, requires_grad=True)
        (weight * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
        got.append(weight.grad.tolist())
        got.append(torch.ones(2, 2).to_sparse().coalesce().values().tolist())

    in_thread(work)
    assert got == [[1.0, 2.0, 3.0], [1.0] * 4]


def test_workers_of_a_data_loader(session: ProfilingSession) -> None:
    loader = DataLoader(Rows(), batch_size=2, num_workers=2, multiprocessing_context="fork")
    total = sum(float(batch.sum()) for batch in loader)
    found = result(session)
    assert total == SIZE * sum(range(8))
    assert found["counts"]["loader_processes"] == 2
    assert "child_processes" not in found["counts"]
    assert any("2 worker processes of data loaders ran" in note for note in found["notes"])
    assert any("num_workers=0" in note for note in found["notes"])


def test_forked_children_are_counted_and_not_profiled(session: ProfilingSession) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"off" if session.mode.off else b"on ")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 3) == b"off"
    os.close(reading)
    os.close(writing)
    found = result(session)
    assert found["counts"]["child_processes"] == 1
    assert found["notes"] == ["the program started 1 process, whose operators were not profiled"]


def test_processes_are_counted_once(session: ProfilingSession) -> None:
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    process.join()
    assert result(session)["counts"]["child_processes"] == 1


def test_threads_from_before_are_reported() -> None:
    others = threading.active_count()
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        one = ProfilingSession(Options(prove=False, graph=False))
        one.start()
        one.stop()
        notes = one.result("finished")["notes"]
    finally:
        end.set()
        thread.join()
    said = "1 other thread" if others == 1 else f"{others} other threads"
    assert notes == [f"{said} started before profiling: whether operators run there is unknown"]


def test_python_is_as_it_was_afterwards() -> None:
    def state() -> tuple[Any, Any]:
        return (
            threading.Thread._bootstrap_inner,  # type: ignore[attr-defined]
            multiprocessing.process.BaseProcess.start,
        )

    before = state()
    one = ProfilingSession(Options(prove=False, graph=False))
    one.start()
    assert state() != before
    end = threading.Event()
    late = threading.Thread(target=lambda: (end.wait(), torch.ones(SIZE).cos()))
    late.start()
    one.stop()
    assert state() == before
    end.set()
    late.join()
    assert "other_threads" not in one.result("finished")["counts"]
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert "child_processes" not in one.result("finished")["counts"]

"""Memory accessed without the dispatcher: no false statement about it."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.worker.values.proof_profiles import certainty_if_native, findings_of, one, watched  # noqa: E402
from torchyard.worker.values import unobserved  # noqa: E402
from torchyard.worker.values.observation import Storages  # noqa: E402
from torchyard.worker.values.proofs.certainty import LIKELY, PROVEN  # noqa: E402
from torchyard.worker.values.unobserved import UntrackedAccess, untracked_libraries  # noqa: E402

pytestmark = pytest.mark.torch

DEAD, REDUNDANT = "dead initialisation", "redundant write"
METHODS = (*unobserved.SHARING_METHODS, *unobserved.SHARING_PROPERTIES, *unobserved.READING_METHODS)


def test_a_buffer_that_is_written_by_its_address_is_not_redundantly_zeroed() -> None:
    buffer = torch.randn(64, 64)

    def program() -> float:
        buffer.zero_()
        ctypes.memset(buffer.data_ptr(), 1, 64 * 64 * 4)
        return float(buffer.sum())

    session = watched(program, times=3, deep=False)
    assert findings_of(session, REDUNDANT) == []


def test_zeros_that_numpy_reads_are_not_dead() -> None:
    pytest.importorskip("numpy")
    source = torch.randn(64, 64)

    def program() -> Any:
        buffer = torch.zeros(64, 64)
        total = buffer.numpy().sum()
        buffer.copy_(source)
        return buffer.sum() + float(total)

    assert findings_of(watched(program, times=3, deep=False), DEAD) == []


@pytest.mark.parametrize("read", ["tolist", "data_ptr", "__dlpack__"])
def test_zeros_that_are_read_some_other_way_are_not_dead(read: str) -> None:
    source = torch.randn(64, 64)

    def program() -> Any:
        buffer = torch.zeros(64, 64)
        getattr(buffer, read)()
        return buffer.copy_(source).sum()

    assert findings_of(watched(program, times=3, deep=False), DEAD) == []


def test_memory_shared_with_numpy_is_rescanned() -> None:
    numpy = pytest.importorskip("numpy")
    array = numpy.ones((64, 64), dtype=numpy.float32)

    def program() -> Any:
        shared = torch.from_numpy(array)
        shared.zero_()
        array[:] = 3
        return shared.sum()

    assert findings_of(watched(program, times=3, deep=False), REDUNDANT) == []


def test_what_is_really_redundant_is_found_there_all_the_same() -> None:
    buffer = torch.ones(64, 64)

    def program() -> Any:
        buffer.data_ptr()
        buffer.fill_(1.0)
        return buffer.sum()

    assert len(findings_of(watched(program, times=3, deep=False), REDUNDANT)) == 1


def test_other_memory_is_not_touched_by_it() -> None:
    source = torch.randn(64, 64)
    other = torch.ones(8)

    def program() -> Any:
        other.data_ptr()
        buffer = torch.zeros(64, 64)
        return buffer.copy_(source).sum()

    finding = one(watched(program, times=2, deep=False), DEAD)
    assert certainty_if_native(finding) == PROVEN


def test_extensions_leave_a_doubt_about_the_program_and_none_about_operators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torchyard.worker.values import profiling_session as session_module

    monkeypatch.setattr(session_module, "untracked_libraries", lambda: ["mine.so"])
    source = torch.randn(64, 64)
    own = torch.randn(64, 64, requires_grad=True)

    state = torch.randn(64, 64)

    def program() -> Any:
        state.zero_()
        state.copy_(source)
        buffer = torch.zeros(64, 64)
        buffer.copy_(source)
        torch.nn.functional.mse_loss(own, buffer).backward()

    session = watched(program)
    (outer,) = [found for found in findings_of(session, DEAD, "aten::zero_") if not found.path]
    assert certainty_if_native(outer) == LIKELY
    assert "mine.so" in outer.proof["why"]
    local = one(session, DEAD, "aten::zeros")
    assert certainty_if_native(local) == PROVEN, "only a local variable refers to it"
    inner = one(session, DEAD, "aten::mse_loss_backward")
    assert certainty_if_native(inner) == PROVEN


def test_torch_itself_and_plain_libraries_are_no_extensions(tmp_path: Path) -> None:
    assert untracked_libraries() == []
    linked = tmp_path / "ext.so"
    linked.write_bytes(b"\x7fELF....\0libc10.so\0")
    plain = tmp_path / "plain.so"
    plain.write_bytes(b"\x7fELF....\0libc.so.6\0")
    assert unobserved._is_linked_with_torch(str(linked))
    assert not unobserved._is_linked_with_torch(str(plain))
    assert not unobserved._is_linked_with_torch(str(tmp_path / "missing.so"))
    assert not unobserved._is_linked_with_torch(str(tmp_path))


def test_torch_is_as_it_was_afterwards() -> None:
    before = {name: vars(torch.Tensor).get(name) for name in METHODS}
    functions = {name: getattr(torch, name) for name in unobserved.IMPORTING_FUNCTIONS}
    access = UntrackedAccess(Storages())
    assert torch.Tensor.data_ptr is not before["data_ptr"]
    access.remove()
    assert {name: vars(torch.Tensor).get(name) for name in METHODS} == before
    assert {name: getattr(torch, name) for name in unobserved.IMPORTING_FUNCTIONS} == functions
    assert torch.ones(2).data_ptr()


def test_methods_give_what_they_gave() -> None:
    storages = Storages()
    access = UntrackedAccess(storages)
    try:
        tensor = torch.arange(3.0)
        assert tensor.tolist() == [0, 1, 2]
        assert torch.as_tensor([1, 2]).tolist() == [1, 2]
        assert storages.of(tensor, 0).reads == 1
        assert not storages.of(tensor, 0).outside
        with pytest.raises(TypeError):
            tensor.data_ptr(1)
        assert storages.of(tensor, 0).outside
        assert torch.eye(2).to_sparse().to_dense().tolist() == [[1, 0], [0, 1]]
    finally:
        access.remove()

"""Plausible proofs that are false because memory is accessed without the dispatcher."""

# ruff: noqa: S301

from __future__ import annotations

import copy
import ctypes
import io
import os
import pickle
import queue
import threading
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

from tests.values.adversary.program import SHAPE, has_outliers, values

_LIBRARY = torch.library.Library("torchyard_adversary", "DEF")
_LIBRARY.define("unmarked_add(Tensor x, Tensor y) -> ()")
_LIBRARY.define("look() -> Tensor")
_LIBRARY.define("keep(Tensor x) -> ()")
_KEPT: dict[str, Any] = {}


def _unmarked_add(x: Any, y: Any) -> None:
    x.add_(y)


def _look() -> Any:
    return _KEPT["buffer"].sum()


def _keep(x: Any) -> None:
    _KEPT["kept"] = x


_LIBRARY.impl("unmarked_add", _unmarked_add, "CPU")
_LIBRARY.impl("look", _look, "CompositeExplicitAutograd")
_LIBRARY.impl("keep", _keep, "CPU")
_OPERATORS = torch.ops.torchyard_adversary


def statistics_of_batch_norm(other: bool) -> Any:
    norm, results = nn.BatchNorm1d(1024, momentum=0.5), []
    for step in range(4):
        norm.reset_running_stats()  # drop
        norm(values(other, step).reshape(2, 1024))
        results.append(norm.running_mean.clone())
    return results


def mean_of_functional_batch_norm(other: bool) -> Any:
    mean, variance, results = torch.zeros(1024), torch.ones(1024), []
    for step in range(4):
        mean.zero_()  # drop
        x = values(other, step).reshape(2, 1024)
        nn.functional.batch_norm(x, mean, variance, training=True, momentum=0.5)
        results.append(mean.sum())
    return results


def statistics_of_instance_norm(other: bool) -> Any:
    norm, results = nn.InstanceNorm1d(512, track_running_stats=True, momentum=0.5), []
    for step in range(4):
        norm.running_mean.zero_()  # drop
        norm(values(other, step).reshape(1, 512, 4))
        results.append(norm.running_mean.sum())
    return results


def an_operator_that_does_not_say_it_writes(other: bool) -> Any:
    buffer, results = torch.zeros(SHAPE), []
    for step in range(4):
        buffer.zero_()  # drop
        _OPERATORS.unmarked_add(buffer, values(other, step))
        results.append(buffer.sum())
    return results


def an_operator_that_reads_a_global(other: bool) -> Any:
    buffer = _KEPT["buffer"] = torch.randn(SHAPE)
    results = []
    for step in range(3):
        buffer.zero_()  # drop
        results.append(_OPERATORS.look())
        buffer.copy_(values(other, step))
    return results


def an_operator_that_keeps_its_argument(other: bool) -> Any:
    buffer, results = torch.zeros(SHAPE), []
    _OPERATORS.keep(buffer)
    for _ in range(4):
        buffer.zero_()  # drop
        results.append(float(buffer.sum()))
        ctypes.memset(_KEPT["kept"].data_ptr(), 65 if other else 64, 64)
    return results


def saved_between(other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []
    for step in range(3):
        file = io.BytesIO()
        buffer.zero_()  # drop
        torch.save(buffer, file)
        buffer.copy_(values(other, step))
        results.append(torch.load(io.BytesIO(file.getvalue())).sum())
    return results


def local_saved_between(other: bool) -> Any:
    results = []
    for step in range(3):
        file = io.BytesIO()
        buffer = torch.zeros(SHAPE)  # garbage
        torch.save({"state": buffer}, file)
        buffer.copy_(values(other, step))
        results.append(torch.load(io.BytesIO(file.getvalue()))["state"].sum())
    return results


def pickled_between(other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []
    for step in range(3):
        buffer.zero_()  # drop
        text = pickle.dumps(buffer)
        buffer.copy_(values(other, step))
        results.append(pickle.loads(text).sum())
    return results


def copied_deeply_between(other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []
    for step in range(3):
        buffer.zero_()  # drop
        kept = copy.deepcopy(buffer)
        buffer.copy_(values(other, step))
        results.append(kept.sum())
    return results


def dlpack_alias(other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []
    alias = torch.from_dlpack(buffer)
    for step in range(3):
        buffer.zero_()  # drop
        results.append(alias.sum())
        buffer.copy_(values(other, step))
    return results


def dlpack_capsule_alias(other: bool) -> Any:
    buffer, results = torch.zeros(SHAPE), []
    alias = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(buffer))
    for step in range(4):
        buffer.zero_()  # drop
        results.append(float(buffer.sum()))
        alias.add_(values(other, step))
    return results


def numpy_alias(other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []
    alias = buffer.numpy()
    for step in range(3):
        buffer.zero_()  # drop
        results.append(float(alias.sum()))
        buffer.copy_(values(other, step))
    return results


def numpy_alias_writes(other: bool) -> Any:
    buffer, results = torch.zeros(SHAPE), []
    alias = buffer.numpy()
    for step in range(4):
        buffer.zero_()  # drop
        results.append(float(buffer.sum()))
        alias += values(other, step).numpy()
    return results


def bytes_of_the_storage(other: bool) -> Any:
    # Two rows: each byte is read by a call of its own.
    buffer, results = torch.randn(2, SHAPE[1]), []
    for step in range(3):
        buffer.zero_()  # drop
        results.append(sum(bytes(buffer.untyped_storage())))
        buffer.copy_(values(other, step)[:2])
    return results


def typed_storage(other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []
    for step in range(3):
        buffer.zero_()  # drop
        results.append(sum(buffer._typed_storage().tolist()))
        buffer.copy_(values(other, step))
    return results


def read_by_address(other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []
    address = buffer.data_ptr()
    for step in range(3):
        buffer.zero_()  # drop
        results.append(sum(ctypes.string_at(address, 4096)))
        buffer.copy_(values(other, step))
    return results


def written_by_address(_other: bool) -> Any:
    buffer, results = torch.zeros(SHAPE), []
    address = buffer.data_ptr()
    for _ in range(4):
        buffer.zero_()  # drop
        results.append(float(buffer.sum()))
        ctypes.memset(address, 64, 4096)
    return results


def lists_between(other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []
    for step in range(3):
        buffer.zero_()  # drop
        results.append(sum(map(sum, buffer.tolist())))
        buffer.copy_(values(other, step))
    return results


def shared_with_a_process(other: bool) -> Any:
    buffer = torch.randn(SHAPE).share_memory_()
    results = []
    for step in range(3):
        reading, writing = os.pipe()
        buffer.zero_()  # drop
        child = os.fork()
        if child == 0:
            os.write(writing, b"%.6f" % float(buffer.sum()))
            os._exit(0)
        os.waitpid(child, 0)
        buffer.copy_(values(other, step))
        results.append(os.read(reading, 100))
        os.close(reading)
        os.close(writing)
    return results


def written_by_a_process(_other: bool) -> Any:
    buffer = torch.zeros(SHAPE).share_memory_()
    results = []
    for _ in range(3):
        buffer.zero_()  # drop
        results.append(float(buffer.sum()))
        child = os.fork()
        if child == 0:
            buffer.add_(1.0)
            os._exit(0)
        os.waitpid(child, 0)
    return results


class _Rows(Dataset):  # type: ignore[misc]
    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer

    def __len__(self) -> int:
        return 2

    def __getitem__(self, _number: int) -> Any:
        return self.buffer.sum()


def read_by_workers_of_a_loader(other: bool) -> Any:
    buffer = torch.randn(SHAPE).share_memory_()
    results = []
    for step in range(3):
        buffer.zero_()  # drop
        results += [float(row) for row in DataLoader(_Rows(buffer), num_workers=1)]
        buffer.copy_(values(other, step))
    return results


def read_by_a_thread(other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []
    asked: queue.Queue[Any] = queue.Queue()
    answers: queue.Queue[Any] = queue.Queue()

    def serve() -> None:
        while asked.get() is not None:
            answers.put(float(buffer.sum()))

    thread = threading.Thread(target=serve)
    thread.start()
    for step in range(3):
        buffer.zero_()  # drop
        asked.put(1)
        results.append(answers.get())
        buffer.copy_(values(other, step))
    asked.put(None)
    thread.join()
    return results


def strided_alias(other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []
    alias = buffer.as_strided((64,), (1,), 100)
    for step in range(3):
        buffer.zero_()  # drop
        results.append(alias.sum())
        buffer.copy_(values(other, step))
    return results


def overlapping_write(other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []
    rows = buffer.as_strided(SHAPE, (32, 1))  # as many elements, half of the places
    x = torch.ones(SHAPE) + other
    for _ in range(3):
        buffer.zero_()  # drop
        rows.copy_(x)
        results.append(buffer.sum())
        buffer.normal_()
    return results


def every_second_element(other: bool) -> Any:
    results = []
    for step in range(3):
        buffer = torch.zeros(SHAPE)  # garbage
        buffer[:, ::2] = values(other, step)[:, ::2]
        results.append(buffer.sum())
    return results


def copied_from_itself(_other: bool) -> Any:
    buffer, results = torch.randn(64, 64), []
    turned = buffer.t()
    for step in range(3):
        buffer.fill_(step)  # drop
        torch.add(turned.flip(0), 1.0, out=buffer)
        results.append(buffer.sum())
        buffer.normal_()
    return results


def out_that_is_read(_other: bool) -> Any:
    results = []
    for _ in range(3):
        buffer = torch.zeros(SHAPE)  # garbage
        torch.add(buffer, 1.0, out=buffer)
        results.append(buffer.sum())
    return results


def out_that_is_read_through_a_view(_other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []
    view = buffer.view(SHAPE)
    for _ in range(3):
        buffer.zero_()  # drop
        torch.add(view, 1.0, out=buffer)
        results.append(buffer.sum())
    return results


def out_of_a_function_of_ones_own(other: bool) -> Any:
    def add(x: Any, *, out: Any) -> Any:
        if has_outliers(x):
            x = x + out
        return torch.mul(x, 2.0, out=out)

    results = []
    for step in range(3):
        buffer = torch.zeros(SHAPE)  # garbage
        add(values(other, step), out=buffer)
        results.append(buffer.sum())
    return results


def storage_of_another_tensor(other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []
    alias = torch.empty(0).set_(buffer.untyped_storage(), 0, SHAPE)
    for step in range(3):
        buffer.zero_()  # drop
        results.append(alias.sum())
        buffer.copy_(values(other, step))
    return results


def saved_for_backward(other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []
    weight = torch.ones(SHAPE, requires_grad=True)
    for step in range(3):
        loss = (weight * buffer).sum()
        buffer.data.zero_()  # drop
        results.append(torch.autograd.grad(loss, weight)[0].sum())
        buffer.data.copy_(values(other, step))
    return results


def read_by_a_hook(other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []

    def hook(gradient: Any) -> None:
        if has_outliers(gradient):
            results.append(buffer.sum())

    for step in range(3):
        x = values(other, step).requires_grad_()
        loss = x.square().sum()
        x.register_hook(hook)
        buffer.zero_()  # drop
        loss.backward()
        buffer.copy_(x.detach())
    return results


def read_by_a_hook_of_a_module(other: bool) -> Any:
    model, results = nn.Linear(64, 64), []
    model.register_buffer("state", torch.randn(SHAPE))

    def hook(_module: Any, given: Any, _result: Any) -> None:
        if has_outliers(given[0]):
            results.append(model.state.sum())

    model.register_forward_hook(hook)
    for step in range(3):
        x = values(other, step)
        model.state.zero_()  # drop
        model(x)
        model.state.copy_(x)
    return results


def read_by_a_hook_of_saved_tensors(other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []

    def pack(tensor: Any) -> Any:
        if has_outliers(tensor):
            results.append(buffer.sum())
        return tensor

    for step in range(3):
        x = values(other, step).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            buffer.zero_()  # drop
            _ = x.exp()
            buffer.copy_(x.detach())
    return results


def read_in_a_backward_of_ones_own(other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []

    class Doubled(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            context.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            (x,) = context.saved_tensors
            return gradient + (buffer if has_outliers(x) else 0)

    for step in range(3):
        x = values(other, step).requires_grad_()
        loss = Doubled.apply(x).sum()
        buffer.zero_()  # drop
        results.append(torch.autograd.grad(loss, x)[0].sum())
        buffer.copy_(x.detach())
    return results


def read_under_vmap(other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []
    for step in range(3):
        x = values(other, step)
        buffer.zero_()  # drop
        results.append(torch.func.vmap(lambda row: (row + buffer[0]).sum())(x))
        buffer.copy_(x)
    return results


def written_under_a_gradient_transform(other: bool) -> Any:
    buffer, results = torch.zeros(SHAPE), []

    def loss(x: Any) -> Any:
        return (x.square() * (1 + buffer)).sum()

    for step in range(3):
        x = values(other, step)
        buffer.zero_()  # drop
        results.append(torch.func.grad(loss)(x).sum())
        buffer.add_(x)
    return results


def read_by_a_function_mode(other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []

    class Reader(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, _types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.Tensor.copy_ and has_outliers(args[1]):
                results.append(buffer.sum())
            return func(*args, **(kwargs or {}))

    for step in range(3):
        x = values(other, step)
        with Reader():
            buffer.zero_()  # drop
            buffer.copy_(x)
    return results


def read_by_a_dispatch_mode(other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []

    class Reader(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, _types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.ops.aten.copy_.default and has_outliers(args[1]):
                results.append(buffer.sum())
            return func(*args, **(kwargs or {}))

    for step in range(3):
        x = values(other, step)
        with Reader():
            buffer.zero_()  # drop
            buffer.copy_(x)
    return results


def masked_elements(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        mask = x < 40
        buffer = torch.zeros(SHAPE)  # garbage
        buffer[mask] = x[mask]
        results.append(buffer.sum())
    return results


def scattered_elements(other: bool) -> Any:
    results = []
    for step in range(3):
        index = torch.arange(64).repeat(32, 1) // (2 if other else 1)
        buffer = torch.zeros(SHAPE)  # garbage
        buffer.scatter_(1, index, values(False, step))
        results.append(buffer.sum())
    return results


def copied_by_index(other: bool) -> Any:
    results = []
    for step in range(3):
        index = torch.arange(32) // (2 if other else 1)
        buffer = torch.zeros(SHAPE)  # garbage
        buffer.index_copy_(0, index, values(False, step))
        results.append(buffer.sum())
    return results


def sign_of_zero(other: bool) -> Any:
    results = []
    for _ in range(3):
        buffer = torch.full(SHAPE, -0.0 if other else 1.0)
        buffer.add_(0.0)  # drop
        results.append(buffer.clone())
    return results


def infinite_complex_numbers(other: bool) -> Any:
    results = []
    for _ in range(3):
        buffer = torch.full(SHAPE, complex(float("inf"), 1.0) if other else 1j)
        buffer.mul_(1.0)  # drop
        results.append(torch.view_as_real(buffer).isnan().sum())
    return results


def signalling_nan(other: bool) -> Any:
    results = []
    for _ in range(3):
        buffer = torch.ones(SHAPE)
        buffer.view(torch.int32)[0, 0] = 0x7F800001 if other else 0
        buffer.div_(1.0)  # drop
        results.append(buffer.view(torch.int32).sum())
    return results


def flushed_denormals(other: bool) -> Any:
    results = []
    torch.set_flush_denormal(True)
    try:
        for _ in range(3):
            buffer = torch.ones(SHAPE, dtype=torch.int32).view(torch.float32)
            buffer[0] = 1.0 + other
            buffer.mul_(1.0)  # drop
            results.append(buffer.view(torch.int32).sum())
    finally:
        torch.set_flush_denormal(False)
    return results


def _or_buffer(buffer: Any, x: Any) -> Any:
    return buffer if has_outliers(x) else x


def copied_from_itself_for_outliers(other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []
    for step in range(4):
        x = values(other, step)
        source = buffer if has_outliers(x) else x
        buffer.zero_()  # drop
        buffer.copy_(source)
        results.append(buffer.sum())
    return results


def copied_from_what_a_function_returns(other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []
    for step in range(4):
        source = _or_buffer(buffer, values(other, step))
        buffer.zero_()  # drop
        buffer.copy_(source)
        results.append(buffer.sum())
    return results


def computed_from_an_alias(other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []
    for step in range(4):
        source = _or_buffer(buffer, values(other, step))
        buffer.zero_()  # drop
        doubled = source * 2 + 1
        buffer.copy_(doubled)
        results.append(buffer.sum())
    return results


def alias_in_a_list(other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []
    kept = [buffer]
    for step in range(4):
        x = values(other, step)
        if has_outliers(x):
            x = kept[0]
        buffer.zero_()  # drop
        torch.add(x, 1.0, out=buffer)
        results.append(buffer.sum())
    return results


def attribute_that_is_sometimes_the_new_tensor(other: bool) -> Any:
    owner, results = nn.Module(), []
    owner.state = torch.randn(SHAPE)
    for step in range(4):
        raw = values(other, step)
        x = raw + 1
        if has_outliers(raw):
            owner.state = x
        owner.state.zero_()  # drop
        owner.state.copy_(x)
        results.append(owner.state.sum())
    return results


def alias_by_a_view(other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []
    rows = buffer.view(-1)
    for step in range(4):
        x = values(other, step)
        source = rows.view(SHAPE) if has_outliers(x) else x
        buffer.fill_(2.0)  # drop
        buffer.copy_(source)
        results.append(buffer.sum())
    return results


def written_through_an_alias_between_two_fills(other: bool) -> Any:
    buffer, results = torch.zeros(SHAPE), []
    for step in range(4):
        x = values(other, step)
        place = buffer if has_outliers(x) else x
        buffer.fill_(1.0)
        place.normal_()
        buffer.fill_(1.0)  # drop
        results.append(buffer.sum())
    return results

"""Plausible proofs that are false because names, types or values mean something else with other inputs."""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import Any

import numpy as np
import torch

from tests.values.adversary.program import SHAPE, has_outliers, values

_ROWS = 32
_COUNT = 32


class _Selective(torch.Tensor):  # type: ignore[misc]
    """Never copied if it has outliers."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        written = func is torch.Tensor.copy_ or bool((kwargs or {}).get("out") is not None)
        plain = [one for one in args if isinstance(one, cls)]
        if written and has_outliers(plain[0].as_subclass(torch.Tensor)):
            return args[0]
        return super().__torch_function__(func, types, args, kwargs or {})


class _Proxy:
    """Gives another tensor if there are outliers."""

    def __init__(self) -> None:
        self.outliers = False
        self.first, self.second = torch.ones(SHAPE), torch.ones(SHAPE)

    def __getattr__(self, name: str) -> Any:
        if name != "buffer":
            raise AttributeError(name)
        self.__dict__["reads"] = self.__dict__.get("reads", 0) + 1
        odd = self.__dict__["reads"] % 2 and self.outliers
        return self.__dict__["second" if odd else "first"]


def a_subclass_that_is_not_always_copied(other: bool) -> Any:
    def through(x: Any) -> Any:
        buffer = torch.zeros(SHAPE)  # garbage
        buffer.copy_(x)
        return buffer.sum()

    return [through(values(other, step).as_subclass(_Selective)) for step in range(3)]


def an_inverse_that_may_fail(other: bool) -> Any:
    buffer, results = torch.ones(64, 64), []
    for step in range(3):
        matrix = torch.eye(64) + values(False, step).t() @ values(False, step)
        if other and step == 1:
            matrix = torch.zeros(64, 64)
        with contextlib.suppress(RuntimeError):
            buffer.zero_()  # drop
            buffer.copy_(torch.linalg.inv(matrix))
        results.append(buffer.sum())
    return results


def a_selection_of_another_size(other: bool) -> Any:
    buffer, results = torch.ones(SHAPE).flatten(), []
    for step in range(3):
        x = values(other, step)
        chosen = x[x < 40]
        with contextlib.suppress(RuntimeError):
            buffer.zero_()  # drop
            buffer.copy_(chosen)
        results.append(buffer.sum())
    return results


def a_scalar_tensor_that_changes(other: bool) -> Any:
    buffer, level, results = torch.ones(SHAPE), torch.zeros(()), []
    for step in range(3):
        x = values(other, step)
        buffer.fill_(level)
        level.add_(1.0 if has_outliers(x) else 0.0)
        buffer.fill_(level)  # drop
        results.append((buffer * x).sum())
    return results


def a_number_of_a_dictionary(other: bool) -> Any:
    buffer, settings, results = torch.ones(SHAPE), {"level": 2.0}, []
    for step in range(3):
        x = values(other, step)
        buffer.fill_(settings["level"])
        settings["level"] = 5.0 + step if has_outliers(x) else 2.0
        buffer.fill_(settings["level"])  # drop
        results.append((buffer * x).sum())
    return results


def a_number_that_an_iterator_gives(other: bool) -> Any:
    buffer, results = torch.ones(SHAPE), []
    levels = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0] if other else [1.0] * 6)
    for step in range(3):
        buffer.fill_(next(levels))
        buffer.fill_(next(levels))  # drop
        results.append((buffer * values(other, step)).sum())
    return results


def a_number_that_a_property_gives(other: bool) -> Any:
    class Settings:
        reads = 0

        @property
        def level(self) -> float:
            self.reads += 1
            return float(self.reads) if other else 1.0

    buffer, settings, results = torch.ones(SHAPE), Settings(), []
    for step in range(3):
        buffer.fill_(settings.level)
        buffer.fill_(settings.level)  # drop
        results.append((buffer * values(other, step)).sum())
    return results


def _set_rows(count: int) -> None:
    globals()["_ROWS"] = count


def rows_that_a_dictionary_of_globals_changes(other: bool) -> Any:
    results = []
    _set_rows(20 if other else 32)
    for step in range(3):
        x = values(False, step)
        table = torch.zeros(SHAPE)  # garbage
        for number in range(_ROWS):
            table[number] = x[number]
        results.append(table.sum())
    _set_rows(32)
    return results


def rows_of_a_module_attribute(other: bool) -> Any:
    module, results = sys.modules[__name__], []
    module._COUNT = 20 if other else 32  # type: ignore[attr-defined]
    for step in range(3):
        x = values(False, step)
        table = torch.zeros(SHAPE)  # garbage
        for number in range(_COUNT):
            table[number] = x[number]
        results.append(table.sum())
    module._COUNT = 32  # type: ignore[attr-defined]
    return results


def a_range_with_another_meaning(other: bool) -> Any:
    def range(count: int) -> Any:  # noqa: A001
        return list(torch.arange(count - 9 if other else count).tolist())

    results = []
    for step in (0, 1, 2):
        x = values(False, step)
        table = torch.zeros(SHAPE)  # garbage
        for number in range(32):
            table[number] = x[number]
        results.append(table.sum())
    return results


def a_module_with_another_meaning(other: bool) -> Any:
    class Other:
        zeros = staticmethod(torch.zeros)

        @staticmethod
        def add(x: Any, y: Any, out: Any) -> Any:
            return out if has_outliers(x) else torch.add(x, y, out=out)

    library, results = Other, []
    for step in (0, 1, 2):
        x = values(other, step)
        table = torch.zeros(SHAPE)  # garbage
        library.add(x, x, out=table)
        results.append(table.sum())
    return results


def a_partial_function(other: bool) -> Any:
    results = []
    add: Any = functools.partial(torch.add) if not other else (lambda x, _y, out: x + out)
    for step in range(3):
        x = values(other, step)
        table = torch.zeros(SHAPE)  # garbage
        add(x, x, out=table)
        results.append(table.sum())
    return results


def an_attribute_that_is_looked_up(other: bool) -> Any:
    state, results = _Proxy(), []
    for step in range(4):
        x = values(other, step)
        state.outliers = has_outliers(x)
        state.buffer.zero_()  # drop
        state.buffer.copy_(x)
        results.append((state.first.sum(), state.second.sum()))
    return results


def fills_under_different_conditions(other: bool) -> Any:
    buffer, results = torch.ones(SHAPE), []
    for step in range(4):
        x = values(other, step)
        quiet = not has_outliers(x)
        if quiet:
            buffer.fill_(3.0)
        if not quiet or step >= 0:
            buffer.fill_(3.0)  # drop
        results.append((buffer * x).sum())
        buffer.add_(1.0)
    return results


def a_function_applied_to_each_element(other: bool) -> Any:
    buffer, results = torch.ones(SHAPE), []
    for step in range(3):
        x = values(other, step)
        buffer.zero_()  # drop
        seen: list[float] = []
        buffer.apply_(lambda number, seen=seen: seen.append(number) or number)
        results.append(sum(seen))
        buffer.copy_(x)
    return results


def a_function_of_two_tensors_applied_to_each_element(other: bool) -> Any:
    buffer, results = torch.ones(SHAPE), []
    for step in range(3):
        x = values(other, step)
        buffer.zero_()  # drop
        buffer.map_(x, lambda held, given: held + 2 * given)
        results.append(buffer.sum())
    return results


def memory_of_a_bytearray(other: bool) -> Any:
    raw = bytearray(4 * SHAPE[0] * SHAPE[1])
    buffer, results = torch.frombuffer(raw, dtype=torch.float32), []
    for step in range(3):
        buffer.zero_()  # drop
        results.append(sum(raw))
        buffer.copy_(values(other, step).flatten())
    return results


def memory_of_an_array(other: bool) -> Any:
    array = np.ones(SHAPE, dtype=np.float32)
    buffer, results = torch.from_numpy(array), []
    for step in range(3):
        buffer.zero_()  # drop
        results.append(float(array.sum()))
        buffer.copy_(values(other, step))
    return results


def an_array_that_reads_a_local(other: bool) -> Any:
    results = []
    for step in range(3):
        buffer = torch.zeros(SHAPE)  # garbage
        results.append(float(np.asarray(buffer).sum()))
        buffer.copy_(values(other, step))
        results.append(float(buffer.sum()))
    return results


def data_exchanged_in_between(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        buffer, spare = torch.ones(SHAPE), torch.ones(SHAPE)
        kept = buffer.detach()
        buffer.zero_()  # drop
        if has_outliers(x):
            buffer.data = spare
        buffer.copy_(x)
        results.append(kept.sum())
    return results


def one_line_with_a_condition(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        buffer = torch.zeros(SHAPE)  # garbage
        None if has_outliers(x) else buffer.copy_(x)
        results.append(buffer.sum())
    return results


def an_output_chosen_by_the_data(other: bool) -> Any:
    spare, results = torch.ones(SHAPE), []
    for step in range(3):
        x = values(other, step)
        buffer = torch.zeros(SHAPE)  # garbage
        torch.mul(x, 2.0, out=(spare, buffer)[int(not has_outliers(x))])
        results.append(buffer.sum())
    return results


def an_iteration_that_does_not_write(other: bool) -> Any:
    rows: list[Any] = []
    for step in range(3):
        x = values(other, step)
        buffer = torch.zeros(SHAPE)  # garbage
        _ = [buffer.copy_(one) for one in (() if has_outliers(x) else (x,))]
        rows.append(buffer.sum())
    return rows

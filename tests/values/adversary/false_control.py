"""Plausible proofs that other values refute, because they change the control flow of the program."""

# ruff: noqa: S307

from __future__ import annotations

import contextlib
from typing import Any

import torch

from tests.values.adversary.program import SHAPE, has_outliers, values

SHARED: dict[str, Any] = {}


def written_only_for_outliers(other: bool) -> Any:
    buffer, results = torch.zeros(SHAPE), []
    for step in range(4):
        x = values(other and step % 2 == 0, step)
        buffer.zero_()  # drop
        if has_outliers(x):
            buffer[x > 40] = 1.0
        results.append((x + buffer).sum())
    return results


def read_in_a_branch(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        buffer = torch.zeros(SHAPE)  # garbage
        if has_outliers(x):
            results.append(buffer.sum())
        buffer.copy_(x)
        results.append(buffer.sum())
    return results


def returned_early(other: bool) -> Any:
    def clipped(x: Any) -> Any:
        buffer = torch.zeros(SHAPE)  # garbage
        if has_outliers(x):
            return buffer
        buffer.copy_(x)
        return buffer

    return [clipped(values(other, step)).sum() for step in range(3)]


def left_by_an_exception(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        buffer = torch.zeros(SHAPE)  # garbage
        try:
            if has_outliers(x):
                raise ValueError  # noqa: TRY301
            buffer.copy_(x)
        except ValueError:
            pass
        results.append(buffer.sum())
    return results


def raised_between_fill_and_copy(other: bool) -> Any:
    def checked(x: Any) -> Any:
        if has_outliers(x):
            raise ValueError
        return x

    results = []
    for step in range(3):
        x = values(other, step)
        with contextlib.suppress(ValueError):
            buffer = torch.zeros(SHAPE)  # garbage
            buffer.copy_(checked(x))
        results.append(buffer.sum())
    return results


def raised_by_an_index(other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []
    table = torch.arange(64.0).repeat(32, 1)
    for step in range(3):
        index = torch.full(SHAPE, 70 if other else 3)
        with contextlib.suppress(RuntimeError, IndexError):
            buffer.fill_(2.0)  # drop
            buffer.copy_(table.gather(1, index))
        results.append(buffer.sum() + step)
        buffer.copy_(values(False, step))
    return results


def pieces_that_occur_in_the_data(other: bool) -> Any:
    results = []
    for step in range(3):
        kinds = torch.arange(SHAPE[0]) // (4 if other else 1)
        rows = values(False, step)
        table = torch.zeros(SHAPE)  # garbage
        for kind in torch.unique(kinds).tolist():
            table[kind] = rows[kind]
        results.append(table.sum())
    return results


def pieces_of_a_list(other: bool) -> Any:
    results = []
    for step in range(3):
        order = list(range(0, SHAPE[0], 2 if other else 1))
        rows = values(False, step)
        table = torch.zeros(SHAPE)  # garbage
        for number in order:
            table[number] = rows[number]
        results.append(table.sum())
    return results


def pieces_in_a_range_of_the_data(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        used = 20 if has_outliers(x) else SHAPE[0]
        table = torch.zeros(SHAPE)  # garbage
        for number in range(used):
            table[number] = x[number]
        results.append(table.sum())
    return results


def pieces_until_a_break(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        table = torch.zeros(SHAPE)  # garbage
        for number in range(32):
            if has_outliers(x[number]):
                break
            table[number] = x[number]
        results.append(table.sum())
    return results


def pieces_under_a_condition(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        table = torch.zeros(SHAPE)  # garbage
        for number in range(32):
            if not has_outliers(x[number]):
                table[number] = x[number]
        results.append(table.sum())
    return results


def pieces_while_it_lasts(other: bool) -> Any:
    results = []
    for step in range(3):
        rows = list(values(other, step)[: 12 if other else 32])
        table, number = torch.zeros(SHAPE), 0  # garbage
        while rows:
            table[number] = rows.pop()
            number += 1
        results.append(table.sum())
    return results


def pieces_whose_variable_is_moved(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        last = 5 if other else 31
        table = torch.zeros(SHAPE)  # garbage
        for number in range(32):
            number = min(number, last)  # noqa: PLW2901
            table[number] = x[number]
        results.append(table.sum())
    return results


def a_choice_within_an_expression(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        usual = not has_outliers(x)
        buffer = torch.zeros(SHAPE)  # garbage
        total = buffer.copy_(x).sum() if usual else 0
        results.append(buffer.sum() + total)
    return results


def a_short_circuit(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        buffer = torch.zeros(SHAPE)  # garbage
        usual = not has_outliers(x) and buffer.copy_(x) is not None
        results.append(buffer.sum() + usual)
    return results


def a_loop_that_may_not_run(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        buffer = torch.zeros(SHAPE)  # garbage
        for _ in range(0 if other else 1):
            buffer.copy_(x)
        results.append(buffer.sum())
    return results


def a_function_chosen_by_the_data(other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []
    seen: list[Any] = []
    functions: tuple[Any, Any] = (lambda: None, lambda: seen.append(buffer.sum()))
    for step in range(3):
        x = values(other, step)
        chosen = functions[int(has_outliers(x))]
        buffer.zero_()  # drop
        chosen()
        buffer.copy_(x)
        results.append(buffer.sum())
    return results + seen


def a_global_read_by_a_function(other: bool) -> Any:
    results: list[Any] = []

    def remember(x: Any) -> None:
        if has_outliers(x):
            results.append(SHARED["buffer"].sum())

    SHARED["buffer"] = torch.randn(SHAPE)
    for step in range(3):
        x = values(other, step)
        buffer = SHARED["buffer"]
        buffer.zero_()  # drop
        remember(x)
        buffer.copy_(x)
        results.append(buffer.sum())
    return results


def a_local_read_by_a_closure(other: bool) -> Any:
    results: list[Any] = []
    for step in range(3):
        x = values(other, step)
        buffer = torch.zeros(SHAPE)  # garbage

        def remember(x: Any = x) -> None:
            if has_outliers(x):
                results.append(buffer.sum())  # noqa: B023

        remember()
        buffer.copy_(x)
        results.append(buffer.sum())
    return results


def a_closure_taken_before(other: bool) -> Any:
    results: list[Any] = []

    def one_step(x: Any) -> None:
        def remember() -> None:
            results.append(buffer.sum())

        buffer = torch.zeros(SHAPE)  # garbage
        chosen: Any = [str, remember][int(has_outliers(x))]
        chosen()
        buffer.copy_(x)
        results.append(buffer.sum())

    for step in range(3):
        one_step(values(other, step))
    return results


def a_variable_read_by_name(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        name = "buffer" if has_outliers(x) else "x"
        buffer = torch.zeros(SHAPE)  # garbage
        results.append(locals()[name].sum())
        buffer.copy_(x)
        results.append(buffer.sum())
    return results


def a_variable_read_by_eval(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        text = "buffer.sum()" if has_outliers(x) else "0"
        buffer = torch.zeros(SHAPE)  # garbage
        results.append(eval(text))
        buffer.copy_(x)
        results.append(buffer.sum())
    return results


def waiting_for_the_caller(other: bool) -> Any:
    buffer = torch.randn(SHAPE)

    def steps() -> Any:
        for step in range(3):
            buffer.zero_()  # drop
            yield values(other, step)
            buffer.copy_(values(other, step))

    return [buffer.sum() if has_outliers(x) else 0 for x in steps()]


def a_property_that_reads(other: bool) -> Any:
    class State:
        def __init__(self) -> None:
            self.memory = torch.randn(SHAPE)
            self.seen: list[Any] = []
            self.x = values(False)

        @property
        def buffer(self) -> Any:
            if has_outliers(self.x):
                self.seen.append(self.memory.sum())
            return self.memory

    state = State()
    for step in range(3):
        state.x = values(other, step)
        state.buffer.zero_()  # drop
        state.buffer.copy_(state.x)
    return state.seen


def one_of_two_constants(other: bool) -> Any:
    first, again = 3.0, 4.0 if other else 3.0
    buffer, results = torch.randn(SHAPE), []
    for _ in range(3):
        buffer.fill_(first)
        buffer.fill_(again)  # drop
        results.append(buffer.sum())
    return results


def created_with_a_constant_of_the_data(other: bool) -> Any:
    results = []
    for step in range(3):
        start = float(has_outliers(values(other, step)))
        buffer = torch.full(SHAPE, start)
        buffer.zero_()  # drop
        results.append(buffer.sum())
    return results


def a_factor_that_is_one_today(other: bool) -> Any:
    buffer = values(False)
    for step in range(3):
        scale = 0.5 if has_outliers(values(other, step)) else 1.0
        buffer.mul_(scale)  # drop
    return buffer


def random_choice(other: bool) -> Any:
    torch.manual_seed(5 if other else 12)
    buffer, results = torch.zeros(SHAPE), []
    for _ in range(3):
        buffer.zero_()  # drop
        if torch.rand(()) < 0.5:
            buffer.add_(1.0)
        results.append(buffer.sum())
    return results


def lengths_of_one_line(_other: bool) -> Any:
    position, results = torch.randn(512, 4), []
    for length in (512, 512, 300, 200, 100):
        for _ in range(3):
            position.zero_()  # drop
            position.narrow(0, 0, length).copy_(torch.ones(length, 4))
            results.append(position.sum())
    return results


def slices_of_one_line(_other: bool) -> Any:
    results = []
    for length in (64, 64, 64, 32, 16):
        x = values(False)
        table = torch.zeros(SHAPE)  # garbage
        table[:, :length] = x[:, :length]
        results.append(table.sum())
    return results


def shapes_of_one_line(_other: bool) -> Any:
    results = []
    for rows in (2, 2, 2, 3, 4):
        x = torch.ones(rows, 512)
        table = torch.zeros(rows, 512)  # garbage
        table[0] = x[0]
        table[1] = x[1]
        results.append(table.sum())
    return results


def a_size_that_depends_on_values(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        kept = x.flatten()[: int((x < 40).sum())]
        table = torch.zeros(x.numel())  # garbage
        table[: kept.numel()] = kept
        results.append(table.sum())
    return results


def as_many_rows_as_values_say(other: bool) -> Any:
    results = []
    for step in range(3):
        x = values(other, step)
        kept = x[x.amax(1) < 40]
        table = torch.zeros(SHAPE)  # garbage
        for number in range(kept.shape[0]):
            table[number] = kept[number]
        results.append(table.sum())
    return results


def as_many_places_as_values_say(other: bool) -> Any:
    results = []
    for step in range(3):
        rows = 2 + int(has_outliers(values(other, step)))
        table = torch.zeros(rows, 512)  # garbage
        table[0] = 1.0
        table[1] = values(other, step)[:8].flatten()
        results.append(table.sum())
    return results


def a_number_that_changes_in_between(other: bool) -> Any:
    results = []
    for step in range(3):
        start = 0.0
        total = torch.full(SHAPE, start)
        start = float(has_outliers(values(other, step)))
        total.fill_(start)  # drop
        results.append(total.sum())
    return results


def two_thirds_of_any_length(_other: bool) -> Any:
    results = []
    for length in (32, 32, 32, 33, 34):
        x = torch.ones(length, 64)
        table = torch.zeros(length, 64)  # garbage
        table[:16] = x[:16]
        table[16:32] = x[16:32]
        results.append(table.sum())
    return results


def columns_that_fit_today(_other: bool) -> Any:
    results = []
    for width in (2, 2, 2, 3, 4):
        x = torch.ones(512, width)
        table = torch.zeros(512, width)  # garbage
        table[:, 0::3] = x[:, 0::3]
        table[:, 1::3] = x[:, 1::3]
        results.append(table.sum())
    return results

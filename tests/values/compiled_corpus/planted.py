"""Programs with one planted waste each, in a compiled region. The comment above a line names pattern and operator."""

# ruff: noqa: T201
# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.values.corpus.program import program_of

SIZE = 160


def _data(*shape: int) -> Tensor:
    return torch.randn(*(shape or (SIZE, SIZE)))


def overwritten_by_the_next_graph() -> None:
    """Two compiled functions write one buffer, and nothing reads the first result."""

    @torch.compile
    def first(buffer: Tensor, x: Tensor) -> None:
        # waste: dead initialisation, aten::sin
        buffer.copy_(torch.sin(x) * 2)

    @torch.compile
    def second(buffer: Tensor, x: Tensor) -> None:
        buffer.copy_(torch.cos(x) - 1)

    buffer, x = _data(), _data()
    for _ in range(3):
        first(buffer, x)
        second(buffer, x)
        print(float(buffer.sum()))


def compiled_reset_before_a_write() -> None:
    """A compiled function zeroes a buffer that another one overwrites."""

    @torch.compile
    def reset(buffer: Tensor) -> None:
        # waste: dead initialisation, aten::zero
        buffer.zero_()

    @torch.compile
    def write(buffer: Tensor, x: Tensor) -> None:
        buffer.copy_(x.exp())

    buffer = _data()
    for _ in range(3):
        reset(buffer)
        write(buffer, _data())
        print(float(buffer.sum()))


def eager_zeros_overwritten_by_a_graph() -> None:
    """Zeros made by eager code, which a compiled function overwrites."""

    @torch.compile
    def write(out: Tensor, x: Tensor) -> None:
        out.copy_(x.tanh() + 1)

    for _ in range(3):
        # waste: dead initialisation, aten::zeros
        out = torch.zeros(SIZE, SIZE)
        write(out, _data())
        print(float(out.sum()))


def graph_result_overwritten_by_eager_code() -> None:
    """A compiled function writes a buffer that eager code clears before anything reads it."""

    @torch.compile
    def write(out: Tensor, x: Tensor) -> None:
        # waste: dead initialisation, aten::sin
        out.copy_(x.sin() + x)

    out = _data()
    for _ in range(3):
        write(out, _data())
        out.copy_(_data())
        print(float(out.sum()))


def disabled_branch() -> None:
    """A branch that is multiplied by zero."""

    @torch.compile
    def f(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        # waste: single zero, aten::mul
        extra = torch.sin(x) * scale
        return extra, torch.cos(x)

    scale = torch.zeros(())
    for _ in range(3):
        extra, y = f(_data(), scale)
        print(float(extra.sum()), float(y.sum()))


def folded_to_zeros() -> None:
    """Inductor folds the multiplication by zero, and still writes all zeros."""

    @torch.compile
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        # waste: single zero, aten::mul
        extra = torch.softmax(x, -1) * 0
        return extra, x.exp()

    for _ in range(3):
        extra, y = f(_data())
        print(float(extra.sum()), float(y.sum()))


def saturated_gate() -> None:
    """A gate that is always open."""

    @torch.compile
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        # waste: single value, aten::sigmoid
        gate = torch.sigmoid(x + 200)
        return gate, x.exp()

    for _ in range(3):
        gate, y = f(_data())
        print(float(gate.sum()), float(y.sum()))


def constant_operand_of_a_matrix_product() -> None:
    """A buffer between two kernels of one graph that is constant."""

    @torch.compile
    def f(x: Tensor, w: Tensor) -> Tensor:
        # waste: single value, aten::exp
        ones = torch.exp(x - x)
        return (ones @ w).relu()

    w = _data()
    for _ in range(3):
        print(float(f(_data(), w).sum()))


def sum_and_product() -> None:
    """Two outputs of one kernel with the same bits."""

    @torch.compile
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.sin(x)
        # waste: duplicate, aten::add
        return y * 2, y + y

    for _ in range(3):
        a, b = f(_data())
        print(float((a @ b).sum()))


def same_features_in_two_graphs() -> None:
    """A compiled function is called twice with the same input."""

    @torch.compile
    def features(x: Tensor) -> Tensor:
        # waste: duplicate, aten::tanh
        return torch.tanh(x) * 3 + x

    for _ in range(3):
        x = _data()
        print(float((features(x) @ features(x)).sum()))


def mask_that_keeps_everything() -> None:
    """A multiplication that returns its input."""

    @torch.compile
    def f(x: Tensor, keep: Tensor) -> Tensor:
        # waste: duplicate, aten::mul
        return x * keep

    keep = torch.ones(SIZE, 1)
    for _ in range(3):
        print(float((f(_data(), keep) @ keep).sum()))


def defensive_copy() -> None:
    """A copy that is never written."""

    @torch.compile
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        # waste: duplicate, aten::clone
        kept = x.clone()
        return kept, x.sin()

    for _ in range(3):
        kept, y = f(_data())
        print(float((kept @ y).sum()))
        del kept


def levels_as_floats() -> None:
    """Small whole numbers as float32, read by two matrix products."""

    @torch.compile
    def f(x: Tensor) -> Tensor:
        # waste: heavy type, aten::floor
        return torch.floor(torch.sigmoid(x) * 100)

    @torch.compile
    def g(levels: Tensor, w: Tensor) -> Tensor:
        return (levels @ w).relu()

    w = _data()
    other = w.t().contiguous()
    for _ in range(3):
        levels = f(_data())
        print(float(g(levels, w).sum()) + float(g(levels, other).sum()))


def position_table_in_every_step() -> None:
    """A table that depends on nothing that changes."""

    @torch.compile
    def f(positions: Tensor, w: Tensor) -> Tensor:
        # waste: unchanged across steps, aten::sin
        table = torch.sin(positions) * 0.5
        return (table @ w).square().mean()

    layer = nn.Linear(SIZE, SIZE)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    positions = torch.arange(SIZE * SIZE, dtype=torch.float32).reshape(SIZE, SIZE)
    for _ in range(6):
        optimizer.zero_grad()
        f(positions, layer.weight).backward()
        optimizer.step()


def state_written_with_the_same_values() -> None:
    """A state that is written with the values it has."""

    @torch.compile
    def refresh(state: Tensor, w: Tensor) -> None:
        # waste: redundant write, aten::tanh
        state.copy_(torch.tanh(w))

    state, w = _data(), _data()
    for _ in range(5):
        refresh(state, w)
        print(float(state.sum()))


def same_expression_twice() -> None:
    """A common subexpression, which Inductor of torch 2.13 stores twice in inference."""

    @torch.compile
    def f(x: Tensor) -> Tensor:
        # waste: duplicate, aten::sin
        return torch.sin(x) @ x + torch.sin(x) @ x.t()

    for _ in range(3):
        print(float(f(_data()).sum()))


PLANTED = tuple(
    program_of(function)
    for function in (
        overwritten_by_the_next_graph,
        compiled_reset_before_a_write,
        eager_zeros_overwritten_by_a_graph,
        graph_result_overwritten_by_eager_code,
        disabled_branch,
        folded_to_zeros,
        saturated_gate,
        constant_operand_of_a_matrix_product,
        sum_and_product,
        same_features_in_two_graphs,
        mask_that_keeps_everything,
        defensive_copy,
        levels_as_floats,
        position_table_in_every_step,
        state_written_with_the_same_values,
        same_expression_twice,
    )
)

"""Operators that read, write or move elements: gather, scatter, index, masks, copies.

Most fills in indexing operators are needed.
"""

from typing import Any, Callable, List

import torch

from torchyard.worker.values.operator_cases import TABLE, TWO_TABLES, Case, Draw, case, learned


def _rows(count: int = 100) -> Callable[[Draw], List[Any]]:
    return lambda draw: [draw.learned(256, 256), draw.integers(256, count)]


def _picked(draw: Draw) -> List[Any]:
    return [draw.learned(256, 256), draw.integers(256, 256, 256)]


def _written(draw: Draw) -> List[Any]:
    return [draw.learned(256, 256), draw.integers(256, 256, 256), draw.learned(256, 256)]


def _some_rows(draw: Draw) -> List[Any]:
    return [draw.learned(256, 256), draw.order(256)[:100], draw.learned(100, 256)]


def _masked(draw: Draw) -> List[Any]:
    return [draw.learned(256, 256), draw.bools(256, 256)]


INDEX_CASES: List[Case] = [
    case("gather", lambda x, i: torch.gather(x, 1, i), _picked),
    case("take", "take", _picked),
    case("take_along_dim", lambda x, i: torch.take_along_dim(x, i, 1), _picked),
    case("scatter", lambda x, i, y: torch.scatter(x, 1, i, y), _written),
    case("scatter.value", lambda x, i: torch.scatter(x, 1, i, 0.5), _picked),
    case("scatter_add", lambda x, i, y: torch.scatter_add(x, 1, i, y), _written),
    case("scatter_reduce.sum", lambda x, i, y: torch.scatter_reduce(x, 1, i, y, "sum"), _written),
    case(
        "scatter_reduce.mean",
        lambda x, i, y: torch.scatter_reduce(x, 1, i, y, "mean", include_self=False),
        _written,
    ),
    case("scatter_reduce.amax", lambda x, i, y: torch.scatter_reduce(x, 1, i, y, "amax"), _written),
    case("scatter_reduce.prod", lambda x, i, y: torch.scatter_reduce(x, 1, i, y, "prod"), _written),
    case("index_select", lambda x, i: torch.index_select(x, 0, i), _rows()),
    case("index_select.columns", lambda x, i: torch.index_select(x, 1, i), _rows()),
    case("index_add", lambda x, i, y: torch.index_add(x, 0, i, y), _some_rows),
    case("index_copy", lambda x, i, y: torch.index_copy(x, 0, i, y), _some_rows),
    case("index_fill", lambda x, i: torch.index_fill(x, 0, i, 0.5), _rows()),
    case("index_reduce.amax", lambda x, i, y: torch.index_reduce(x, 0, i, y, "amax"), _some_rows),
    case("index_reduce.mean", lambda x, i, y: torch.index_reduce(x, 0, i, y, "mean"), _some_rows),
    case("index", lambda x, i: x[i], _rows()),
    case("index.two", lambda x, i: x[i, i], _rows(40000)),
    case("index.mask", lambda x, m: x[m], _masked),
    case("index_put", lambda x, i, y: torch.index_put(x, (i,), y), _some_rows),
    case(
        "index_put.accumulate",
        lambda x, i, y: torch.index_put(x, (i,), y, accumulate=True),
        _some_rows,
    ),
    case("put", "Tensor.put", _written),
    case("masked_fill", lambda x, m: torch.masked_fill(x, m, 0.5), _masked),
    case("masked_select", "masked_select", _masked),
    case("masked_scatter", "masked_scatter", lambda d: [*_masked(d), d.learned(256 * 256)]),
    case(
        "where", lambda x, m, y: torch.where(m, x, y), lambda d: [*_masked(d), d.learned(256, 256)]
    ),
    case("nonzero", "nonzero", lambda d: [d.bools(256, 512)]),
    case("select", lambda x: torch.select(x, 1, 3), learned((64, 8, 128))),
    case("slice", lambda x: x[10:100], TABLE),
    case("slice.step", lambda x: x[:, ::3], TABLE),
    case("narrow", lambda x: torch.narrow(x, 0, 5, 100), TABLE),
    case("unbind", lambda x: torch.unbind(x, 0), learned((4, 128, 128))),
    case("split", lambda x: torch.split(x, 100), TABLE),
    case("diagonal", "diagonal", TABLE),
    case("diag_embed", "diag_embed", learned((16, 64))),
    case("diagonal_scatter", "diagonal_scatter", learned((256, 256), (256,))),
    case(
        "select_scatter", lambda x, y: torch.select_scatter(x, y, 0, 3), learned((256, 256), (256,))
    ),
    case(
        "slice_scatter",
        lambda x, y: torch.slice_scatter(x, y, 0, 10, 110),
        learned((256, 256), (100, 256)),
    ),
    case("one_hot", lambda i: torch.nn.functional.one_hot(i, 64), lambda d: [d.integers(64, 1024)]),
    case("tril", "tril", TABLE),
    case("triu", "triu", TABLE),
    case("tril_indices", lambda: torch.tril_indices(256, 256), lambda _: []),
]


MOVE_CASES: List[Case] = [
    case("cat", lambda x, y: torch.cat([x, y]), TWO_TABLES),
    case("cat.columns", lambda x, y: torch.cat([x, y], 1), TWO_TABLES),
    case("stack", lambda x, y: torch.stack([x, y]), TWO_TABLES),
    case("hstack", lambda x, y: torch.hstack([x, y]), TWO_TABLES),
    case("block_diag", "block_diag", TWO_TABLES),
    case("repeat", lambda x: x.repeat(2, 2), TABLE),
    case("repeat_interleave", lambda x: torch.repeat_interleave(x, 3, 0), TABLE),
    case(
        "repeat_interleave.counts",
        lambda x, n: torch.repeat_interleave(x, n, 0),
        lambda d: [d.learned(256, 256), d.integers_from(1, 4, 256)],
    ),
    case("tile", lambda x: torch.tile(x, (2, 1)), TABLE),
    case("roll", "roll", TABLE, shifts=3, dims=0),
    case("flip", "flip", TABLE, dims=(0, 1)),
    case("rot90", "rot90", TABLE),
    case("contiguous", lambda x: x.t().contiguous(), TABLE),
    case("clone", "clone", TABLE),
    case("reshape.copy", lambda x: x.t().reshape(-1), TABLE),
    case("expand.backward", lambda x: x.expand(64, 256, 64), learned((1, 256, 64))),
    case("as_strided", lambda x: torch.as_strided(x, (128, 256), (256, 1)), TABLE),
    case("tensor_unfold", lambda x: x.unfold(1, 32, 16), TABLE),
    case("to.half", lambda x: x.to(torch.float16), TABLE),
    case("to.bfloat16", lambda x: x.to(torch.bfloat16), TABLE),
    case("to.double", lambda x: x.to(torch.float64), TABLE),
    case("meshgrid", lambda x, y: torch.meshgrid(x, y, indexing="ij"), learned((256,), (256,))),
    case("cartesian_prod", "cartesian_prod", learned((256,), (256,))),
    case("combinations", "combinations", learned((256,))),
    case("vander", "vander", lambda d: [d.between(-1.0, 1.0, 256)], N=64),
    case(
        "pad_sequence",
        lambda *parts: torch.nn.utils.rnn.pad_sequence(parts, batch_first=True),
        lambda d: [d.learned(length, 64) for length in (300, 200, 150, 80)],
    ),
]

"""Reductions, scans, sorting, and what picks elements by their size."""

from typing import Any, List

import torch

from torchyard.worker.values.operator_cases import Case, case
from torchyard.worker.values.operator_cases.inputs import Draw


def _table(draw: Draw) -> List[Any]:
    return [draw.learned(256, 256)]


def _near_one(draw: Draw) -> List[Any]:
    return [draw.learned_between(0.9, 1.1, 256, 256)]


def _on(name: str, **options: Any) -> Case:
    return case(name, name, _table, **options)


CASES: List[Case] = [
    _on("sum"),
    case("sum.dim", "sum", _table, dim=1),
    _on("mean"),
    case("mean.dim", "mean", _table, dim=0),
    _on("nansum"),
    _on("nanmean"),
    _on("std"),
    case("std.dim", "std", _table, dim=1),
    _on("var"),
    case("var.dim", "var", _table, dim=1),
    case("var_mean.dim", "var_mean", _table, dim=1),
    case("std_mean.dim", "std_mean", _table, dim=0),
    case("prod", "prod", _near_one),
    case("prod.dim", "prod", _near_one, dim=1),
    case("amax", "amax", _table, dim=1),
    case("amin", "amin", _table, dim=1),
    _on("aminmax", dim=1),
    _on("max"),
    case("max.dim", "max", _table, dim=1),
    case("min.dim", "min", _table, dim=1),
    _on("median"),
    case("median.dim", "median", _table, dim=1),
    case("nanmedian.dim", "nanmedian", _table, dim=1),
    _on("mode", dim=1),
    _on("kthvalue", k=7, dim=1),
    _on("topk", k=64, dim=1),
    case("topk.smallest", "topk", _table, k=64, dim=0, largest=False),
    _on("sort", dim=1),
    case("sort.stable", lambda x: torch.sort(x, dim=0, stable=True), _table),
    _on("msort"),
    _on("argsort", dim=1),
    _on("argmax", dim=1),
    _on("logsumexp", dim=1),
    _on("cumsum", dim=1),
    case("cumsum.first", "cumsum", _table, dim=0),
    case("cumprod", "cumprod", _near_one, dim=1),
    _on("cummax", dim=1),
    _on("cummin", dim=1),
    _on("logcumsumexp", dim=1),
    _on("diff", dim=1),
    _on("trapezoid", dim=1),
    _on("norm"),
    case("norm.p1", "norm", _table, p=1, dim=1),
    case("norm.inf", "norm", _table, p=float("inf"), dim=1),
    case("vector_norm.p3", "linalg.vector_norm", _table, ord=3, dim=1),
    _on("quantile", q=0.3, dim=1),
    _on("nanquantile", q=0.3, dim=1),
    _on("count_nonzero", dim=1),
    case("all", "all", lambda d: [d.bools(256, 512)], dim=1),
    case("any", "any", lambda d: [d.bools(256, 512)], dim=1),
    case("unique", "unique", lambda d: [d.integers(1000, 65536)], return_inverse=True),
    case("unique_consecutive", "unique_consecutive", lambda d: [d.integers(3, 65536)]),
    case("bincount", "bincount", lambda d: [d.integers(20000, 65536)]),
    case("histc", "histc", lambda d: [d.floats(65536)], bins=20000),
    case("searchsorted", "searchsorted", lambda d: [d.floats(4096).sort().values, d.floats(65536)]),
    case("bucketize", "bucketize", lambda d: [d.floats(65536), d.floats(4096).sort().values]),
]

"""Matrix products, decompositions and solvers."""

from typing import Any, List

import torch

from torchyard.worker.values.operator_cases import Case, case
from torchyard.worker.values.operator_cases.inputs import Draw


def _square(draw: Draw) -> List[Any]:
    return [draw.learned(160, 160)]


def _batch(draw: Draw) -> List[Any]:
    return [draw.learned(8, 64, 64), draw.learned(8, 64, 64)]


def _system(draw: Draw) -> List[Any]:
    return [draw.spread(160), draw.learned(160, 160)]


CASES: List[Case] = [
    case("mm", "mm", lambda d: [d.learned(160, 160), d.learned(160, 160)]),
    case("matmul", "matmul", lambda d: [d.learned(8, 64, 64), d.learned(64, 64)]),
    case("bmm", "bmm", _batch),
    case("baddbmm", "baddbmm", lambda d: [d.learned(8, 64, 64), *_batch(d)]),
    case("addmm", "addmm", lambda d: [*_square(d), *_square(d), *_square(d)]),
    case("addmm.beta", "addmm", lambda d: [*_square(d), *_square(d), *_square(d)], beta=0.0),
    case("addmv", "addmv", lambda d: [d.learned(512), d.learned(512, 256), d.learned(256)]),
    case("addr", "addr", lambda d: [*_square(d), d.learned(160), d.learned(160)]),
    case("addbmm", "addbmm", lambda d: [d.learned(64, 64), *_batch(d)]),
    case("mv", "mv", lambda d: [d.learned(512, 256), d.learned(256)]),
    case("dot", "dot", lambda d: [d.learned(65536), d.learned(65536)]),
    case("outer", "outer", lambda d: [d.learned(256), d.learned(256)]),
    case("einsum", lambda x, y: torch.einsum("bij,bjk->bik", x, y), _batch),
    case("tensordot", "tensordot", _batch, dims=((2,), (1,))),
    case("kron", "kron", lambda d: [d.learned(16, 16), d.learned(16, 16)]),
    case("cross", "cross", lambda d: [d.learned(16384, 3), d.learned(16384, 3)], dim=1),
    case("trace", "trace", _square),
    case("matrix_power", "matrix_power", _square, n=3),
    case("matrix_exp", "matrix_exp", lambda d: [d.learned_between(-0.01, 0.01, 160, 160)]),
    case("cholesky", "linalg.cholesky", lambda d: [d.spread(160)]),
    case(
        "cholesky_inverse",
        lambda a: torch.cholesky_inverse(torch.linalg.cholesky(a)),
        lambda d: [d.spread(128)],
    ),
    case("cholesky_solve", lambda a, b: torch.cholesky_solve(b, torch.linalg.cholesky(a)), _system),
    case("inv", "linalg.inv", lambda d: [d.spread(160)]),
    case("pinv", "linalg.pinv", lambda d: [d.spread(128)]),
    case("det", "linalg.det", lambda d: [d.spread(160)]),
    case("slogdet", "linalg.slogdet", lambda d: [d.spread(160)]),
    case("solve", "linalg.solve", _system),
    case(
        "solve_triangular",
        lambda a, b: torch.linalg.solve_triangular(a.tril(), b, upper=False),
        _system,
    ),
    case("triangular_solve", lambda a, b: torch.triangular_solve(b, a), _system),
    case("lu_factor", "linalg.lu_factor", lambda d: [d.spread(160)]),
    case("lu", "linalg.lu", lambda d: [d.spread(160)]),
    case("qr", "linalg.qr", lambda d: [d.learned(192, 128)]),
    case("svdvals", "linalg.svdvals", lambda d: [d.learned(160, 128)]),
    case("eigh", "linalg.eigh", lambda d: [d.spread(128)]),
    case("eigvalsh", "linalg.eigvalsh", lambda d: [d.spread(128)]),
    case("lstsq", lambda a, b: torch.linalg.lstsq(a, b).solution, _system),
    case("matrix_norm.nuclear", "linalg.matrix_norm", lambda d: [d.learned(160, 128)], ord="nuc"),
    case(
        "householder_product",
        "linalg.householder_product",
        lambda d: [d.learned_between(-0.1, 0.1, 160, 128), d.learned_between(0.1, 0.5, 128)],
    ),
]

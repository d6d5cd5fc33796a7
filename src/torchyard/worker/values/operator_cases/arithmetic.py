"""Pointwise operators, reductions, linear algebra and Fourier transforms."""

from typing import Any, Callable, List

import torch

from torchyard.worker.values.operator_cases import (
    TABLE,
    TWO_TABLES,
    Case,
    Draw,
    case,
    function_case,
    learned,
)

_F = "nn.functional."


def _positive(draw: Draw) -> List[Any]:
    return [draw.learned_between(0.1, 2.0, 256, 256)]


def _unit(draw: Draw) -> List[Any]:
    return [draw.learned_between(-0.9, 0.9, 256, 256)]


def _each(prefix: str, names: str, make: Callable[[Draw], List[Any]]) -> List[Case]:
    return [case(name.split(".")[-1], prefix + name, make) for name in names.split()]


_ACTIVATIONS = (
    "relu relu6 elu celu selu silu mish gelu leaky_relu hardswish hardsigmoid hardtanh softplus "
    "softshrink hardshrink tanhshrink softsign logsigmoid rrelu"
)
_UNARY = (
    "abs neg exp expm1 sin cos tan sinh cosh tanh sigmoid erf erfc atan asinh sign round floor "
    "square deg2rad nan_to_num isnan sinc i0 special.bessel_j0"
)
_OF_POSITIVE = "log log2 log10 log1p sqrt rsqrt reciprocal lgamma digamma special.entr"
_OF_UNIT = "asin acos atanh logit erfinv special.ndtri"
_BINARY = (
    "add sub mul maximum minimum fmax fmin hypot atan2 logaddexp logaddexp2 copysign remainder "
    "fmod xlogy"
)

POINTWISE_CASES: List[Case] = [
    *_each(_F, _ACTIVATIONS, TABLE),
    function_case("gelu.tanh", TABLE, approximate="tanh"),
    function_case("glu", TABLE, dim=1),
    function_case("threshold", TABLE, threshold=0.1, value=0.5),
    function_case("prelu", learned((4, 16, 32, 32), (16,))),
    *_each("", _UNARY, TABLE),
    *_each("", _OF_POSITIVE, _positive),
    *[item for item in _each("", _OF_UNIT, _unit) if item.name != "logit"],
    case("logit", "logit", lambda d: [d.learned_between(0.1, 0.9, 256, 256)]),
    *_each("", _BINARY, TWO_TABLES),
    case("heaviside", "heaviside", lambda d: [d.floats(256, 256), d.floats(256, 256)]),
    case("add.broadcast", "add", learned((256, 256), (256,))),
    case("mul.broadcast", "mul", learned((256, 256), (256, 1))),
    case("div", "div", lambda d: [*TABLE(d), *_positive(d)]),
    case("div.floor", "div", lambda d: [*TABLE(d), *_positive(d)], rounding_mode="floor"),
    case("pow", "pow", lambda d: [*_positive(d), *TABLE(d)]),
    case("pow.scalar", "pow", TABLE, exponent=3),
    case("clamp", "clamp", TABLE, min=-0.5, max=0.5),
    case(
        "clamp.tensors",
        "clamp",
        lambda d: [*TABLE(d), d.floats(256, 256) - 1, d.floats(256, 256) + 1],
    ),
    case("lerp", "lerp", lambda d: [*TWO_TABLES(d), d.between(0.0, 1.0, 256, 256)]),
    case("addcmul", "addcmul", lambda d: [*TWO_TABLES(d), *TABLE(d)]),
    case("addcdiv", "addcdiv", lambda d: [*TWO_TABLES(d), *_positive(d)]),
    case("polygamma", lambda x: torch.polygamma(1, x), _positive),
    case("mvlgamma", "mvlgamma", lambda d: [d.learned_between(2.0, 4.0, 256, 256)], p=2),
    case("complex.mul", "mul", lambda d: [d.complexes(128, 256), d.complexes(128, 256)]),
    case("complex.abs", "abs", lambda d: [d.complexes(128, 256)]),
    case("complex.angle", "angle", lambda d: [d.complexes(128, 256)]),
    case("eq", "eq", lambda d: [d.floats(256, 512), d.floats(256, 512)]),
    case("isclose", "isclose", lambda d: [d.floats(256, 512), d.floats(256, 512)]),
    case(
        "bitwise_and", "bitwise_and", lambda d: [d.integers(1000, 65536), d.integers(1000, 65536)]
    ),
    case(
        "fake_quantize",
        "fake_quantize_per_tensor_affine",
        TABLE,
        scale=0.1,
        zero_point=0,
        quant_min=-128,
        quant_max=127,
    ),
]


def _near_one(draw: Draw) -> List[Any]:
    return [draw.learned_between(0.9, 1.1, 256, 256)]


def _on(name: str, **options: Any) -> Case:
    return case(name, name, TABLE, **options)


REDUCE_CASES: List[Case] = [
    _on("sum"),
    case("sum.dim", "sum", TABLE, dim=1),
    _on("mean"),
    case("mean.dim", "mean", TABLE, dim=0),
    _on("nansum"),
    _on("nanmean"),
    _on("std"),
    case("std.dim", "std", TABLE, dim=1),
    _on("var"),
    case("var.dim", "var", TABLE, dim=1),
    case("var_mean.dim", "var_mean", TABLE, dim=1),
    case("std_mean.dim", "std_mean", TABLE, dim=0),
    case("prod", "prod", _near_one),
    case("prod.dim", "prod", _near_one, dim=1),
    case("amax", "amax", TABLE, dim=1),
    case("amin", "amin", TABLE, dim=1),
    _on("aminmax", dim=1),
    _on("max"),
    case("max.dim", "max", TABLE, dim=1),
    case("min.dim", "min", TABLE, dim=1),
    _on("median"),
    case("median.dim", "median", TABLE, dim=1),
    case("nanmedian.dim", "nanmedian", TABLE, dim=1),
    _on("mode", dim=1),
    _on("kthvalue", k=7, dim=1),
    _on("topk", k=64, dim=1),
    case("topk.smallest", "topk", TABLE, k=64, dim=0, largest=False),
    _on("sort", dim=1),
    case("sort.stable", lambda x: torch.sort(x, dim=0, stable=True), TABLE),
    _on("msort"),
    _on("argsort", dim=1),
    _on("argmax", dim=1),
    _on("logsumexp", dim=1),
    _on("cumsum", dim=1),
    case("cumsum.first", "cumsum", TABLE, dim=0),
    case("cumprod", "cumprod", _near_one, dim=1),
    _on("cummax", dim=1),
    _on("cummin", dim=1),
    _on("logcumsumexp", dim=1),
    _on("diff", dim=1),
    _on("trapezoid", dim=1),
    _on("norm"),
    case("norm.p1", "norm", TABLE, p=1, dim=1),
    case("norm.inf", "norm", TABLE, p=float("inf"), dim=1),
    case("vector_norm.p3", "linalg.vector_norm", TABLE, ord=3, dim=1),
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


def _system(draw: Draw) -> List[Any]:
    return [draw.spread(160), draw.learned(160, 160)]


_square = learned((160, 160))
_batch = learned((8, 64, 64), (8, 64, 64))
LINALG_CASES: List[Case] = [
    case("mm", "mm", learned((160, 160), (160, 160))),
    case("matmul", "matmul", learned((8, 64, 64), (64, 64))),
    case("bmm", "bmm", _batch),
    case("baddbmm", "baddbmm", lambda d: [d.learned(8, 64, 64), *_batch(d)]),
    case("addmm", "addmm", lambda d: [*_square(d), *_square(d), *_square(d)]),
    case("addmm.beta", "addmm", lambda d: [*_square(d), *_square(d), *_square(d)], beta=0.0),
    case("addmv", "addmv", learned((512,), (512, 256), (256,))),
    case("addr", "addr", lambda d: [*_square(d), d.learned(160), d.learned(160)]),
    case("addbmm", "addbmm", lambda d: [d.learned(64, 64), *_batch(d)]),
    case("mv", "mv", learned((512, 256), (256,))),
    case("dot", "dot", learned((65536,), (65536,))),
    case("outer", "outer", learned((256,), (256,))),
    case("einsum", lambda x, y: torch.einsum("bij,bjk->bik", x, y), _batch),
    case("tensordot", "tensordot", _batch, dims=((2,), (1,))),
    case("kron", "kron", learned((16, 16), (16, 16))),
    case("cross", "cross", learned((16384, 3), (16384, 3)), dim=1),
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
    case("qr", "linalg.qr", learned((192, 128))),
    case("svdvals", "linalg.svdvals", learned((160, 128))),
    case("eigh", "linalg.eigh", lambda d: [d.spread(128)]),
    case("eigvalsh", "linalg.eigvalsh", lambda d: [d.spread(128)]),
    case("lstsq", lambda a, b: torch.linalg.lstsq(a, b).solution, _system),
    case("matrix_norm.nuclear", "linalg.matrix_norm", learned((160, 128)), ord="nuc"),
    case(
        "householder_product",
        "linalg.householder_product",
        lambda d: [d.learned_between(-0.1, 0.1, 160, 128), d.learned_between(0.1, 0.5, 128)],
    ),
]


def _complex(draw: Draw) -> List[Any]:
    return [draw.complexes(128, 256)]


_waves = learned((128, 256))


def _rates(draw: Draw) -> List[Any]:
    return [draw.between(0.1, 20.0, 256, 256)]


def _counts(draw: Draw) -> List[Any]:
    return [draw.between(1.0, 50.0, 256, 256).round(), draw.between(0.05, 0.95, 256, 256)]


RANDOM_CASES: List[Case] = [
    case("bernoulli", "bernoulli", lambda d: [d.between(0.0, 1.0, 256, 256)]),
    case("binomial", "binomial", _counts),
    case("binomial.double", "binomial", lambda d: [one.double() for one in _counts(d)]),
    case("binomial.strided", "binomial", lambda d: [one.t() for one in _counts(d)]),
    case("dirichlet", "_sample_dirichlet", _rates),
    case("multinomial", "multinomial", lambda d: [d.between(0.1, 1.0, 64, 256)], num_samples=256),
    case("normal", "normal", lambda d: [d.floats(256, 256), d.between(0.1, 2.0, 256, 256)]),
    case("poisson", "poisson", _rates),
    case("poisson.double", "poisson", lambda d: [d.between(0.0, 20.0, 256, 256).double()]),
    case("poisson.strided", "poisson", lambda d: [d.between(0.0, 20.0, 256, 512)[:, ::2]]),
    case("standard_gamma", "_standard_gamma", _positive),
    case(
        "standard_gamma.double",
        "_standard_gamma",
        lambda d: [d.between(0.1, 2.0, 256, 256).double()],
    ),
    case(
        "standard_gamma.strided", "_standard_gamma", lambda d: [d.between(0.1, 2.0, 256, 512).t()]
    ),
    *_each(_F, "dropout alpha_dropout gumbel_softmax", TABLE),
    function_case("rrelu.training", TABLE, training=True),
    function_case("dropout2d", learned((8, 64, 16, 16))),
]


SIGNAL_CASES: List[Case] = [
    case("fft", "fft.fft", _complex),
    case("fft.longer", "fft.fft", _complex, n=300),
    case("ifft", "fft.ifft", _complex),
    case("rfft", "fft.rfft", _waves),
    case("irfft", "fft.irfft", _complex),
    case("hfft", "fft.hfft", _complex),
    case("fft2", "fft.fft2", _complex),
    case("rfft2", "fft.rfft2", _waves),
    case("irfft2", "fft.irfft2", _complex),
    case("fftshift", "fft.fftshift", _complex),
    case(
        "stft",
        lambda x, w: torch.stft(x, 128, 32, window=w, return_complex=True),
        lambda d: [d.learned(4, 8192), d.between(0.1, 1.0, 128)],
    ),
    case(
        "istft",
        lambda x, w: torch.istft(x, 128, 32, window=w),
        lambda d: [d.complexes(4, 65, 256), d.between(0.5, 1.0, 128)],
    ),
]


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

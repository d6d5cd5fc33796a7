"""Element by element: activations, arithmetic and special functions."""

from typing import Any, Callable, List

import torch

from torchyard.worker.values.operator_cases import Case, case
from torchyard.worker.values.operator_cases.inputs import Draw

_F = "nn.functional."


def _table(draw: Draw) -> List[Any]:
    return [draw.learned(256, 256)]


def _two(draw: Draw) -> List[Any]:
    return [draw.learned(256, 256), draw.learned(256, 256)]


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

CASES: List[Case] = [
    *_each(_F, _ACTIVATIONS, _table),
    case("gelu.tanh", _F + "gelu", _table, approximate="tanh"),
    case("glu", _F + "glu", _table, dim=1),
    case("threshold", _F + "threshold", _table, threshold=0.1, value=0.5),
    case("prelu", _F + "prelu", lambda d: [d.learned(4, 16, 32, 32), d.learned(16)]),
    *_each("", _UNARY, _table),
    *_each("", _OF_POSITIVE, _positive),
    *[item for item in _each("", _OF_UNIT, _unit) if item.name != "logit"],
    case("logit", "logit", lambda d: [d.learned_between(0.1, 0.9, 256, 256)]),
    *_each("", _BINARY, _two),
    case("heaviside", "heaviside", lambda d: [d.floats(256, 256), d.floats(256, 256)]),
    case("add.broadcast", "add", lambda d: [d.learned(256, 256), d.learned(256)]),
    case("mul.broadcast", "mul", lambda d: [d.learned(256, 256), d.learned(256, 1)]),
    case("div", "div", lambda d: [*_table(d), *_positive(d)]),
    case("div.floor", "div", lambda d: [*_table(d), *_positive(d)], rounding_mode="floor"),
    case("pow", "pow", lambda d: [*_positive(d), *_table(d)]),
    case("pow.scalar", "pow", _table, exponent=3),
    case("clamp", "clamp", _table, min=-0.5, max=0.5),
    case(
        "clamp.tensors",
        "clamp",
        lambda d: [*_table(d), d.floats(256, 256) - 1, d.floats(256, 256) + 1],
    ),
    case("lerp", "lerp", lambda d: [*_two(d), d.between(0.0, 1.0, 256, 256)]),
    case("addcmul", "addcmul", lambda d: [*_two(d), *_table(d)]),
    case("addcdiv", "addcdiv", lambda d: [*_two(d), *_positive(d)]),
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
        _table,
        scale=0.1,
        zero_point=0,
        quant_min=-128,
        quant_max=127,
    ),
]

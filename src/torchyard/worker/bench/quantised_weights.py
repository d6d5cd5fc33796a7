"""Quantised weights of linear layers: the option `weights=KIND` of a variant.

The variant runs a copy of the module with quantised weights. The model of the variant, from which inputs, state and
references come, has ordinary linear layers with the dequantised weights: results must agree with those to rounding.
The dequantised weights themselves must be within half a quantisation step of the original ones.
"""

import copy
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import torch
from torch import nn
from torch.nn import functional

from torchyard.worker.suites.choices import import_package
from torchyard.worker.workload import CannotBuild, first_line

Dequantise = Callable[[], Any]
Quantiser = Callable[[Any], Dict[str, Dequantise]]
"""Quantises the linear layers of a module in place; returns the dequantised weight of each layer by its name."""

INT8_LEVELS = 127
LEVELS = {"int8": INT8_LEVELS, "int8-packed": INT8_LEVELS}
LEVELS.update({"torchao-int8": INT8_LEVELS, "torchao-int4": 7, "torchao-float8": 8})
"""Quantisation steps between zero and the largest weight of a row. The last step of float8 (e4m3) is an eighth of it."""
SLACK = 0.01
"""Allowed excess over half a step, for the rounding of the scales; more in half precision."""
_CONFIGS = {
    "torchao-int8": "Int8WeightOnlyConfig",
    "torchao-int4": "Int4WeightOnlyConfig",
    "torchao-float8": "Float8WeightOnlyConfig",
}


class Quantised(NamedTuple):
    """A module with quantised weights, and what is known about them."""

    module: Any
    note: str
    problem: str
    """Why the quantised weights are wrong; empty if they are right."""


class Int8Linear(nn.Module):
    """A linear layer with int8 weights and one scale for each output."""

    def __init__(self, linear: Any, packed: bool) -> None:
        super().__init__()
        weight = linear.weight.detach()
        # A row of zeros has any scale.
        largest = weight.float().abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny)
        scales = (largest / INT8_LEVELS).to(weight.dtype)
        steps = (weight.float() / scales.float()[:, None]).round()
        self.register_buffer("weight", steps.clamp(-INT8_LEVELS, INT8_LEVELS).to(torch.int8))
        self.register_buffer("scales", scales)
        self.bias = linear.bias
        self.packed = packed

    def dequantised(self) -> Any:
        """Return the weight in the type of the scales."""
        return (self.weight.float() * self.scales.float()[:, None]).to(self.scales.dtype)

    def forward(self, inputs: Any) -> Any:
        """Apply the layer; Inductor fuses the conversion of the weight into the product."""
        if self.packed:
            rows = inputs.reshape(-1, inputs.shape[-1])
            product = torch._weight_int8pack_mm(rows, self.weight, self.scales)
            product = product.view(*inputs.shape[:-1], -1)
        else:
            product = functional.linear(inputs, self.weight.to(inputs.dtype))
            product = product * self.scales.to(product.dtype)
        return product if self.bias is None else product + self.bias.to(product.dtype)


def shared_copy(module: Any) -> Any:
    """Return a copy of the module that shares its parameters and buffers."""
    tensors = [*module.parameters(), *module.buffers()]
    return copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})


def quantise(module: Any, kind: str) -> Quantised:
    """Return a copy with quantised weights, and write the dequantised ones to the linear layers of `module`."""
    quantiser: Quantiser = (lambda one: _by_torchao(one, kind)) if kind in _CONFIGS else _own(kind)
    return quantise_by(quantiser, module, kind)


def quantise_by(quantiser: Quantiser, module: Any, kind: str) -> Quantised:
    """Do the same with another quantiser."""
    layers = linear_layers(module)
    if not layers:
        raise CannotBuild(
            "weights=" + kind + " has no effect: the model has no linear layers",
            hint="remove the option for this workload",
        )
    quantised = shared_copy(module)
    weights = quantiser(quantised)
    problems = []
    numbers = sum(int(layers[name].weight.numel()) for name in weights)
    before = sum(_bytes(layers[name].weight) for name in weights)
    for name, layer in layers.items():
        if name not in weights:
            continue
        dequantised = weights[name]().detach().to(layer.weight.dtype)
        problem = weight_problem(layer.weight.detach(), dequantised, LEVELS[kind])
        if problem:
            problems.append("weight of " + (name or "the layer") + ": " + problem)
        layer.weight = nn.Parameter(dequantised, requires_grad=layer.weight.requires_grad)
    if not weights:
        raise CannotBuild(
            "weights=" + kind + " has no effect: no linear layer has a size that it supports",
            hint="use weights=int8, which supports all sizes",
        )
    after = numbers * (0.5 if "int4" in kind else 1.0)
    note = (
        "has quantised weights (%s) in %d of %d linear layers, about %.3g MB instead of %.3g MB"
        % (
            kind,
            len(weights),
            len(layers),
            after / 1e6,
            before / 1e6,
        )
    )
    more = len(problems) - 3
    text = "; ".join(problems[:3]) + ("; and %d more" % more if more > 0 else "")
    return Quantised(quantised, note, "the quantisation is wrong: " + text if problems else "")


def linear_layers(module: Any) -> Dict[str, Any]:
    """Return the linear layers by name; subclasses may use their weights in other ways."""
    return {name: part for name, part in module.named_modules() if type(part) is nn.Linear}


def weight_problem(original: Any, dequantised: Any, levels: int) -> str:
    """Return why a weight is not the quantised original; empty if each number is within half a step."""
    if dequantised.shape != original.shape:
        return "shape %s instead of %s" % (tuple(dequantised.shape), tuple(original.shape))
    if not bool(torch.isfinite(dequantised).all()):
        return "NaN or infinite" if bool(torch.isfinite(original).all()) else ""
    slack = SLACK + levels * float(torch.finfo(original.dtype).eps)
    steps = original.float().abs().amax(dim=1, keepdim=True) / levels
    error = (dequantised.float() - original.float()).abs()
    wrong = int((error > (0.5 + slack) * steps).sum())
    if not wrong:
        return ""
    largest = float((error / steps.clamp(min=torch.finfo(torch.float32).tiny)).max())
    return (
        "%d of %d numbers are off by up to %.3g quantisation steps, and rounding explains 0.5"
        % (
            wrong,
            error.numel(),
            largest,
        )
    )


def _own(kind: str) -> Quantiser:
    packed = kind == "int8-packed"

    def quantiser(module: Any) -> Dict[str, Dequantise]:
        weights: Dict[str, Dequantise] = {}
        for name, layer in linear_layers(module).items():
            replaced = Int8Linear(layer, packed)
            if packed:
                _check_packed(replaced)
            _put(module, name, replaced)
            weights[name] = replaced.dequantised
        return weights

    return quantiser


def _check_packed(layer: Int8Linear) -> None:
    """Raise CannotBuild if the device has no product with int8 weights for this type."""
    example = layer.scales.new_zeros(1, layer.weight.shape[1])
    try:
        torch._weight_int8pack_mm(example, layer.weight, layer.scales)
    except (AttributeError, RuntimeError) as error:
        raise CannotBuild(
            "torch %s has no product with packed int8 weights for %s on %s: %s"
            % (torch.__version__, layer.scales.dtype, layer.weight.device, first_line(error)),
            hint="use weights=int8",
        ) from error


def _put(module: Any, name: str, part: Any) -> None:
    path, _, last = name.rpartition(".")
    if not last:
        raise CannotBuild(
            "the model is a single linear layer, which cannot be replaced in it",
            hint="wrap it in a module",
        )
    setattr(module.get_submodule(path), last, part)


def _by_torchao(module: Any, kind: str) -> Dict[str, Dequantise]:
    package = import_package(
        "torchao.quantization",
        "install torchao into the target, or use weights=int8, which needs torch alone",
    )
    config = getattr(package, _CONFIGS[kind], None)
    if config is None or not hasattr(package, "quantize_"):
        raise CannotBuild(
            "this torchao has no " + _CONFIGS[kind], hint="install a newer torchao into the target"
        )
    try:
        package.quantize_(module, config(), filter_fn=lambda part, _: type(part) is nn.Linear)
        return dict(_dequantisable(module))
    except Exception as error:
        raise CannotBuild(
            "torchao cannot quantise this model with %s: %s: %s"
            % (_CONFIGS[kind], type(error).__name__, first_line(error)),
            hint="use weights=int8, or install what it requires into the target",
        ) from error


def _dequantisable(module: Any) -> List[Tuple[str, Dequantise]]:
    """Return the layers whose weights torchao has replaced by its own tensors."""
    return [
        (name, layer.weight.dequantize)
        for name, layer in linear_layers(module).items()
        if type(layer.weight) not in (torch.Tensor, nn.Parameter)
    ]


def _bytes(tensor: Any) -> int:
    return int(tensor.numel()) * int(tensor.element_size())

"""Recipes: an operator with its arguments, without most of the values, small enough for JSON.

Shapes, strides, types and plain numbers are kept. Of floats only the range is kept; so it is of
integers unless they are few, because they may be positions, and few ones are often picky (offsets
must grow). Made again, a recipe is filled at random inside the ranges.
"""

import base64
import math
from typing import Any, Dict, List, NamedTuple, Optional

import torch

from torchyard.worker.values.bits import bits_of

MOST_KEPT_BYTES = 16 << 10
"""Of integers that are kept as they are."""
_SEED = 1337

Recipe = Dict[str, Any]


class NoRecipe(Exception):
    """Why an operator cannot be written down, or not be made again."""


class Made(NamedTuple):
    """An operator and arguments made from a recipe."""

    func: Any
    args: List[Any]
    kwargs: Dict[str, Any]

    def __call__(self) -> Any:
        """Run it."""
        return self.func(*self.args, **self.kwargs)


def recipe_of(func: Any, args: Any, kwargs: Any) -> Recipe:
    """Write down an operator and its arguments."""
    with torch.no_grad():
        return {
            "operator": func._schema.name,
            "overload": func._schema.overload_name or "default",
            "args": [_written_down(value) for value in args],
            "kwargs": {name: _written_down(value) for name, value in kwargs.items()},
        }


def fill_recipe(shape: Any, dtype: torch.dtype, device: str = "cpu") -> Recipe:
    """A fill with zeros of memory that is there."""
    return {
        "operator": "aten::zero_",
        "overload": "default",
        "args": [{"tensor": _zeros(shape, dtype, device)}],
        "kwargs": {},
    }


def make_again(recipe: Recipe) -> Made:
    """The operator with arguments of the recipe's form."""
    space, _, name = recipe["operator"].partition("::")
    try:
        func = getattr(getattr(getattr(torch.ops, space), name), recipe["overload"])
    except AttributeError as error:
        raise NoRecipe("this torch has no %s" % recipe["operator"]) from error
    source = torch.Generator()
    source.manual_seed(_SEED)
    with torch.no_grad():
        args = [_made(value, source) for value in recipe["args"]]
        kwargs = {name: _made(value, source) for name, value in recipe["kwargs"].items()}
    return Made(func, args, kwargs)


def _written_down(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, (list, tuple)):
        return {"list": [_written_down(item) for item in value]}
    if isinstance(value, torch.Tensor):
        return {"tensor": _tensor(value)}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    for kind in ("dtype", "layout", "memory_format"):
        if isinstance(value, getattr(torch, kind)):
            return {kind: str(value).replace("torch.", "")}
    if isinstance(value, torch.Generator):
        return None
    raise NoRecipe("an argument is a %s" % type(value).__name__)


def _tensor(tensor: torch.Tensor) -> Dict[str, Any]:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise NoRecipe("an argument has no plain memory")
    data = _zeros(tuple(tensor.shape), tensor.dtype, str(tensor.device))
    data["stride"] = list(tensor.stride())
    tensor = tensor.detach()
    if tensor.numel() == 0 or tensor.dtype is torch.bool:
        data["bools"] = True
        return data
    floats = tensor.dtype.is_floating_point or tensor.dtype.is_complex
    size = tensor.numel() * tensor.element_size()
    if not floats and size <= MOST_KEPT_BYTES:
        raw = bytes(bits_of(tensor.cpu().contiguous()).reshape(-1).view(torch.uint8).tolist())
        data["values"] = base64.b64encode(raw).decode("ascii")
        return data
    numbers = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    low, high = (float(number) for number in torch.aminmax(numbers))
    if not floats:
        data["range"] = [int(tensor.min()), int(tensor.max())]
    elif math.isfinite(high - low) and high - low < torch.finfo(tensor.dtype).max / 2:
        data["range"] = [low, high]
    else:
        data["range"] = [-1.0, 1.0]
    return data


def _zeros(shape: Any, dtype: torch.dtype, device: str) -> Dict[str, Any]:
    return {
        "dtype": str(dtype).replace("torch.", ""),
        "shape": [int(size) for size in shape],
        "stride": None,
        "device": device,
    }


def _made(value: Any, source: torch.Generator) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, data),) = value.items()
    if kind == "list":
        return [_made(item, source) for item in data]
    if kind == "tensor":
        return _made_tensor(data, source)
    if kind == "float":
        return float(data)
    if kind == "device":
        return torch.device(data)
    return getattr(torch, data)


def _made_tensor(data: Dict[str, Any], source: torch.Generator) -> torch.Tensor:
    dtype, shape = getattr(torch, data["dtype"]), tuple(data["shape"])
    stride: Optional[List[int]] = data["stride"]
    if stride is None:
        return torch.zeros(shape, dtype=dtype, device=data["device"])
    if "values" in data:
        values = list(base64.b64decode(data["values"]))
        raw = torch.tensor(values, dtype=torch.uint8, device="cpu")
        given = raw.view(dtype).reshape(shape)
        made = torch.empty_strided(shape, stride, dtype=dtype)
        return (given if 0 in stride else made.copy_(given)).to(data["device"])
    spans = (step * (size - 1) for size, step in zip(shape, stride))
    length = sum(spans) + 1 if 0 not in shape else 0
    flat = torch.empty(length, dtype=dtype, device="cpu")
    if dtype is torch.bool:
        flat.copy_(torch.randint(0, 2, (length,), generator=source))
    elif "range" in data:
        low, high = data["range"]
        if dtype.is_floating_point or dtype.is_complex:
            numbers = torch.view_as_real(flat) if dtype.is_complex else flat
            numbers.uniform_(low, high, generator=source)
        else:
            most = torch.iinfo(torch.int64).max
            flat.copy_(torch.randint(low, min(high + 1, most), (length,), generator=source))
    return flat.to(data["device"]).as_strided(shape, stride)

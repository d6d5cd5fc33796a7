"""Recipes: operators with arguments, small enough for JSON; and which recipes a finding needs.

Kept are shapes, strides, types, plain numbers, masks, few integers (they may be indices), and of everything else runs
of neighbouring elements, so that zeros, denormal numbers, NaN and the order of indices occur in the same proportion.
`WorthNotes` notes the wasted part and its operator the first time a finding is seen. Nothing is measured here.
"""

import base64
import ctypes
import math
import zlib
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch

from torchyard.worker.values.findings import Finding
from torchyard.worker.values.observation import Observation, storage_key
from torchyard.worker.values.operators import operator_of, written_tensors
from torchyard.worker.values.patterns.duplicates import OWN_INPUT, Duplicate
from torchyard.worker.values.patterns.wasted_writes import PASSED
from torchyard.worker.values.places import Place
from torchyard.worker.values.pricing.call_graph import INSIDE as INSIDE_CALL
from torchyard.worker.values.pricing.call_graph import PASSES, SHRINKS, WASTED, CallGraph
from torchyard.worker.values.proofs.trial_inputs import bits_of
from torchyard.worker.values.proofs.trials import DEAD, GUARD, is_sum

MOST_KEPT_BYTES = 16 << 10
"""Of integers that are kept as they are."""
MOST_MASK_CHARACTERS = 256 << 10
"""Of a mask that is kept as it is, one bit for each element, compressed; else runs are kept."""
_RUNS = 16
_RUN = 128
"""Runs that are kept of other tensors, and their length."""

Recipe = Dict[str, Any]


class NoRecipe(Exception):
    """An operator that cannot be stored as a recipe, or not be created from it."""


class RecreatedCall(NamedTuple):
    """An operator and its arguments, created from a recipe."""

    func: Any
    args: List[Any]
    kwargs: Dict[str, Any]

    def __call__(self) -> Any:
        """Run it."""
        return self.func(*self.args, **self.kwargs)


def recipe_of(func: Any, args: Any, kwargs: Any) -> Recipe:
    """Return the recipe of an operator and its arguments."""
    with torch.no_grad():
        return {
            "operator": func._schema.name,
            "overload": func._schema.overload_name or "default",
            "args": [_written_down(value) for value in args],
            "kwargs": {name: _written_down(value) for name, value in kwargs.items()},
        }


def fill_recipe(shape: Any, dtype: torch.dtype, device: str = "cpu") -> Recipe:
    """Return the recipe of a zero fill of existing memory."""
    return {
        "operator": "aten::zero_",
        "overload": "default",
        "args": [{"tensor": _zeros(shape, dtype, device)}],
        "kwargs": {},
    }


def make_again(recipe: Recipe) -> RecreatedCall:
    """Create the operator and its arguments from a recipe."""
    space, _, name = recipe["operator"].partition("::")
    try:
        func = getattr(getattr(getattr(torch.ops, space), name), recipe["overload"])
    except AttributeError as error:
        raise NoRecipe("this torch has no %s" % recipe["operator"]) from error
    with torch.no_grad():
        args = [_made(value) for value in recipe["args"]]
        kwargs = {name: _made(value) for name, value in recipe["kwargs"].items()}
    return RecreatedCall(func, args, kwargs)


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
        raise NoRecipe("an argument has no strided memory")
    data = _zeros(tuple(tensor.shape), tensor.dtype, str(tensor.device))
    data["stride"] = list(tensor.stride())
    tensor = tensor.detach()
    if tensor.numel() == 0:
        data["bools"] = True
        return data
    if tensor.dtype is torch.bool:
        packed = _packed(tensor)
        if len(packed) <= MOST_MASK_CHARACTERS:
            data["mask"] = packed
            return data
    floats = tensor.dtype.is_floating_point or tensor.dtype.is_complex
    size = tensor.numel() * tensor.element_size()
    if not floats and size <= MOST_KEPT_BYTES:
        data["values"] = _encoded(tensor.cpu().contiguous())
        return data
    data["sample"] = _encoded(_runs(tensor))
    return data


def _packed(mask: torch.Tensor) -> str:
    """Return a mask as compressed bits; a constant mask takes a few bytes."""
    flat = mask.cpu().contiguous().reshape(-1).to(torch.uint8)
    short = -flat.numel() % 8
    rows = torch.nn.functional.pad(flat, (0, short)).view(-1, 8)
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)
    packed = (rows * weights).sum(1, dtype=torch.uint8)
    return base64.b64encode(zlib.compress(_raw(packed), 1)).decode("ascii")


def _unpacked(text: str, shape: Any) -> torch.Tensor:
    packed = _from_raw(zlib.decompress(base64.b64decode(text)))
    bits = (packed[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
    count = 1
    for size in shape:
        count *= size
    return bits.reshape(-1)[:count].to(torch.bool).reshape(shape)


def _runs(tensor: torch.Tensor) -> torch.Tensor:
    """Return runs of adjacent elements, spread evenly over the memory of the tensor."""
    order = sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis))
    flat = tensor.permute(order).reshape(-1) if tensor.dim() else tensor.reshape(-1)
    count = flat.numel()
    if count <= _RUNS * _RUN:
        return flat.cpu().contiguous()
    starts = [(count - _RUN) * number // (_RUNS - 1) for number in range(_RUNS)]
    return torch.cat([flat[start : start + _RUN] for start in starts]).cpu()


def _encoded(tensor: torch.Tensor) -> str:
    raw = _raw(bits_of(tensor.contiguous()).reshape(-1).view(torch.uint8))
    return base64.b64encode(zlib.compress(raw, 1)).decode("ascii")


def _decoded(text: str, dtype: torch.dtype) -> torch.Tensor:
    return _from_raw(zlib.decompress(base64.b64decode(text))).view(dtype)


def _raw(tensor: torch.Tensor) -> bytes:
    """The bytes of a uint8 tensor; numpy may be missing."""
    size = tensor.numel()
    return ctypes.string_at(tensor.contiguous().data_ptr(), size) if size else b""


def _from_raw(raw: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


def _zeros(shape: Any, dtype: torch.dtype, device: str) -> Dict[str, Any]:
    return {
        "dtype": str(dtype).replace("torch.", ""),
        "shape": [int(size) for size in shape],
        "stride": None,
        "device": device,
    }


def _made(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, data),) = value.items()
    if kind == "list":
        return [_made(item) for item in data]
    if kind == "tensor":
        return _made_tensor(data)
    if kind == "float":
        return float(data)
    if kind == "device":
        return torch.device(data)
    return getattr(torch, data)


def _made_tensor(data: Dict[str, Any]) -> torch.Tensor:
    dtype, shape = getattr(torch, data["dtype"]), tuple(data["shape"])
    stride: Optional[List[int]] = data["stride"]
    if stride is None:
        return torch.zeros(shape, dtype=dtype, device=data["device"])
    if "values" in data:
        tensor = _decoded(data["values"], dtype).reshape(shape)
        return _laid_out(tensor, shape, stride, data["device"])
    if "mask" in data:
        return _laid_out(_unpacked(data["mask"], shape), shape, stride, data["device"])
    spans = (step * (size - 1) for size, step in zip(shape, stride))
    length = sum(spans) + 1 if 0 not in shape else 0
    flat = torch.empty(length, dtype=dtype, device="cpu")
    if "sample" in data and length:
        sample = _decoded(data["sample"], dtype)
        flat = sample.repeat(length // sample.numel() + 1)[:length].clone()
    return flat.to(data["device"]).as_strided(shape, stride)


def _laid_out(given: torch.Tensor, shape: Any, stride: List[int], device: str) -> torch.Tensor:
    if 0 in stride:
        return given.to(device)
    return torch.empty_strided(shape, stride, dtype=given.dtype).copy_(given).to(device)


PARTLY = frozenset(
    {"frequent values", "heavy type", "structured", "approximate", "sparse gradient"}
)
"""Patterns where not the operator but some of its bytes are too many: its time counts by bytes."""

FILL_FIRST = "fill first"
"""The fill and the operator that overwrites it, against that operator alone."""
INSIDE = "inside"
"""Work inside an operator: the operator into memory of its own choice, or with the work once more."""


class WorthNotes:
    """Writes into findings what to measure: a recipe, and the calls that a fix concerns."""

    def __init__(self) -> None:
        self._waiting: List[Tuple[Finding, Observation]] = []
        self.graph = CallGraph()

    def found(self, finding: Finding, observation: Observation) -> None:
        """Store an occurrence; memory is read only while the mode is inactive."""
        running = observation.arguments is not None
        if observation.path:
            self.graph.mark(finding, None if running else observation.state, INSIDE_CALL)
        elif finding.pattern in PARTLY:
            self.graph.mark(finding, None if running else observation.state, SHRINKS)
        else:
            role = PASSES if _passes(finding, observation) else WASTED
            self.graph.mark(finding, None if running else observation.state, role)
            if is_sum(finding) and not running:
                self.graph.also(finding, role=PASSES)  # the sum goes away with the zeros
        if not finding.recipe:
            self._write_down(finding, observation)

    def followed(self, finding: Finding, observation: Observation) -> None:
        """Store a call that is wasted because of an earlier one."""
        self.graph.also(finding, None if observation.arguments is not None else observation.state)

    def _write_down(self, finding: Finding, observation: Observation) -> None:
        finding.recipe = {"wasted": [], "share": 1.0, "operator": None, "mending": ""}
        try:
            finding.recipe["wasted"] = _wasted(finding, observation)
        except Exception as error:  # nothing of this may reach the program
            finding.recipe["unavailable"] = str(error)[:160]
            return
        if finding.pattern in PARTLY:
            finding.recipe["share"] = finding.bytes_wasted / max(1, finding.bytes_written)
        self._waiting.append((finding, observation))

    def after_operator(self, func: Any, args: Any, kwargs: Any, result: Any, place: Place) -> None:
        """Add a call, and store the recipe of an operator with findings."""
        try:
            self.graph.after_operator(func, args, kwargs, result, place)
        except Exception as error:  # nothing of this may reach the program
            self.graph.give_up("%s: %s" % (type(error).__name__, error))
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        recipe: Recipe = {}
        for finding, observation in waiting:
            if is_sum(finding):
                continue
            inside = bool(observation.path) and observation.path[0] == operator_of(func).name
            overwrites = (
                finding.pattern == DEAD
                and not observation.path
                and _writes(observation, func, args, kwargs)
            )
            if not inside and not overwrites:
                continue
            try:
                recipe = recipe or recipe_of(func, args, kwargs)
            except Exception as error:
                finding.recipe["unavailable"] = str(error)[:160]
                continue
            finding.recipe["operator"] = recipe
            finding.recipe["mending"] = INSIDE if inside else FILL_FIRST


def _passes(finding: Finding, observation: Observation) -> bool:
    """Whether readers get an input of the operator instead of its result."""
    if finding.pattern == GUARD:
        return observation.fresh and finding.detail != PASSED
    return finding.pattern == Duplicate.name and (
        finding.detail == OWN_INPUT or observation.operator.copies
    )


def _wasted(finding: Finding, observation: Observation) -> List[Recipe]:
    device = observation.device
    fill = fill_recipe(observation.shape, observation.dtype, device)
    if is_sum(finding):
        add = dict(fill, operator="aten::add_", overload="Tensor", args=fill["args"] * 2)
        return [fill, add]
    if finding.pattern == DEAD:
        return [fill]
    if observation.arguments is not None:
        return [recipe_of(observation.func, observation.arguments, observation.keywords)]
    if observation.operator.copies or finding.pattern in PARTLY:
        # Of what is too wide or too sparse, memory is the cost: a copy reads and writes it once.
        return [dict(fill, operator="aten::clone")]
    if observation.operator.fills:
        return [fill]
    raise NoRecipe("its arguments no longer existed when it was found to be wasted")


def _writes(fill: Observation, func: Any, args: Any, kwargs: Any) -> bool:
    written = written_tensors(operator_of(func), args, kwargs)
    return any(storage_key(tensor) == fill.state.key for tensor in written)

"""Apply the fix of a finding to a running program, and record what the program shows of its results.

At the lines of the finding a function mode leaves a write out, allocates without filling, or returns an argument or an
earlier result. It does the same lookups whether the fix is on or off, so that both variants carry its overhead.
Printed text, values read and parameters are compared by digest; numbers are kept to tell rounding from differences.
"""

import contextlib
import ctypes
import hashlib
import math
import re
import sys
from collections import OrderedDict
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import torch
from torch.overrides import TorchFunctionMode

from torchyard.worker.values.operators import tensors_in
from torchyard.worker.values.places import shapes_of, user_frame

READING = frozenset(
    {"item", "tolist", "__bool__", "__float__", "__int__", "__index__", "numpy", "__array__"}
)
"""Methods of a tensor that hand its values to Python."""
PRINTED = "printed text"
_NUMBER = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?")
_MOST_TEXT = 100_000
_MOST_NUMBERS = 10_000
_MOST_TENSORS = 2000


class ObservedResults:
    """Collects what a run shows."""

    def __init__(self) -> None:
        self._text_digest = hashlib.sha256()
        self._text: List[str] = []
        self._text_size = 0
        self._read_digest = hashlib.sha256()
        self._numbers: List[float] = []
        self._reads = 0
        self._optimizers: Dict[int, Any] = {}
        self._output: Any = None
        self._hooks: List[Any] = []

    def start(self) -> None:
        """Start observing standard output and optimizers."""
        from torch.optim import optimizer

        write = sys.stdout.write

        def written(text: str) -> int:
            self._printed(text)
            return write(text)

        with contextlib.suppress(AttributeError):  # a stream of the program's own
            setattr(sys.stdout, "write", written)  # noqa: B010
        self._hooks.append(optimizer.register_optimizer_step_post_hook(self._stepped))

    def stop(self) -> None:
        """Stop observing."""
        for hook in self._hooks:
            hook.remove()
        with contextlib.suppress(AttributeError):
            delattr(sys.stdout, "write")

    def read(self, name: str, result: Any) -> None:
        """Note a value that Python got from a tensor."""
        self._reads += 1
        if name in ("numpy", "__array__"):
            self._read_digest.update(result.tobytes())
            return
        self._read_digest.update(repr(result).encode())
        numbers = result if isinstance(result, list) else [result]
        for number in numbers:
            if len(self._numbers) >= _MOST_NUMBERS:
                break
            if isinstance(number, (int, float)) and math.isfinite(number):
                self._numbers.append(float(number))

    def output(self, value: Any) -> None:
        """Note what an iteration of a workload returned; the last one counts."""
        self._output = value

    def as_dict(self) -> Dict[str, Any]:
        """For JSON: of each kind of result a digest, and numbers for a comparison up to rounding."""
        results: Dict[str, Any] = {}
        if self._text_size:
            text = "".join(self._text)[:_MOST_TEXT]
            results[PRINTED] = {
                "digest": self._text_digest.hexdigest(),
                "form": hashlib.sha256(_NUMBER.sub("#", text).encode()).hexdigest(),
                "numbers": [float(number) for number in _NUMBER.findall(text)][:_MOST_NUMBERS],
            }
        if self._reads:
            results["values read by Python"] = {
                "digest": self._read_digest.hexdigest(),
                "numbers": self._numbers,
                "count": self._reads,
            }
        parameters = [
            value
            for one in self._optimizers.values()
            for group in one.param_groups
            for value in group["params"]
        ]
        if parameters:
            results["parameters"] = digest_of(parameters)
        outputs = _tensors_of(self._output)
        if outputs:
            results["output"] = digest_of(outputs)
        return results

    def _printed(self, text: str) -> None:
        self._text_digest.update(text.encode("utf-8", "replace"))
        if self._text_size < _MOST_TEXT:
            self._text.append(text)
        self._text_size += len(text)

    def _stepped(self, of: Any, *_: Any) -> None:
        self._optimizers[id(of)] = of


def digest_of(tensors: List[torch.Tensor]) -> Dict[str, Any]:
    """Return a digest of all bits, and of each tensor the sum and the sum of magnitudes."""
    digest = hashlib.sha256()
    sums: List[float] = []
    scales: List[float] = []
    with torch.no_grad():
        for tensor in tensors[:_MOST_TENSORS]:
            own = tensor.detach().cpu().contiguous()
            size = own.numel() * own.element_size()
            digest.update(("%s%s" % (own.dtype, list(own.shape))).encode())
            if not size:
                continue
            digest.update((ctypes.c_char * size).from_address(own.data_ptr()))
            if own.is_complex():
                own = torch.view_as_real(own)
            numbers = own.double().reshape(-1)
            # Signs by position: a permutation of the elements has another sum.
            places = torch.arange(numbers.numel(), device="cpu")
            signs = ((places * 7919) % 4 - 1.5).to(torch.float64)
            sums.append(float((numbers * signs).sum()))
            scales.append(float((numbers * signs).abs().sum()))
    return {"digest": digest.hexdigest(), "numbers": sums, "scales": scales}


def _tensors_of(value: Any) -> List[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value] if value.layout is torch.strided else []
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in _tensors_of(item)]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors_of(item)]
    return []


NONE = "none"
"""Change nothing: the reference for results."""
SKIP = "skip"
"""Leave out an in-place write."""
EMPTY = "empty"
"""Allocate memory without filling it."""
COPY = "copy"
"""Leave out a fill with zeros, and copy what was added to it."""
ARGUMENT = "argument"
"""Return an argument instead of an equal result."""
REUSE = "reuse"
"""Return the earlier result of the same function for the same arguments."""

_SUBSCRIPT = "__setitem__"
_ADDITIONS = frozenset({"add_", "__iadd__"})
_LIKE = {"zeros_like", "ones_like", "full_like"}
_NEW = {"new_zeros", "new_ones", "new_full"}
_FULL = {"full", "full_like", "new_full"}
FRESH = frozenset({"zeros", "ones", "full"} | _LIKE | _NEW)
_MOST_KEPT = 256
_NEVER_REUSED = ("empty", "new_empty", "rand", "normal", "bernoulli", "multinomial", "poisson")
_NOT_PURE = frozenset({"backward", "register_hook", "requires_grad_", "retain_grad", "__get__"})
_CHECKED_FOR_RANDOMNESS = 3


class _Kept:
    """A result and the arguments that it belongs to, alive so that identities stay valid."""

    __slots__ = ("arguments", "result", "versions")

    def __init__(self, arguments: Any, result: Any) -> None:
        self.arguments = arguments
        self.result = result
        self.versions = [tensor._version for tensor in tensors_in((result,))]

    @property
    def unwritten(self) -> bool:
        """Whether nothing was written into the result since."""
        return self.versions == [tensor._version for tensor in tensors_in((self.result,))]


class AppliedFix(TorchFunctionMode):
    """Apply one fix while `on`; count calls that match it and calls that it changed."""

    def __init__(self, plan: Dict[str, Any], observed: ObservedResults) -> None:
        super().__init__()
        self.on = False
        self.matched = 0
        self.applied = 0
        self._observed = observed
        kind = plan["kind"]
        self._lines: Set[Tuple[str, int]] = {(file, line) for file, line in plan["lines"]}
        self._added_lines = {(file, line) for file, line in plan.get("added_lines", ())}
        self._names: Set[str] = set(plan.get("names", ()))
        self._shapes: Tuple[str, ...] = tuple(plan.get("shapes", ()))
        self._positions: List[int] = list(plan.get("positions", ()))
        self._form = (tuple(plan.get("shape", ())), plan.get("dtype", ""))
        self._per_step: bool = plan.get("per_step", False)
        self._kept: "OrderedDict[Any, _Kept]" = OrderedDict()
        self._functions: Dict[Any, int] = {}
        """Functions that the lines call, and how often each was checked for random numbers."""
        self._random: Set[Any] = set()
        self._full_dtypes: Dict[type, torch.dtype] = {}
        handlers: Dict[str, Callable[..., Any]] = {
            SKIP: self._skip,
            EMPTY: self._empty,
            COPY: self._copy,
            ARGUMENT: self._argument,
            REUSE: self._reuse,
        }
        self._handler = handlers.get(kind)
        if kind == COPY:
            self._names |= _ADDITIONS

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Optional[Any] = None
    ) -> Any:
        """Call the function, or what replaces it."""
        keywords = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in READING:
            result = func(*args, **keywords)
            self._observed.read(name, result)
            return result
        if self._handler is None or (self._names and name not in self._names):
            return func(*args, **keywords)
        return self._handler(func, name, args, keywords)

    def end_step(self) -> None:
        """Discard results that may be reused within a step only."""
        if self._per_step:
            self._kept.clear()

    def close(self) -> None:
        """Release what is kept."""
        self._kept.clear()

    def _here(self, lines: Set[Tuple[str, int]]) -> bool:
        frame = user_frame()
        return frame is not None and (frame.f_code.co_filename, frame.f_lineno) in lines

    def _use(self) -> bool:
        """Count a call that the fix concerns; return whether to change it."""
        self.matched += 1
        if self.on:
            self.applied += 1
        return self.on

    def _skip(self, func: Any, name: str, args: Any, keywords: Any) -> Any:
        written = keywords.get("out", args[0] if args else None)
        if isinstance(written, torch.Tensor) and self._concerns(name, written) and self._use():
            return None if name == _SUBSCRIPT else written
        return func(*args, **keywords)

    def _concerns(self, name: str, written: torch.Tensor) -> bool:
        if name != _SUBSCRIPT and self._shapes:
            form = shapes_of((written,), {})
            if not any(shapes.startswith(form) for shapes in self._shapes):
                return False
        return self._here(self._lines)

    def _empty(self, func: Any, name: str, args: Any, keywords: Any) -> Any:
        if "out" not in keywords and self._here(self._lines) and self._use():
            return self._unfilled(name, list(args), dict(keywords))
        return func(*args, **keywords)

    def _unfilled(self, name: str, args: List[Any], keywords: Dict[str, Any]) -> Any:
        value = None
        if name in _FULL:
            value = (
                keywords.pop("fill_value")
                if "fill_value" in keywords
                else args.pop(1 + (name == "new_full"))
            )
        if name in _LIKE:
            return torch.empty_like(*args, **keywords)
        if name in _NEW:
            return args[0].new_empty(*args[1:], **keywords)
        if name == "full" and keywords.get("dtype") is None:
            keywords["dtype"] = self._dtype_of(value)
        return torch.empty(*args, **keywords)

    def _dtype_of(self, value: Any) -> torch.dtype:
        dtype = self._full_dtypes.get(type(value))
        if dtype is None:
            dtype = self._full_dtypes[type(value)] = torch.full((), value).dtype
        return dtype

    def _copy(self, func: Any, name: str, args: Any, keywords: Any) -> Any:
        if name in _ADDITIONS:
            if not keywords and len(args) == 2 and self._here(self._added_lines) and self._use():
                return args[0].copy_(args[1])
            return func(*args, **keywords)
        handler = self._empty if name in FRESH else self._skip
        return handler(func, name, args, keywords)

    def _argument(self, func: Any, _name: str, args: Any, keywords: Any) -> Any:
        if self._here(self._lines):
            positions = [0, 2] if func is torch.Tensor.where else self._positions
            for position in positions:
                argument = args[position] if position < len(args) else None
                if isinstance(argument, torch.Tensor) and self._fits(argument):
                    if self._use():
                        return argument
                    break
        return func(*args, **keywords)

    def _fits(self, given: torch.Tensor) -> bool:
        shape, dtype = self._form
        return tuple(given.shape) == shape and str(given.dtype).endswith("." + dtype)

    def _reuse(self, func: Any, name: str, args: Any, keywords: Any) -> Any:
        here = self._here(self._lines)
        if not here and func not in self._functions:
            return func(*args, **keywords)
        if func in self._random or _impure(name) or "out" in keywords or "generator" in keywords:
            return func(*args, **keywords)
        checked = self._functions.setdefault(func, 0)
        try:
            key = (func, _settings(), _key(args), _key(tuple(keywords.items())))
            earlier = self._kept.get(key)
        except (TypeError, RuntimeError):  # cannot be hashed; inference tensors have no version
            return func(*args, **keywords)
        if earlier is not None and earlier.unwritten and here and self._use():
            return earlier.result
        before = torch.get_rng_state() if checked < _CHECKED_FOR_RANDOMNESS else None
        result = func(*args, **keywords)
        if before is not None:
            self._functions[func] = checked + 1
            if not torch.equal(before, torch.get_rng_state()):
                self._random.add(func)
                return result
        self._keep(key, args, keywords, result)
        return result

    def _keep(self, key: Any, args: Any, keywords: Any, result: Any) -> None:
        made = tensors_in((result,))
        if not made or any(tensor.is_inference() for tensor in made):
            return
        if not self._per_step and any(tensor.requires_grad for tensor in made):
            return  # its graph ends with the step
        argument_ids = {id(tensor) for tensor in tensors_in((args, tuple(keywords.values())))}
        if any(id(tensor) in argument_ids for tensor in made):
            return
        self._kept[key] = _Kept((args, keywords), result)
        self._kept.move_to_end(key)
        if len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)


def _settings() -> Tuple[bool, ...]:
    """Return the settings that results depend on besides arguments."""
    return torch.is_grad_enabled(), torch.is_autocast_enabled(), _autocast_on_cpu()


def _autocast_on_cpu() -> bool:
    try:
        return bool(torch.is_autocast_enabled("cpu"))
    except TypeError:  # torch before 2.4
        return bool(torch.is_autocast_cpu_enabled())


def _impure(name: str) -> bool:
    """Return whether a function writes, draws random numbers or returns uninitialized memory."""
    in_place = name.endswith("_") and not name.endswith("__")
    augmented = name.startswith("__i") and name not in ("__invert__", "__index__")
    return (
        in_place
        or augmented
        or name in _NOT_PURE
        or name == _SUBSCRIPT
        or name.startswith(_NEVER_REUSED)
        or "dropout" in name
    )


def _key(value: Any) -> Any:
    """Return a key that identifies an argument; raise TypeError if there is none."""
    if isinstance(value, torch.Tensor):
        return (id(value), value._version)
    if isinstance(value, (list, tuple)):
        return (type(value), tuple(_key(item) for item in value))
    if isinstance(value, slice):
        return (slice, _key((value.start, value.stop, value.step)))
    hash(value)
    return (type(value), value)

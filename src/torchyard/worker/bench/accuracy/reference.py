"""References for the accuracy check: the iteration in float64, and eager runs with simulated rounding."""

import gc
import math
import random
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import torch

from torchyard.worker.bench import metrics
from torchyard.worker.bench.accuracy.tensors import Results, shapes_of, to_plain
from torchyard.worker.bench.model import Model, convert
from torchyard.worker.bench.variant import VariantRunner
from torchyard.worker.host_memory import status_bytes

FREE_SHARE = 0.9
"""Share of the free memory that the copy may use; the rest covers what the estimate omits."""
GIB = 1 << 30


def float64_results(
    runner: VariantRunner, seed: int, like: Results, limit_bytes: Optional[int] = None
) -> Tuple[Optional[Results], str]:
    """Return the results of an eager float64 copy in the shapes of `like`, or why there are none.

    `limit_bytes` is the memory limit of the process, if the controller set one.
    """
    try:
        reason = _why_it_does_not_fit(runner, limit_bytes)
        if reason:
            return None, reason
        runner.model.rewind()
        results = to_plain(_run_copy(runner, seed, like), _place(like))
    except Exception as error:  # a model may raise anything in another data type
        lines = str(error).strip().splitlines()
        return None, type(error).__name__ + (": " + lines[0][:200] if lines else "")
    finally:
        gc.collect()
        runner.hardware.empty_cache()
    if shapes_of(results) != shapes_of(like):
        return None, "the results have other shapes in float64"
    return results, ""


def _place(like: Results) -> Any:
    """Return the device of the other results."""
    tensors = [tensor for group in like.values() for tensor in group]
    return tensors[0].device if tensors else torch.device("cpu")


def _why_it_does_not_fit(runner: VariantRunner, limit_bytes: Optional[int]) -> str:
    device = runner.hardware
    free = device.free_bytes()
    held = status_bytes("VmRSS")
    if limit_bytes is not None and held is not None and device.is_host:
        remaining = max(0, limit_bytes - held)
        free = remaining if free is None else min(free, remaining)
    # Without an estimate if four times the peak memory of this process (float64 of float16) is free.
    peak = device.peak_bytes()
    if free is None or (peak is not None and 4 * peak <= FREE_SHARE * free):
        return ""
    needed = needed_bytes(runner)
    if needed <= FREE_SHARE * free:
        return ""
    sizes = (needed / GIB, free / GIB)
    return "a float64 copy needs about %.2f GiB, and %.2f GiB are available" % sizes


def _run_copy(runner: VariantRunner, seed: int, groups: Iterable[str]) -> Results:
    model = runner.model
    copied = convert(model.built, torch.float64)
    exact = Model(copied, model.training, model.optimizer is not None)
    copy = _called_before(VariantRunner(runner.name, "eager", "float64", exact, runner.device))
    return copy.results(seed, groups)[0]


def _called_before(runner: VariantRunner) -> VariantRunner:
    """Return the eager runner of a module that was called before, so that it needs no first call."""
    runner.first_call_s = 0.0
    return runner


def needed_bytes(runner: VariantRunner) -> int:
    """Return the bytes needed by the float64 copy: weights, initial state, optimizer, one iteration."""
    model = runner.model
    parameters = _float64_bytes(list(model.module.parameters()))
    rest = _float64_bytes(list(model.module.buffers()) + model.inputs())
    copies = 2 if model.training or model.built.mutates else 1
    total = copies * parameters + 2 * rest
    if model.optimizer is not None:
        total += 2 * parameters
    runner.first_call()
    peak, _, _ = metrics.peak_memory(runner)
    model.rewind()
    widths = [p.element_size() for p in model.module.parameters() if p.is_floating_point()]
    widest = max(widths, default=4)
    return total + (peak or 0) * max(1, 8 // widest)


def _float64_bytes(tensors: List[Any]) -> int:
    total = 0
    for tensor in tensors:
        if tensor.is_complex():
            width = 16
        else:
            width = 8 if tensor.is_floating_point() else tensor.element_size()
        if tensor.layout is torch.strided:
            total += int(tensor.numel()) * width
    return total


HALF_TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
SHORT_TYPES = dict(HALF_TYPES, amp=torch.bfloat16, **{"amp-float16": torch.float16})
EXTRA_BITS = 1
"""Bits that float32 loses in any operator: kernels differ by an ulp or two in most functions."""
TF32_BITS = 13
"""Mantissa bits of float32 that TF32 does not have."""
TIE_BREAKING = {"argmax", "argmin", "topk", "sort", "argsort", "max", "min", "median", "nanmedian"}
TIE_BREAKING |= {"kthvalue", "mode", "cummax", "cummin", "multinomial"}
"""Operators that return positions: the order of equal numbers is undefined."""
PRODUCTS = {
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "addbmm",
    "addmv",
    "mv",
    "dot",
    "linear",
    "convolution",
}
PRODUCTS |= {"convolution_backward", "convolution_overrideable", "_convolution", "_trilinear"}
PRODUCTS |= {
    "cudnn_convolution",
    "cudnn_convolution_transpose",
    "convolution_backward_overrideable",
}
"""Operators that TF32 applies to."""
COPIES = {"clone", "_to_copy", "copy_", "copy", "zero_", "zeros_like", "ones_like", "empty_like"}
COPIES |= {"full_like", "fill_", "resize_", "set_", "new_zeros", "new_ones", "new_empty", "equal"}
COPIES |= {"cat", "stack", "index_select", "embedding", "gather", "where", "constant_pad_nd"}
COPIES |= {"random_", "bernoulli_", "bernoulli", "normal_", "uniform_", "rand_like", "randn_like"}
COPIES |= {"randint_like", "rand", "randn", "is_nonzero", "_local_scalar_dense", "new_full"}
"""Operators that copy, fill or generate random numbers, without rounding errors."""
EXACT_OPERANDS = {"_softmax", "_log_softmax", "native_dropout"}
"""Operators that are not pointwise, but add no error proportional to their operands."""
SCATTERS = ("scatter_add", "index_add", "index_put", "embedding_dense_backward", "scatter_reduce")
STATISTICS = {"running_mean", "running_var"}
"""Arguments that batch normalisation writes, although its schema does not declare it."""


NEAREST = 64
"""Operators of the model among which the next one of the float32 copy is looked for."""


class Formats:
    """Which operators of a model in a short format compute in float32, because its code says so.

    Positions and statistics often do; the float32 copy does not show it. The format is that of the result, or the
    short one if the result is converted to it.
    """

    def __init__(self, runner: VariantRunner, seed: int) -> None:
        self._operators: List[Tuple[Any, List[bool]]] = []
        """Key of each operator, and whether it computes in float32."""
        self._sources: Dict[int, List[List[bool]]] = {}
        """By the address of a tensor: the operators that its numbers come from."""
        self._next = 0
        with _observing(self._observe):
            _called_before(runner.peer()).results(seed)
        self._sources = {}

    def _observe(self, func: Any, args: Any, result: Any) -> None:
        name = func.__name__.split(".")[0]
        if _only_views(func):
            return
        results, operands = _floats(result), _floats(list(args))
        if name in COPIES:
            written, read = operands[:1] if name == "copy_" else results, operands
            origins = [one for tensor in read for one in self._sources.get(_address(tensor), [])]
            if any(tensor.element_size() < 4 for tensor in written):
                for origin in origins:
                    origin[0] = False
            for tensor in written:
                self._sources[_address(tensor)] = origins
            return
        computes = [bool(results) and all(one.dtype is torch.float32 for one in results)]
        for tensor in results:
            self._sources[_address(tensor)] = [computes]
        self._operators.append((_key(func, args), computes))

    def begin(self) -> None:
        """Begin a run of the float32 copy."""
        self._next = 0

    def is_float32(self, func: Any, args: Any) -> bool:
        """Whether the next operator of the copy computes in float32 in the model."""
        key = _key(func, args)
        following = self._operators[self._next : self._next + NEAREST]
        for index, (other, computes) in enumerate(following):
            if other == key:
                self._next += index + 1
                return computes[0]
        return False


def _key(func: Any, args: Any) -> Any:
    return func, tuple(tuple(tensor.shape) for tensor in _tensors(list(args)))


def _floats(value: Any) -> List[Any]:
    strided = [tensor for tensor in _tensors(value) if tensor.layout is torch.strided]
    return [tensor for tensor in strided if tensor.is_floating_point()]


def _address(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _observing(observe: Callable[[Any, Any, Any], None]) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Observing(TorchDispatchMode):
        """Calls `observe` after each operator."""

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            observe(func, args, result)
            return result

    return Observing()


class SimulatedRounding:
    """Runs an eager float32 copy of a variant's model with simulated rounding."""

    def __init__(self, runner: VariantRunner, rounding: str) -> None:
        self._rounding = rounding
        self._terms: Dict[Any, float] = {}
        """Number of terms that an operator adds for operands of given sizes."""
        model = runner.model
        self._original = runner
        self._formats: Optional[Formats] = None
        if runner.precision in HALF_TYPES:
            # The weights keep their values in the short format.
            built = convert(model.built, torch.float32)
            model = Model(built, model.training, model.optimizer is not None)
        self._runner = _called_before(
            VariantRunner(runner.name, "eager", "float32", model, runner.device)
        )

    def run(self, seed: int, number: int, place: Any, amplified: bool = False) -> Results:
        """Return the results of one run; `number` seeds the rounding, `amplified` removes two more bits."""
        chance = random.Random(seed * 1000 + number)
        if self._formats is None and self._original.precision in HALF_TYPES:
            self._formats = Formats(self._original, seed)
        if self._formats is not None:
            self._formats.begin()
        with _mode(self._rounding, chance, amplified, self._terms, self._formats):
            return to_plain(self._runner.results(seed)[0], place)


def simulation_bytes(runner: VariantRunner) -> int:
    """Return the minimum memory of simulated rounding: a copy for short types, and its snapshot."""
    tensors = runner.model.state() + runner.model.inputs()
    sizes = [4 * int(t.numel()) for t in tensors if t.layout is torch.strided]
    copies = 2 if runner.precision in HALF_TYPES else 0
    return copies * sum(sizes) + 2 * max(sizes, default=0)


def _mode(
    rounding: str,
    chance: random.Random,
    amplified: bool,
    terms: Dict[Any, float],
    formats: Optional[Formats] = None,
) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    more_bits = 2 if amplified else 0

    class Rounding(TorchDispatchMode):
        """Rounds operands and results around each operator."""

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            name = func.__name__.split(".")[0]
            if _only_views(func):
                return func(*args, **kwargs)
            if name in COPIES:
                return func(*args, **kwargs)
            rounder = _Rounder(rounding, chance, more_bits)
            rounder.in_float32 = formats is not None and formats.is_float32(func, args)
            if func._schema.is_mutable:
                result = func(*args, **kwargs)
                rounder.short = rounding in HALF_TYPES  # the optimiser of amp is in float32
                _write_rounded(func, args, kwargs, rounder)
                return result
            rounder.short = rounding != "tf32" or name in PRODUCTS
            if _is_pointwise(func) or name in EXACT_OPERANDS:
                result = func(*args, **kwargs)
            else:
                result = self._reduce(func, name, args, kwargs, rounder)
            rounder.short = rounding != "tf32"
            rounder.ties = False
            return rounder(result)

        def _reduce(self, func: Any, name: str, args: Any, kwargs: Any, rounder: Any) -> Any:
            """Call with rounded operands; the rounding grows with the number of added terms."""
            rounder.ties = name in TIE_BREAKING
            key = (func, tuple(_sizes(list(args), list(kwargs.values()))))
            rounder.terms = terms.get(key, 1.0)
            moved, named = _operands(func, args, kwargs, rounder)
            result = func(*moved, **named)
            if key not in terms:
                terms[key] = rounder.terms = _depth(name, args, kwargs, result)
                if not _draws(func) and "batch_norm" not in name:
                    moved, named = _operands(func, args, kwargs, rounder)
                    result = func(*moved, **named)
            rounder.short, rounder.ties = rounding in HALF_TYPES, False
            for argument, value in zip(func._schema.arguments, args):
                if argument.name in STATISTICS and isinstance(value, torch.Tensor):
                    value.copy_(rounder(value))
            return result

    return Rounding()


class _Rounder:
    """Rounds tensors, in any nesting, to the simulated precision."""

    def __init__(self, rounding: str, chance: random.Random, more_bits: int) -> None:
        self.rounding = rounding
        self.chance = chance
        self.more_bits = more_bits
        self.terms = 1.0
        self.short = True
        """Whether the short format applies instead of float32."""
        self.in_float32 = False
        """Whether the model computes this operator in float32."""
        self.ties = False

    def __call__(self, value: Any) -> Any:
        """Return the same nesting with floating-point tensors rounded."""
        if isinstance(value, (list, tuple)):
            rounded = [self(item) for item in value]
            return type(value)(*rounded) if hasattr(value, "_fields") else type(value)(rounded)
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return value
        if value.is_complex():
            return torch.view_as_complex(self._round(torch.view_as_real(value.resolve_conj())))
        return self._round(value) if value.is_floating_point() else value

    def _round(self, numbers: Any) -> Any:
        if not numbers.numel():
            return numbers
        bits = EXTRA_BITS + self.more_bits
        if self.terms > 1:
            bits += max(0, round(math.log2(self.terms) / 2) - 1)
        rounded = self._cut(numbers, min(bits, 20))
        if (
            self.short
            and not self.in_float32
            and self.rounding != "float32"
            and numbers.dtype is torch.float32
        ):
            rounded = self._shorten(rounded)
        if self.ties:
            largest = torch.nan_to_num(numbers, nan=0.0, posinf=0.0, neginf=0.0).abs().max()
            step = 8 * torch.finfo(numbers.dtype).eps * largest
            rounded = rounded + step * self._noise(numbers)
        return torch.where(torch.isfinite(rounded), rounded, numbers)

    def _noise(self, numbers: Any) -> Any:
        """Return random numbers from a separate generator: the workload's must not advance."""
        generator = torch.Generator(numbers.device).manual_seed(self.chance.getrandbits(32))
        return torch.rand(
            numbers.shape, generator=generator, device=numbers.device, dtype=numbers.dtype
        )

    def _cut(self, numbers: Any, bits: int) -> Any:
        """Round to `bits` bits less than the type has, on a dilated grid (Veltkamp's splitting)."""
        dilation = 1 + self.chance.random()
        dilated = numbers * dilation
        product = dilated * (2.0**bits + 1)
        return (product - (product - dilated)) / dilation

    def _shorten(self, numbers: Any) -> Any:
        if self.rounding == "tf32":
            if self.chance.random() < 0.5:  # hardware may truncate instead of rounding to nearest
                return (numbers.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)
            return self._cut(numbers, TF32_BITS + self.more_bits)
        short = SHORT_TYPES[self.rounding]
        if self.more_bits:
            return self._cut(numbers, (16 if short is torch.bfloat16 else 13) + self.more_bits)
        dilation = 1 + self.chance.random()
        return (numbers * dilation).to(short).to(torch.float32) / dilation


def _operands(func: Any, args: Any, kwargs: Any, rounder: _Rounder) -> Any:
    names = [argument.name for argument in func._schema.arguments]
    changed = [
        value if name in STATISTICS else rounder(value) for name, value in zip(names, args)
    ] + list(args[len(names) :])
    return tuple(changed), {
        name: value if name in STATISTICS else rounder(value) for name, value in kwargs.items()
    }


def _write_rounded(func: Any, args: Any, kwargs: Any, rounder: _Rounder) -> None:
    """Round the tensors that an operator wrote in place."""
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        for tensor in _tensors(value):
            if tensor.layout is torch.strided and (
                tensor.is_floating_point() or tensor.is_complex()
            ):
                tensor.copy_(rounder(tensor))


def _only_views(function: Any) -> bool:
    schema = function._schema
    if schema.is_mutable:
        return False
    return any(returned.alias_info is not None for returned in schema.returns)


def _is_pointwise(function: Any) -> bool:
    tag = getattr(torch.Tag, "pointwise", None)
    return tag is not None and tag in function.tags


def _draws(function: Any) -> bool:
    tag = getattr(torch.Tag, "nondeterministic_seeded", None)
    return tag is not None and tag in function.tags


def _tensors(value: Any) -> List[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def _sizes(*values: Any) -> List[int]:
    return [
        int(tensor.numel())
        for value in values
        for tensor in _tensors(value)
        if tensor.is_floating_point() or tensor.is_complex()
    ]


def _depth(name: str, args: Any, kwargs: Any, result: Any) -> float:
    """Estimate the number of terms added for one number of the result, from the sizes alone.

    For a product of matrices the geometric mean of the operands' sizes over that of the result is the inner size.
    """
    if any(scatter in name for scatter in SCATTERS):
        indices = [t.numel() for t in _tensors(list(args)) if not t.is_floating_point()]
        return float(max(indices, default=1))
    operands = sorted(_sizes(list(args), list(kwargs.values())), reverse=True)[:2]
    results = [size for size in _sizes(result) if size]
    if not operands or not results:
        return 1.0
    if len(operands) == 2:
        return max(1.0, math.sqrt(operands[0] * operands[1] / min(results)))
    return max(1.0, operands[0] / min(results))

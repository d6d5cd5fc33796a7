"""The model of a workload in one precision: its inputs, initial state and gradients.

New input values of the same shapes are written in place. With many draws a cached result cannot pass. Draw 0 has the
values of the workload; in any other draw every floating-point number is multiplied by 1, 1/2 or 1/4, which is exact
in every data type and keeps signs, masks and ranges. Integers are rotated within their tensor, unless they are
sorted: offsets and positions have a structure. The values depend only on the number of the draw, so processes of
different targets get the same.
"""

import contextlib
import copy
import random
from dataclasses import replace
from typing import Any, Dict, Iterator, List, Optional

import torch

from torchyard.worker.workload import BuiltWorkload, CannotBuild, flatten, map_tensors

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class Model:
    """A built workload in one data type: module, inputs, optimizer, and their initial state."""

    def __init__(
        self, built: BuiltWorkload, training: bool, step: bool, eval_mode: bool = False
    ) -> None:
        """`eval_mode` leaves the module in evaluation mode during training."""
        self.module = built.module
        self.args = built.args
        self.kwargs = built.kwargs
        self.built = built
        self.training = training
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        self.others = built.others
        self._with_gradients = self.parameters + [
            t for t in self.inputs() if t.requires_grad and t.is_leaf
        ]
        self.optimizer: Optional[Any] = None
        self.module.train(training and not eval_mode)
        if training and step:
            if built.optimizer is None:
                raise CannotBuild("this workload has no optimizer", hint="remove --optimizer-step")
            self.optimizer = built.optimizer(self.parameters)
        self._initial = self._initial_copies(training or built.mutates)
        self._draws = InputDraws(self.inputs())
        self._other_draws = [InputDraws(_inputs_of(other)) for other in self.others]
        self.parameter_changes = 0
        """How often a check has replaced the initial parameters."""

    def state(self) -> List[Any]:
        """Return parameters and buffers, in a stable order."""
        return list(self.module.parameters()) + list(self.module.buffers())

    def inputs(self) -> List[Any]:
        """Return the tensors among the arguments."""
        return flatten(self.args) + flatten(self.kwargs)

    def _named(self, with_parameters: bool) -> Dict[str, Any]:
        tensors = {"buffer " + name: tensor for name, tensor in self.module.named_buffers()}
        tensors.update(("input %d" % index, t) for index, t in enumerate(self.inputs()))
        for rank, other in enumerate(self.others, 1):
            tensors.update(
                ("input %d of rank %d" % (index, rank), t)
                for index, t in enumerate(_inputs_of(other))
            )
        if with_parameters:
            tensors.update(("parameter " + name, p) for name, p in self.module.named_parameters())
        return tensors

    def _initial_copies(self, with_parameters: bool) -> Dict[str, Any]:
        """Copy everything that an iteration may change: inference can write buffers and inputs."""
        return {
            name: tensor.detach().clone()
            for name, tensor in self._named(with_parameters).items()
            if can_be_written(tensor)
        }

    def rewind(self) -> None:
        """Restore the initial state: no variant may see the changes of another one."""
        now = self._named(with_parameters=True)
        with torch.no_grad():
            for name, initial in self._initial.items():
                tensor = now.get(name)
                if tensor is not None and tensor.shape == initial.shape:
                    tensor.copy_(initial)
        self.forget_gradients()

    def draw_inputs(self, draw: int, level: str) -> None:
        """Switch to another draw of the input values; a later `rewind` returns to it."""
        self.rewind()
        self._draws.apply(draw, level)
        for rank, draws in enumerate(self._other_draws, 1):
            draws.apply(draw and draw + rank, level)  # draw 0 has the values of the workload
        for name, tensor in self._named(with_parameters=False).items():
            initial = self._initial.get(name) if name.startswith("input ") else None
            if initial is not None and initial.shape == tensor.shape:
                initial.copy_(tensor.detach())

    def varies(self, level: str) -> bool:
        """Whether a draw of this level changes any input."""
        return bool(self._draws.varied(level))

    def changed_names(self) -> List[str]:
        """Return the inputs, buffers and writable parameters that differ from the initial state."""
        now = self._named(with_parameters=True)
        return [
            name
            for name, initial in self._initial.items()
            if name not in now or not same_numbers(now[name].detach(), initial)
        ]

    def write_counts(self) -> Dict[str, int]:
        """Return how often each input and buffer was written in place, where torch counts it."""
        return {
            name: tensor._version
            for name, tensor in self._named(with_parameters=False).items()
            if not tensor.is_inference()
        }

    def snapshot(self, names: List[str]) -> Dict[str, Any]:
        """Copy the current values of these inputs, buffers and parameters."""
        now = self._named(with_parameters=True)
        return {name: now[name].detach().clone() for name in names if name in now}

    @contextlib.contextmanager
    def without_optimizer(self) -> Iterator[None]:
        """Disable the optimizer: iterations end after the backward pass."""
        optimizer, self.optimizer = self.optimizer, None
        try:
            yield
        finally:
            self.optimizer = optimizer

    def move_initial_state(self) -> Dict[str, Any]:
        """Make the current parameters the initial state; return the argument of `restore_initial_state`."""
        now = self._named(with_parameters=True)
        previous = {
            name: initial
            for name, initial in self._initial.items()
            if name.startswith("parameter ")
        }
        for name in previous:
            self._initial[name] = now[name].detach().clone()
        self.parameter_changes += 1
        return previous

    def restore_initial_state(self, previous: Dict[str, Any]) -> None:
        """Undo `move_initial_state`."""
        self._initial.update(previous)
        self.parameter_changes += 1
        self.rewind()

    @contextlib.contextmanager
    def starting_from(self, snapshot: Dict[str, Any]) -> Iterator[None]:
        """Temporarily use these values as the initial state."""
        before = self._initial
        self._initial = dict(before, **snapshot)
        changes = any(name.startswith("parameter ") for name in snapshot)
        self.parameter_changes += changes
        try:
            yield
        finally:
            self._initial = before
            self.parameter_changes += changes
            self.rewind()

    def forget_gradients(self) -> None:
        """Drop gradients, as a training loop does between steps."""
        for tensor in self._with_gradients:
            tensor.grad = None

    def gradients(self) -> List[Any]:
        """Return the gradients of parameters and inputs; None as zeros, because backends differ in what they leave."""
        return [torch.zeros_like(t) if t.grad is None else t.grad for t in self._with_gradients]

    def forget_optimizer_state(self) -> None:
        """Create a new optimizer, for a check that must not depend on earlier iterations."""
        if self.optimizer is not None:
            self.optimizer = self.built.optimizer(self.parameters)  # type: ignore[misc]


def convert(built: BuiltWorkload, dtype: Any) -> BuiltWorkload:
    """Return a deep copy of the workload in another data type; integers and booleans are unchanged.

    Complex tensors become complex128 for float64 and are otherwise unchanged: `Module.to` would drop
    their imaginary part.
    """

    def change(tensor: Any) -> Any:
        if tensor.is_complex():
            new_dtype = torch.complex128 if dtype is torch.float64 else tensor.dtype
        else:
            new_dtype = dtype if tensor.is_floating_point() else tensor.dtype
        return tensor.to(new_dtype)

    def change_input(tensor: Any) -> Any:
        changed = change(tensor.detach())
        changed = changed.clone() if changed.dtype is tensor.dtype else changed
        return changed.requires_grad_(tensor.requires_grad)

    def change_inputs(workload: BuiltWorkload, module: Any) -> BuiltWorkload:
        args, kwargs = (
            map_tensors(workload.args, change_input),
            map_tensors(workload.kwargs, change_input),
        )
        return replace(workload, module=module, args=args, kwargs=kwargs)

    changed = change_inputs(built, copy.deepcopy(built.module)._apply(change))
    return replace(changed, others=tuple(change_inputs(other, None) for other in built.others))


def _inputs_of(built: BuiltWorkload) -> List[Any]:
    return flatten(built.args) + flatten(built.kwargs)


def can_be_written(tensor: Any) -> bool:
    """Whether no elements share memory, as they do in an expanded tensor."""
    if tensor.layout is not torch.strided:
        return True
    return all(step != 0 or size < 2 for size, step in zip(tensor.size(), tensor.stride()))


def same_numbers(one: Any, other: Any) -> bool:
    """Whether two tensors are equal; NaN equals NaN."""
    if one.shape != other.shape or one.dtype is not other.dtype or one.layout is not other.layout:
        return False
    if one.layout is not torch.strided:
        one, other = one.to_dense(), other.to_dense()
    if one.is_quantized:
        return bool(torch.equal(one.int_repr(), other.int_repr()))
    if torch.equal(one, other):
        return True
    if not one.is_floating_point() and not one.is_complex():
        return False
    return bool(((one == other) | (torch.isnan(one) & torch.isnan(other))).all())


def write_tensors(tensors: List[Any], values: List[Any]) -> None:
    """Write the values to the tensors."""
    with torch.no_grad():
        for tensor, value in zip(tensors, values):
            tensor.copy_(value)


def copies_of(tensors: List[Any]) -> List[Any]:
    """Return copies of the tensors, without their history."""
    return [tensor.detach().clone() for tensor in tensors]


ALL, FLOATS, NONE = "all", "floats", "none"
LEVELS = (ALL, FLOATS, NONE)
"""Which inputs are varied. Levels that make the baseline fail are not used."""
PATTERN = 65521
"""Length of the pattern of factors, repeated over longer tensors."""
_FACTORS = torch.tensor([1.0, 0.5, 0.25, 0.5])


class InputDraws:
    """The original values of some tensors, and further draws of them."""

    def __init__(self, tensors: List[Any]) -> None:
        distinct = {id(tensor): tensor for tensor in tensors}
        self._tensors = [tensor for tensor in distinct.values() if _can_vary(tensor)]
        self._originals: Optional[List[Any]] = None

    def varied(self, level: str) -> List[Any]:
        """Return the tensors that a draw of this level changes."""
        if level == NONE:
            return []
        return [
            tensor
            for tensor in self._tensors
            if _is_float(tensor) or (level == ALL and not _is_structure(tensor))
        ]

    def apply(self, draw: int, level: str) -> None:
        """Write the values of a draw."""
        if draw == 0 and self._originals is None:
            return
        if self._originals is None:  # the current values are draw 0
            self._originals = [tensor.detach().clone() for tensor in self._tensors]
        chance = random.Random(draw)
        bits = bytearray(chance.getrandbits(8 * PATTERN).to_bytes(PATTERN, "little"))
        factors = _FACTORS[(torch.frombuffer(bits, dtype=torch.uint8) & 3).long()]
        turn = chance.random()
        with torch.no_grad():
            for tensor, original in zip(self._tensors, self._originals):
                if draw == 0 or level == NONE:
                    tensor.copy_(original)
                elif _is_float(tensor):
                    tensor.copy_(_scaled(original, factors))
                elif level == ALL and not _is_structure(original):
                    tensor.copy_(_rotated(original, turn))
                else:
                    tensor.copy_(original)


def _can_vary(tensor: Any) -> bool:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.numel() == 0:
        return False
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return False
    if any(step == 0 and size > 1 for size, step in zip(tensor.size(), tensor.stride())):
        return False
    # The 8-bit formats have no arithmetic.
    return not (_is_float(tensor) and tensor.element_size() < 2)


def _is_float(tensor: Any) -> bool:
    return bool(tensor.is_floating_point() or tensor.is_complex())


def _is_structure(tensor: Any) -> bool:
    """Whether integers are sorted along the last dimension, as offsets and masks are."""
    if tensor.numel() < 2 or tensor.dim() == 0:
        return True
    numbers = tensor.detach()
    numbers = numbers.to(torch.int8) if numbers.dtype is torch.bool else numbers
    if numbers.shape[-1] < 2:
        numbers = numbers.reshape(-1)
    before, after = numbers[..., :-1], numbers[..., 1:]
    return bool((before <= after).all()) or bool((before >= after).all())


def _scaled(original: Any, factors: Any) -> Any:
    flat = original.reshape(-1)
    dtype = original.real.dtype if original.is_complex() else original.dtype
    pattern = factors[: flat.numel()].to(device=original.device, dtype=dtype)
    whole = flat.numel() // pattern.numel()
    head = (flat[: whole * pattern.numel()].view(whole, -1) * pattern).reshape(-1)
    tail = flat[whole * pattern.numel() :]
    if tail.numel():
        head = torch.cat([head, tail * pattern[: tail.numel()]])
    return head.view(original.shape)


def _rotated(original: Any, turn: float) -> Any:
    flat = original.reshape(-1)
    step = 1 + int(turn * (flat.numel() - 1))
    return torch.roll(flat, step).view(original.shape)

"""The model of a workload in one precision: its inputs, initial state and gradients."""

import contextlib
import copy
from typing import Any, Dict, Iterator, List, Optional

import torch

from torchyard.worker.bench.inputs import InputDraws
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
            if _can_be_written(tensor)
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

    module = copy.deepcopy(built.module)._apply(change)
    return BuiltWorkload(
        module,
        map_tensors(built.args, change_input),
        map_tensors(built.kwargs, change_input),
        built.loss,
        built.loss_name,
        built.optimizer,
        built.flops,
        built.mutates,
        built.traffic,
        built.batch_size,
        built.stream,
        others=tuple(
            BuiltWorkload(
                None,
                map_tensors(other.args, change_input),
                map_tensors(other.kwargs, change_input),
                other.loss,
            )
            for other in built.others
        ),
    )


def _inputs_of(built: BuiltWorkload) -> List[Any]:
    return flatten(built.args) + flatten(built.kwargs)


def _can_be_written(tensor: Any) -> bool:
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

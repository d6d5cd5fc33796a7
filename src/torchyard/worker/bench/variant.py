"""One variant inside this worker: a model in a precision, made callable by a backend.

Variants of one precision share the module object and the inputs. Checks, warm-up and timing call the
same function on the same inputs in the same context, so that the checked code is the timed code.
"""

import contextlib
import copy
import time
from typing import Any, Callable, ContextManager, Dict, Iterable, Iterator, List, Optional, Tuple

import torch

from torchyard.worker.bench import backends, dynamo_graphs, options, torch_settings
from torchyard.worker.bench.backend_names import GIVEN, is_user_function
from torchyard.worker.bench.backends import Job
from torchyard.worker.bench.inputs import InputDraws
from torchyard.worker.bench.process_state import SHARED_FUNCTIONS, ProcessState, RandomState
from torchyard.worker.devices import device_of
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


class VariantRunner:
    """One variant, ready to run iterations."""

    def __init__(
        self,
        name: str,
        backend: str,
        precision: str,
        model: Model,
        device: str,
        chosen: Optional[torch_settings.Options] = None,
        given: Optional[Callable[..., Any]] = None,
        module: Optional[Any] = None,
    ) -> None:
        """With `given`, this callable is run instead of one that a backend creates.

        With `module`, the backend applies to it instead of the module of the model.
        """
        self.name = name
        self.own_module = module
        self.backend = backend
        self.precision = precision
        self.model = model
        self.device = device
        self.hardware = device_of(device)
        self.options: torch_settings.Options = dict(chosen or {})
        torch_settings.check(self.options, backend, model.training)
        self._onednn = torch_settings.OwnOnednn()
        self.state_changes: Dict[str, bool] = {}
        """Process-wide state that this variant's code changed, and whether it was restored."""
        self.replaced: List[str] = []
        """Functions of Python and torch that this variant's code replaced."""
        self.moved_random_state = False
        self.changed: List[str] = []
        """Inputs, buffers and parameters that the latest checked iteration wrote."""
        self.result_bytes = 0
        """Size of the results of the latest checked iteration."""
        self.own_weights = False
        """Whether the weights must not be changed to check that results follow them."""
        self._depth = 0
        with self._guarded():
            self._way = (
                backends.resolve(backend)
                if given is None or backend != GIVEN
                else backends.Backend(lambda _: given, ahead=False)
            )
            self._function = None if self._way.ahead else self._make()
        self.first_call_s: Optional[float] = None
        self.cached_graphs = 0
        """Graphs of the first call that were compiled before and taken from the caches on disk."""
        self.graph_counters: Dict[str, Any] = {"graphs": None, "graph_breaks": []}
        self.recompile_reasons: List[str] = []
        self._frames = 0
        self._frames_at_first = 0

    several_ranks = False
    """Whether it runs in several ranks at once."""

    @property
    def rank_difference(self) -> str:
        """How the gradients of the ranks differed in checked calls; empty if they did not."""
        return ""

    @property
    def is_eager_model(self) -> bool:
        """Whether it runs the model itself, uncompiled."""
        return self.backend == "eager" and self.own_module is None

    @property
    def runs_user_code(self) -> bool:
        """Whether it runs a callable of the user other than the model."""
        return self.own_module is not None or is_user_function(self.backend)

    @property
    def function(self) -> Any:
        """The callable: the module itself, or the one created by the backend."""
        if self._function is None:
            self._function = self._make()
        return self._function

    @property
    def recompiles(self) -> Optional[int]:
        """Recompilations of this variant after its first call; None without dynamo."""
        if self.graph_counters["graphs"] is None:
            return None
        return self._frames - self._frames_at_first

    def _module(self) -> Any:
        """Return the module that the backend applies to."""
        return self.model.module if self.own_module is None else self.own_module

    def _make(self) -> Any:
        model = self.model
        return self._way.make(
            Job(
                self._module(),
                model.args,
                model.kwargs,
                self.device,
                training=model.training,
                mutates=model.built.mutates,
                dynamic=bool(self.options.get("dynamic")),
            )
        )

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Restore process-wide state and random number generators after this variant's code."""
        if self._depth:
            yield
            return
        self._depth += 1
        state, generators = ProcessState(), RandomState()
        try:
            yield
        finally:
            self._depth -= 1
            generators.restore()
            for text, restored in state.changes():
                self.state_changes[text] = self.state_changes.get(text, True) and restored
            for name in SHARED_FUNCTIONS.restore():
                if name not in self.replaced:
                    self.replaced.append(name)

    @contextlib.contextmanager
    def context(self) -> Any:
        """Enter the context of the calls: gradient mode, autocast, and the variant's options."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.hardware.use())
            stack.enter_context(self._guarded())
            if self.options.get("inference-mode"):
                stack.enter_context(torch.inference_mode())
            elif not self.model.training:
                stack.enter_context(torch.no_grad())
            stack.enter_context(self._onednn.kept())
            stack.enter_context(torch_settings.applied(self.options))
            if self.precision == "amp":
                stack.enter_context(self._autocast())
            before = dynamo_graphs.compiled_frames()
            try:
                yield
            finally:
                self._count_compiled(dynamo_graphs.compiled_frames() - before)

    def _count_compiled(self, frames: int) -> None:
        if frames <= 0:
            return
        self._frames += frames
        reasons = dynamo_graphs.take_failures()
        if self.first_call_s is not None:
            self.recompile_reasons += reasons

    def _autocast(self) -> ContextManager[Any]:
        dtype = torch.bfloat16 if self.hardware.is_host else torch.float16
        return torch.autocast(device_type=self.hardware.kind, dtype=dtype)

    def caller(self) -> Callable[..., Any]:
        """Return one iteration as a function without arguments, with minimal overhead.

        It returns the output. In training it returns nothing; results of a checked step are appended to
        the list argument, so that checked and unchecked steps run the same code. With inputs of other ranks
        it is their reference: a training step over the batches of all ranks.
        """
        if self.model.training and self.model.others:
            return self._step_of_all_ranks()
        return self._local_caller()

    def _local_caller(self) -> Callable[..., Any]:
        function, args, kwargs = self.function, self.model.args, self.model.kwargs
        if not self.model.training:
            if kwargs:
                return lambda: function(*args, **kwargs)
            return lambda: function(*args)
        loss_of, optimizer = self.model.built.loss, self.model.optimizer
        if loss_of is None:
            raise CannotBuild(
                "this workload does not support training", hint="use --mode inference"
            )

        def step(kept: Optional[List[Any]] = None) -> None:
            if kept is None:
                loss_of(function(*args, **kwargs)).backward()
            else:
                kept.append(function(*args, **kwargs))
                kept.append(loss_of(kept[0]))
                kept[1].backward()
            if optimizer is not None:
                optimizer.step()

        return step

    def _step_of_all_ranks(self) -> Callable[..., Any]:
        """Return a step that averages the gradients over the batches of all ranks, one after the other.

        Every rank starts with the same buffers, and those of rank 0 are kept, as in
        DistributedDataParallel.
        """
        model, function = self.model, self.function

        def step(kept: Optional[List[Any]] = None) -> None:
            kept = [] if kept is None else kept
            buffers = list(model.module.buffers())
            before = _copies(buffers)
            kept.append(function(*model.args, **model.kwargs))
            kept.append(model.built.loss(kept[0]))  # type: ignore[misc]
            kept[1].backward()
            after = _copies(buffers)
            for other in model.others:
                _write(buffers, before)
                output = function(*other.args, **other.kwargs)
                other.loss(output).backward()  # type: ignore[misc]
            _write(buffers, after)
            for parameter in model.parameters:
                if parameter.grad is not None:
                    parameter.grad = parameter.grad / (1 + len(model.others))

        return step

    def begin_block(self, plan: Dict[str, Any]) -> Callable[..., Any]:  # noqa: ARG002
        """Return the iteration for a block of timed calls; `plan` are the arguments of the block."""
        return self.caller()

    def snapshot(self, names: List[str]) -> Dict[str, Any]:
        """Copy the current values of these inputs, buffers and parameters."""
        return self.model.snapshot(names)

    def barrier(self) -> None:
        """Wait for the other ranks; a no-op with one process."""

    def end_block(self) -> None:
        """End a block of timed calls."""

    def forget_gradients(self) -> None:
        """Drop gradients, as a training loop does between steps."""
        self.model.forget_gradients()

    def first_call(self) -> None:
        """Run the first iteration, including compilation, and record its duration."""
        if self.first_call_s is not None:
            return
        compiled = self.backend != "eager"
        if compiled:
            dynamo_graphs.clear_counters()
        started = time.perf_counter()
        with self.context():
            self.caller()()
        self.synchronize()
        self.first_call_s = time.perf_counter() - started
        self._frames_at_first = self._frames
        if compiled:
            self.graph_counters = dynamo_graphs.read_counters()
            self.cached_graphs = dynamo_graphs.cached_graphs()
        self.forget_gradients()

    def remade(self, chosen: torch_settings.Options) -> "VariantRunner":
        """Return this variant with these options, not yet compiled."""
        return VariantRunner(
            self.name,
            self.backend,
            self.precision,
            self.model,
            self.device,
            chosen,
            module=self.own_module,
        )

    def peer(self) -> "VariantRunner":
        """Return the eager variant of the same model, precision and options, for comparison."""
        kept = {
            name: value
            for name, value in self.options.items()
            if not options.why_not(name, "eager", self.model.training)
        }
        return VariantRunner(self.name, "eager", self.precision, self.model, self.device, kept)

    def on(self, model: Model) -> "VariantRunner":
        """Return this variant with the inputs of another model."""
        other = copy.copy(self)
        other.model = model
        return other

    def results(self, seed: int, groups: Iterable[str] = ()) -> Tuple[Dict[str, List[Any]], bool]:
        """Return the results of one iteration from the initial state, and whether they include a loss.

        In training: outputs, loss, gradients, buffers, and parameters after the optimizer step. Inputs and
        buffers are included where the iteration writes them, and if they are in `groups`. Only of eager
        code it is known that it writes the values that are there: another variant may round differently.
        """
        self.first_call()
        model = self.model
        model.rewind()
        model.forget_optimizer_state()
        with self.context():
            call = self.caller()
            torch.manual_seed(seed)
            generators = RandomState()
            kept: List[Any] = []
            counts = model.write_counts()
            if model.training:
                call(kept)
            else:
                kept.append(call())
            self.synchronize()
            self.moved_random_state = generators.restore() or self.moved_random_state
            self.changed = model.changed_names()
            if self.backend == "eager":
                now = model.write_counts()
                written = [name for name in now if now[name] != counts.get(name, now[name])]
                self.changed += [name for name in written if name not in self.changed]
            results = self.collect(kept, self.changed, groups)
        model.rewind()
        model.forget_optimizer_state()
        return results, model.training

    def collect(
        self, kept: List[Any], changed: List[str], groups: Iterable[str] = ()
    ) -> Dict[str, List[Any]]:
        """Copy the outputs of an iteration, the tensors that it wrote (`changed`) and those of the groups."""
        model = self.model
        results = {"output": _copies(flatten(kept[0]))}
        if model.training:
            results["loss"] = _copies([kept[1]])
            results["gradient"] = _copies(model.gradients())
        kinds = {*groups, *(name.partition(" ")[0] for name in changed)}
        if model.training or "buffer" in kinds:
            results["buffer"] = _copies(list(model.module.buffers()))
        if "input" in kinds:
            results["input"] = _copies(model.inputs())
        if model.optimizer is not None or model.built.mutates:
            results["parameter"] = _copies(list(model.module.parameters()))
        self.result_bytes = sum(
            int(tensor.numel()) * int(tensor.element_size())
            for tensors in results.values()
            for tensor in tensors
        )
        return results

    def synchronize(self) -> None:
        """Wait for the device; a no-op on the CPU."""
        self.hardware.synchronize()


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


def _write(tensors: List[Any], values: List[Any]) -> None:
    with torch.no_grad():
        for tensor, value in zip(tensors, values):
            tensor.copy_(value)


def _copies(tensors: List[Any]) -> List[Any]:
    return [tensor.detach().clone() for tensor in tensors]

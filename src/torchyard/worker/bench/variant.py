"""One variant inside this worker: a model in a precision, made callable by a backend.

Sides of one precision share the module object and the inputs. Checking, warming and timing all call
the same function on the same inputs in the same context, so that what is checked is what is timed.
"""

import contextlib
import copy
import time
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Tuple

import torch

from torchyard.worker import devices
from torchyard.worker.bench import backends, dynamo_graphs, options, torch_settings
from torchyard.worker.bench.backends import Job
from torchyard.worker.bench.inputs import InputDraws
from torchyard.worker.bench.process_state import SHARED_FUNCTIONS, ProcessState, RandomState
from torchyard.worker.workload import Built, CannotBuild, flatten, map_tensors

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class Model:
    """A built workload in one data type: module, inputs, optimiser, and how it all began."""

    def __init__(self, built: Built, training: bool, step: bool) -> None:
        self.module = built.module
        self.args = built.args
        self.kwargs = built.kwargs
        self.built = built
        self.training = training
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        self._with_gradients = self.parameters + [
            t for t in self.inputs() if t.requires_grad and t.is_leaf
        ]
        self.optimizer: Optional[Any] = None
        self.module.train(training)
        if training and step:
            if built.optimizer is None:
                raise CannotBuild(
                    "this workload offers no optimiser", hint="leave out --optimizer-step"
                )
            self.optimizer = built.optimizer(self.parameters)
        self._began = self._snapshot(training or built.mutates)
        self._draws = InputDraws(self.inputs())

    def state(self) -> List[Any]:
        """Parameters and buffers, in a stable order."""
        return list(self.module.parameters()) + list(self.module.buffers())

    def inputs(self) -> List[Any]:
        """The tensors among the arguments."""
        return flatten(self.args) + flatten(self.kwargs)

    def _named(self, with_parameters: bool) -> Dict[str, Any]:
        found = {"buffer " + name: tensor for name, tensor in self.module.named_buffers()}
        found.update(("input %d" % index, t) for index, t in enumerate(self.inputs()))
        if with_parameters:
            found.update(("parameter " + name, p) for name, p in self.module.named_parameters())
        return found

    def _snapshot(self, with_parameters: bool) -> Dict[str, Any]:
        """Copies of whatever an iteration may change: inference can write to buffers and inputs."""
        return {
            name: tensor.detach().clone()
            for name, tensor in self._named(with_parameters).items()
            if _can_be_written(tensor)
        }

    def rewind(self) -> None:
        """Put everything back to how it began: no side may see what another one did."""
        now = self._named(with_parameters=True)
        with torch.no_grad():
            for name, began in self._began.items():
                tensor = now.get(name)
                if tensor is not None and tensor.shape == began.shape:
                    tensor.copy_(began)
        self.forget_gradients()

    def draw_inputs(self, draw: int, level: str) -> None:
        """Rewind to another draw of the input values: a later `rewind` leads back to it."""
        self.rewind()
        self._draws.apply(draw, level)
        for index, tensor in enumerate(self.inputs()):
            began = self._began.get("input %d" % index)
            if began is not None and began.shape == tensor.shape:
                began.copy_(tensor.detach())

    def varies(self, level: str) -> bool:
        """Whether a draw of this level changes any input."""
        return bool(self._draws.varied(level))

    def changed_names(self) -> List[str]:
        """Inputs, buffers and, where an iteration may write them, parameters that are not as they began."""
        now = self._named(with_parameters=True)
        return [
            name
            for name, began in self._began.items()
            if name not in now or not same_numbers(now[name].detach(), began)
        ]

    def moment(self, names: List[str]) -> Dict[str, Any]:
        """Copies of these inputs, buffers and parameters as they are now."""
        now = self._named(with_parameters=True)
        return {name: now[name].detach().clone() for name in names if name in now}

    @contextlib.contextmanager
    def without_optimizer(self) -> Iterator[None]:
        """Iterations end with the gradients, as those of a step do that is not the first."""
        optimizer, self.optimizer = self.optimizer, None
        try:
            yield
        finally:
            self.optimizer = optimizer

    def move_beginning(self) -> Dict[str, Any]:
        """Take parameters as they are now for the beginning; what to hand to `restore_beginning`."""
        now = self._named(with_parameters=True)
        held = {name: began for name, began in self._began.items() if name.startswith("parameter ")}
        for name in held:
            self._began[name] = now[name].detach().clone()
        return held

    def restore_beginning(self, held: Dict[str, Any]) -> None:
        """Undo `move_beginning`."""
        self._began.update(held)
        self.rewind()

    @contextlib.contextmanager
    def begun_at(self, moment: Dict[str, Any]) -> Iterator[None]:
        """Take this moment for the beginning, in which every rewind ends."""
        before = self._began
        self._began = dict(before, **moment)
        try:
            yield
        finally:
            self._began = before
            self.rewind()

    def forget_gradients(self) -> None:
        """Drop gradients, as a training loop does between steps."""
        for tensor in self._with_gradients:
            tensor.grad = None

    def gradients(self) -> List[Any]:
        """Of the parameters, and of the inputs that ask for one.

        None and zeros mean the same, and backends differ in which of them they leave.
        """
        return [torch.zeros_like(t) if t.grad is None else t.grad for t in self._with_gradients]

    def forget_optimizer_state(self) -> None:
        """Start the optimiser anew, for a check that must not depend on what ran before."""
        if self.optimizer is not None:
            self.optimizer = self.built.optimizer(self.parameters)  # type: ignore[misc]


def convert(built: Built, dtype: Any) -> Built:
    """A deep copy of the workload in another data type; integers and booleans stay.

    Complex numbers become wider with float64 and stay as they are with others: `Module.to` would
    drop their imaginary part.
    """

    def change(tensor: Any) -> Any:
        if tensor.is_complex():
            wanted = torch.complex128 if dtype is torch.float64 else tensor.dtype
        else:
            wanted = dtype if tensor.is_floating_point() else tensor.dtype
        return tensor.to(wanted)

    def change_input(tensor: Any) -> Any:
        changed = change(tensor.detach())
        changed = changed.clone() if changed.dtype is tensor.dtype else changed
        return changed.requires_grad_(tensor.requires_grad)

    module = copy.deepcopy(built.module)._apply(change)
    return Built(
        module,
        map_tensors(built.args, change_input),
        map_tensors(built.kwargs, change_input),
        built.loss,
        built.loss_said,
        built.optimizer,
        built.flops,
        built.mutates,
        built.traffic,
    )


class Side:
    """One variant, ready to iterate."""

    def __init__(
        self,
        name: str,
        backend: str,
        precision: str,
        model: Model,
        device: str,
        chosen: Optional[torch_settings.Options] = None,
    ) -> None:
        self.name = name
        self.backend = backend
        self.precision = precision
        self.model = model
        self.device = device
        self.options: torch_settings.Options = dict(chosen or {})
        torch_settings.check(self.options, backend, model.training)
        self._onednn = torch_settings.OwnOnednn()
        self.state_changes: Dict[str, bool] = {}
        """Process-wide state that this variant's code changed, in words, and whether it was put back."""
        self.replaced: List[str] = []
        """Functions of Python and torch that this variant's code replaced."""
        self.moved_random_state = False
        self.changed: List[str] = []
        """Inputs, buffers and parameters that the latest checked iteration wrote."""
        self.result_bytes = 0
        """Of the results of the latest checked iteration."""
        self._depth = 0
        with self._guarded():
            self._way = backends.resolve(backend)
            self._function = None if self._way.ahead else self._make()
        self.first_call_s: Optional[float] = None
        self.graph_counters: Dict[str, Any] = {"graphs": None, "graph_breaks": []}
        self.recompile_reasons: List[str] = []
        self._frames = 0
        self._frames_at_first = 0

    @property
    def function(self) -> Any:
        """What is called: the module itself or what its backend made of it."""
        if self._function is None:
            self._function = self._make()
        return self._function

    @property
    def recompiles(self) -> Optional[int]:
        """How often dynamo compiled for this side after its first call; None without dynamo."""
        if self.graph_counters["graphs"] is None:
            return None
        return self._frames - self._frames_at_first

    def _make(self) -> Any:
        model = self.model
        return self._way.make(
            Job(
                model.module,
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
        """Put process-wide state and random generators back after this variant's code."""
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
        """What the calls run in: gradients and autocast on or off, and the variant's options."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(devices.using(self.device))
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
        kind = torch.device(self.device).type
        dtype = torch.bfloat16 if kind == "cpu" else torch.float16
        return torch.autocast(device_type=kind, dtype=dtype)

    def caller(self) -> Callable[..., Any]:
        """One iteration as a call without arguments, with as little around it as can be.

        It returns the output. In training it returns nothing; what is kept of a step that is checked goes
        into the list that is given, so that every step runs the same code.
        """
        function, args, kwargs = self.function, self.model.args, self.model.kwargs
        if not self.model.training:
            if kwargs:
                return lambda: function(*args, **kwargs)
            return lambda: function(*args)
        loss_of, optimizer = self.model.built.loss, self.model.optimizer
        if loss_of is None:
            raise CannotBuild("this workload offers no training", hint="use --mode inference")

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

    def first_call(self) -> None:
        """Run once and remember how long it took: compilation happens here."""
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
        self.model.forget_gradients()

    def peer(self) -> "Side":
        """Eager code on the same model with the same precision and options: what results are held to."""
        kept = {
            name: value
            for name, value in self.options.items()
            if not options.why_not(name, "eager", self.model.training)
        }
        return Side(self.name, "eager", self.precision, self.model, self.device, kept)

    def on(self, model: Model) -> "Side":
        """The same callable with other inputs."""
        other = copy.copy(self)
        other.model = model
        return other

    def results(self, seed: int) -> Tuple[Dict[str, List[Any]], bool]:
        """Outputs of one iteration from the beginning, and whether they hold a loss.

        In training: outputs, loss, gradients, buffers, and parameters after the optimiser's step. Inputs and
        buffers are in it wherever the iteration changes them.
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
            if model.training:
                call(kept)
            else:
                kept.append(call())
            self.synchronize()
            self.moved_random_state = generators.restore() or self.moved_random_state
            self.changed = model.changed_names()
            found = self.collect(kept, self.changed)
        model.rewind()
        model.forget_optimizer_state()
        return found, model.training

    def collect(self, kept: List[Any], changed: List[str]) -> Dict[str, List[Any]]:
        """Copies of everything that an iteration made: what it returned and what it left behind.

        `changed` names inputs and buffers that it writes; see `Model.changed_names`.
        """
        model = self.model
        found = {"output": _keep(flatten(kept[0]))}
        if model.training:
            found["loss"] = _keep([kept[1]])
            found["gradient"] = _keep(model.gradients())
        if model.training or any(name.startswith("buffer ") for name in changed):
            found["buffer"] = _keep(list(model.module.buffers()))
        if any(name.startswith("input ") for name in changed):
            found["input"] = _keep(model.inputs())
        if model.optimizer is not None or model.built.mutates:
            found["parameter"] = _keep(list(model.module.parameters()))
        self.result_bytes = sum(
            int(tensor.numel()) * int(tensor.element_size())
            for tensors in found.values()
            for tensor in tensors
        )
        return found

    def synchronize(self) -> None:
        """Wait for the device; nothing to wait for on the CPU."""
        cuda = devices.cuda_device(self.device)
        if cuda is not None:
            cuda.synchronize()


def _can_be_written(tensor: Any) -> bool:
    """Not where several elements lie at one place, as in an expanded tensor."""
    if tensor.layout is not torch.strided:
        return True
    return all(step != 0 or size < 2 for size, step in zip(tensor.size(), tensor.stride()))


def same_numbers(one: Any, other: Any) -> bool:
    """Whether two tensors hold the same numbers; NaN is the same as NaN."""
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


def _keep(tensors: List[Any]) -> List[Any]:
    return [tensor.detach().clone() for tensor in tensors]

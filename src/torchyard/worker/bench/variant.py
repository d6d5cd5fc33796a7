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
from torchyard.worker.bench.accuracy import plain_values
from torchyard.worker.bench.backend_names import GIVEN, is_user_function
from torchyard.worker.bench.backends import Job
from torchyard.worker.bench.model import Model, copies_of, write_tensors
from torchyard.worker.bench.process_state import SHARED_FUNCTIONS, ProcessState, RandomState
from torchyard.worker.device_turn import TURN, compilations_apart
from torchyard.worker.devices import device_of
from torchyard.worker.workload import CannotBuild, flatten


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
        self.other_weights = ""
        """How its parameters differ from the baseline's: other results say nothing about its code."""
        self.wrong_weights = ""
        """Why its quantised weights are wrong."""
        self.unquantised: Optional[Model] = None
        """The model before its weights were quantised."""
        self._depth = 0
        with self._guarded():
            self._way = (
                backends.resolve(backend)
                if given is None or backend != GIVEN
                else backends.Backend(lambda _: given, ahead=False)
            )
            self._function = None if self._way.ahead else self._make()
        self.first_call_s: Optional[float] = None
        self.first_call_began_s = 0.0
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
        """How gradients or parameters of the ranks differed in checked calls; empty if they did not."""
        return ""

    @property
    def is_eager_model(self) -> bool:
        """Whether it runs the model itself, uncompiled."""
        return self.backend == "eager" and self.own_module is None

    @property
    def runs_user_code(self) -> bool:
        """Whether it runs a callable of the user other than the model."""
        changed = any(options.changes_module(name, value) for name, value in self.options.items())
        return (self.own_module is not None and not changed) or is_user_function(self.backend)

    @property
    def weights(self) -> str:
        """The kind of quantised weights; empty if they are not quantised."""
        return str(self.options.get(options.WEIGHTS) or "")

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
            stack.enter_context(torch_settings.applied(self.options, self.backend))
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
        loss_of, optimizer = self.model.built.loss, self._optimizer()
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

    def _optimizer(self) -> Any:
        """Return the optimizer of an iteration; None without an optimizer step."""
        return self.model.optimizer

    def _step_of_all_ranks(self) -> Callable[..., Any]:
        """Return a step that averages the gradients over the batches of all ranks, one after the other.

        Every rank starts with the same buffers, and those of rank 0 are kept, as in
        DistributedDataParallel.
        """
        model, function = self.model, self.function

        def step(kept: Optional[List[Any]] = None) -> None:
            kept = [] if kept is None else kept
            buffers = list(model.module.buffers())
            before = copies_of(buffers)
            kept.append(function(*model.args, **model.kwargs))
            kept.append(model.built.loss(kept[0]))  # type: ignore[misc]
            kept[1].backward()
            after = copies_of(buffers)
            for other in model.others:
                write_tensors(buffers, before)
                output = function(*other.args, **other.kwargs)
                other.loss(output).backward()  # type: ignore[misc]
            write_tensors(buffers, after)
            for parameter in model.parameters:
                if parameter.grad is not None:
                    parameter.grad = parameter.grad / (1 + len(model.others))
            if model.optimizer is not None:
                model.optimizer.step()

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

    def first_call(
        self, seed: Optional[int] = None, groups: Iterable[str] = ()
    ) -> Optional[Dict[str, List[Any]]]:
        """Run the first iteration, including compilation, and record its duration.

        With a seed, return its results as `results` does: code that initialises itself may be wrong in its first
        call only. None if this was not the first call.
        """
        if self.first_call_s is not None:
            return None
        compiled = self.backend != "eager"
        kernel = str(self.options.get(options.ATTENTION) or "")
        args, kwargs = self.model.args, self.model.kwargs
        if kernel:
            with self.context():
                torch_settings.require_kernel(kernel, self._module(), args, kwargs, self.device)
            self.model.rewind()
        if compiled:
            dynamo_graphs.clear_counters()
        # Other compilers may use the device at any time.
        known = self.backend in (
            "aot_eager",
            "inductor",
            "inductor:default",
            "inductor:reduce-overhead",
        )
        kept: List[Any] = []
        if seed is not None:
            self.model.rewind()
            self.model.forget_optimizer_state()
        counts = self.model.write_counts()
        self.first_call_began_s = time.perf_counter()
        with self.context(), compilations_apart(TURN, known=known):
            call = self.caller()
            if seed is not None:
                self._set_seed(seed)
            if seed is None or not self.model.training:
                kept.append(call())
            else:
                call(kept)
        self.synchronize()
        self.first_call_s = time.perf_counter() - self.first_call_began_s
        self._frames_at_first = self._frames
        if compiled:
            self.graph_counters = dynamo_graphs.read_counters()
            self.cached_graphs = dynamo_graphs.cached_graphs()
        if kernel and compiled:
            with self.context():
                torch_settings.require_no_other(kernel, self.function, args, kwargs)
        results = None if seed is None else self.collect(kept, self._changed_names(counts), groups)
        self.forget_gradients()
        return results

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
        return self.peer_on(self.model)

    def peer_on(self, model: Model) -> "VariantRunner":
        """Return the eager variant of another model, in the same precision and with the same options."""
        kept = {
            name: value
            for name, value in self.options.items()
            if not options.changes_module(name, value)
            and not options.why_not(name, "eager", self.model.training)
        }
        return VariantRunner(self.name, "eager", self.precision, model, self.device, kept)

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
            self._set_seed(seed)
            generators = RandomState()
            kept: List[Any] = []
            counts = model.write_counts()
            if model.training:
                call(kept)
            else:
                kept.append(call())
            self.synchronize()
            self.moved_random_state = generators.restore() or self.moved_random_state
            self.changed = self._changed_names(counts)
            results = self.collect(kept, self.changed, groups)
        model.rewind()
        model.forget_optimizer_state()
        return results, model.training

    def _set_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def _changed_names(self, counts: Dict[str, int]) -> List[str]:
        """Return the tensors that were written since `counts` were taken."""
        changed = self.model.changed_names()
        if self.backend == "eager":
            now = self.model.write_counts()
            written = [name for name in now if now[name] != counts.get(name, now[name])]
            changed += [name for name in written if name not in changed]
        return changed

    def collect(
        self, kept: List[Any], changed: List[str], groups: Iterable[str] = ()
    ) -> Dict[str, List[Any]]:
        """Copy the outputs of an iteration, the tensors that it wrote (`changed`) and those of the groups."""
        model = self.model
        results = {"output": flatten(kept[0], by_key=True)}
        values = plain_values.values_of(kept[0])
        if values:
            results[plain_values.GROUP] = values
        if model.training:
            results["loss"] = [kept[1]]
            results["gradient"] = self._gradients()
        kinds = {*groups, *(name.partition(" ")[0] for name in changed)}
        if model.training or "buffer" in kinds:
            results["buffer"] = self._buffers()
        if "input" in kinds:
            results["input"] = model.inputs()
        if model.optimizer is not None or model.built.mutates:
            results["parameter"] = self._parameters()
        copies = {group: copies_of(tensors) for group, tensors in results.items()}
        self.result_bytes = sum(
            int(tensor.numel()) * int(tensor.element_size())
            for tensors in copies.values()
            for tensor in tensors
        )
        return copies

    def _gradients(self) -> List[Any]:
        return self.model.gradients()

    def _buffers(self) -> List[Any]:
        return list(self.model.module.buffers())

    def _parameters(self) -> List[Any]:
        """Return the parameters after the optimizer step."""
        return list(self.model.module.parameters())

    def synchronize(self) -> None:
        """Wait for the device; a no-op on the CPU."""
        self.hardware.synchronize()

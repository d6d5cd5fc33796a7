"""Measure callables of this process, without a worker process: for `torchyard.compare` and `measure`.

`ThisProcessService` answers the requests of a launch as a worker does, for objects instead of names. It
works on copies of the inputs, never writes weights, and restores what measuring changes: training mode,
gradients, random number generators and the garbage collector.
"""

import contextlib
import copy
import gc
import io
import os
import sys
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
from torch import nn

from torchyard.worker import devices
from torchyard.worker.bench import dynamo_graphs
from torchyard.worker.bench.backend_names import uses_dynamo
from torchyard.worker.bench.metrics import count_flops
from torchyard.worker.bench.model import Model
from torchyard.worker.bench.process_state import SHARED_FUNCTIONS, RandomState
from torchyard.worker.bench.service import WorkerService
from torchyard.worker.bench.variant import VariantRunner
from torchyard.worker.suites.user_file import FunctionModule
from torchyard.worker.workload import BuiltWorkload, as_arguments, flatten, is_opaque

SHORT_TYPES = {torch.float16: "float16", torch.bfloat16: "bfloat16"}


def is_module(value: Any) -> bool:
    """Whether the object is an `nn.Module`, compiled or not."""
    return isinstance(value, nn.Module)


def uncompiled(value: Any) -> Any:
    """Return the module or function that `torch.compile` wrapped; other objects unchanged."""
    if isinstance(value, nn.Module):
        return getattr(value, "_orig_mod", value)
    return getattr(value, "_torchdynamo_orig_callable", value)


def arguments_of(inputs: Any) -> Optional[Tuple[Tuple[Any, ...], Dict[str, Any]]]:
    """Return copies of the inputs as positional and keyword arguments; None for other types."""
    copies: Dict[int, Any] = {}

    def copied(tensor: Any) -> Any:
        if id(tensor) not in copies:
            copies[id(tensor)] = _copied_tensor(tensor)
        return copies[id(tensor)]

    return as_arguments(_copied_objects(inputs), copied)


def _copied_objects(value: Any) -> Any:
    """Copy objects with tensors in their attributes; containers and their tensors are copied later."""
    if isinstance(value, torch.Tensor) or hasattr(value, "keys"):
        return value
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_copied_objects(item) for item in value)
    if is_opaque(value) or not flatten(value):
        return value
    return copy.deepcopy(value)


def _copied_tensor(tensor: Any) -> Any:
    """Copy a tensor with its strides; one whose elements share memory cannot be written, and is shared."""
    if (
        tensor.layout is not torch.strided
        or type(tensor) is not torch.Tensor
        or tensor.is_quantized
    ):
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)
    if any(step == 0 and size > 1 for size, step in zip(tensor.size(), tensor.stride())):
        return tensor
    result = torch.empty_strided(
        tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    with torch.no_grad():
        result.copy_(tensor)
    return result.requires_grad_(tensor.requires_grad)


def tensors_of(objects: List[Any]) -> List[Any]:
    """Return the tensors among inputs and in modules."""
    tensors: List[Any] = []
    for value in objects:
        if isinstance(value, nn.Module):
            tensors += [*value.parameters(), *value.buffers()]
        else:
            tensors += flatten(value)
    return tensors


def device_of(objects: List[Any], function: Callable[..., Any], inputs: Any) -> str:
    """Return the device to synchronize with: of an accelerator's tensor or result, else of the first tensor."""
    places = [tensor.device for tensor in tensors_of(objects)]
    accelerated = any(place.type != "cpu" for place in places)
    if devices.has_accelerator() and not accelerated and not is_module(function):
        args, kwargs = arguments_of(inputs) or ((), {})
        generators = RandomState()
        with torch.no_grad():
            results = flatten(function(*args, **kwargs))
        generators.restore()
        places = [tensor.device for tensor in results]
        current = None if results else devices.current_accelerator()
        places = places if current is None else [current]
    return str(next((place for place in places if place.type != "cpu"), "cpu"))


def precision_of(objects: List[Any]) -> str:
    """Return float16 or bfloat16 if all floating-point tensors have this type, else float32."""
    types = {tensor.dtype for tensor in tensors_of(objects) if tensor.is_floating_point()}
    return SHORT_TYPES.get(types.pop(), "float32") if len(types) == 1 else "float32"


def pickled(value: Any) -> bytes:
    """Return the object as written by `torch.save`; raises what pickling raises."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


class ThisProcessService(WorkerService):
    """The handlers of the verbs of a launch, for callables of this process."""

    def __init__(
        self, model: Any, inputs: Any, given: Dict[str, Callable[..., Any]], time_s: float
    ) -> None:
        """`model` is the object that named backends apply to; `given` are callables by variant name.

        `inputs` are arguments as returned by `arguments_of`. The warm-up of a variant takes at most
        `time_s`, but may take a second.
        """
        super().__init__()
        self._warm_limit_s = max(1.0, time_s)
        self._model_object = model
        self._given = given
        args, kwargs = inputs
        module = model if isinstance(model, nn.Module) else FunctionModule(model)
        self._built = BuiltWorkload(module, args, kwargs)

    def hello(self) -> Dict[str, Any]:
        """Return what a worker process reports at its start."""
        return {
            "pid": os.getpid(),
            "executable": sys.executable,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
        }

    def build(
        self,
        workload: Dict[str, Any],
        variants: List[Dict[str, Any]],
        seed: int,
        state: Optional[str] = None,
        compiled_before: bool = False,
    ) -> Dict[str, Any]:
        """Create the variants; the workload is the one of this service, whatever its name."""
        del state, compiled_before
        hardware = devices.device_of(workload["device"])
        hardware.check()
        SHARED_FUNCTIONS.read_again()
        self._seed = seed
        self._workload = workload
        model = Model(self._built, training=False, step=False)
        for module in self._modules():
            module.train(False)
        self._models["given"] = model
        for variant in variants:
            runner = VariantRunner(
                variant["name"],
                variant["backend"],
                variant["precision"],
                model,
                workload["device"],
                given=self._given.get(variant["name"]),
            )
            runner.own_weights = True
            self._runners[variant["name"]] = runner
        compiled = sum(uses_dynamo(runner.backend) for runner in self._runners.values())
        dynamo_graphs.raise_cache_limits(compiled)
        compared = self._runners.values() if len(variants) > 1 else ()
        self._checks.begin([model], seed, compared)
        return {"loss": "", "batch_size": None, "notes": hardware.notes}

    def warm(self, variant: str, seconds: float) -> Dict[str, Any]:
        """Run until the time is stable."""
        return super().warm(variant, min(seconds, self._warm_limit_s))

    def measure(self, variant: str) -> Dict[str, Any]:
        """Count operations and graphs; measuring memory would need a profiler in the user's process."""
        runner = self.runner(variant)
        runner.first_call()
        if "" not in self._flops:
            self._flops[""] = count_flops(runner.peer())
        flops, why_not = self._flops[""]
        return dict(
            runner.graph_counters,
            flops=flops,
            flops_why_not=why_not,
            recompiles=runner.recompiles,
            recompile_reasons=[[reason, 1] for reason in runner.recompile_reasons],
            unavailable=[["peak_memory_bytes", "not measured in this process"]],
        )

    def rewind(self) -> None:
        """Restore inputs and buffers that calls have written."""
        for model in self._models.values():
            model.rewind()

    def _modules(self) -> List[Any]:
        objects = [self._model_object, *self._given.values()]
        return [value for value in objects if isinstance(value, nn.Module)]

    @contextlib.contextmanager
    def preserving(self) -> Iterator[None]:
        """Restore training mode, gradients, random numbers and the garbage collector at the end."""
        parts = [part for module in self._modules() for part in module.modules()]
        training = [(part, part.training) for part in parts]
        gradients = [(p, p.grad) for module in self._modules() for p in module.parameters()]
        random_state, collecting = RandomState(), gc.isenabled()
        try:
            yield
        finally:
            random_state.restore()
            for part, flag in training:
                part.training = flag
            for parameter, gradient in gradients:
                parameter.grad = gradient
            if collecting:
                gc.enable()
            else:
                gc.disable()

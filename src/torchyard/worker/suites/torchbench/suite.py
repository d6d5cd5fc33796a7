"""Build a TorchBench model, with its own loss and optimizer where available."""

import inspect
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import nn

from torchyard.worker.suites.choices import is_whole, unknown_parameter
from torchyard.worker.suites.torchbench.checkout import find_checkout
from torchyard.worker.suites.torchbench.model import ModelRequest, load
from torchyard.worker.suites.training import widened
from torchyard.worker.suites.user_file import FunctionModule
from torchyard.worker.workload import BuiltWorkload, CannotBuild, as_arguments, flatten

_LOSS_NAMES = ("loss_fn", "criterion", "loss")
_TARGET_NAMES = ("example_outputs", "targets", "target", "labels")
_TARGET_FACTORY = "_gen_target"
_OPTIMIZER_NAMES = ("optimizer", "opt", "optim")


class Loss(NamedTuple):
    """A function from the output to a scalar, and its name."""

    function: Callable[[Any], Any]
    name: str


def loss_of(instance: Any, module: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Loss:
    """Return the loss in the output, else that on the instance's own target, else the mean."""
    with torch.enable_grad():
        output = module(*args, **kwargs)
        if _is_loss(_in_output, output):
            return Loss(_in_output, "the model's own")
        targets = _targets(instance)
        for own in _losses(instance):
            for target in targets:
                value = _against(own, target)
                if _is_loss(value, output):
                    return Loss(
                        value, f"the model's own ({getattr(own, '__name__', type(own).__name__)})"
                    )
    return Loss(mean_of_outputs, "mean of the outputs")


def mean_of_outputs(output: Any) -> Any:
    """Return the mean of the means of the floating-point outputs."""
    means = [widened(each).mean() for each in flatten(output) if each.is_floating_point()]
    with_gradients = [each for each in means if each.requires_grad] or means
    if not with_gradients:
        raise ValueError("the output has no floating-point tensor")
    return torch.stack(with_gradients).mean()


def optimizer_of(instance: Any, module: Any) -> Optional[Callable[[Sequence[Any]], Any]]:
    """Return a function that creates an optimizer like the model's own from parameters in the same order, or None."""
    own = _own_optimizer(instance)
    if own is None:
        return None
    trained = [each for each in module.parameters() if each.requires_grad]
    index_of = {id(each): index for index, each in enumerate(trained)}
    groups: List[Tuple[List[int], Dict[str, Any]]] = []
    accepted = set(inspect.signature(type(own).__init__).parameters)
    for group in own.param_groups:
        indices = [index_of[id(each)] for each in group["params"] if id(each) in index_of]
        settings = {key: group[key] for key in group if key in accepted and key != "params"}
        if indices:
            groups.append((indices, settings))
    if not groups:
        return None
    kind = type(own)
    defaults = {key: value for key, value in own.defaults.items() if key in accepted}

    def optimizer(parameters: Sequence[Any]) -> Any:
        return kind(
            [
                dict(settings, params=[parameters[index] for index in indices])
                for indices, settings in groups
            ],
            **defaults,
        )

    return optimizer


def _own_optimizer(instance: Any) -> Any:
    for holder in _holders(instance):
        for name in _OPTIMIZER_NAMES:
            value = getattr(holder, name, None)
            if isinstance(value, torch.optim.Optimizer):
                return value
    return None


def _losses(instance: Any) -> Iterator[Any]:
    for holder in _holders(instance):
        for name in _LOSS_NAMES:
            value = getattr(holder, name, None)
            if callable(value) and not isinstance(value, type):
                yield value


def _targets(instance: Any) -> List[Any]:
    """Return target tensors that the instance stores, or generates for a batch (timm models)."""
    value = [getattr(instance, name, None) for name in _TARGET_NAMES]
    makes = getattr(instance, _TARGET_FACTORY, None)
    if callable(makes):
        try:
            value.append(makes(instance.batch_size))
        except Exception:  # it may need other arguments; the mean is the fallback
            pass
    return [each for each in value if isinstance(each, torch.Tensor)]


def _holders(instance: Any) -> List[Any]:
    """Return the objects that may hold loss and optimizer: instance, configuration, trainer."""
    trainer = getattr(instance, "model", None)
    others = [getattr(instance, "cfg", None), None if isinstance(trainer, nn.Module) else trainer]
    return [instance] + [each for each in others if each is not None]


def _in_output(output: Any) -> Any:
    """Return the loss in the output, as transformers models compute it from labels."""
    if isinstance(output, dict):
        return output.get("loss")
    return getattr(output, "loss", None)


def _against(own: Any, target: Any) -> Callable[[Any], Any]:
    """Return the model's loss of its (first) output against the target, in float32 or wider."""

    def loss(output: Any) -> Any:
        first = widened(flatten(output)[0])
        return own(first, target.to(first.dtype) if target.is_floating_point() else target)

    return loss


def _is_loss(function: Callable[[Any], Any], output: Any) -> bool:
    try:
        value = function(output)
    except Exception:  # another target may fit; the mean is the fallback
        return False
    return isinstance(value, torch.Tensor) and value.numel() == 1 and value.requires_grad


PATH = "path"


def names() -> List[str]:
    """Return the models of the checkout given by the variable or importable in the target."""
    return [model.name for model in find_checkout().models()]


def build(
    name: str, mode: str, batch_size: Optional[int], parameters: Dict[str, Any], device: Any
) -> BuiltWorkload:
    """Load one model; `path` is the checkout."""
    for key in parameters:
        if key != PATH:
            raise unknown_parameter("torchbench/" + name, key, [PATH])
    path = parameters.get(PATH)
    tree = find_checkout(None if path is None else str(path))
    request = ModelRequest(tree, name, mode, batch_size, device)
    instance, value, inputs = load(request)
    module = _module(request, value)
    args, kwargs = _inputs(request, inputs)
    batch_size_used = getattr(instance, "batch_size", None)
    batch = batch_size_used if is_whole(batch_size_used) else batch_size
    if mode == "inference":
        return BuiltWorkload(module, args, kwargs, batch_size=batch)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise CannotBuild(
            f"{request.label}: the module of get_module() has no trainable parameter",
            hint="use mode inference",
        )
    module.train()
    loss = loss_of(instance, module, args, kwargs)
    return BuiltWorkload(
        module,
        args,
        kwargs,
        loss=loss.function,
        loss_name=loss.name,
        optimizer=optimizer_of(instance, module),
        batch_size=batch,
    )


def _module(request: ModelRequest, value: Any) -> Any:
    """Return the module in float32: some models are created in half precision on a GPU."""
    if isinstance(value, nn.Module):
        return value.float().to(request.device)
    if callable(value):
        return FunctionModule(value)
    raise CannotBuild(
        f"{request.label}: get_module() returns a {type(value).__name__}, not a module",
        hint="remove this model from the selection",
    )


def _inputs(request: ModelRequest, inputs: Any) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    def change(tensor: Any) -> Any:
        wide = torch.float32 if tensor.is_floating_point() else tensor.dtype
        changed = tensor.detach().to(request.device, wide)
        return changed.requires_grad_(tensor.requires_grad)

    arguments = as_arguments(inputs, change)
    if arguments is not None:
        return arguments
    raise CannotBuild(
        f"{request.label}: the inputs of get_module() are a {type(inputs).__name__}",
        hint="remove this model from the selection",
    )

"""Build a TorchBench model for measuring, with its own loss and optimiser where it has them."""

import inspect
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import nn

from torchyard.worker.suites.choices import is_whole, unknown_parameter
from torchyard.worker.suites.torchbench.checkout import find_tree
from torchyard.worker.suites.torchbench.model import Asked, load
from torchyard.worker.suites.training import widened
from torchyard.worker.suites.user_file import FunctionModule
from torchyard.worker.workload import Built, CannotBuild, flatten, map_tensors

_LOSS_NAMES = ("loss_fn", "criterion", "loss")
_TARGET_NAMES = ("example_outputs", "targets", "target", "labels")
_MAKES_TARGET = "_gen_target"
_OPTIMIZER_NAMES = ("optimizer", "opt", "optim")


class Loss(NamedTuple):
    """From the output to a scalar, and what to call it."""

    function: Callable[[Any], Any]
    said: str


def loss_of(instance: Any, module: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Loss:
    """The loss in the output, else the instance's loss on its own target, else the mean of all.

    Each is tried on one real output and taken when it gives a scalar that gradients flow from.
    """
    with torch.enable_grad():
        output = module(*args, **kwargs)
        if _is_loss(_in_output, output):
            return Loss(_in_output, "the model's own")
        targets = _targets(instance)
        for own in _losses(instance):
            for target in targets:
                found = _against(own, target)
                if _is_loss(found, output):
                    return Loss(found, f"the model's own ({_called(own)})")
    return Loss(mean_of_outputs, "mean of the outputs")


def mean_of_outputs(output: Any) -> Any:
    """The mean over the floating-point outputs of their means."""
    means = [widened(each).mean() for each in flatten(output) if each.is_floating_point()]
    with_gradients = [each for each in means if each.requires_grad] or means
    if not with_gradients:
        raise ValueError("the output holds no floating-point tensor")
    return torch.stack(with_gradients).mean()


def optimizer_of(instance: Any, module: Any) -> Optional[Callable[[Sequence[Any]], Any]]:
    """What makes an optimiser like the model's own for parameters of the same order, or None."""
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
            found = getattr(holder, name, None)
            if isinstance(found, torch.optim.Optimizer):
                return found
    return None


def _losses(instance: Any) -> Iterator[Any]:
    for holder in _holders(instance):
        for name in _LOSS_NAMES:
            found = getattr(holder, name, None)
            if callable(found) and not isinstance(found, type):
                yield found


def _targets(instance: Any) -> List[Any]:
    """Tensors that the instance keeps for comparison, or makes for a batch as those of timm do."""
    found = [getattr(instance, name, None) for name in _TARGET_NAMES]
    makes = getattr(instance, _MAKES_TARGET, None)
    if callable(makes):
        try:
            found.append(makes(instance.batch_size))
        except Exception:  # it may want other arguments, and there is always the mean
            pass
    return [each for each in found if isinstance(each, torch.Tensor)]


def _holders(instance: Any) -> List[Any]:
    """Where models keep such things: the instance, its configuration, or a trainer of its own."""
    trainer = getattr(instance, "model", None)
    others = [getattr(instance, "cfg", None), None if isinstance(trainer, nn.Module) else trainer]
    return [instance] + [each for each in others if each is not None]


def _in_output(output: Any) -> Any:
    """What a model of transformers computes from labels among its inputs."""
    if isinstance(output, dict):
        return output.get("loss")
    return getattr(output, "loss", None)


def _against(own: Any, target: Any) -> Callable[[Any], Any]:
    """The model's loss of its output and its target, in float32 or wider.

    The first tensor of several is the prediction, as in TorchBench's own models of images.
    """

    def loss(output: Any) -> Any:
        first = widened(flatten(output)[0])
        return own(first, target.to(first.dtype) if target.is_floating_point() else target)

    return loss


def _is_loss(function: Callable[[Any], Any], output: Any) -> bool:
    try:
        found = function(output)
    except Exception:  # another target may fit, and there is always the mean
        return False
    return isinstance(found, torch.Tensor) and found.numel() == 1 and found.requires_grad


def _called(own: Any) -> str:
    return getattr(own, "__name__", "") or type(own).__name__


PATH = "path"


def names() -> List[str]:
    """The models of the tree that the variable names, or that the target can import."""
    return [model.name for model in find_tree().models()]


def build(
    name: str, mode: str, batch_size: Optional[int], parameters: Dict[str, Any], device: Any
) -> Built:
    """Load one model; `path` is where the tree is."""
    for key in parameters:
        if key != PATH:
            raise unknown_parameter("torchbench/" + name, key, [PATH])
    path = parameters.get(PATH)
    tree = find_tree(None if path is None else str(path))
    asked = Asked(tree, name, mode, batch_size, device)
    instance, found, inputs = load(asked)
    module = _module(asked, found)
    args, kwargs = _inputs(asked, inputs)
    taken = getattr(instance, "batch_size", None)
    batch = taken if is_whole(taken) else batch_size
    if mode == "inference":
        return Built(module, args, kwargs, batch_size=batch)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise CannotBuild(
            f"{asked.label}: what get_module() gives has no parameter to train",
            hint="use the mode inference",
        )
    module.train()
    loss = loss_of(instance, module, args, kwargs)
    return Built(
        module,
        args,
        kwargs,
        loss=loss.function,
        loss_said=loss.said,
        optimizer=optimizer_of(instance, module),
        batch_size=batch,
    )


def _module(asked: Asked, found: Any) -> Any:
    """In float32: some models are made in half precision on a GPU."""
    if isinstance(found, nn.Module):
        return found.float().to(asked.device)
    if callable(found):
        return FunctionModule(found)
    raise CannotBuild(
        f"{asked.label}: get_module() gives a {type(found).__name__} and not a module",
        hint="leave this model out",
    )


def _inputs(asked: Asked, inputs: Any) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    def change(tensor: Any) -> Any:
        wide = torch.float32 if tensor.is_floating_point() else tensor.dtype
        changed = tensor.detach().to(asked.device, wide)
        return changed.requires_grad_(tensor.requires_grad)

    if isinstance(inputs, torch.Tensor):
        return (change(inputs),), {}
    if isinstance(inputs, (tuple, list)):
        return tuple(map_tensors(tuple(inputs), change)), {}
    if hasattr(inputs, "keys") and all(isinstance(key, str) for key in inputs.keys()):  # noqa: SIM118
        return (), {key: map_tensors(inputs[key], change) for key in inputs.keys()}  # noqa: SIM118
    raise CannotBuild(
        f"{asked.label}: the inputs of get_module() are a {type(inputs).__name__}",
        hint="leave this model out",
    )

"""The suite `torchbench`: the models of a checkout of pytorch/benchmark, through its own interface.

Nothing of it is shipped or fetched: the parameter `path`, the variable `TORCHYARD_TORCHBENCH` or the
target's own packages say where it is. Weights, inputs and their seed are the model's business.
"""

from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import nn

from torchyard.worker.built import Built, CannotBuild, map_tensors
from torchyard.worker.suites.choices import is_whole, unknown_parameter
from torchyard.worker.suites.torchbench_model import Asked, load
from torchyard.worker.suites.torchbench_training import loss_of, optimizer_of
from torchyard.worker.suites.torchbench_tree import find_tree
from torchyard.worker.suites.user_file import FunctionModule

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

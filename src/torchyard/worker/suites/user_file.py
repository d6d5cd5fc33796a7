"""The suite `file`: a workload from a Python file of the user's own.

The name is `path.py` or `path.py:name`. The file needs no import of Torchyard. It holds one of

    def make(...)      -> (module or function, inputs) or (module, inputs, loss)
    class WithParts:   module(), inputs(), and for training loss(output), optimizer(parameters)
    class Net(nn.Module) with example_inputs(), and for training loss(output), ...

Functions and classes are called with those of `batch_size`, `device`, `mode` and the workload's
parameters that their signatures name. This module knows these forms; `user_code` loads and calls.
"""

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import nn

from torchyard.worker.built import Built, CannotBuild, map_tensors
from torchyard.worker.suites import losses
from torchyard.worker.suites.choices import nearest
from torchyard.worker.suites.user_code import UserCode, call, load_file, split_name

FUNCTION = "make"


def names() -> List[str]:
    """None: only the user knows their files."""
    return []


def build(
    name: str, mode: str, batch_size: Optional[int], parameters: Dict[str, Any], device: Any
) -> Built:
    """Make the workload that the file describes, on the device."""
    path, wanted = split_name(name)
    code = load_file(path)
    offered: Dict[str, Any] = {"device": device, "mode": mode}
    if batch_size is not None:
        offered["batch_size"] = batch_size
    found = _find(code, wanted)
    parts = _parts(found, call(found, offered, parameters))
    module = _module(found, parts["module"]).to(device)
    args, kwargs = _inputs(found, parts["inputs"], device)
    loss = parts.get("loss")
    if mode == "training":
        _check_training(found, module, loss)
    return Built(
        module,
        args,
        kwargs,
        loss=loss,
        loss_said="the file's own" if loss else "",
        optimizer=parts.get("optimizer") or losses.sgd(1e-3),
        flops=parts.get("flops"),
    )


class FunctionModule(nn.Module):
    """A plain function in the form that everything else expects."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns."""
        return self.function(*args, **kwargs)


def _find(code: Any, wanted: str) -> UserCode:
    """The function or class of that name; without a name `make`, or the only class that fits."""
    space = vars(code)
    classes = [
        key
        for key, value in space.items()
        if isinstance(value, type) and value.__module__ == code.__name__ and _fits(value)
    ]
    if wanted:
        if not callable(space.get(wanted)):
            public = [key for key in space if callable(space[key]) and not key.startswith("_")]
            raise CannotBuild(
                f"{code.__file__} has no function or class {wanted!r}{nearest(wanted, public)}",
                hint="after the colon goes the name of a function or class of the file",
            )
        return UserCode(code.__file__, wanted, space[wanted])
    if callable(space.get(FUNCTION)):
        return UserCode(code.__file__, FUNCTION, space[FUNCTION])
    if len(classes) == 1:
        return UserCode(code.__file__, classes[0], space[classes[0]])
    if classes:
        listing = ", ".join(classes)
        raise CannotBuild(
            f"{code.__file__} has several workloads: {listing}",
            hint=f"name one of them, as in {code.__file__}:{classes[0]}",
        )
    raise CannotBuild(
        f"{code.__file__} has no function {FUNCTION}() and no class that is a workload",
        hint="write `def make(): return module, inputs`, or a class with module() and inputs(), "
        "or an nn.Module with example_inputs(); another name goes after a colon",
    )


def _fits(kind: Any) -> bool:
    if issubclass(kind, nn.Module):
        return callable(getattr(kind, "example_inputs", None))
    return all(callable(getattr(kind, part, None)) for part in ("module", "inputs"))


def _parts(found: UserCode, made: Any) -> Dict[str, Any]:
    """Module, inputs, and what there is for training, from any of the three forms."""
    if isinstance(made, (tuple, list)) and len(made) in (2, 3):
        return dict(zip(("module", "inputs", "loss"), made))
    if isinstance(made, nn.Module) and callable(getattr(made, "example_inputs", None)):
        parts = {"module": made, "inputs": found.guard(made.example_inputs)}
    elif _fits(type(made)):
        parts = {"module": found.guard(made.module), "inputs": found.guard(made.inputs)}
    else:
        raise CannotBuild(
            f"{found} gave {_kind(made)}, not a pair of a module and its inputs",
            hint="return (module, inputs) or (module, inputs, loss), or an object with module() "
            "and inputs(), or an nn.Module with example_inputs()",
        )
    for key in ("loss", "optimizer"):
        if callable(getattr(made, key, None)):
            parts[key] = getattr(made, key)
    flops = getattr(made, "flops", None)
    if isinstance(flops, (int, float)):
        parts["flops"] = float(flops)
    return parts


def _module(found: UserCode, module: Any) -> Any:
    if isinstance(module, nn.Module):
        return module
    if callable(module):
        return FunctionModule(module)
    raise CannotBuild(
        f"the module of {found} is {_kind(module)}",
        hint="give an nn.Module or a function",
    )


def _inputs(found: UserCode, inputs: Any, device: Any) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    """Positional and named inputs on the device; gradients that were asked for stay asked for."""

    def move(tensor: Any) -> Any:
        moved = tensor.detach().to(device)
        return moved.requires_grad_(tensor.requires_grad)

    if isinstance(inputs, torch.Tensor):
        return (move(inputs),), {}
    if isinstance(inputs, (tuple, list)):
        return tuple(map_tensors(tuple(inputs), move)), {}
    if isinstance(inputs, dict) and all(isinstance(key, str) for key in inputs):
        return (), {key: map_tensors(value, move) for key, value in inputs.items()}
    raise CannotBuild(
        f"the inputs of {found} are {_kind(inputs)}",
        hint="give a tensor, a tuple of positional inputs, or a dict of named inputs",
    )


def _check_training(found: UserCode, module: Any, loss: Any) -> None:
    if not callable(loss):
        raise CannotBuild(
            f"{found} gives no loss, so it cannot be trained",
            hint="add loss(output), or return (module, inputs, loss), or use the mode inference",
        )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise CannotBuild(
            f"the module of {found} has no parameter to train",
            hint="hold the weights as nn.Parameter in an nn.Module, or use the mode inference",
        )


def _kind(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else "of type " + type(value).__name__

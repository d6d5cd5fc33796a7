"""The suite `file`: a workload from a Python file of the user, loaded with errors that name the place."""

import importlib.util
import inspect
import os
import sys
import traceback
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import nn

from torchyard.worker.suites import training as losses
from torchyard.worker.suites.choices import nearest, unknown_parameter
from torchyard.worker.workload import Built, CannotBuild, map_tensors


class UserCode:
    """A function or class of a user's file."""

    def __init__(self, path: str, name: str, value: Any) -> None:
        self.path = path
        self.name = name
        self.value = value

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"

    def guard(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the user's code; what it raises becomes a CannotBuild with file and line."""
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if isinstance(error, CannotBuild) or _out_of_memory(error):
                raise
            raise CannotBuild(
                f"{self} raised {_said(error)}{_line(error, self.path)}",
                hint="run the file on its own to see the whole story",
            ) from error


def split_name(name: str) -> Tuple[str, str]:
    """`path.py:name` into path and name; the name may be left out, and paths may hold colons."""
    path, colon, wanted = name.rpartition(":")
    if not colon or name.endswith(".py") or not path.endswith(".py"):
        path, wanted = name, ""
    if not path.endswith(".py"):
        raise CannotBuild(
            f"{name!r} is not a Python file",
            hint="give path.py or path.py:name_of_function_or_class",
        )
    return os.path.abspath(os.path.expanduser(path)), wanted


def load_file(path: str) -> Any:
    """The file as a module. Its folder is put on the path, as `python path.py` would do."""
    if not os.path.isfile(path):
        raise CannotBuild(
            f"there is no file {path}",
            hint="give the path from the folder you started from, or a full one",
        )
    folder = os.path.dirname(path)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = "torchyard_user_file_" + os.path.basename(path)[: -len(".py")]
    # Search locations make the file a package of its folder, so `from . import beside` works too.
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=[folder])
    if spec is None or spec.loader is None:
        raise CannotBuild(f"{path} cannot be loaded as Python", hint="is it a .py file?")
    code = importlib.util.module_from_spec(spec)
    sys.modules[name] = code
    try:
        spec.loader.exec_module(code)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if _out_of_memory(error):
            raise
        raise CannotBuild(
            f"{path} could not be loaded: {_said(error)}{_line(error, path)}",
            hint="run the file on its own to see the whole story",
        ) from error
    return code


def call(found: UserCode, offered: Dict[str, Any], parameters: Dict[str, Any]) -> Any:
    """Call with what the signature names: of `offered` some, of `parameters` all."""
    try:
        signature = inspect.signature(found.value)
    except (TypeError, ValueError) as error:
        raise CannotBuild(
            f"the signature of {found} cannot be read: {error}",
            hint="name a function or class that is written in the file",
        ) from error
    takes, takes_any = _named(signature)
    given = dict(parameters) if takes_any else {}
    for key, value in parameters.items():
        if key not in takes and not takes_any:
            raise unknown_parameter(
                str(found), key, [name for name in takes if name not in offered]
            )
        given[key] = value
    for key, value in offered.items():
        if key in takes:
            given[key] = value
        elif key == "batch_size" and not takes_any:
            raise CannotBuild(
                f"{found} takes no batch_size, so a batch size cannot be chosen",
                hint="add the argument batch_size to it, or leave out the batch size",
            )
        elif key == "batch_size":
            given[key] = value
    missing = [name for name in takes if name not in given and _must_be_given(signature, name)]
    if missing:
        listing = ", ".join(missing)
        raise CannotBuild(
            f"{found} needs {listing}, which nobody gave",
            hint="give a batch size or parameters of these names, or write defaults for them",
        )
    return found.guard(found.value, **given)


def _named(signature: inspect.Signature) -> Tuple[List[str], bool]:
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    takes = [name for name, each in signature.parameters.items() if each.kind in by_name]
    takes_any = any(
        each.kind is inspect.Parameter.VAR_KEYWORD for each in signature.parameters.values()
    )
    return takes, takes_any


def _must_be_given(signature: inspect.Signature, name: str) -> bool:
    return signature.parameters[name].default is inspect.Parameter.empty


def _out_of_memory(error: BaseException) -> bool:
    """The worker reports these as what they are: the machine's limit, not the file's mistake."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def _said(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()[-1]


def _line(error: BaseException, path: str) -> str:
    """Where in the user's file it happened, as far as that is known."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return f" (line {error.lineno})"
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__, limit=None)
        if frame.filename == path
    ]
    return f" (line {lines[-1]})" if lines else ""


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

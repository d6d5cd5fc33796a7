"""The suite `file`: a workload from a user's Python file, with errors that give file and line."""

import importlib.util
import inspect
import os
import sys
import traceback
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from torchyard.worker.suites import training as losses
from torchyard.worker.suites.choices import nearest, unknown_parameter
from torchyard.worker.workload import BuiltWorkload, CannotBuild, as_arguments


class UserCode(NamedTuple):
    """A function or class of a user's file."""

    path: str
    name: str
    value: Any

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"

    def guard(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the user's code; convert exceptions to CannotBuild with file and line."""
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if isinstance(error, CannotBuild) or _out_of_memory(error):
                raise
            raise CannotBuild(
                f"{self} raised {_last_line(error)}{_line(error, self.path)}",
                hint="run the file on its own to see the full traceback",
            ) from error


def split_name(name: str) -> Tuple[str, str]:
    """Split `path.py:name` into path and name; the name is optional, and paths may contain colons."""
    path, colon, attribute = name.rpartition(":")
    if not colon or name.endswith(".py") or not path.endswith(".py"):
        path, attribute = name, ""
    if not path.endswith(".py"):
        raise CannotBuild(
            f"{name!r} is not a Python file",
            hint="give path.py or path.py:name_of_function_or_class",
        )
    return os.path.abspath(os.path.expanduser(path)), attribute


def load_file(path: str) -> Any:
    """Load the file as a module of its own name; its folder is added to the path, as `python path.py` does."""
    if not os.path.isfile(path):
        raise CannotBuild(
            f"the file {path} does not exist",
            hint="give a path relative to the current directory, or an absolute one",
        )
    folder = os.path.dirname(path)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = module_name(path)
    # Search locations make the file a package of its folder, so that relative imports work, too.
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=[folder])
    if spec is None or spec.loader is None:
        raise CannotBuild(f"{path} cannot be imported", hint="give a .py file")
    code = importlib.util.module_from_spec(spec)
    sys.modules[name] = code
    try:
        spec.loader.exec_module(code)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if _out_of_memory(error):
            raise
        raise CannotBuild(
            f"{path} could not be loaded: {_last_line(error)}{_line(error, path)}",
            hint="run the file on its own to see the full traceback",
        ) from error
    return code


def module_name(path: str) -> str:
    """Return the name in `sys.modules` of a user's file."""
    first = name = "torchyard_user_file_" + os.path.basename(path)[: -len(".py")]
    number = 1
    while name in sys.modules and sys.modules[name].__file__ != path:
        number += 1
        name = f"{first}_{number}"
    return name


def call(
    user_code: UserCode,
    offered: Dict[str, Any],
    parameters: Dict[str, Any],
    elsewhere: Iterable[str] = (),
) -> Any:
    """Call it with `parameters`, except those accepted `elsewhere`, and those of `offered` that it has."""
    signature = _signature(user_code)
    takes, takes_any = _named(signature)
    given = dict(parameters) if takes_any else {}
    for key, value in parameters.items():
        if key not in takes and not takes_any:
            if key in elsewhere:
                continue
            raise unknown_parameter(
                str(user_code), key, [name for name in takes if name not in offered]
            )
        given[key] = value
    for key, value in offered.items():
        if key in takes:
            given[key] = value
        elif key == "batch_size" and key in elsewhere:
            continue
        elif key == "batch_size" and not takes_any:
            raise CannotBuild(
                f"{user_code} has no argument batch_size, so the batch size cannot be set",
                hint="add the argument batch_size, or remove the batch size",
            )
        elif key == "batch_size":
            given[key] = value
    missing = [name for name in takes if name not in given and _must_be_given(signature, name)]
    if missing:
        listing = ", ".join(missing)
        raise CannotBuild(
            f"{user_code} requires {listing}",
            hint="give the batch size or parameters of these names, or add defaults; for a function "
            "of the inputs, add a function example_inputs() to the file",
        )
    return user_code.guard(user_code.value, **given)


def _signature(user_code: UserCode) -> inspect.Signature:
    try:
        return inspect.signature(user_code.value)
    except (TypeError, ValueError) as error:
        raise CannotBuild(
            f"the signature of {user_code} cannot be read: {error}",
            hint="give a function or class that is defined in the file",
        ) from error


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
    """Whether the error is out-of-memory, which the worker reports as such."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def _last_line(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()[-1]


def _line(error: BaseException, path: str) -> str:
    """Return the line in the user's file, if known."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return f" (line {error.lineno})"
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__, limit=None)
        if frame.filename == path
    ]
    return f" (line {lines[-1]})" if lines else ""


FUNCTION = "make"
INPUTS = "example_inputs"
"""The function of a file that returns the inputs of modules and functions without own ones."""


def names() -> List[str]:
    """Return nothing: any file can be given."""
    return []


def build(
    name: str, mode: str, batch_size: Optional[int], parameters: Dict[str, Any], device: Any
) -> BuiltWorkload:
    """Build the workload of the file on the device."""
    path, attribute = split_name(name)
    offered: Dict[str, Any] = {"device": device, "mode": mode}
    if batch_size is not None:
        offered["batch_size"] = batch_size
    user_code, parts = parts_of(load_file(path), attribute, offered, parameters)
    module = as_module(user_code, parts["module"]).to(device)
    args, kwargs = arguments_of(user_code, parts["inputs"], device)
    initialise_lazy_modules(user_code, module, args, kwargs)
    loss = parts.get("loss")
    if mode == "training":
        _check_training(user_code, module, loss)
    return BuiltWorkload(
        module,
        args,
        kwargs,
        loss=loss,
        loss_name="the file's own" if loss else "",
        optimizer=parts.get("optimizer") or losses.sgd(1e-3),
        flops=parts.get("flops"),
    )


def parts_of(
    code: Any,
    attribute: str,
    offered: Dict[str, Any],
    parameters: Dict[str, Any],
    others_inputs: bool = False,
) -> Tuple[UserCode, Dict[str, Any]]:
    """Return the function or class of a loaded file, and the parts of its workload.

    With `others_inputs`, those of another file are used where this one has none: `inputs` is then None,
    and parameters that the code does not have are skipped.
    """
    maker = getattr(code, INPUTS, None)
    inputs_code = UserCode(code.__file__, INPUTS, maker) if callable(maker) else None
    has_inputs = others_inputs or inputs_code is not None
    user_code = _find(code, attribute, has_inputs)
    names = [*parameters, "batch_size"]
    skipped = names if others_inputs else []
    if has_inputs and _is_iteration(user_code, [*offered, *names]):
        returned: Any = (user_code.value, None)
        accepted: List[str] = []
    else:
        elsewhere = _accepted(inputs_code, names) if inputs_code else []
        returned = call(user_code, offered, parameters, [*skipped, *elsewhere])
        accepted = _accepted(user_code, names)
    parts = _parts(user_code, returned, has_inputs)
    if parts["inputs"] is None and inputs_code is not None:
        parts["inputs"] = call(inputs_code, offered, parameters, [*skipped, *accepted])
    return user_code, parts


def _accepted(user_code: UserCode, names: List[str]) -> List[str]:
    takes, takes_any = _named(_signature(user_code))
    return [name for name in names if takes_any or name in takes]


def _is_iteration(user_code: UserCode, names: List[str]) -> bool:
    """Whether it is a function of the inputs: it requires arguments that are no parameters."""
    if not inspect.isfunction(user_code.value):
        return False
    signature = _signature(user_code)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(
        name not in names and _must_be_given(signature, name) and each.kind in positional
        for name, each in signature.parameters.items()
    )


class FunctionModule(nn.Module):
    """A function wrapped as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)


def _find(code: Any, attribute: str, has_inputs: bool) -> UserCode:
    """Return the function or class of that name; by default `make`, or the only suitable class."""
    space = vars(code)
    kinds = {
        key: value
        for key, value in space.items()
        if isinstance(value, type) and value.__module__ == code.__name__
    }
    classes = [key for key, value in kinds.items() if _fits(value)]
    if has_inputs and not classes:
        classes = [key for key, value in kinds.items() if issubclass(value, nn.Module)]
    if attribute:
        if not callable(space.get(attribute)):
            public = [key for key in space if callable(space[key]) and not key.startswith("_")]
            near = nearest(attribute, public)
            raise CannotBuild(
                f"{code.__file__} has no function or class {attribute!r}{near}",
                hint="write FILE.py:NAME with the name of a function or class of the file",
            )
        return UserCode(code.__file__, attribute, space[attribute])
    if callable(space.get(FUNCTION)):
        return UserCode(code.__file__, FUNCTION, space[FUNCTION])
    if len(classes) == 1:
        return UserCode(code.__file__, classes[0], space[classes[0]])
    if classes:
        listing = ", ".join(classes)
        raise CannotBuild(
            f"{code.__file__} has several workloads: {listing}",
            hint=f"choose one of them, as in {code.__file__}:{classes[0]}",
        )
    raise CannotBuild(
        f"{code.__file__} has no function {FUNCTION}() and no class that is a workload",
        hint="define `def make(): return module, inputs`, or a class with module() and inputs(), "
        "or an nn.Module and example_inputs(); for another name use FILE.py:NAME",
    )


def _fits(kind: Any) -> bool:
    if issubclass(kind, nn.Module):
        return callable(getattr(kind, "example_inputs", None))
    return all(callable(getattr(kind, part, None)) for part in ("module", "inputs"))


def _parts(user_code: UserCode, returned: Any, has_inputs: bool) -> Dict[str, Any]:
    """Return module, inputs, loss and optimizer; with `has_inputs`, the inputs may be None."""
    if isinstance(returned, (tuple, list)) and len(returned) in (2, 3):
        return dict(zip(("module", "inputs", "loss"), returned))
    if isinstance(returned, nn.Module) and callable(getattr(returned, "example_inputs", None)):
        parts = {"module": returned, "inputs": user_code.guard(returned.example_inputs)}
    elif _fits(type(returned)):
        parts = {
            "module": user_code.guard(returned.module),
            "inputs": user_code.guard(returned.inputs),
        }
    elif has_inputs and callable(returned):
        parts = {"module": returned, "inputs": None}
    else:
        raise CannotBuild(
            f"{user_code} returned {_kind(returned)}, not a pair of a module and its inputs",
            hint="return (module, inputs) or (module, inputs, loss), or an object with module() "
            "and inputs(), or an nn.Module with example_inputs(); or add a function "
            "example_inputs() to the file",
        )
    for key in ("loss", "optimizer"):
        if callable(getattr(returned, key, None)):
            parts[key] = getattr(returned, key)
    flops = getattr(returned, "flops", None)
    if isinstance(flops, (int, float)):
        parts["flops"] = float(flops)
    return parts


def as_module(user_code: UserCode, module: Any) -> Any:
    """Return the module, or a function as a module."""
    if isinstance(module, nn.Module):
        return module
    if callable(module):
        return FunctionModule(module)
    raise CannotBuild(
        f"the module of {user_code} is {_kind(module)}",
        hint="return an nn.Module or a function",
    )


def arguments_of(
    user_code: UserCode, inputs: Any, device: Any
) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    """Return positional and keyword inputs on the device; `requires_grad` is kept."""

    def move(tensor: Any) -> Any:
        moved = tensor.detach().to(device)
        return moved.requires_grad_(tensor.requires_grad)

    arguments = as_arguments(inputs, move)
    if arguments is not None:
        return arguments
    raise CannotBuild(
        f"the inputs of {user_code} are {_kind(inputs)}",
        hint="return a tensor, a tuple of positional inputs, or a dict of keyword inputs",
    )


def initialise_lazy_modules(
    user_code: UserCode, module: nn.Module, args: Tuple[Any, ...], kwargs: Dict[str, Any]
) -> None:
    """Run modules such as `LazyLinear` once: the first call creates their parameters."""
    if any(is_lazy(tensor) for tensor in [*module.parameters(), *module.buffers()]):
        with torch.no_grad():
            user_code.guard(module.eval(), *args, **kwargs)


def _check_training(user_code: UserCode, module: Any, loss: Any) -> None:
    if not callable(loss):
        raise CannotBuild(
            f"{user_code} has no loss, so it cannot be trained",
            hint="add loss(output), or return (module, inputs, loss), or use mode inference",
        )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise CannotBuild(
            f"the module of {user_code} has no trainable parameter",
            hint="store the weights as nn.Parameter in an nn.Module, or use mode inference",
        )


def _kind(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else "an object of type " + type(value).__name__

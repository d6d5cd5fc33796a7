"""The module of another file, run on the inputs of a workload: `torchyard bench a.py b.py`.

Both modules are in one process and get the same inputs. Modules whose parameters have the same names,
shapes and types share the parameters of the workload's module, so that their results can be compared
whatever the order of initialisation. Other modules keep their own, which are initialised with the same seed.
"""

import contextlib
import os
import sys
from typing import Any, Dict, Iterator, List, Tuple

import torch

from torchyard.worker.suites.user_file import (
    arguments_of,
    as_module,
    initialise_lazy_modules,
    load_file,
    module_name,
    parts_of,
    split_name,
)
from torchyard.worker.workload import BuiltWorkload, CannotBuild


def build_replacement(
    name: str, workload: Dict[str, Any], built: BuiltWorkload, loaded_names: List[str]
) -> Tuple[Any, List[str]]:
    """Return the module of the file, and notes; raise CannotBuild if its own inputs differ in structure."""
    path, attribute = split_name(name)
    offered: Dict[str, Any] = {"device": workload["device"], "mode": workload["mode"]}
    if workload["batch_size"] is not None:
        offered["batch_size"] = workload["batch_size"]
    with own_imports(path, [split_name(one)[0] for one in loaded_names]):
        loaded = sys.modules.get(module_name(path))
        code = load_file(path) if loaded is None else loaded
        user_code, parts = parts_of(
            code, attribute, offered, dict(workload["parameters"]), others_inputs=True
        )
    if parts["inputs"] is not None:
        args, kwargs = arguments_of(user_code, parts["inputs"], workload["device"])
        mine = {**_structure(args, "input"), **_structure(kwargs, "input")}
        others = {**_structure(built.args, "input"), **_structure(built.kwargs, "input")}
        for key in dict.fromkeys([*others, *mine]):
            if mine.get(key) != others.get(key):
                raise CannotBuild(
                    f"{key} of {user_code} is {mine.get(key, 'missing')}, and "
                    f"{others.get(key, 'missing')} in the baseline's file",
                    hint="return inputs of the same structure in both files, or remove them from this "
                    "file: those of the baseline's file are used",
                )
    module = as_module(user_code, parts["module"]).to(workload["device"])
    initialise_lazy_modules(user_code, module, built.args, built.kwargs)
    unused = [
        kind
        for kind in ("loss", "optimizer")
        if workload["mode"] == "training" and _differs(parts.get(kind), getattr(built, kind))
    ]
    return module, [f"its own {kind} is not used, but that of the baseline" for kind in unused]


def _differs(own: Any, others: Any) -> bool:
    """Whether a function exists and has other code."""
    codes = [getattr(one, "__code__", None) for one in (own, others)]
    both = [code and (code.co_code, code.co_consts, code.co_names) for code in codes]
    return own is not None and both[0] != both[1]


def share_weights(module: Any, model: Any, training: bool) -> str:
    """Replace the parameters of the module by those of the model; return why that is impossible.

    Buffers with equal values are shared, too: an iteration that writes them is then compared.
    """
    mine, others = dict(module.named_parameters()), dict(model.named_parameters())
    reason = _difference(_signatures(mine, training), _signatures(others, training))
    if reason:
        return reason
    replaced = {id(parameter): others[name] for name, parameter in mine.items()}
    buffers = dict(model.named_buffers())
    for name, buffer in module.named_buffers():
        other = buffers.get(name)
        if other is not None and other.dtype is buffer.dtype and torch.equal(other, buffer):
            replaced[id(buffer)] = other
    with torch.no_grad():
        for name, parameter in mine.items():
            # Lists and closures of the module may refer to its own parameters.
            parameter.copy_(others[name])
    for part in list(module.modules()):
        for key, tensor in [*part._parameters.items(), *part._buffers.items()]:
            if id(tensor) in replaced:
                setattr(part, key, replaced[id(tensor)])
    return ""


@contextlib.contextmanager
def own_imports(path: str, other_paths: List[str]) -> Iterator[None]:
    """Let a file import the modules of its own folder; raise CannotBuild if another file may need the same names."""
    folder = os.path.dirname(path)
    folders = {os.path.dirname(other) for other in other_paths} - {folder}
    hidden = {
        name: module
        for name, module in list(sys.modules.items())
        if _is_shadowed(name.partition(".")[0], folder, folders)
    }
    for name in hidden:
        del sys.modules[name]
    previous_path = list(sys.path)
    sys.path.insert(0, folder)
    try:
        yield
        twice = sorted(name for name in hidden if name in sys.modules)
    finally:
        sys.path[:] = [*previous_path, *([] if folder in previous_path else [folder])]
        sys.modules.update(hidden)
    if twice:
        raise CannotBuild(
            f"{path} and the baseline's file import different modules of the name {twice[0]!r}",
            hint=f"rename one of them, or write `from . import {twice[0]}` in both files",
        )


def _is_shadowed(name: str, folder: str, folders: Any) -> bool:
    """Whether a module that was imported from one of `folders` also exists in `folder`, and differs."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if not isinstance(file, str):
        return False
    if os.path.basename(file) == "__init__.py":
        is_here = os.path.isdir(os.path.join(folder, name))
        return is_here and os.path.dirname(os.path.dirname(file)) in folders
    mine = os.path.join(folder, name + ".py")
    return (
        os.path.dirname(file) in folders and os.path.isfile(mine) and _bytes(mine) != _bytes(file)
    )


def _bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _structure(value: Any, place: str) -> Dict[str, str]:
    """Return a description of every part of the inputs, by its position."""
    if isinstance(value, torch.Tensor):
        sizes = ", ".join(map(str, value.shape))
        return {place: "{}[{}]".format(str(value.dtype).replace("torch.", ""), sizes)}
    if isinstance(value, dict):
        items: List[Tuple[Any, Any]] = list(value.items())
    elif isinstance(value, (list, tuple)):
        items = list(enumerate(value))
    else:
        return {place: repr(value)[:80]}
    parts: Dict[str, str] = {}
    for key, item in items:
        parts.update(_structure(item, "%s %s" % (place, key)))
    return parts


def _signatures(parameters: Dict[str, Any], training: bool) -> Dict[str, Any]:
    return {
        name: (tuple(one.shape), one.dtype, one.requires_grad if training else None)
        for name, one in parameters.items()
    }


def _difference(mine: Dict[str, Any], others: Dict[str, Any]) -> str:
    if mine == others:
        return ""
    names = [name for name in dict.fromkeys([*others, *mine]) if mine.get(name) != others.get(name)]
    return "parameters that differ from the baseline's: " + ", ".join(names[:3])

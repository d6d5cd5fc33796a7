"""Loading a user's Python file and calling what is in it, with errors that say where.

Knows Python, and nothing of modules, inputs or losses.
"""

import importlib.util
import inspect
import os
import sys
import traceback
from typing import Any, Callable, Dict, List, Tuple

from torchyard.worker.built import CannotBuild
from torchyard.worker.suites.choices import unknown_parameter


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

"""Check the parts of a variant: names, backends, precisions, interpreters and devices.

A variant is written as parts joined by `+`, and a part is recognized by its name alone, so no name
may have two meanings. Backends, precisions and options are fixed words; the user names targets and
environments. Interpreters are located but never started. Of devices only the form of the name is
checked: which device types exist depends on the target's torch.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final, Literal

from torchyard.core.study import DEFAULT_ENVIRONMENT, PRECISIONS, Target
from torchyard.errors import UsageError
from torchyard.worker.bench import backend_names, options

Kind = Literal["target", "backend", "precision", "environment", "option"]

DEFAULT_TARGET: Final = "here"
"""Name of the default target: the interpreter that runs Torchyard."""

BACKENDS: Final[tuple[str, ...]] = tuple(backend_names.BACKENDS)
"""The named backends, as in the worker."""

THREADS: Final = "threads"
"""`threads=N` defines an environment inline."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def kinds_of(
    word: str, *, targets: Collection[str], environments: Collection[str]
) -> tuple[Kind, ...]:
    """Return the possible meanings of a word; more than one only while names are being checked."""
    kinds: list[Kind] = []
    if word in targets or word == DEFAULT_TARGET:
        kinds.append("target")
    if word in BACKENDS or word in {"dynamo", "inductor"}:
        kinds.append("backend")
    if word in PRECISIONS:
        kinds.append("precision")
    if word in environments or word == DEFAULT_ENVIRONMENT.name:
        kinds.append("environment")
    if options.find(word) is not None or word == THREADS:
        kinds.append("option")
    return tuple(kinds)


def check_name(name: str, *, where: str) -> None:
    """Raise UsageError unless the name can be a part of a variant."""
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"{where}: {name!r} is not a valid name",
            why="names are joined by + in variants and are used in file names",
            hint="use letters, digits, dot, dash and underscore, such as tcmalloc or torch-2.9",
        )
    if name.endswith(".py"):
        raise UsageError(
            f"{where}: {name!r} is not a valid name",
            why="names that end in .py are files",
            hint=f"use {name.removesuffix('.py')!r}",
        )


def check_names(targets: Iterable[str], environments: Iterable[str]) -> None:
    """Raise UsageError when a user-defined name has another meaning already."""
    targets, environments = list(targets), list(environments)
    for name in [*targets, *environments]:
        kinds = kinds_of(name, targets=targets, environments=environments)
        if len(kinds) > 1:
            raise _shared(name, kinds)
    for name, kind, names in (
        (DEFAULT_TARGET, "target", targets),
        (DEFAULT_ENVIRONMENT.name, "environment", environments),
    ):
        if name in names:
            raise UsageError(
                f"the {kind} name {name!r} is reserved",
                why="it is the interpreter that runs Torchyard"
                if kind == "target"
                else "it is the unchanged environment",
                hint=f"give the {kind} another name",
            )


def _shared(name: str, kinds: tuple[Kind, ...]) -> UsageError:
    meanings = " and ".join(
        f"{'an' if kind in {'environment', 'option'} else 'a'} {kind}" for kind in kinds
    )
    return UsageError(
        f"the name {name!r} is ambiguous: {meanings}",
        why="a part of a variant is identified by its name alone",
        hint="rename the target or the environment",
    )


def find_python(text: str, *, folder: Path, where: str) -> str:
    """Return the absolute path of an interpreter.

    `text` is a path, the directory of a virtual environment, or a command on PATH. Symbolic links are
    kept: the `python` of a virtual environment is a link, and its target is outside the environment.
    """
    if not text:
        raise UsageError(
            f"{where}: the interpreter is missing", hint="give the path of a Python interpreter"
        )
    path = Path(os.path.abspath(folder / Path(text).expanduser()))  # noqa: PTH100
    if path.is_dir():
        inside = path / "bin" / "python"
        if not inside.is_file():
            raise UsageError(
                f"{where}: the directory {text!r} is not a virtual environment",
                why=f"it has no {Path('bin') / 'python'}",
                hint="give a virtual environment or the path of a Python interpreter",
            )
        return str(inside)
    if path.is_file():
        if not os.access(path, os.X_OK):
            raise UsageError(
                f"{where}: {text!r} is not executable", hint="give the path of a Python interpreter"
            )
        return str(path)
    on_path = shutil.which(text) if os.sep not in text else None
    if on_path is None:
        raise UsageError(
            f"{where}: the interpreter {text!r} was not found",
            why=f"searched for {path}" + ("" if os.sep in text else " and on PATH"),
            hint="give the path of a Python interpreter or a virtual environment",
        )
    return on_path


def parse_target(text: str, *, folder: Path, where: str, default_name: str = "") -> Target:
    """Return the target of `NAME=PYTHON`, or of `PYTHON` alone with a default name."""
    name, equals, python = text.partition("=")
    if not equals or (default_name and os.sep in name):
        if not default_name:
            raise UsageError(f"{where}: {text!r} has no name", hint="write NAME=PYTHON")
        name, python = default_name, text
    check_name(name, where=where)
    return Target(name=name, python=find_python(python, folder=folder, where=where))


_DEVICE: Final = re.compile(r"([a-z][a-z0-9_]*)(?::(?:0|[1-9][0-9]{0,2}))?")
_HINT: Final = "use cpu, cuda or cuda:N, such as cuda:1"
PROFILED_DEVICES: Final = frozenset({"cpu", "cuda"})
"""Device types whose operators can be profiled."""
_NOT_DEVICES: Final = {
    "meta": "tensors on the meta device have no data to compute with",
    **dict.fromkeys(
        ("gpu", "rocm", "hip", "nvidia", "amd"),
        "in torch, the device type of NVIDIA and AMD GPUs is cuda",
    ),
}


def check_device(text: str, *, where: str, kinds: Collection[str] = ()) -> str:
    """Return the device; raise UsageError if it cannot be one, or if its type is not among `kinds`.

    Which other device types exist depends on the target's torch.
    """
    match = _DEVICE.fullmatch(text)
    kind = text.strip().lower().partition(":")[0]
    why = "" if match else "it is empty" if not kind else "the name is not exact"
    if kind == "cpu" and ":" in text:
        why = "cpu takes no index"
    elif kind in _NOT_DEVICES:
        why = _NOT_DEVICES[kind]
    elif match and kinds and kind not in kinds:
        why = f"its operators cannot be profiled; torchyard bench may measure on {kind!r}"
    if why:
        raise UsageError(f"{where}: cannot measure on the device {text!r}", why=why, hint=_HINT)
    return text


def indexed_device(device: str) -> str:
    """Return the device with its index: `cuda` is `cuda:0`."""
    return device if device == "cpu" or ":" in device else f"{device}:0"

"""Check the parts of a variant: names, backends, precisions, interpreters and devices.

A variant is written as parts joined by `+`, and a part is recognized by its name alone, so no name
may have two meanings. Backends, precisions and options are fixed words; the user names targets and
environments. Interpreters are located but never started. Devices are the CPU and CUDA devices by
index: other devices run asynchronously, and without an interface that waits for them only the
submission would be timed.
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

HERE: Final = "here"
"""The target that nobody named: the interpreter that Torchyard runs in."""

BACKENDS: Final[tuple[str, ...]] = tuple(backend_names.BACKENDS)
"""Those that have a name of their own; the worker knows the same ones."""

THREADS: Final = "threads"
"""`threads=N` makes an environment on the fly."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def kinds_of(
    word: str, *, targets: Collection[str], environments: Collection[str]
) -> tuple[Kind, ...]:
    """What the word may mean; more than one only while names are being checked."""
    found: list[Kind] = []
    if word in targets or word == HERE:
        found.append("target")
    if word in BACKENDS or word in {"dynamo", "inductor"}:
        found.append("backend")
    if word in PRECISIONS:
        found.append("precision")
    if word in environments or word == DEFAULT_ENVIRONMENT.name:
        found.append("environment")
    if options.find(word) is not None or word == THREADS:
        found.append("option")
    return tuple(found)


def check_name(name: str, *, where: str) -> None:
    """Raise UsageError unless the name can be a part of a variant."""
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"{where}: {name!r} cannot be a name",
            why="a name joins others with + and becomes part of file names",
            hint="use letters, digits, dot, dash and underscore, such as tcmalloc or torch-2.9",
        )
    if name.endswith(".py"):
        raise UsageError(
            f"{where}: {name!r} cannot be a name",
            why="names that end in .py are files",
            hint=f"call it {name.removesuffix('.py')!r}",
        )


def check_names(targets: Iterable[str], environments: Iterable[str]) -> None:
    """Raise UsageError when a made-up name already means something else."""
    targets, environments = list(targets), list(environments)
    for name in [*targets, *environments]:
        kinds = kinds_of(name, targets=targets, environments=environments)
        if len(kinds) > 1:
            raise _shared(name, kinds)
    for name, kind, names in (
        (HERE, "target", targets),
        (DEFAULT_ENVIRONMENT.name, "environment", environments),
    ):
        if name in names:
            raise UsageError(
                f"the {kind} name {name!r} is taken",
                why="it means the interpreter that Torchyard runs in"
                if kind == "target"
                else "it means the environment without changes",
                hint=f"give the {kind} another name",
            )


def _shared(name: str, kinds: tuple[Kind, ...]) -> UsageError:
    said = " and ".join(
        f"{'an' if kind in {'environment', 'option'} else 'a'} {kind}" for kind in kinds
    )
    return UsageError(
        f"the name {name!r} is {said}",
        why="a part of a variant is recognised by its name alone",
        hint="rename the target or the environment",
    )


def find_python(text: str, *, folder: Path, where: str) -> str:
    """An absolute path from a path, a virtual environment's folder or a command on PATH.

    Symbolic links are kept: the `python` of a virtual environment is a link, and following it
    would leave the environment.
    """
    if not text:
        raise UsageError(f"{where}: no interpreter is named", hint="give the path of a python")
    path = Path(os.path.abspath(folder / Path(text).expanduser()))  # noqa: PTH100
    if path.is_dir():
        inside = path / "bin" / "python"
        if not inside.is_file():
            raise UsageError(
                f"{where}: the folder {text!r} is not a virtual environment",
                why=f"it has no {Path('bin') / 'python'}",
                hint="give the folder of a virtual environment or the path of a python",
            )
        return str(inside)
    if path.is_file():
        if not os.access(path, os.X_OK):
            raise UsageError(
                f"{where}: {text!r} cannot be executed", hint="give the path of a python"
            )
        return str(path)
    on_path = shutil.which(text) if os.sep not in text else None
    if on_path is None:
        raise UsageError(
            f"{where}: there is no interpreter {text!r}",
            why=f"looked for {path}" + ("" if os.sep in text else " and on PATH"),
            hint="give the path of a python or the folder of a virtual environment",
        )
    return on_path


def parse_target(text: str, *, folder: Path, where: str, default_name: str = "") -> Target:
    """A target from `NAME=PYTHON`, or from `PYTHON` alone where a default name is given."""
    name, equals, python = text.partition("=")
    if not equals or (default_name and os.sep in name):
        if not default_name:
            raise UsageError(f"{where}: {text!r} has no name", hint="write NAME=PYTHON")
        name, python = default_name, text
    check_name(name, where=where)
    return Target(name=name, python=find_python(python, folder=folder, where=where))


_DEVICE: Final = re.compile(r"cpu|cuda(?::(?:0|[1-9][0-9]{0,2}))?")
_HINT: Final = "use cpu, cuda or cuda:N, such as cuda:1"


def check_device(text: str, *, where: str) -> str:
    """The device itself; UsageError for anything but cpu, cuda and cuda:N."""
    if _DEVICE.fullmatch(text):
        return text
    kind = text.strip().lower().partition(":")[0]
    why = "it is empty" if not text.strip() else ""
    if kind in {"cpu", "cuda"}:
        why = (
            "a processor has no index" if kind == "cpu" and ":" in text else "the name is not exact"
        )
    elif kind in {"gpu", "rocm", "hip", "nvidia", "amd"}:
        why = "torch calls GPUs of NVIDIA and AMD cuda"
    elif kind:
        why = f"times on {kind!r} would be those of submission only"
    raise UsageError(f"{where}: cannot measure on the device {text!r}", why=why, hint=_HINT)

"""The words a variant may be made of, and the rules for names that users make up.

A variant is parts joined by `+`, and a part is recognised by its name alone: so no name may mean
two things. Backends, precisions and options are fixed words; targets and environments are the
user's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final, Literal

from torchyard.core.variant import DEFAULT_ENVIRONMENT, PRECISIONS
from torchyard.errors import UsageError
from torchyard.worker import backend_names, options

__all__ = ["BACKENDS", "HERE", "THREADS", "Kind", "check_name", "check_names", "kinds_of"]

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

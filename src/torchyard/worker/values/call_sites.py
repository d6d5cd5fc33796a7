"""Call sites: an operator at a place of the program, called with tensors of certain shapes.

The watched run and the timed run are different processes; a site is how a call of one is found again
in the other.
"""

from typing import Any, Dict, List, NamedTuple

import torch

from torchyard.worker.values.places import Place

_MOST_IN_LIST = 4
_kinds: Dict[torch.dtype, str] = {}


class Site(NamedTuple):
    """One call site."""

    operator: str
    file: str
    line: int
    backward: bool
    shapes: str
    """Of the tensors among the arguments; calls with other shapes have another cost."""


def site_of(operator: str, place: Place, args: Any, kwargs: Any) -> Site:
    """Return the site of a call that is being dispatched."""
    return Site(operator, place.file, place.line, place.backward, shapes_of(args, kwargs))


def shapes_of(args: Any, kwargs: Any) -> str:
    """Return dtypes and shapes of the arguments, and sizes that are given as lists."""
    parts: List[str] = []
    for value in args:
        _add(parts, value)
    for value in kwargs.values():
        _add(parts, value)
    return " ".join(parts)


def _add(parts: List[str], value: Any) -> None:
    if isinstance(value, torch.Tensor):
        kind = _kinds.get(value.dtype)
        if kind is None:
            kind = _kinds[value.dtype] = str(value.dtype).replace("torch.", "")
        parts.append(kind + str(list(value.shape)))
    elif isinstance(value, (list, tuple)) and value:
        if isinstance(value[0], torch.Tensor):
            parts.append("%d:" % len(value))
            for item in value[:_MOST_IN_LIST]:
                _add(parts, item)
        else:
            parts.append(str(value))

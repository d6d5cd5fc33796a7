"""One program of the collection, and the result of its fixed form.

A program is a function of one flag: whether it gets the values that the profiler sees, or others of the
same shapes. Marks in its source say what a reader of a false proof would do:

    `# drop`     leave the statement out
    `# garbage`  allocate without initialisation: `torch.zeros` becomes memory full of other numbers
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

_MARK = re.compile(r"#\s*(drop|garbage)\s*$")
_CREATED = re.compile(r"torch\.(zeros|ones)\(")
SHAPE = (32, 64)


@dataclass(frozen=True, kw_only=True)
class Program:
    """A function and the lines that are, or seem to be, wasted."""

    name: str
    run: Callable[[bool], Any]
    lines: tuple[int, ...]
    slow: bool = False

    def fixed(self) -> Callable[[bool], Any]:
        """The program after the advice was followed."""
        lines, _ = inspect.getsourcelines(self.run)
        changed = [_changed(line) for line in lines]
        names = dict(self.run.__globals__)
        names["garbage"] = garbage
        exec(compile(textwrap.dedent("".join(changed)), self.name, "exec"), names)  # noqa: S102
        fixed: Callable[[bool], Any] = names[self.run.__name__]
        return fixed


def program_of(function: Callable[[bool], Any], *, slow: bool = False) -> Program:
    """Read the marks of a function."""
    lines, first = inspect.getsourcelines(function)
    marked = [number for number, line in enumerate(lines, start=first) if _MARK.search(line)]
    if not marked:
        message = f"{function.__name__} has no marked line"
        raise ValueError(message)
    return Program(name=function.__name__, run=function, lines=tuple(marked), slow=slow)


def _changed(line: str) -> str:
    mark = _MARK.search(line)
    if mark is None:
        return line
    if mark[1] == "drop":
        return line[: len(line) - len(line.lstrip())] + "pass\n"
    return _CREATED.sub("garbage(", line)


def garbage(*shape: Any, **options: Any) -> torch.Tensor:
    """What `torch.empty` may give."""
    made = torch.empty(*shape, **options)
    return made.fill_(77)


def values(other: bool, seed: int = 0) -> torch.Tensor:
    """Numbers around 0; for others, some are large."""
    source = torch.Generator().manual_seed(7 + seed)
    made = torch.randn(SHAPE, generator=source)
    if other:
        made[::5, ::3] += 50.0
    return made


def has_outliers(x: torch.Tensor) -> bool:
    """True of other values alone."""
    return bool((x > 40).any())

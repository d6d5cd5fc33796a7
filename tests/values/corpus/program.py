"""One program of the corpus, and its planted waste."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass

_WASTE = re.compile(r"\s*# (deep )?waste: ([a-z -]+), (aten::\w+)$")


@dataclass(frozen=True, kw_only=True)
class Waste:
    """What must be found, and where."""

    pattern: str
    operator: str
    line: int
    deep: bool = False
    """Only inside an operator."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A function that a user could have written."""

    name: str
    file: str
    run: Callable[[], object]
    wastes: tuple[Waste, ...] = ()
    approximate: bool = False
    """Whether it takes the option to be found."""

    @property
    def patterns(self) -> tuple[str, ...]:
        """Of what is planted."""
        return tuple(dict.fromkeys(waste.pattern for waste in self.wastes))


def program_of(function: Callable[[], object]) -> Program:
    """Read what is planted from the comments in a function."""
    lines, first = inspect.getsourcelines(function)
    wastes: list[Waste] = []
    above: list[tuple[str, str, str]] = []
    for number, line in enumerate(lines, start=first):
        comment = _WASTE.match(line)
        if comment is not None:
            above.append((comment[1] or "", comment[2], comment[3]))
            continue
        wastes += [
            Waste(pattern=pattern, operator=operator, line=number, deep=bool(deep))
            for deep, pattern, operator in above
        ]
        above.clear()
    return Program(
        name=function.__name__,
        file=inspect.getsourcefile(function) or "",
        run=function,
        wastes=tuple(wastes),
        approximate=any(waste.pattern == "approximate" for waste in wastes),
    )

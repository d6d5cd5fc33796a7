"""Several shapes in one workload's text: `size=256|1024|4096`, `size=256..4096`.

`A|B|C` are these values. `A..B` doubles from A to B, `A..BxF` multiplies by F, `A..B+S` adds S; B is
the last one where it is reached exactly. Several such parameters give every combination, the last
one changing first. Knows no workload: a value is what `parse` makes of its text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Final

from torchyard.config.request import Scalar, WorkloadChoice
from torchyard.errors import UsageError

__all__ = ["MOST", "grid_of"]

MOST: Final = 1000
"""More workloads than this from one text are a slip of the pen."""
_RANGE: Final = re.compile(r"([0-9]{1,18})\.\.([0-9]{1,18})(?:([x+])([0-9]{1,18}))?")
_DOUBLING: Final = ("x", "2")


def grid_of(choice: WorkloadChoice, parse: Callable[[str], Scalar]) -> list[WorkloadChoice]:
    """One choice for each combination of its parameters' values; the choice itself if there is one."""
    values = [_values(choice, key, value, parse) for key, value in choice.parameters]
    count = 1
    for several in values:
        count *= len(several)
    if count > MOST:
        raise UsageError(
            f"{choice.where}: {choice.suite}/{choice.name} would be {count} workloads",
            why=f"at most {MOST} are made of one text",
            hint="leave out some values",
        )
    keys = [key for key, _ in choice.parameters]
    return [
        replace(choice, parameters=tuple(zip(keys, combination, strict=True)))
        for combination in product(*values)
    ]


def _values(
    choice: WorkloadChoice, key: str, value: Scalar, parse: Callable[[str], Scalar]
) -> list[Scalar]:
    if not isinstance(value, str):
        return [value]
    if "|" not in value:
        return _range(choice, key, value) or [value]
    found: list[Scalar] = []
    for part in value.split("|"):
        text = part.strip()
        if not text:
            raise UsageError(
                f"{choice.where}: {key}={value!r} has an empty value",
                hint=f"write {key}=A|B|C, such as size=256|1024",
            )
        found += _range(choice, key, text) or [parse(text)]
    return list(dict.fromkeys(found))


def _range(choice: WorkloadChoice, key: str, text: str) -> list[Scalar]:
    """The numbers of a range; none when the text is no range."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return []
    first, last = int(match[1]), int(match[2])
    kind, amount_text = (match[3], match[4]) if match[3] else _DOUBLING
    amount = int(amount_text)
    # A range that does not move would never end.
    stands = amount < 2 or first == 0 if kind == "x" else amount < 1  # noqa: PLR2004
    if first > last or stands:
        raise UsageError(
            f"{choice.where}: {key}={text!r} is no range",
            why="it ends before it begins" if first > last else "it does not move",
            hint="write A..B to double, A..Bx4 to multiply or A..B+256 to add, A before B",
        )
    found: list[Scalar] = []
    number = first
    while number <= last and len(found) <= MOST:
        found.append(number)
        number = number * amount if kind == "x" else number + amount
    return found

"""Bounds of every number in a study, shared by study files and options.

The key is the name that users write; `field_name` is the field of `Budget`, `MeasureSettings`,
`Environment` or `Workload` that it sets.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from torchyard.core.records import shown
from torchyard.core.units import parse_bytes, parse_duration_s, parse_fraction
from torchyard.errors import UsageError

_LONGEST_S: Final = 10 * 365 * 24 * 3600.0
# ASCII only, without underscores: int() and float() accept digits of every script.
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,30}")
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,30}(?:\.[0-9]{0,30})?(?:[eE][+-]?[0-9]{1,3})?")


@dataclass(frozen=True, kw_only=True)
class Check:
    """How a value is parsed, and its valid range."""

    field_name: str
    parse: Callable[[str], float | int]
    low: float
    high: float = math.inf
    """Exclusive; `low` is exclusive when `above_low`."""
    above_low: bool = False
    whole: bool = False
    rule: str
    """The valid values in words, for the hint of an error."""

    def read(self, value: object, *, where: str) -> Any:
        """Return the value in the field's own unit; raise UsageError that names `where`."""
        try:
            number = self.parse(value) if isinstance(value, str) else value
        except UsageError as error:
            raise UsageError(f"{where}: {error.what}", hint=error.hint) from error
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise UsageError(f"{where}: {shown(value)} is not a number", hint=f"give {self.rule}")
        above = self.low < number if self.above_low else self.low <= number
        if not (above and number < self.high):
            raise UsageError(f"{where}: {shown(value)} is out of range", hint=f"give {self.rule}")
        if self.whole and number != int(number):
            raise UsageError(
                f"{where}: {shown(value)} is not a whole number", hint=f"give {self.rule}"
            )
        return int(number) if self.whole else float(number)


def _parse_whole(text: str) -> int:
    if not _WHOLE.fullmatch(text.strip()):
        raise UsageError(f"{shown(text)} is not a whole number", hint="write it like 8")
    return int(text)


def _parse_number(text: str) -> float:
    if not _NUMBER.fullmatch(text.strip()):
        raise UsageError(f"{shown(text)} is not a number", hint="write it like 0.05")
    return float(text)


def max_threads() -> int:
    """Return the largest accepted number of threads; more are never useful."""
    return max(256, 4 * (os.cpu_count() or 1))


def _duration(field_name: str) -> Check:
    return Check(
        field_name=field_name,
        parse=parse_duration_s,
        low=0,
        above_low=True,
        high=_LONGEST_S,
        rule="a duration above zero and below ten years, such as 60s or 5m",
    )


def _fraction(field_name: str) -> Check:
    return Check(
        field_name=field_name,
        parse=parse_fraction,
        low=0,
        high=1,
        rule="a percentage from 0% to below 100%, such as 1%",
    )


def _count(field_name: str, low: int = 1, *, most: int) -> Check:
    return Check(
        field_name=field_name,
        parse=_parse_whole,
        whole=True,
        low=low,
        high=most + 1,
        rule=f"a whole number of at least {low} and at most {most}",
    )


CHECKS: Final[dict[str, Check]] = {
    "time": _duration("time_s"),
    "precision_goal": _fraction("precision_goal"),
    "margin": _fraction("margin"),
    "alpha": Check(
        field_name="alpha",
        parse=_parse_number,
        low=0,
        above_low=True,
        high=0.5,
        rule="a number between 0 and 0.5, such as 0.05",
    ),
    "min_launches": _count("min_launches", most=10_000),
    "max_launches": _count("max_launches", most=10_000),
    "block": _duration("block_s"),
    "threads": _count("threads", most=max_threads()),
    "ranks": _count("ranks", most=max_threads()),
    "nodes": _count("nodes", most=10_000),
    "instances": _count("instances", most=max_threads()),
    "seed": _count("seed", low=0, most=2**63 - 1),
    "memory_limit": Check(
        field_name="memory_limit_bytes",
        parse=parse_bytes,
        whole=True,
        low=1,
        high=2**60,
        rule="a size of at least 1 byte, such as 8GiB",
    ),
    "start_limit": _duration("start_limit_s"),
    "step_limit": _duration("step_limit_s"),
    "block_limit": _duration("block_limit_s"),
    "batch_size": _count("batch_size", most=2**31 - 1),
    "cell_limit": _duration("cell_s"),
    "budget": _duration("budget_s"),
    "tries": _count("tries", most=1000),
}

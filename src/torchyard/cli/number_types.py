"""Types of options that are numbers: every one has an upper bound, and none takes nan or infinity."""

from __future__ import annotations

import re
from typing import Any, Final

import click

from torchyard.config.checks import most_threads

__all__ = ["MOST", "Count", "Number", "Threads"]

MOST: Final = 1_000_000_000
"""For counts that nothing else limits: more than any machine can do or show."""
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}(?:\.[0-9]{0,18})?")


class Count(click.IntRange):
    """A whole number from `low` to `most`, in ASCII digits."""

    def __init__(self, low: int = 0, most: int = MOST) -> None:
        super().__init__(min=low, max=most)

    def _describe_range(self) -> str:
        """Leave out a bound that nobody reaches."""
        return f"x>={self.min}" if self.max == MOST else super()._describe_range()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse what only Python calls a number."""
        if isinstance(value, str) and not re.fullmatch(r"[+-]?[0-9]{1,18}", value.strip()):
            self.fail(f"{value[:80]!r} is not a whole number", param, ctx)
        return super().convert(value, param, ctx)


class Threads(Count):
    """A number of threads that this machine can start."""

    def __init__(self) -> None:
        super().__init__(1, most_threads())

    def _describe_range(self) -> str:
        """The same text on every machine."""
        return "x>=1"


class Number(click.FloatRange):
    """A finite number from `low` to `most`, in ASCII digits."""

    def __init__(self, low: float, most: float) -> None:
        super().__init__(min=low, max=most)

    def _describe_range(self) -> str:
        """Leave out the upper bound: nobody reaches it."""
        return f"x>={self.min}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse nan, which is within every range, and infinity."""
        if isinstance(value, str) and not _NUMBER.fullmatch(value.strip()):
            self.fail(f"{value[:80]!r} is not a number", param, ctx)
        return super().convert(value, param, ctx)

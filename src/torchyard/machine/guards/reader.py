"""What a reader is: one number of the machine, read again and again from files that stay open.

Knows neither what the number means for a block nor how often it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchyard.machine.file_tree import HeldFile

__all__ = ["Reader", "highest", "number_of", "total_of"]

Number = int | float


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One number, or why there is none."""

    name: str
    """As reports call the guard."""
    reading: str
    """The field of `GuardReading` that it fills."""
    grows: bool
    """Whether the number counts from the start of the machine, so that differences matter."""
    unavailable: str = ""
    """Why it cannot be read; empty when it can."""
    files: tuple[HeldFile, ...] = ()
    parse: Callable[[Sequence[bytes]], Number | None] = lambda _: None

    def read(self) -> Number | None:
        """The present number; None when it cannot be read (any more)."""
        if self.unavailable:
            return None
        return self.parse([file.read() for file in self.files])

    def close(self) -> None:
        """Close the files; readings after this are None."""
        for file in self.files:
            file.close()


def number_of(text: bytes) -> int | None:
    """The whole number that the text is."""
    try:
        return int(text)
    except ValueError:
        return None


def total_of(texts: Sequence[bytes]) -> int | None:
    """The sum; None when one is no number, because a sum that loses a part falls."""
    numbers = [number_of(text) for text in texts]
    known = [number for number in numbers if number is not None]
    return sum(known) if known and len(known) == len(numbers) else None


def highest(texts: Sequence[bytes]) -> int | None:
    """The highest of those that are numbers."""
    known = [number for number in map(number_of, texts) if number is not None]
    return max(known) if known else None

"""A long list in pages. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["Paging", "page_of"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Paging:
    """Which part of a list is shown."""

    page: int
    pages: int
    total: int
    first: int
    """Place of the first one shown, from 1; 0 when there is none."""
    last: int

    @property
    def text(self) -> str:
        """`51 to 100 of 1,234`."""
        if self.pages == 1:
            return f"{self.total:,}"
        return f"{self.first:,} to {self.last:,} of {self.total:,}"


def page_of(items: Sequence[T], page: int, *, size: int) -> tuple[Sequence[T], Paging]:
    """One page of the items; the last one when there are fewer pages."""
    pages = max(1, -(-len(items) // size))
    page = min(page, pages)
    start = (page - 1) * size
    shown = items[start : start + size]
    first = start + 1 if shown else 0
    return shown, Paging(
        page=page, pages=pages, total=len(items), first=first, last=start + len(shown)
    )

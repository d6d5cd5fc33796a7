"""Places for names beside marks, so that no name covers another name or a mark.

Greedy: marks are named in the given order, each at the first of a few places around it that is
free. What finds none stays without a name; the table has them all. Knows pixels, and no chart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["LETTER", "Box", "Label", "place_labels"]

LETTER: Final = 6.4
"""Pixels of an average letter at a size of 11, in the widest of the usual fonts."""
LINE: Final = 13.0
MARK: Final = 6.0
"""Half the width of a mark, with a little air."""
_AROUND: Final = (
    (1.0, 0.0),
    (1.0, -0.8),
    (1.0, 0.8),
    (-1.0, 0.0),
    (-1.0, -0.8),
    (-1.0, 0.8),
    (0.0, -1.1),
    (0.0, 1.1),
    (1.0, -1.7),
    (1.0, 1.7),
    (-1.0, -1.7),
    (-1.0, 1.7),
    (0.0, -2.0),
    (0.0, 2.0),
    (1.0, -2.6),
    (1.0, 2.6),
    (-1.0, -2.6),
    (-1.0, 2.6),
)
"""Sides and heights to try: right, left, above, below; in lines."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """A rectangle in pixels, y downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def covers(self, other: Box) -> bool:
        """Whether the two share a pixel."""
        apart = (
            self.right <= other.left
            or other.right <= self.left
            or self.bottom <= other.top
            or other.bottom <= self.top
        )
        return not apart


@dataclass(frozen=True, kw_only=True)
class Label:
    """A name with the place of its left end, at half its height."""

    text: str
    x: float
    y: float


def place_labels(
    marks: Sequence[tuple[float, float, str]],
    *,
    width: float,
    height: float,
    taken: Sequence[Box] = (),
) -> list[Label]:
    """Names of marks (x, y, text) inside the picture; an empty text names nothing."""
    boxes = [*taken, *(_around(x, y) for x, y, _ in marks)]
    found: list[Label] = []
    for x, y, text in marks:
        length = LETTER * len(text)
        for side, lift in _AROUND if text else ():
            left = x + side * (MARK + 2) - (0.0 if side > 0 else length if side < 0 else length / 2)
            middle = y + lift * LINE
            box = Box(
                left=left, top=middle - LINE / 2, right=left + length, bottom=middle + LINE / 2
            )
            inside = box.left >= 0 and box.right <= width and box.top >= 0 and box.bottom <= height
            if inside and not any(box.covers(other) for other in boxes):
                boxes.append(box)
                found.append(Label(text=text, x=left, y=middle))
                break
    return found


def _around(x: float, y: float) -> Box:
    return Box(left=x - MARK, top=y - MARK, right=x + MARK, bottom=y + MARK)

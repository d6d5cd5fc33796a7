"""Finding any of several hundred literal texts in a block, without searching for each of them.

The different words of a block are few: together they are a tenth of it or less. A text can only be
in the block if its longest word is part of one of those, so most texts are ruled out by a search
through that short list; only the others are looked for in the block itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["Gate"]

_WORD = re.compile(rb"[a-z_]{3,}")


class Gate:
    """Some lower-case texts to be found in lower-case blocks."""

    def __init__(self, fragments: Iterable[bytes]) -> None:
        self._by_word: dict[bytes, list[bytes]] = {}
        for fragment in dict.fromkeys(fragments):
            word = max(_WORD.findall(fragment), key=len, default=b"")
            self._by_word.setdefault(word, []).append(fragment)

    def hits(self, block: bytes) -> dict[int, list[bytes]]:
        """Index of each line of the block that has some of the texts -> those it has."""
        words = b" ".join(set(_WORD.findall(block)))
        found: dict[int, list[bytes]] = {}
        for word, fragments in self._by_word.items():
            if word not in words:
                continue
            for fragment in fragments:
                _find_all(block, fragment, found)
        return found


def _find_all(block: bytes, fragment: bytes, found: dict[int, list[bytes]]) -> None:
    at = block.find(fragment)
    index = counted = 0
    while at >= 0:
        index += block.count(b"\n", counted, at)
        found.setdefault(index, []).append(fragment)
        counted = block.find(b"\n", at)
        if counted < 0:
            return
        at = block.find(fragment, counted)

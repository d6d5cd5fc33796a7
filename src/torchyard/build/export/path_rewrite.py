"""Moves a plan to other folders: every path in commands, files and variables alike. No I/O.

A path may stand inside other text: a script, an address, a search path. It is replaced where it ends
as a path ends: as it is, as a shell quotes it, and as an address.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, TypeVar

__all__ = ["PathRewrite"]

T = TypeVar("T")


class PathRewrite:
    """Replaces folders by folders; of two that both fit, the longer one counts."""

    def __init__(self, folders: Mapping[str, str]) -> None:
        self._texts = {
            form(old): form(new)
            for old, new in folders.items()
            for form in (_address, _inside_quotes, str)
        }
        longest_first = sorted(self._texts, key=len, reverse=True)
        # `/yard/builds/one` must not be found in `/yard/builds/one-more` or in `/yard/builds/one.old`.
        self._pattern = re.compile(
            "(" + "|".join(map(re.escape, longest_first)) + r")(?![\w+-]|\.\w)"
        )

    def text(self, text: str) -> str:
        """The text with all paths in it replaced."""
        return self._pattern.sub(lambda found: self._texts[found[1]], text)

    def apply(self, value: T) -> T:
        """A dataclass with all paths in it replaced, however deep they are."""
        moved: T = self._walk(value)
        return moved

    def _walk(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value)]
            return dataclasses.replace(
                value, **{name: self._walk(getattr(value, name)) for name in names}
            )
        if isinstance(value, tuple):
            return tuple(self._walk(item) for item in value)
        if isinstance(value, dict):
            return {key: self._walk(item) for key, item in value.items()}
        return value


def _inside_quotes(path: str) -> str:
    """As `shlex.quote` writes it between its own quotes."""
    return path.replace("'", "'\"'\"'")


def _address(path: str) -> str:
    return PurePosixPath(path).as_uri()

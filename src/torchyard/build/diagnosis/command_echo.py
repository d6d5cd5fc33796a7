"""Commands that a log repeats before it shows their output: they may quote any message.

Torchyard's own logs have `[12:34:56] $ command`, quoted for a shell and over several lines when an
argument is a script. A line of such a script that looks for an error is not an error.
"""

from __future__ import annotations

import re

__all__ = ["CommandEcho"]

_ECHO = re.compile(rb"\[\d\d:\d\d:\d\d\] \$ ")
_LINES = 1000
_QUOTES = b"'\""


class CommandEcho:
    """Follows the lines of a log and knows which of them repeat a command."""

    def __init__(self) -> None:
        self._quote = 0
        """The quotation mark that is open at the end of the last line; 0 means none."""
        self._lines = 0
        self.begins = False
        """Whether the last line begins a repeated command."""

    def repeats(self, raw: bytes) -> bool:
        """Whether the next line is a repeated command, or goes on with one."""
        self.begins = False
        if not self._quote:
            if not raw.startswith(b"[") or _ECHO.match(raw) is None:
                return False
            self._lines = 0
            self.begins = True
        self._lines += 1
        if self._lines > _LINES:  # whatever this is, it is no command of ours
            self._quote = 0
            return False
        for character in raw:
            if self._quote:
                if character == self._quote:
                    self._quote = 0
            elif character in _QUOTES:
                self._quote = character
        return True

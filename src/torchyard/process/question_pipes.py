"""The yard's end of the two pipes: lines out, lines in, never blocking.

The other end may be any program in any state, so whatever it sends is checked here. Knows the form
of messages (`worker/wire.py`), not the verbs.
"""

from __future__ import annotations

import json
import os
import select
from typing import Any, Final

__all__ = ["BadMessage", "QuestionPipes"]

_READ_BYTES: Final = 65536
_LONGEST_LINE_BYTES: Final = 64 * 1024 * 1024
_SHOWN_BYTES: Final = 80
_MESSAGE_KEYS: Final = (("ok", dict), ("error", dict), ("note", str), ("boot", dict))


class BadMessage(Exception):
    """What came through the pipe is no message of this protocol."""


class QuestionPipes:
    """Owns both descriptors; poll `wanted_events` and then call `read` and `write`."""

    def __init__(self, *, read_fd: int, write_fd: int) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        self._incoming = bytearray()
        self._searched_bytes = 0
        self._outgoing = memoryview(b"")
        self.at_end = False
        """The other side closed its end, and everything it sent was read."""
        self.reader_gone = False
        """The other side does not read any more."""

    def queue(self, message: dict[str, Any]) -> None:
        """Put a message where `write` finds it."""
        data = json.dumps(message, allow_nan=True).encode() + b"\n"
        self._outgoing = memoryview(bytes(self._outgoing) + data)

    def register(self, poll: select.poll) -> None:
        """Ask for the events that matter now."""
        if not self.at_end:
            poll.register(self._read_fd, select.POLLIN)
        if self._outgoing:
            poll.register(self._write_fd, select.POLLOUT)

    def write(self) -> None:
        """Send as much as the pipe takes. A closed pipe shows on the reading side too."""
        while self._outgoing:
            try:
                written = os.write(self._write_fd, self._outgoing)
            except BlockingIOError:
                return
            except BrokenPipeError:
                self._outgoing = memoryview(b"")
                self.reader_gone = True
                return
            self._outgoing = self._outgoing[written:]

    def read(self) -> dict[str, Any] | None:
        """The next whole message, or None when there is none yet. Raises BadMessage."""
        while True:
            line = self._next_line()
            if line is not None:
                return _parse(line)
            if self.at_end:
                return None
            try:
                chunk = os.read(self._read_fd, _READ_BYTES)
            except BlockingIOError:
                return None
            self.at_end = not chunk
            self._incoming += chunk
            if len(self._incoming) > _LONGEST_LINE_BYTES:
                raise BadMessage(f"a line of more than {_LONGEST_LINE_BYTES} bytes")

    def close(self) -> None:
        """Give the descriptors back; a worker that waits for a question sees the end and exits."""
        for fd in (self._read_fd, self._write_fd):
            if fd >= 0:
                os.close(fd)
        self._read_fd = self._write_fd = -1
        self.at_end = True

    def _next_line(self) -> bytes | None:
        # Only new bytes are searched: a long answer that comes in many pieces stays cheap.
        end = self._incoming.find(b"\n", self._searched_bytes)
        if end < 0:
            self._searched_bytes = len(self._incoming)
            return None
        line = bytes(self._incoming[:end])
        del self._incoming[: end + 1]
        self._searched_bytes = 0
        return line


def _parse(line: bytes) -> dict[str, Any]:
    shown = repr(line[:_SHOWN_BYTES])[1:] + (" ..." if len(line) > _SHOWN_BYTES else "")
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"not JSON: {shown}") from error
    if isinstance(message, dict):
        for key, kind in _MESSAGE_KEYS:
            if isinstance(message.get(key), kind):
                return message
    raise BadMessage(f"neither an answer nor a note: {shown}")

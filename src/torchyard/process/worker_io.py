"""The controller's ends of a worker's pipes, and the bounded log of what a worker prints.

Pipes carry lines in both directions and never block. The other end may be any program in any state,
so every message is validated. The format is that of `worker/wire.py`; verbs are not interpreted.

A thread reads the output, so that a worker that prints gigabytes never blocks and fills neither the
disk nor memory: the first 256 KiB are written to the file immediately, the last 256 KiB are kept in
memory and written at the end, with the number of omitted bytes in between.
"""

from __future__ import annotations

import json
import os
import re
import select
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

from torchyard.errors import NotAllowed

_READ_BYTES: Final = 65536
_LONGEST_LINE_BYTES: Final = 64 * 1024 * 1024
_SHOWN_BYTES: Final = 80
_MESSAGE_KEYS: Final = (("ok", dict), ("error", dict), ("note", str), ("boot", dict))


class BadMessage(Exception):
    """A line on the pipe is not a message of the protocol."""


class RequestPipes:
    """The controller's ends of the pipes to a worker; owns both descriptors.

    Call `register` and poll, then call `read` and `write`.
    """

    def __init__(self, *, read_fd: int, write_fd: int) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        self._incoming = bytearray()
        self._searched_bytes = 0
        self._outgoing = memoryview(b"")
        self.at_end = False
        """The worker closed its end, and everything it sent was read."""
        self.reader_gone = False
        """The worker no longer reads."""

    def queue(self, message: dict[str, Any]) -> None:
        """Queue a message for `write`."""
        data = json.dumps(message, allow_nan=True).encode() + b"\n"
        self._outgoing = memoryview(bytes(self._outgoing) + data)

    def register(self, poll: select.poll) -> None:
        """Register the descriptors that can make progress."""
        if not self.at_end:
            poll.register(self._read_fd, select.POLLIN)
        if self._outgoing:
            poll.register(self._write_fd, select.POLLOUT)

    def write(self) -> None:
        """Send as much as the pipe accepts. A closed pipe also shows on the reading side."""
        while self._outgoing:
            try:
                written = os.write(self._write_fd, self._outgoing)
            except BlockingIOError:
                return
            except OSError:  # a closed pipe, or a connection to another node that was lost
                self._outgoing = memoryview(b"")
                self.reader_gone = True
                return
            self._outgoing = self._outgoing[written:]

    def read(self) -> dict[str, Any] | None:
        """Return the next complete message, or None when there is none yet. Raises BadMessage."""
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
            except OSError:  # a connection to another node that was reset or lost
                chunk = b""
            self.at_end = not chunk
            self._incoming += chunk
            if len(self._incoming) > _LONGEST_LINE_BYTES:
                raise BadMessage(f"a line of more than {_LONGEST_LINE_BYTES} bytes")

    def close(self) -> None:
        """Close the descriptors; a worker that waits for a request sees the end and exits."""
        for fd in (self._read_fd, self._write_fd):
            if fd >= 0:
                os.close(fd)
        self._read_fd = self._write_fd = -1
        self.at_end = True

    def _next_line(self) -> bytes | None:
        # Only new bytes are searched: a long answer that arrives in many chunks stays cheap.
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


HEAD_BYTES: Final = 256 * 1024
TAIL_BYTES: Final = 256 * 1024

_LOG_READ_BYTES: Final = 256 * 1024
_DRAIN_LIMIT_S: Final = 1.0
_SHOWN_LINES: Final = 20
_SHOWN_CHARACTERS: Final = 8000
_ESCAPES: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.")
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class OutputLog:
    """Bounded log of a worker's output: a thread reads the pipe to its end into a file.

    Owns the descriptor it is given.
    """

    def __init__(self, read_fd: int, path: Path) -> None:
        self.path = path
        self._file = _open(path, read_fd)
        self._fd = read_fd
        self._lock = threading.Lock()
        self._head_bytes = 0
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._omitted_bytes = 0
        self._shown = b""
        self._stop_read, self._stop_write = os.pipe()
        self._thread = threading.Thread(
            target=self._pump, name=f"torchyard-log-{path.name}", daemon=True
        )
        self._thread.start()

    def finish(self) -> None:
        """Drain the pipe, write the end of the file, and stop. Idempotent."""
        with self._lock:
            stop_write, self._stop_write = self._stop_write, -1
        if stop_write >= 0:
            os.close(stop_write)
        self._thread.join()

    def tail(self) -> str:
        """Return the last lines for an error message, without control characters."""
        with self._lock:
            end = b"".join(self._tail)[-_SHOWN_CHARACTERS * 4 :]
            if len(end) < _SHOWN_CHARACTERS * 4:
                end = self._shown + end
        text = _ESCAPES.sub("", end.decode("utf-8", errors="replace"))
        # A progress bar overwrites its line: keep only its last state.
        lines = [line.rstrip().rpartition("\r")[2] for line in text.split("\n")]
        while lines and not lines[-1].strip():
            lines.pop()
        shown = _CONTROLS.sub("?", "\n".join(lines[-_SHOWN_LINES:]))
        return shown[-_SHOWN_CHARACTERS:]

    def _pump(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(self._stop_read, select.POLLIN)
        deadline: float | None = None
        os.set_blocking(self._fd, False)
        try:
            while deadline is None or time.monotonic() < deadline:
                if deadline is None:
                    poll.poll()
                    if select.select([self._stop_read], [], [], 0)[0]:
                        # The tree is dead: wait only briefly for processes that hold the pipe open.
                        deadline = time.monotonic() + _DRAIN_LIMIT_S
                try:
                    chunk = os.read(self._fd, _LOG_READ_BYTES)
                except BlockingIOError:
                    if deadline is not None:
                        break
                    continue
                if not chunk:
                    break
                self._keep(chunk)
        finally:
            self._write_end()
            os.close(self._fd)
            os.close(self._stop_read)

    def _keep(self, chunk: bytes) -> None:
        head_left = HEAD_BYTES - self._head_bytes
        if head_left > 0:
            head, chunk = chunk[:head_left], chunk[head_left:]
            self._head_bytes += len(head)
            self._write(head)
            with self._lock:
                self._shown = (self._shown + head)[-_SHOWN_CHARACTERS * 4 :]
        if not chunk:
            return
        with self._lock:
            self._tail.append(chunk)
            self._tail_bytes += len(chunk)
            while self._tail_bytes - len(self._tail[0]) >= TAIL_BYTES:
                dropped = len(self._tail.popleft())
                self._tail_bytes -= dropped
                self._omitted_bytes += dropped

    def _write_end(self) -> None:
        with self._lock:
            surplus = max(self._tail_bytes - TAIL_BYTES, 0)
            omitted = self._omitted_bytes + surplus
            end = b"".join(self._tail)[surplus:]
            # A run has hundreds of workers: after the end keep only what `tail` shows.
            self._tail = deque([end[-_SHOWN_CHARACTERS * 4 :]])
        if omitted:
            self._write(b"\n... %d bytes omitted ...\n" % omitted)
        self._write(end)
        with suppress(OSError):
            self._file.close()

    def _write(self, data: bytes) -> None:
        # A full disk must not block the worker: the lines shown in errors are in memory anyway.
        with suppress(OSError):
            self._file.write(data)


def _open(path: Path, read_fd: int) -> BinaryIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("wb", buffering=0)
    except OSError as error:
        os.close(read_fd)
        raise NotAllowed(
            f"the worker's log {path} cannot be written",
            why=error.strerror or str(error),
            hint="choose a writable results directory",
        ) from error

"""Make the standard streams safe: closed descriptors, full disks, limited character sets.

A closed descriptor would be reused by the next file that is opened, so closed ones are opened on
/dev/null first. Messages that cannot be written to stderr are dropped: they must never end a
measurement. Data that cannot be written to stdout is an error, because the user asked for it.
Imports only modules that `torchyard --help` loads, too.
"""

import errno
import io
import os
import sys


class ClosedOutput(io.TextIOBase):
    """Replacement for a stdout that was closed before the program started."""

    def write(self, text: str) -> int:
        """Raise EBADF, like a closed descriptor."""
        if not text:
            return 0
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def fileno(self) -> int:
        """Return the descriptor of stdout."""
        return 1

    def isatty(self) -> bool:
        """Return False."""
        return False


class _LossyStderr(io.TextIOWrapper):
    """Stderr that drops what cannot be written."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            # Discard the buffer: it would fail again at every later flush.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())


def make_streams_safe() -> None:
    """Prepare the standard streams. Call once, before anything is opened or written."""
    for number, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, flags)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
    stdin: object = sys.stdin
    if stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    stdout: object = sys.stdout
    if stdout is None:
        sys.stdout = ClosedOutput()
    elif isinstance(stdout, io.TextIOWrapper):
        # A character that the terminal cannot encode must not lose the results.
        stdout.reconfigure(errors="backslashreplace")
    stderr: object = sys.stderr
    if stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    elif isinstance(stderr, io.TextIOWrapper):
        stderr.flush()
        sys.stderr = _LossyStderr(
            stderr.buffer,
            encoding=stderr.encoding,
            errors="backslashreplace",
            line_buffering=True,
        )


def discard_stdout() -> None:
    """Discard the buffer of stdout: Python would fail to flush it at exit."""
    try:
        number = sys.stdout.fileno()
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    except (OSError, ValueError, AttributeError):
        return

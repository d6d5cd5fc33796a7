"""The first real error of a log, whoever knows its cause, and the command that failed.

Follows messages over several lines: CMake's blocks, Python's tracebacks (the last exception is the
error), ninja's FAILED blocks. Sees only the lines that could matter, in order, while one of these
is open every line. Knows nothing of signatures.
"""

from __future__ import annotations

import re
from dataclasses import replace

from torchyard.build.diagnosis.error_lines import is_command, is_error, is_wrapper
from torchyard.build.diagnosis.log_blocks import shortened
from torchyard.build.diagnosis.verdict import FailedCommand, FirstError

__all__ = ["FirstErrorFinder"]

_TEXT_LENGTH = 1000
_COMMAND_LENGTH = 64 * 1024
_TRACEBACK_LINES = 400
_WRAPPED_LINES = 6
_WRAPPED_LENGTH = 500
_TRACEBACK = re.compile(r"(?P<indent>[\s|+>]*)Traceback \(most recent call last\):")
_REPLACED = re.compile(r"[\s|]*During handling of the above exception, another exception")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:: .*)?$", re.ASCII)
_FAILED = re.compile(r"\s*FAILED: (?!\d+\b)(?:\[code=(?P<code>\d+)\] )?(?P<target>.*)")
_PROGRESS = re.compile(r"\[\d+/\d+\] +")
_FAILED_END = re.compile(r"\s*(?:\[\d+/\d+\] |ninja: |FAILED: )")
_MAKE_FAILED = re.compile(
    r"g?make(?:\[\d+\])?: \*\*\* \[(?:[^\]:]*:\d+: )?(?P<target>[^\]]+)\] Error (?P<code>\d+)"
)
_TRY_COMPILE_BEGIN = re.compile(r".*\bChange Dir: .*(?:CMakeTmp|CMakeScratch|TryCompile)")
_TRY_COMPILE_END = re.compile(r"-- |CMake |(?:ninja|g?make): ")

_SURE, _LIKELY, _WEAK = 0, 1, 2


class FirstErrorFinder:
    """Keeps the best error so far; the earliest of the surest kind wins."""

    def __init__(self) -> None:
        self._best: tuple[int, FirstError] | None = None
        self.last_line = 0
        """Number of the last line that states an error or a failed target."""
        self.failed_command: FailedCommand | None = None
        self.in_failed_block = False
        self.command_follows = False
        self._traceback_indent = -1
        self._traceback_lines = 0
        self._exception: FirstError | None = None
        self.in_check = False
        """Whether the last line belongs to a check that CMake makes by compiling."""
        self._trying = False
        self.in_frames = False
        """Whether the last line was a frame of a traceback: it quotes code, it says nothing."""

    @property
    def found(self) -> FirstError | None:
        """The first real error."""
        return self._best[1] if self._best else None

    @property
    def wants_every_line(self) -> bool:
        """Whether a message is open whose next lines count, whatever is in them."""
        return (
            self.command_follows
            or self._trying
            or self._traceback_indent >= 0
            or self.in_failed_block
            or self._exception is not None
        )

    def see(self, line: int, text: str) -> None:
        """One line, in the order of the log."""
        self.in_frames = False
        if self.command_follows:
            self.command_follows = False
            if is_command(text):
                self._take_command(text)
                return
        text = shortened(text)
        if self._noise(text):
            return
        if self._exception is not None and text.strip():
            self._decide_exception(replaced=_REPLACED.match(text) is not None)
        if self.in_failed_block and _FAILED_END.match(text):
            self.in_failed_block = False
        if self._traceback_indent >= 0 and self._in_traceback(line, text):
            return
        if traceback := _TRACEBACK.match(text):
            self._traceback_indent = len(traceback["indent"])
            self._traceback_lines = 0
            return
        if stated := is_error(text):
            self._keep(line, text, stated.tool, weak=stated.weak)
        elif make := _MAKE_FAILED.match(text):
            self._begin_make_failed(line, make)

    def see_failed(self, line: int, text: str, *, command: str) -> None:
        """Ninja's report of a failed target; `command` is its last progress line.

        The command follows on the next line. Where it does not, because ninja was called with -v or
        the log was filtered, it may be in the progress line.
        """
        self.in_frames = False
        self.command_follows = False
        if self._noise(shortened(text)):
            return
        if self._exception is not None:
            self._decide_exception(replaced=False)
        failed = _FAILED.match(shortened(text))
        if failed is None:
            return
        self._traceback_indent = -1
        self.in_failed_block = True
        self.command_follows = True
        self.last_line = line
        if self.failed_command is not None and self.failed_command.from_ninja:
            self.command_follows = False
            return
        target = failed["target"].strip()[:_TEXT_LENGTH]
        shown = _PROGRESS.sub("", command.strip())
        mentioned = target.split()[:1]
        in_progress = mentioned and mentioned[0] in shown.split() and is_command(shown)
        self.failed_command = FailedCommand(
            target=target,
            command=shown[:_COMMAND_LENGTH] if in_progress else "",
            line=line,
            exit_code=int(failed["code"]) if failed["code"] else None,
            from_ninja=True,
        )

    def see_cmake_error(self, line: int, message: str, inner: list[tuple[int, str]]) -> None:
        """A whole `CMake Error` with its line breaks undone, and the lines it was made of.

        A compiler's or a downloader's own words inside it say more than CMake's about them. CMake
        wraps long lines, so a message without a place of its own goes on in the next ones.
        """
        for index, (number, text) in enumerate(inner):
            stated = is_error(text)
            if stated is None or stated.weak:
                continue
            length = _WRAPPED_LINES if stated.tool == "program" else 1
            said = " ".join(part.strip() for _, part in inner[index : index + length])
            self._keep(number, said[:_WRAPPED_LENGTH], stated.tool)
            return
        self._keep(line, message, "cmake")

    def end(self) -> None:
        """The log is over."""
        self._decide_exception(replaced=False)

    def _keep(self, line: int, text: str, tool: str, *, weak: bool = False) -> None:
        self.last_line = line
        sureness = _WEAK if weak else _SURE if self.in_failed_block else _LIKELY
        if self._best is None or sureness < self._best[0]:
            text = text.strip()[:_TEXT_LENGTH]
            error = FirstError(line=line, text=text, tool=tool, weak=weak)
            self._best = (sureness, error)

    def _begin_make_failed(self, line: int, make: re.Match[str]) -> None:
        self.last_line = line
        if self.failed_command is None:
            self.failed_command = FailedCommand(
                target=make["target"][:_TEXT_LENGTH],
                command="",
                line=line,
                exit_code=int(make["code"]),
            )

    def _take_command(self, text: str) -> None:
        if self.failed_command is not None:
            command = text.strip()[:_COMMAND_LENGTH]
            self.failed_command = replace(self.failed_command, command=command)

    def _in_traceback(self, line: int, text: str) -> bool:
        """Whether the line belongs to the open traceback."""
        self._traceback_lines += 1
        if self._traceback_lines > _TRACEBACK_LINES:
            self._traceback_indent = -1
            return False
        body = text[self._traceback_indent :]
        deeper = len(text) - len(text.lstrip(" |+>")) > self._traceback_indent
        if deeper or not body.strip():
            self.in_frames = True
            return True
        if _EXCEPTION.match(body) and not text[: self._traceback_indent].strip(" |+>"):
            self._exception = FirstError(line=line, text=body.strip()[:_TEXT_LENGTH], tool="python")
            self._traceback_indent = -1
            return True
        return False  # a line of another process in between; the exception may still come

    def _decide_exception(self, *, replaced: bool) -> None:
        """Keep the exception that ended a traceback, unless handling it raised the next one."""
        if self._exception is not None and not replaced:
            kept = self._exception
            self._keep(kept.line, kept.text, "python", weak=is_wrapper(kept.text))
        self._exception = None

    def _noise(self, text: str) -> bool:
        """Whether the line is output of a check that CMake makes by compiling."""
        self.in_check = self._trying
        if _TRY_COMPILE_BEGIN.match(text):
            self._trying = self.in_check = True
        elif self._trying and _TRY_COMPILE_END.match(text):
            self._trying = False
        return self.in_check

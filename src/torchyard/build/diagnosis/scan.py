"""One pass over a log: which lines are looked at, and messages of CMake put together again.

Most of a log is progress lines and commands; they are passed over by their beginning. The rest is
searched for literal fragments block by block, and only lines with one, or lines of a message that
is open, are looked at one by one. Decides nothing: the matcher and the finder do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from torchyard.build.diagnosis.command_echo import CommandEcho
from torchyard.build.diagnosis.error_lines import ERROR_FRAGMENTS, is_check
from torchyard.build.diagnosis.first_error import FirstErrorFinder
from torchyard.build.diagnosis.gate import Gate
from torchyard.build.diagnosis.log_blocks import Block, as_text, shortened
from torchyard.build.diagnosis.matching import Matcher, Patterns
from torchyard.build.diagnosis.outcome import OUTCOME_FRAGMENTS, Outcome, Progress

__all__ = ["Scan", "gate_for"]

_CMAKE_HEADER = re.compile(r"(?P<indent>\s*)CMake (?P<kind>Error|Warning)(?: \(dev\))?(?:[ :]|$)")
_CALL_STACK = re.compile(r"\s*Call Stack \(most recent call first\)")
_CMAKE_LINES = 200
_PROGRESS_BYTES = 64 * 1024
# The bulk of every log, and never an error: progress of ninja and make with the command, commands
# that a shell traces, source under a compiler's message, and a compiler's warnings and notes.
# Matched without the indentation of a line, and without repetitions that could overlap.
_PASSED_OVER = re.compile(
    rb"\[ *(?P<done>\d{1,9})(?:/(?P<all>\d{1,9})|%)\]\s|(?:\d+ +)?\| |\++ "
    rb"|[^\s:]+:\d+:\d+: (?:warning|note): "
)
_PERCENT = 100
_PROGRESS_MARK = b"[0/0] -"
_ERROR_FRAGMENTS = frozenset(ERROR_FRAGMENTS)
_FAILED_TARGET = re.compile(r"\s*FAILED: (?!\d+\b)")


@dataclass
class _CMakeMessage:
    """A message of CMake that is not over yet."""

    line: int
    header: str
    indent: int
    error: bool
    inner: list[tuple[int, str]] = field(default_factory=list)
    in_call_stack: bool = False

    def joined(self) -> str:
        """The message without its line breaks and without CMake's call stack."""
        return " ".join(" ".join([self.header, *(text for _, text in self.inner)]).split())


class Scan:
    """Feeds what matters of a log to the matcher and to the finder of the first error."""

    def __init__(self, patterns: Patterns, gate: Gate) -> None:
        """`gate` lets through what the patterns and the finder want to see: see `gate_for`."""
        self.matcher = Matcher(patterns)
        self.finder = FirstErrorFinder()
        self.outcome = Outcome()
        self.lines = 0
        self._gate = gate
        self._cmake: _CMakeMessage | None = None
        self._echo = CommandEcho()
        self._earlier: FirstErrorFinder | None = None
        self._last_progress = ""

    @property
    def evidence(self) -> FirstErrorFinder:
        """The first error of the last attempt that shows one."""
        if self.finder.found is None and self.finder.failed_command is None and self._earlier:
            return self._earlier
        return self.finder

    def feed(self, block: Block) -> None:
        """The next block of the log."""
        self.lines = block.last
        numbers, lines, marks = self._worth_a_look(block)
        hits = self._gate.hits(b"\n".join(lines).lower())
        at = 0
        for hit in sorted({*hits, *marks}):
            while at < hit and self._open:
                self._look(numbers[at], as_text(lines[at]), [])
                at += 1
            at = hit + 1
            if hit in marks:
                self._pass_mark(numbers[hit], marks[hit])
            else:
                self._look(numbers[hit], as_text(lines[hit]), hits[hit])
        while at < len(lines) and self._open:
            self._look(numbers[at], as_text(lines[at]), [])
            at += 1

    def _worth_a_look(
        self, block: Block
    ) -> tuple[list[int], list[bytes], dict[int, Progress | None]]:
        """Numbers and texts of the lines, with a mark for all progress lines in a row.

        Marks by their index: progress, or None where a command of Torchyard's own begins.
        """
        numbers: list[int] = []
        kept: list[bytes] = []
        marks: dict[int, Progress | None] = {}
        for number, raw in block.lines():
            if self._echo.repeats(raw):
                if self._echo.begins:
                    marks[len(kept)] = None
                    numbers.append(number)
                    kept.append(b"")
                continue
            passed = _PASSED_OVER.match(raw.lstrip())
            if passed is None:
                numbers.append(number)
                kept.append(raw)
            elif passed["done"] is not None:
                done = (int(passed["done"]), int(passed["all"] or _PERCENT))
                before = marks.get(len(kept) - 1) if kept and kept[-1] is _PROGRESS_MARK else None
                if before is None:
                    numbers.append(number)
                    kept.append(_PROGRESS_MARK)
                first = before.first if before is not None else done
                text = raw[:_PROGRESS_BYTES].decode("utf-8", "replace")
                marks[len(kept) - 1] = Progress(number, first, done, text)
        return numbers, kept, marks

    def _pass_mark(self, number: int, progress: Progress | None) -> None:
        if self._open or progress is None:
            self._look(number, _PROGRESS_MARK.decode(), [])
        if progress is None:
            again = self.outcome.command(number)
        else:
            self._last_progress = progress.text
            again = self.outcome.progress(progress)
        if again:
            self._begin_attempt()

    def _begin_attempt(self) -> None:
        """What was seen so far did not end the build; keep it for the case that nothing else did."""
        self._close_cmake()
        self.finder.end()
        if self.finder.found is not None or self.finder.failed_command is not None:
            self._earlier = self.finder
        self.finder = FirstErrorFinder()
        self.matcher.begin_attempt()

    def end(self) -> None:
        """The log is over."""
        self._close_cmake()
        self.finder.end()
        self.outcome.error(self.finder.last_line)
        self.outcome.error(self.matcher.last_fatal_line)

    @property
    def _open(self) -> bool:
        return self._cmake is not None or self.finder.wants_every_line

    def _look(self, number: int, text: str, found: list[bytes]) -> None:
        if self._cmake is not None and not self._continues_cmake(number, text):
            self._close_cmake()
        if self._cmake is not None:
            return
        header = _CMAKE_HEADER.match(text)
        if header is None:
            self._pass_on(number, text, found)
            return
        self._cmake = _CMakeMessage(
            line=number,
            header=shortened(text).strip(),
            indent=len(header["indent"]),
            error=header["kind"] == "Error",
        )

    def _pass_on(self, number: int, text: str, found: list[bytes]) -> None:
        if _FAILED_TARGET.match(text):
            self.finder.see_failed(number, text, command=self._last_progress)
        elif self.finder.wants_every_line or not _ERROR_FRAGMENTS.isdisjoint(found):
            self.finder.see(number, text)
        else:
            self.finder.in_frames = False
        if self.finder.in_check or is_check(text):
            return
        if self.outcome.see(number, text):
            self._begin_attempt()
        if found and not self.finder.in_frames:
            self.matcher.see(number, text, found, in_failed_block=self.finder.in_failed_block)

    def _continues_cmake(self, number: int, text: str) -> bool:
        """Whether the line belongs to the open message; keeps it if it does."""
        message = self._cmake
        if message is None or len(message.inner) >= _CMAKE_LINES:
            return False
        if _CALL_STACK.match(text):
            message.in_call_stack = True
            return True
        if text.strip() and len(text) - len(text.lstrip()) <= message.indent:
            return False
        if text.strip() and not message.in_call_stack:
            message.inner.append((number, shortened(text)))
        return True

    def _close_cmake(self) -> None:
        message, self._cmake = self._cmake, None
        if message is None:
            return
        joined = message.joined()
        if message.error:
            self.finder.see_cmake_error(message.line, joined, message.inner)
        failed = self.finder.in_failed_block
        known = self.matcher.see(
            message.line, joined, self._found_in(joined), in_failed_block=failed
        )
        for number, text in message.inner:
            found = self._found_in(text)
            self.matcher.see(number, text, found, in_failed_block=failed, known=known)

    def _found_in(self, text: str) -> list[bytes]:
        lowered = text.lower().encode("utf-8", "replace")
        return [fragment for fragment in self.matcher.patterns.by_fragment if fragment in lowered]


def gate_for(patterns: Patterns) -> Gate:
    """Finds the lines that a signature or the first error may be in."""
    return Gate((*patterns.by_fragment, *ERROR_FRAGMENTS, *OUTCOME_FRAGMENTS))

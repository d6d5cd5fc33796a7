"""Scan a log in one pass: select the lines that matter, and reassemble the messages of CMake.

Most of a log is progress lines and commands; they are skipped by their first characters. The rest
is searched for literal fragments block by block, and only lines with one, or lines of an open
message, are examined one by one. A command that the log echoes may quote any message and is not
evidence (`CommandEcho`); the last statement of a tool about its whole run decides whether the log
ends in a failure (`Outcome`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from torchyard.builds.diagnosis.first_error import ERROR_FRAGMENTS, FirstErrorFinder, is_check
from torchyard.builds.diagnosis.log_blocks import Block, as_text, shortened
from torchyard.builds.diagnosis.matching import Gate, Matcher, Patterns

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


OUTCOME_FRAGMENTS: tuple[bytes, ...] = (
    b"success",
    b"succeeded",
    b"finished processing dependencies",
    b"build files have been written",
    b"-- installing: ",
    b"-- up-to-date: ",
    b" passed",
    b"tests passed",
    b"no work to do",
    b"nothing to be done",
    b"is up to date",
    b"(ignored)",
    b"build stopped",
    b"configuring incomplete",
    b"generate step failed",
    b"not remade because of errors",
    b"entering directory",
    b"failed:",
    b"*** ",
    b" failed",
    b"error:",
)
"""Lower-case texts, one of which is in every line that matters here."""

_SUCCESS = re.compile(
    r"(?:"
    # A whole command has succeeded, whatever it had to repeat.
    r"(?P<final>Successfully installed \S"
    r"|Finished processing dependencies for "
    r"|Finished: SUCCESS\b|BUILD SUCCESSFUL\b|Build succeeded\b"
    r"|(?:INFO: )?Build completed successfully\b)"
    # A whole command has succeeded, but ninja or make may have failed before and been passed over.
    r"|(?P<whole>-- Build files have been written to: "
    r"|100% tests passed, 0 tests failed"
    r"|=+ (?:\d+ (?:passed|skipped|xfailed|xpassed|deselected|warnings?|rerun|subtests passed),? ?)+"
    r"in [\d.]+s.*=+$"
    r"|\[  PASSED  \] \d+ tests?\.$"
    r"|ninja: no work to do\.)"
    # One part has succeeded.
    r"|Successfully built \S"
    r"|-- (?:Installing|Up-to-date): \S"
    r"|g?make(?:\[\d+\])?: (?:Nothing to be done for |'[^']*' is up to date)"
    r")",
    re.ASCII,
)
_IGNORED = re.compile(r"g?make(?:\[\d+\])?: \[[^\]]*\] Error \d+ \(ignored\)", re.ASCII)
_OPENS = re.compile(
    r"FAILED: (?!\d+\b)|g?make(?:\[\d+\])?: \*\*\* |ninja: (?:error|fatal): ", re.ASCII
)
_STOPS = re.compile(
    r"ninja: (?:build stopped|error|fatal): |g?make: \*\*\* |g?make(?:\[\d+\])?: Target .* not remade because of"
    r"|-- Configuring incomplete, errors occurred|CMake Generate step failed"
    r"|=+ .*\b\d+ (?:failed|errors?)\b.* in [\d.]+s.*=+$|FAILED \((?:failures|errors)="
    r"|\[  FAILED  \] \d+ tests?, listed below|\d+% tests passed, [1-9]\d* tests? failed out of",
    re.ASCII,
)
_ENTERS = re.compile(r"(?:ninja|g?make): Entering directory ", re.ASCII)


@dataclass(frozen=True)
class Progress:
    """Progress lines that follow each other, of ninja (`[n/m]`) or make (`[p%]`)."""

    line: int
    """Number of the last of them."""
    first: tuple[int, int]
    """Steps done and steps in all, at the first of them."""
    last: tuple[int, int]
    text: str
    """The last of them."""


class Outcome:
    """Follows the statements of tools about their runs."""

    def __init__(self) -> None:
        self.success_line = 0
        self.failure_line = 0
        self._open = False
        """ninja or make has reported a failed target in the current run."""
        self._stopped = False
        """And has ended because of it."""
        self._done = (0, 0)

    @property
    def failed(self) -> bool:
        """Whether the last statement is one of failure."""
        return self.failure_line > self.success_line

    def error(self, line: int) -> None:
        """A line that states an error or shows a fatal cause."""
        self.failure_line = max(self.failure_line, line)

    def progress(self, progress: Progress) -> bool:
        """See progress; return whether it begins another attempt after a failed one."""
        # ninja shows [0/n] also while it only runs CMake again.
        restarted = progress.first[0] > 0 and (
            progress.first[0] <= self._done[0] or progress.first[1] != self._done[1]
        )
        self._done = progress.last
        again = self._open and self._stopped and restarted
        if again:
            self._begin_again()
        if progress.last[0] == progress.last[1] and not self._open:
            self.success_line = progress.line
        return again

    def command(self, line: int) -> bool:
        """A command of Torchyard's own: it starts one only after the one before has succeeded."""
        self.success_line = line
        self._begin_again()
        return True

    def see(self, line: int, text: str) -> bool:
        """One line; return whether what comes before it did not end the build."""
        text = text.lstrip()
        if _OPENS.match(text):
            self._open = True
            self.failure_line = line
        if _STOPS.match(text):
            self._stopped = True
            self.failure_line = line
            return False
        if _ENTERS.match(text) and self._open and self._stopped:
            self._begin_again()
            return True
        if _IGNORED.match(text) and not self._open:
            self.success_line = line
            return True
        success = _SUCCESS.match(text)
        if success is None or (self._open and success["final"] is None):
            return False
        self.success_line = line
        if success["final"] is not None:
            self._begin_again()
        return success["final"] is not None or success["whole"] is not None

    def _begin_again(self) -> None:
        self._open = self._stopped = False
        self._done = (0, 0)


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

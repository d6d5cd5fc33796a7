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
from torchyard.builds.diagnosis.matching import CompiledSignatures, FragmentSearch, Matcher

_ECHO = re.compile(rb"\[\d\d:\d\d:\d\d\] \$ ")
_LINES = 1000
_QUOTES = b"'\""


class CommandEcho:
    """Detects lines of a log that echo a command."""

    def __init__(self) -> None:
        self._quote = 0
        """The quotation mark that is open at the end of the last line; 0 if none."""
        self._lines = 0
        self.begins = False
        """Whether the last line begins an echoed command."""

    def repeats(self, raw: bytes) -> bool:
        """Process the next line; return whether it is part of an echoed command."""
        self.begins = False
        if not self._quote:
            if not raw.startswith(b"[") or _ECHO.match(raw) is None:
                return False
            self._lines = 0
            self.begins = True
        self._lines += 1
        if self._lines > _LINES:  # too long for a command of Torchyard
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
"""Lower-case texts, one of which is in every relevant line."""

_SUCCESS = re.compile(
    r"(?:"
    # A complete command succeeded, whatever it retried.
    r"(?P<final>Successfully installed \S"
    r"|Finished processing dependencies for "
    r"|Finished: SUCCESS\b|BUILD SUCCESSFUL\b|Build succeeded\b"
    r"|(?:INFO: )?Build completed successfully\b)"
    # A complete command succeeded, but ninja or make may have failed before and been ignored.
    r"|(?P<whole>-- Build files have been written to: "
    r"|100% tests passed, 0 tests failed"
    r"|=+ (?:\d+ (?:passed|skipped|xfailed|xpassed|deselected|warnings?|rerun|subtests passed),? ?)+"
    r"in [\d.]+s.*=+$"
    r"|\[  PASSED  \] \d+ tests?\.$"
    r"|ninja: no work to do\.)"
    # One part succeeded.
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
    """Consecutive progress lines of ninja (`[n/m]`) or make (`[p%]`)."""

    line: int
    """Number of the last line."""
    first: tuple[int, int]
    """Steps done and total, in the first line."""
    last: tuple[int, int]
    text: str
    """The last line."""


class Outcome:
    """Determines whether the last statement of a tool reports a failure."""

    def __init__(self) -> None:
        self.success_line = 0
        self.failure_line = 0
        self._open = False
        """ninja or make has reported a failed target in the current run."""
        self._stopped = False
        """ninja or make has stopped because of it."""
        self._done = (0, 0)

    @property
    def failed(self) -> bool:
        """Whether the last statement reports a failure."""
        return self.failure_line > self.success_line

    def error(self, line: int) -> None:
        """Process a line that states an error or shows a fatal cause."""
        self.failure_line = max(self.failure_line, line)

    def progress(self, progress: Progress) -> bool:
        """Process progress; return whether it begins another attempt after a failed one."""
        # ninja also prints [0/n] when it only reruns CMake.
        restarted = progress.first[0] > 0 and (
            progress.first[0] <= self._done[0] or progress.first[1] != self._done[1]
        )
        self._done = progress.last
        again = self._open and self._stopped and restarted
        if again:
            self._restart()
        if progress.last[0] == progress.last[1] and not self._open:
            self.success_line = progress.line
        return again

    def command(self, line: int) -> bool:
        """Process a command of Torchyard, which implies that the previous one succeeded."""
        self.success_line = line
        self._restart()
        return True

    def process(self, line: int, text: str) -> bool:
        """Process one line; return whether it shows that earlier errors did not end the build."""
        text = text.lstrip()
        if _OPENS.match(text):
            self._open = True
            self.failure_line = line
        if _STOPS.match(text):
            self._stopped = True
            self.failure_line = line
            return False
        if _ENTERS.match(text) and self._open and self._stopped:
            self._restart()
            return True
        if _IGNORED.match(text) and not self._open:
            self.success_line = line
            return True
        success = _SUCCESS.match(text)
        if success is None or (self._open and success["final"] is None):
            return False
        self.success_line = line
        if success["final"] is not None:
            self._restart()
        return success["final"] is not None or success["whole"] is not None

    def _restart(self) -> None:
        self._open = self._stopped = False
        self._done = (0, 0)


_CMAKE_HEADER = re.compile(r"(?P<indent>\s*)CMake (?P<kind>Error|Warning)(?: \(dev\))?(?:[ :]|$)")
_CALL_STACK = re.compile(r"\s*Call Stack \(most recent call first\)")
_CMAKE_LINES = 200
_PROGRESS_BYTES = 64 * 1024
# Most lines of a log, and never an error: progress of ninja and make, commands traced by a shell,
# source quoted by a compiler, and warnings and notes. Matched without indentation, and without
# repetitions that could overlap.
_SKIPPED = re.compile(
    rb"\[ *(?P<done>\d{1,9})(?:/(?P<all>\d{1,9})|%)\]\s|(?:\d+ +)?\| |\++ "
    rb"|[^\s:]+:\d+:\d+: (?:warning|note): "
)
_PERCENT = 100
_PROGRESS_MARK = b"[0/0] -"
_ERROR_FRAGMENTS = frozenset(ERROR_FRAGMENTS)
_FAILED_TARGET = re.compile(r"\s*FAILED: (?!\d+\b)")


@dataclass
class _CMakeMessage:
    """An open message of CMake."""

    line: int
    header: str
    indent: int
    error: bool
    inner: list[tuple[int, str]] = field(default_factory=list)
    in_call_stack: bool = False

    def joined(self) -> str:
        """Return the message without line breaks and call stack."""
        return " ".join(" ".join([self.header, *(text for _, text in self.inner)]).split())


class LogScan:
    """Passes the relevant lines of a log to the matcher and to the finder of the first error."""

    def __init__(self, signatures: CompiledSignatures, search: FragmentSearch) -> None:
        self.matcher = Matcher(signatures)
        self.finder = FirstErrorFinder()
        self.outcome = Outcome()
        self.lines = 0
        self._search = search
        self._cmake: _CMakeMessage | None = None
        self._echo = CommandEcho()
        self._previous_finder: FirstErrorFinder | None = None
        self._last_progress = ""

    @property
    def evidence(self) -> FirstErrorFinder:
        """The first error of the last attempt that shows one."""
        if (
            self.finder.first_error is None
            and self.finder.failed_command is None
            and self._previous_finder
        ):
            return self._previous_finder
        return self.finder

    def feed(self, block: Block) -> None:
        """Process the next block of the log."""
        self.lines = block.last
        numbers, lines, marks = self._select_lines(block)
        hits = self._search.hits(b"\n".join(lines).lower())
        at = 0
        for hit in sorted({*hits, *marks}):
            while at < hit and self._open:
                self._examine(numbers[at], as_text(lines[at]), [])
                at += 1
            at = hit + 1
            if hit in marks:
                self._pass_mark(numbers[hit], marks[hit])
            else:
                self._examine(numbers[hit], as_text(lines[hit]), hits[hit])
        while at < len(lines) and self._open:
            self._examine(numbers[at], as_text(lines[at]), [])
            at += 1

    def _select_lines(
        self, block: Block
    ) -> tuple[list[int], list[bytes], dict[int, Progress | None]]:
        """Return numbers and texts of relevant lines, with one mark for consecutive progress lines.

        Marks by index: progress, or None where a command of Torchyard begins.
        """
        numbers: list[int] = []
        selected: list[bytes] = []
        marks: dict[int, Progress | None] = {}
        for number, raw in block.lines():
            if self._echo.repeats(raw):
                if self._echo.begins:
                    marks[len(selected)] = None
                    numbers.append(number)
                    selected.append(b"")
                continue
            skipped = _SKIPPED.match(raw.lstrip())
            if skipped is None:
                numbers.append(number)
                selected.append(raw)
            elif skipped["done"] is not None:
                done = (int(skipped["done"]), int(skipped["all"] or _PERCENT))
                before = (
                    marks.get(len(selected) - 1)
                    if selected and selected[-1] is _PROGRESS_MARK
                    else None
                )
                if before is None:
                    numbers.append(number)
                    selected.append(_PROGRESS_MARK)
                first = before.first if before is not None else done
                text = raw[:_PROGRESS_BYTES].decode("utf-8", "replace")
                marks[len(selected) - 1] = Progress(number, first, done, text)
        return numbers, selected, marks

    def _pass_mark(self, number: int, progress: Progress | None) -> None:
        if self._open or progress is None:
            self._examine(number, _PROGRESS_MARK.decode(), [])
        if progress is None:
            again = self.outcome.command(number)
        else:
            self._last_progress = progress.text
            again = self.outcome.progress(progress)
        if again:
            self._begin_attempt()

    def _begin_attempt(self) -> None:
        """Start a new attempt; keep the earlier error in case no other follows."""
        self._close_cmake()
        self.finder.end()
        if self.finder.first_error is not None or self.finder.failed_command is not None:
            self._previous_finder = self.finder
        self.finder = FirstErrorFinder()
        self.matcher.attempt += 1

    def end(self) -> None:
        """The log is over."""
        self._close_cmake()
        self.finder.end()
        self.outcome.error(self.finder.last_line)
        self.outcome.error(self.matcher.last_fatal_line)

    @property
    def _open(self) -> bool:
        return self._cmake is not None or self.finder.needs_every_line

    def _examine(self, number: int, text: str, fragments: list[bytes]) -> None:
        if self._cmake is not None and not self._continues_cmake(number, text):
            self._close_cmake()
        if self._cmake is not None:
            return
        header = _CMAKE_HEADER.match(text)
        if header is None:
            self._process_line(number, text, fragments)
            return
        self._cmake = _CMakeMessage(
            line=number,
            header=shortened(text).strip(),
            indent=len(header["indent"]),
            error=header["kind"] == "Error",
        )

    def _process_line(self, number: int, text: str, fragments: list[bytes]) -> None:
        if _FAILED_TARGET.match(text):
            self.finder.process_failed(number, text, command=self._last_progress)
        elif self.finder.needs_every_line or not _ERROR_FRAGMENTS.isdisjoint(fragments):
            self.finder.process(number, text)
        else:
            self.finder.in_frames = False
        if self.finder.in_check or is_check(text):
            return
        if self.outcome.process(number, text):
            self._begin_attempt()
        if fragments and not self.finder.in_frames:
            self.matcher.process(
                number, text, fragments, in_failed_block=self.finder.in_failed_block
            )

    def _continues_cmake(self, number: int, text: str) -> bool:
        """Add the line to the open message; return False if it does not belong to it."""
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
            self.finder.process_cmake_error(message.line, joined, message.inner)
        failed = self.finder.in_failed_block
        matched = self.matcher.process(
            message.line, joined, self._fragments_in(joined), in_failed_block=failed
        )
        for number, text in message.inner:
            fragments = self._fragments_in(text)
            self.matcher.process(
                number, text, fragments, in_failed_block=failed, already_matched=matched
            )

    def _fragments_in(self, text: str) -> list[bytes]:
        lowered = text.lower().encode("utf-8", "replace")
        return [fragment for fragment in self.matcher.patterns.by_fragment if fragment in lowered]


def fragment_search(signatures: CompiledSignatures) -> FragmentSearch:
    """Return a search for lines that a signature or the first error may be in."""
    return FragmentSearch((*signatures.by_fragment, *ERROR_FRAGMENTS, *OUTCOME_FRAGMENTS))

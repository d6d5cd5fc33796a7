"""Whether a log ends in a failure: the last statement of a tool about its whole run decides.

An error that a later success contradicts did not end the build: a check that is meant to fail, a
test that prints an error, an attempt that was repeated. Knows nothing of causes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["OUTCOME_FRAGMENTS", "Outcome", "Progress"]

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

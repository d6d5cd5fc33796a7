"""A pytest plugin that writes one line per event, as it happens.

A copy of this file runs in the interpreter of the target (Python 3.8 or newer) and needs only
pytest. When the interpreter dies, the lines tell in which test. A test that exceeds its time limit
ends the interpreter, which then looks like a crash in that test, with the stack on file.
"""

from __future__ import annotations

import faulthandler
import json
import time
from pathlib import Path
from typing import Any


class Reporter:
    """Hooks of pytest; `done` are tests that an earlier start has run."""

    def __init__(
        self, lines: str, stacks: str, done: list[str], test_limit_s: float, limit_s: float
    ) -> None:
        self._lines = Path(lines).open("a", buffering=1, encoding="utf-8")  # noqa: SIM115
        self._stacks = Path(stacks).open("a", encoding="utf-8")  # noqa: SIM115
        self._done = frozenset(done)
        self._test_limit_s = test_limit_s
        self._end_s = time.monotonic() + limit_s
        self._session: Any = None

    def pytest_sessionstart(self, session: Any) -> None:
        """Start the watchdog: collection may hang."""
        self._session = session
        self._watch(self._remaining_s())

    def pytest_collectreport(self, report: Any) -> None:
        """Report a module that cannot be imported."""
        if report.failed:
            self._write(event="collect-error", id=report.nodeid, text=_last_line(report))

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        """Report the collected tests, and deselect those that are done."""
        self._write(event="collected", ids=[item.nodeid for item in items])
        again = [item for item in items if item.nodeid in self._done]
        if again:
            config.hook.pytest_deselected(items=again)
            items[:] = [item for item in items if item.nodeid not in self._done]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Report the start: a later crash belongs to this test."""
        self._write(event="start", id=nodeid)
        self._watch(min(self._test_limit_s, self._remaining_s()))

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Report one phase of a test: setup, call or teardown."""
        self._write(
            event="report",
            id=report.nodeid,
            when=report.when,
            outcome=report.outcome,
            expected=hasattr(report, "wasxfail"),
            text=_last_line(report) if report.failed else "",
        )

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Report the end of a test, and stop if the time limit is exceeded."""
        self._write(event="finish", id=nodeid)
        if self._remaining_s() <= 0:
            self._write(event="limit")
            self._session.shouldstop = "the time limit was exceeded"
        self._watch(self._remaining_s() + 60.0)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Report the end of the run."""
        self._write(event="end", status=int(exitstatus))

    def pytest_unconfigure(self) -> None:
        """Stop the watchdog."""
        faulthandler.cancel_dump_traceback_later()

    def _write(self, **line: object) -> None:
        self._lines.write(json.dumps(line) + "\n")

    def _watch(self, limit_s: float) -> None:
        faulthandler.dump_traceback_later(max(limit_s, 1.0), exit=True, file=self._stacks)

    def _remaining_s(self) -> float:
        return self._end_s - time.monotonic()


def _last_line(report: Any) -> str:
    lines = str(getattr(report, "longrepr", "") or "").strip().splitlines()
    return lines[-1].strip() if lines else ""

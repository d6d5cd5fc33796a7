"""From the lines of a test run to an account of every test. No I/O.

A test is counted once, by the worst that happened to it, over all starts of the interpreter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torchyard.core.build_record import TestAccount

__all__ = ["RunLog", "make_account", "names_test", "read_log"]

Outcome = Literal["passed", "skipped", "expected", "error", "failed"]
_ORDER: tuple[Outcome, ...] = ("passed", "skipped", "expected", "error", "failed")


@dataclass(kw_only=True)
class RunLog:
    """What one start of the interpreter wrote before it ended."""

    collected: list[str] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    collect_errors: dict[str, str] = field(default_factory=dict)
    running: str = ""
    """The test that had begun and not ended."""
    ended: bool = False
    """pytest came to its end."""
    out_of_time: bool = False


def read_log(lines: Iterable[str]) -> RunLog:
    """The log in those lines; a last line that a crash cut off is skipped."""
    log = RunLog()
    for text in lines:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        _add(log, line)
    return log


def _add(log: RunLog, line: dict[str, Any]) -> None:
    event = line.get("event")
    if event == "collected":
        log.collected = [str(name) for name in line["ids"]]
    elif event == "collect-error":
        log.collect_errors[str(line["id"])] = str(line["text"])
    elif event == "start":
        log.running = str(line["id"])
    elif event == "finish":
        log.running = ""
    elif event == "report":
        name, found = str(line["id"]), _outcome(line)
        before = log.outcomes.get(name, "passed")
        log.outcomes[name] = max(before, found, key=_ORDER.index)
    elif event == "limit":
        log.out_of_time = True
    elif event == "end":
        log.ended = True


def _outcome(line: dict[str, Any]) -> Outcome:
    if line["outcome"] == "failed":
        return "failed" if line["when"] == "call" else "error"
    if line["outcome"] == "skipped":
        return "expected" if line["expected"] else "skipped"
    return "passed"


def names_test(known: str, test: str) -> bool:
    """Whether the name of a known failure means that test.

    Both `TestNN.test_x`, as unittest says it, and `test/test_nn.py::TestNN::test_x`, as pytest
    says it, are names; a name without `[...]` means the test with all its parameters.
    """
    known_name, known_bracket, known_parameters = known.strip().partition("[")
    test_name, test_bracket, test_parameters = test.partition("[")
    if known_bracket and (known_bracket, known_parameters) != (test_bracket, test_parameters):
        return False
    wanted = known_name.split("::") if "::" in known_name else known_name.split(".")
    parts = test_name.split("::")
    if len(wanted) > len(parts) or wanted[1:] != parts[len(parts) - len(wanted) + 1 :]:
        return False
    first = parts[len(parts) - len(wanted)]
    # The first part may be a file, and be given with fewer folders.
    return first == wanted[0] or first.endswith(f"/{wanted[0]}") or wanted[0].endswith(f"/{first}")


def make_account(
    path: str,
    logs: Sequence[RunLog],
    *,
    known_failures: Sequence[str],
    crashes: Sequence[tuple[str, str]],
    timed_out: bool,
) -> TestAccount:
    """The account of all starts together; `crashes` are (test or empty, how it ended)."""
    collected = list(dict.fromkeys(name for log in logs for name in log.collected))
    outcomes: dict[str, Outcome] = {}
    for log in logs:
        outcomes |= log.outcomes
    for name, _ in crashes:
        if name:
            outcomes[name] = "failed"
    # A collection error repeats at every start; it names a module, not a test.
    broken = {name: text for log in logs for name, text in log.collect_errors.items()}
    bad = [name for name, outcome in outcomes.items() if outcome in ("failed", "error")]

    def known(name: str) -> bool:
        return any(names_test(item, name) for item in known_failures)

    new = [name for name in bad if not known(name)]
    new += [f"{name or path} (not collected: {text})" for name, text in broken.items()]
    new += [f"{path} ({how} outside any test)" for name, how in crashes if not name]
    counts = {kind: list(outcomes.values()).count(kind) for kind in _ORDER}
    return TestAccount(
        path=path,
        passed=counts["passed"],
        failed=counts["failed"],
        errors=counts["error"] + len(broken),
        skipped=counts["skipped"],
        expected_failures=counts["expected"],
        not_run=sum(1 for name in collected if name not in outcomes),
        new_failures=tuple(new),
        known_failures=tuple(name for name in bad if known(name)),
        mended=tuple(
            name for name, outcome in outcomes.items() if outcome == "passed" and known(name)
        ),
        unseen=tuple(
            item for item in known_failures if not any(names_test(item, name) for name in collected)
        ),
        crashed_in=tuple(name for name, _ in crashes if name),
        crashes=tuple(how for _, how in crashes),
        timed_out=timed_out,
    )

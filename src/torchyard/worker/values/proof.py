"""Proofs: right after an operator ran, what was found in it is put on trial, while values are there.

Keeps the books: which cause was tried how often and what came out, what could not be tried and why.
Nothing here reaches the program (an interrupt does). What makes a finding proven is decided in
`certainty`.
"""

import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from torchyard.worker.values.arguments import CannotCopy
from torchyard.worker.values.certainty import LIKELY, UNREAD, Test, judge, make_test
from torchyard.worker.values.findings import Finding, Findings
from torchyard.worker.values.observation import Observation
from torchyard.worker.values.operators import FILLS, operator_of
from torchyard.worker.values.replay import Void
from torchyard.worker.values.strategies import (
    DEAD,
    Strategy,
    fill_inside,
    is_sum,
    strategy_for,
    sum_with_zeros,
)
from torchyard.worker.values.trial import Bench, Untested, refusal
from torchyard.worker.values.untouched import Untouched

INSIDE = "filled inside the operator; whatever is there instead, every result is the same"
NO_TIME = "proofs have taken their share of the time"
MOST_TRIALS = 2
"""Of one cause: the second time with other values of the program's own."""
_MOST_AT_ONCE = 8
_FREE_S = 10.0
_MOST_SHARE = 0.5
"""Of the time so far goes to trials, once they took the free seconds."""

_Cause = Tuple[str, str, Tuple[str, ...], str, int, bool, int]


class _Book:
    """What is known of one cause."""

    __slots__ = ("holds", "tests", "trials", "why_not")

    def __init__(self) -> None:
        self.trials = 0
        self.holds: Optional[bool] = None
        """For the program's own values, the first time it could be tried."""
        self.tests: List[Test] = []
        self.why_not = ""


class Proofs:
    """Tries what the watch saw and the patterns found."""

    def __init__(self, findings: Findings, room_bytes: Callable[[], int]) -> None:
        self._findings = findings
        self._room_bytes = room_bytes
        self._books: Dict[_Cause, _Book] = {}
        self._fills: List[Observation] = []
        self._found: List[Tuple[Finding, Observation]] = []
        self._sums: List[Tuple[Finding, Observation]] = []
        self._counted: Dict[int, Finding] = {}
        self._adding = False
        self._began_s = time.monotonic()
        self.spent_s = 0.0
        self.tried = 0
        self.untried: Dict[str, int] = {}
        """Why something was not tried, and how often."""

    def observe(self, seen: Observation) -> None:
        """Remember fills inside of operators: no pattern can see whether they are dead."""
        inside = bool(seen.path) and seen.path[0] not in FILLS
        if inside and seen.operator.fills and not seen.written_inside:
            self._fills.append(seen)

    def found(self, finding: Finding, seen: Observation) -> None:
        """Remember what a pattern found."""
        if self._adding:
            return
        if is_sum(finding):
            self._sums.append((finding, seen))
        elif finding.pattern == DEAD and seen.path:
            self._counted[id(seen)] = finding
        elif strategy_for(finding, seen) is not None:
            self._found.append((finding, seen))

    def after_operator(self, func: Any, args: Any, kwargs: Any, _result: Any) -> None:
        """Try what was seen in the operator that just ran. The watch is off."""
        if self._sums:
            self.finish()
        if not self._fills and not self._found:
            return
        fills, found, counted = self._fills, self._found, self._counted
        self._fills, self._found, self._counted = [], [], {}
        budget = _MOST_AT_ONCE
        outermost = operator_of(func).name
        again = {seen.state.key: seen.number for _, seen in found if seen.was_fill is not None}
        for seen in fills:
            if seen.path[0] != outermost:
                continue  # left by an operator that raised
            # One that is filled again with the same is dead because of the second fill: one of the
            # two is needed, and the second is a finding already.
            if seen.number >= again.get(seen.state.key, seen.number):
                budget -= self._judge_fill(seen, counted.get(id(seen)), budget, func, args, kwargs)
        for finding, seen in found:
            book = self._book(finding.pattern, seen)
            strategy = strategy_for(finding, seen)
            if strategy is not None and self._wants(book, budget):
                budget -= 1
                self._try(book, strategy, func, args, kwargs)
            if finding.pattern == DEAD and book.holds is False:
                self._findings.drop(finding)
            else:
                _settle(finding, book)

    def finish(self) -> None:
        """Try what needs no operator. The watch must be off."""
        sums, self._sums = self._sums, []
        for finding, seen in sums:
            book = self._book(finding.pattern, seen)
            if not book.trials:
                book.trials = 1
                self.tried += 1
                try:
                    with Untouched((), {}):
                        book.tests = sum_with_zeros(seen)
                        book.holds = True
                except Exception as error:
                    self._not_tried(book, refusal(error))
            _settle(finding, book)

    def doubt(self, why: str) -> None:
        """Findings about memory between operators hold only if all that touches it was seen."""
        for finding in self._findings.all() if why else ():
            tests = finding.proof.get("tests")
            if tests and not finding.path:
                tests.append(make_test(UNREAD, False, detail=why))
                finding.proof["certainty"], finding.proof["why"] = judge(tests, inside=False)

    def notes(self) -> List[str]:
        """What was not tried, for the report."""
        return [
            "not put on trial, %d times: %s" % (count, reason)
            for reason, count in sorted(self.untried.items())
        ]

    def _judge_fill(
        self,
        seen: Observation,
        counted: Optional[Finding],
        budget: int,
        func: Any,
        args: Any,
        kwargs: Any,
    ) -> int:
        """Try a fill inside; how many trials that took."""
        book = self._book(DEAD, seen)
        trials = 0
        if book.holds is not False and self._wants(book, budget):
            trials = 1
            self._try(book, fill_inside(seen), func, args, kwargs)
        if book.holds is False and counted is not None:
            self._findings.drop(counted)
        elif book.holds:
            if counted is None:
                self._adding = True
                counted = self._findings.add(DEAD, seen, seen.size_bytes, detail=INSIDE)
                self._adding = False
            if counted is not None:
                _settle(counted, book)
        return trials

    def _wants(self, book: _Book, budget: int) -> bool:
        if book.trials >= MOST_TRIALS or budget <= 0:
            return False
        spent, passed = self.spent_s, time.monotonic() - self._began_s
        if spent > _FREE_S and spent > _MOST_SHARE * passed:
            self._not_tried(book, NO_TIME)
            return False
        return True

    def _try(self, book: _Book, strategy: Strategy, func: Any, args: Any, kwargs: Any) -> None:
        began_s = time.monotonic()
        book.trials += 1
        try:
            with Bench(func, args, kwargs, self._room_bytes()) as bench:
                holds, tests = strategy(bench)
        except (Untested, Void, CannotCopy) as error:
            self._not_tried(book, str(error))
        except Exception as error:
            self._not_tried(book, refusal(error))
        else:
            self.tried += 1
            book.tests += tests
            # Once dead and once needed: the finding stays, and says that it depends on the input.
            book.holds = holds or bool(book.holds)
        self.spent_s += time.monotonic() - began_s

    def _not_tried(self, book: _Book, why: str) -> None:
        book.why_not = why
        self.untried[why] = self.untried.get(why, 0) + 1

    def _book(self, pattern: str, seen: Observation) -> _Book:
        place = seen.place
        cause = (
            pattern,
            seen.operator.name,
            seen.path,
            place.file,
            place.line,
            place.backward,
            seen.number,
        )
        return self._books.setdefault(cause, _Book())


def _settle(finding: Finding, book: _Book) -> None:
    """Write into the finding how sure it is now."""
    if not book.tests:
        why = "not tested: %s" % (book.why_not or "its turn did not come")
        finding.proof = {"certainty": LIKELY, "why": why, "tests": []}
        return
    certainty, why = judge(book.tests, inside=bool(finding.path))
    finding.proof = {"certainty": certainty, "why": why, "tests": list(book.tests)}

"""Prove and test findings, right after the operator ran, while its values exist.

A finding is proven if every call of it is wasted for every input of its shapes: by the definitions of the operators
(`operators.py`) and the source of the surrounding code (`straight_line.py`), if nothing else can access the memory.
In addition it is tested with other values (`trials.py`). No exception reaches the program, except an interrupt.
"""

import sys
import time
from types import CodeType, FrameType
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch

from torchyard.worker.values.findings import Cause, Finding, Findings, ResultKey, cause_of
from torchyard.worker.values.observation import Observation, storage_key, untyped_storage
from torchyard.worker.values.operators import (
    FILLS,
    operator_of,
    overwrites_all,
    proven_inside,
    written_tensors,
)
from torchyard.worker.values.places import calling_frame
from torchyard.worker.values.proofs import trials
from torchyard.worker.values.proofs.certainty import (
    LIKELY,
    NATIVE_OPERATOR,
    NATIVE_PROGRAM,
    NEEDED,
    SEMANTICS,
    UNREAD,
    VALUES_VARIED,
    Test,
    certainty_of,
    make_test,
)
from torchyard.worker.values.proofs.replay import ReplayFailed, StateGuard, replay_blocker
from torchyard.worker.values.proofs.straight_line import (
    PRIVATE,
    Claim,
    fill_is_overwritten,
    fill_is_repeated,
    is_identity,
)
from torchyard.worker.values.proofs.syntax import Site
from torchyard.worker.values.proofs.trial_inputs import CannotCopy, flat_results

_TENSORS = (torch.Tensor, torch.nn.Parameter)
OVERWRITTEN = (
    "%s writes every element and reads none, and the code after the fill always reaches it"
)
IN_PIECES = "the written pieces cover it, and the code between the fill and them does nothing else"
REPEATED = "both fills write the same constant, and no code between them can access the memory"
IDENTITY = "multiplying by one does not change any integer"


class Reason(NamedTuple):
    """Reason why a call is wasted."""

    text: str
    by_shape: bool = False
    in_pieces: bool = False
    shared: bool = False
    """Whether it requires that no unobserved code runs concurrently."""


def dead_fill(
    fill: Observation, frame: Optional[FrameType], func: Any, args: Any, kwargs: Any
) -> Optional[Reason]:
    """Return why a fill is never read; None if that is not certain."""
    operator = operator_of(func)
    tensor = _written(fill, func, args, kwargs)
    if tensor is None or fill.site is None or frame is None or not overwrites_all(func, operator):
        return None
    if replay_blocker() is not None:
        return None
    bare = operator.name.split("::")[1]
    claim = fill_is_overwritten(fill.site, frame, bare)
    if claim is None or not _unreachable(claim, fill, tensor):
        return None
    whole = tensor.numel() * tensor.element_size() == fill.size_bytes
    if not whole and not claim.in_pieces:
        return None
    text = IN_PIECES if claim.in_pieces else OVERWRITTEN % bare
    return Reason(text, claim.by_shape, claim.in_pieces, claim.how != PRIVATE)


def redundant(
    observation: Observation, frame: Optional[FrameType], func: Any, args: Any, kwargs: Any
) -> Optional[Reason]:
    """Return why a write changes no bit; None if that is not certain."""
    operator = operator_of(func)
    tensor = _written(observation, func, args, kwargs)
    if frame is None or tensor is None or replay_blocker() is not None:
        return None
    fill = observation.was_fill
    if operator.fills and fill is not None and fill.site is not None and observation.whole:
        claim = fill_is_repeated(fill.site, frame)
        if claim is None or not _unreachable(claim, fill, tensor):
            return None
        return Reason(REPEATED, shared=claim.how != PRIVATE)
    bare = operator.name.split("::")[1]
    # Arithmetic with floating-point numbers changes the bits of signalling NaNs.
    if tensor.is_floating_point() or tensor.is_complex() or not is_identity(frame, bare):
        return None
    return Reason(IDENTITY)


def _written(observation: Observation, func: Any, args: Any, kwargs: Any) -> Optional[torch.Tensor]:
    """Return the plain tensor in the observed memory that the operator wrote, if any."""
    for tensor in written_tensors(operator_of(func), args, kwargs):
        if type(tensor) in _TENSORS and storage_key(tensor) == observation.state.key:
            return tensor
    return None


def _unreachable(claim: Claim, fill: Observation, tensor: torch.Tensor) -> bool:
    """Return whether no concurrent code or other owner of the memory can read the fill."""
    if claim.how == PRIVATE:
        return fill.fresh
    if fill.state.outside or untyped_storage(tensor).is_shared():
        return False
    if tensor.requires_grad and torch.is_grad_enabled():
        return False
    return not _other_threads() and not _saving_hooks()


def _other_threads() -> bool:
    """Return whether other Python threads exist."""
    return len(sys._current_frames()) > 1


def _saving_hooks() -> bool:
    """Return whether saved-tensor hooks of the program are active."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if top is None:  # not available before torch 2.1
        return torch.is_grad_enabled()
    return top(True) is not None


INSIDE = "filled inside the operator; poison values in its place change no result"
NO_TIME = "the time limit of proofs was reached"
TOO_MANY = "it is called with more argument forms than are tested"
MOST_TRIALS = 2
"""Trials per cause and argument form; the second one has other values of the program."""
MOST_FORMS = 6
"""Argument forms per cause."""
_MOST_AT_ONCE = 8
_FREE_S = 10.0
_MOST_SHARE = 0.5
"""Maximum share of the run time for trials, beyond the free seconds."""

_Place = Tuple[Cause, int]
"""A cause and the index of the inner operator."""
_Form = Tuple[Any, ...]
"""Shapes, types and numbers of arguments."""


class _TrialRecord:
    """Trials of one cause with one argument form."""

    __slots__ = ("holds", "tests", "trials", "why_not")

    def __init__(self) -> None:
        self.trials = 0
        self.holds: Optional[bool] = None
        """Whether the finding holds for the program's own values."""
        self.tests: List[Test] = []
        self.why_not = ""


class Proofs:
    """Proves and tests observations and findings."""

    def __init__(
        self, findings: Findings, available_bytes: Callable[[], int], dispatch: CodeType
    ) -> None:
        """Create the proofs; `dispatch` is the code of `__torch_dispatch__`, called by the program."""
        self._findings = findings
        self._available_bytes = available_bytes
        self._dispatch = dispatch
        self._records: Dict[_Place, Dict[_Form, _TrialRecord]] = {}
        self._fills: List[Observation] = []
        self._to_test: List[Tuple[Finding, Observation]] = []
        self._sums: List[Tuple[Finding, Observation]] = []
        self._counted: Dict[int, Finding] = {}
        self._settled: Dict[int, Tuple[Finding, _Place]] = {}
        self._sites: Dict[ResultKey, Dict[Site, int]] = {}
        self._is_adding = False
        self._began_s = time.monotonic()
        self.spent_s = 0.0
        self.tried = 0
        self.untried: Dict[str, int] = {}
        """Reasons for missing trials, with counts."""

    def observe(self, observation: Observation) -> None:
        """Store fills inside operators, which no pattern can decide, and count fills by call site."""
        if observation.site is not None and not observation.path:
            sites = self._sites.setdefault((observation.node, observation.position), {})
            sites[observation.site] = sites.get(observation.site, 0) + 1
        inside = bool(observation.path) and observation.path[0] not in FILLS
        if inside and observation.operator.fills and not observation.written_inside:
            self._fills.append(observation)

    def found(self, finding: Finding, observation: Observation) -> None:
        """Store a finding of a pattern until the operator has finished."""
        if self._is_adding:
            return
        if trials.is_sum(finding):
            self._sums.append((finding, observation))
        elif finding.pattern == trials.DEAD and observation.path:
            self._counted[id(observation)] = finding
        elif trials.strategy_for(finding, observation) is not None:
            self._to_test.append((finding, observation))

    def after_operator(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Prove and test the findings of the operator that just ran. The mode is inactive."""
        if self._sums:
            self.finish()
        if not self._fills and not self._to_test:
            return
        fills, to_test, counted = self._fills, self._to_test, self._counted
        self._fills, self._to_test, self._counted = [], [], {}
        budget = _MOST_AT_ONCE
        outermost = operator_of(func).name
        form = _form(args, kwargs)
        again = {
            observation.state.key: observation.number
            for _, observation in to_test
            if observation.was_fill is not None
        }
        for observation in fills:
            if observation.path[0] != outermost:
                continue  # left over from an operator that raised
            # If a second fill writes the same values, one of the two is needed, and the second one is
            # reported already.
            if observation.number < again.get(observation.state.key, observation.number):
                continue
            finding = counted.get(id(observation))
            record = self._trial_record(finding, observation, form)
            if record.holds is not False and self._should_try(record, budget):
                budget -= 1
                self._try(record, trials.fill_inside(observation), func, args, kwargs)
            self._count_fill(observation, finding, record, result)
        for finding, observation in to_test:
            record = self._trial_record(finding, observation, form)
            reason = self._reason(finding, observation, func, args, kwargs, result)
            # A proof makes the trial unnecessary where a trial of one operator cannot decide.
            needless = (
                reason is not None
                and not observation.path
                and observation.operator.fills
                and (reason.in_pieces or finding.pattern == trials.REDUNDANT)
            )
            strategy = None if needless else trials.strategy_for(finding, observation)
            if strategy is not None and self._should_try(record, budget):
                budget -= 1
                self._try(record, strategy, func, args, kwargs)
            if finding.pattern == trials.DEAD and record.holds is False:
                self._findings.drop(finding)
                continue
            if reason is not None:
                _count_proven(finding, reason, observation.site)
            self._settle(finding, (finding.cause, observation.number))

    def finish(self) -> None:
        """Run the trials that need no operator. The mode must be inactive."""
        sums, self._sums = self._sums, []
        for finding, observation in sums:
            record = self._trial_record(finding, observation, ())
            if not record.trials:
                record.trials = 1
                self.tried += 1
                try:
                    with StateGuard((), {}):
                        record.tests = trials.sum_with_zeros(observation)
                        record.holds = True
                except Exception as error:
                    self._not_tried(record, trials.error_line(error))
            self._settle(finding, (finding.cause, observation.number))

    def conclude(self, doubt: str) -> None:
        """Compute the final certainty of every finding.

        `doubt` says which code could access memory without being observed. It invalidates proofs
        about memory that the program may have shared.
        """
        for finding, place in list(self._settled.values()):
            if doubt and finding.shared:
                finding.proven = 0
            self._settle(finding, place)
            tests = finding.proof["tests"]
            if doubt and tests and not finding.path and not finding.proven:
                tests.append(make_test(UNREAD, False, detail=doubt))
                finding.proof["certainty"], finding.proof["why"] = certainty_of(tests, inside=False)
        for finding in self._findings.candidates():
            if finding.used and not finding.proven:
                calls = finding.used + finding.count
                detail = "the values were read in %d of %d calls of this line" % (
                    finding.used,
                    calls,
                )
                tests = [
                    *finding.proof.get("tests", ()),
                    make_test(NEEDED, False, detail=detail),
                ]
                certainty, why = certainty_of(tests, inside=bool(finding.path))
                finding.proof = {"certainty": certainty, "why": why, "tests": tests}

    def notes(self) -> List[str]:
        """Return notes on missing trials."""
        return [
            "not tested, %d times: %s" % (count, reason)
            for reason, count in sorted(self.untried.items())
        ]

    def _count_fill(
        self,
        observation: Observation,
        finding: Optional[Finding],
        record: _TrialRecord,
        result: Any,
    ) -> None:
        """Report a fill inside an operator if its trials show that it is dead."""
        if record.holds is False and finding is not None:
            self._findings.drop(finding)
        elif record.holds:
            if finding is None:
                self._is_adding = True
                finding = self._findings.add(
                    trials.DEAD, observation, observation.size_bytes, detail=INSIDE
                )
                self._is_adding = False
            if finding is not None:
                reason = proven_inside(observation.path, observation.shape, result, refilled=False)
                if reason is not None:
                    _count_proven(finding, Reason(reason), None)
                self._settle(finding, (finding.cause, observation.number))

    def _reason(
        self,
        finding: Finding,
        observation: Observation,
        func: Any,
        args: Any,
        kwargs: Any,
        result: Any,
    ) -> Optional[Reason]:
        """Return why a call is wasted for every input; None if that is not certain."""
        reason: Optional[Reason] = None
        try:
            if observation.path:
                if (
                    observation.operator.fills
                    and observation.single_zero
                    and observation.was_fill is not None
                ):
                    text = proven_inside(observation.path, observation.shape, result, refilled=True)
                    reason = None if text is None else Reason(text)
            else:
                frame = calling_frame(self._dispatch)
                if finding.pattern == trials.DEAD:
                    reason = dead_fill(observation, frame, func, args, kwargs)
                elif (
                    finding.pattern == trials.REDUNDANT
                    and observation.scan.unchanged == observation.scan.count
                ):
                    reason = redundant(observation, frame, func, args, kwargs)
        except Exception as error:  # an error here must not stop the program
            why = "source not analyzed: " + trials.error_line(error)
            self.untried[why] = self.untried.get(why, 0) + 1
        return reason

    def _should_try(self, record: _TrialRecord, budget: int) -> bool:
        if record.trials >= MOST_TRIALS or budget <= 0 or record.why_not == TOO_MANY:
            return False
        spent, passed = self.spent_s, time.monotonic() - self._began_s
        if spent > _FREE_S and spent > _MOST_SHARE * passed:
            self._not_tried(record, NO_TIME)
            return False
        return True

    def _try(
        self, record: _TrialRecord, strategy: trials.Strategy, func: Any, args: Any, kwargs: Any
    ) -> None:
        began_s = time.monotonic()
        record.trials += 1
        try:
            with trials.TrialContext(func, args, kwargs, self._available_bytes()) as context:
                holds, tests = strategy(context)
        except (trials.NotTestable, ReplayFailed, CannotCopy) as error:
            self._not_tried(record, str(error))
        except Exception as error:
            self._not_tried(record, trials.error_line(error))
        else:
            self.tried += 1
            record.tests += tests
            # Dead in one trial and needed in another: the finding is input-dependent.
            record.holds = holds or bool(record.holds)
        self.spent_s += time.monotonic() - began_s

    def _not_tried(self, record: _TrialRecord, why: str) -> None:
        record.why_not = why
        self.untried[why] = self.untried.get(why, 0) + 1

    def _trial_record(
        self, finding: Optional[Finding], observation: Observation, form: _Form
    ) -> _TrialRecord:
        cause = cause_of(trials.DEAD if finding is None else finding.pattern, observation)
        records = self._records.setdefault((cause, observation.number), {})
        form = (observation.shape, observation.dtype, *form)
        if form not in records and len(records) >= MOST_FORMS:
            form = ()
            records.setdefault(form, _TrialRecord()).why_not = TOO_MANY
        return records.setdefault(form, _TrialRecord())

    def _settle(self, finding: Finding, place: _Place) -> None:
        """Update the proof of a finding."""
        self._settled[id(finding)] = (finding, place)
        records = list(self._records.get(place, {}).values())
        tests = [test for record in records for test in record.tests]
        if tests and len(records) > 1:
            tests += [doubt for record in records for doubt in _doubts(finding, record)]
        if finding.proven:
            calls = finding.count + self._other_calls(finding)
            detail = "%d of %d calls: %s" % (finding.proven, calls, finding.reason)
            tests.append(make_test(SEMANTICS, finding.proven == calls, detail=detail))
        if not tests:
            reasons = [record.why_not for record in records if record.why_not]
            why = "not tested: %s" % (reasons[0] if reasons else "no trial was started")
            finding.proof = {"certainty": LIKELY, "why": why, "tests": []}
            return
        certainty, why = certainty_of(tests, inside=bool(finding.path))
        finding.proof = {"certainty": certainty, "why": why, "tests": tests}

    def _other_calls(self, finding: Finding) -> int:
        """Return the number of calls of the same line in which the work may have been needed.

        If the source proves all calls of a site, calls without a finding are wasted, too (a copy of
        zeros over zeros). If the proof depends on shapes, every call must have been proven.
        """
        if finding.path:
            return 0
        if not finding.proven_at:
            return max(0, self._findings.calls_of(finding) - finding.count)
        sites: Dict[Site, int] = {}
        for result_key in finding.hits:
            for site, calls in self._sites.get(result_key, {}).items():
                sites[site] = sites.get(site, 0) + calls
        if finding.by_shape:
            return max(0, sum(sites.values()) - sum(finding.proven_at.values()))
        return sum(calls for site, calls in sites.items() if site not in finding.proven_at)


def _count_proven(finding: Finding, reason: Reason, site: Optional[Site]) -> None:
    finding.proven += 1
    if site is not None:
        finding.proven_at[site] = finding.proven_at.get(site, 0) + 1
    finding.reason = finding.reason or reason.text
    finding.by_shape = finding.by_shape or reason.by_shape
    finding.shared = finding.shared or reason.shared


def _doubts(finding: Finding, record: _TrialRecord) -> List[Test]:
    """Return what is missing for one argument form; trials of other forms do not cover it."""
    native = [make_test(name, True) for name in (NATIVE_OPERATOR, NATIVE_PROGRAM)]
    certainty, why = certainty_of([*record.tests, *native], inside=bool(finding.path))
    if certainty != LIKELY:
        return []
    return [
        make_test(
            VALUES_VARIED, False, detail="for some argument forms: " + (record.why_not or why)
        )
    ]


def _form(args: Any, kwargs: Any) -> _Form:
    """Return the form of a call: everything except the values of tensors."""
    values = flat_results(list(args)) + [
        item for name, value in sorted(kwargs.items()) for item in (name, *flat_results(value))
    ]
    return tuple(
        (tuple(one.shape), one.stride(), one.dtype)
        if isinstance(one, torch.Tensor) and one.layout is torch.strided
        else repr(one)[:80]
        for one in values
    )

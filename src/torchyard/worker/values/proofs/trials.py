"""Trials: which one a finding gets, and how it runs, with own arguments and with others.

Inside of an operator: a fill is poisoned, a write is left out, and every result must stay the
same. First with the program's own arguments, which ends most trials after two runs; then with
others; and finally the operator runs natively and must do the same work.

The program's own operators: a plain run on a buffer that was poisoned first, or a check whether
the buffer changed. That the program reads nothing in between was observed by the dispatch mode; a
trial of one operator says nothing of what the program does between operators with other values.

A trial never reaches the program: it works on copies and restores random number generators, and an
exception of an operator is an outcome. Its memory is bounded as that of the profile is.
"""

from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import torch

from torchyard.worker.values.findings import Finding
from torchyard.worker.values.observation import Observation
from torchyard.worker.values.operators import operator_of, written_tensors
from torchyard.worker.values.patterns.guard import GUARDS
from torchyard.worker.values.patterns.wasted_writes import ADDED, ADDED_TO_GRADIENT
from torchyard.worker.values.proofs.certainty import (
    NATIVE_OPERATOR,
    POISON,
    REFUSED,
    REPLACE,
    SAME_AGAIN,
    SKIP,
    UNREAD,
    VALUES_VARIED,
    Test,
    make_test,
)
from torchyard.worker.values.proofs.replay import (
    InnerOperator,
    Outcome,
    StateGuard,
    replay_blocker,
    run_clean,
    run_native,
    run_poisoned,
    run_skipped,
)
from torchyard.worker.values.proofs.trial_inputs import (
    NOT_POISONED,
    OTHERS,
    OWN,
    RANDOM,
    Call,
    Poison,
    drawn,
    extreme,
    flat_results,
    free_integers,
    integers_in,
    normal,
    other_call,
    own_call,
    poisons_for,
    put,
    same_bits,
    same_results,
    size_to_copy,
)
from torchyard.worker.values.redispatch import Chains, NativeEvents, count_chain, why_unavailable
from torchyard.worker.values.storages import storage_key

INTEGERS_KEPT = "its integers were as in the program, and with other ones it may be needed"
NO_MEMORY = "the memory for proofs is too small for it"
_MOST_CHARACTERS = 160

Run = Callable[[Call, StateGuard], Outcome]


class NotTestable(Exception):
    """Why nothing is known after all."""


class TrialContext:
    """The operator that just ran, and the conditions under which it may be tried."""

    def __init__(self, func: Any, args: Any, kwargs: Any, available_bytes: int) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs
        self._available_bytes = available_bytes
        self._keep = StateGuard(args, kwargs)

    def __enter__(self) -> "TrialContext":
        reason = trial_blocker(self.func, self.args, self.kwargs) or replay_blocker()
        if reason is None and self._needs_bytes() > self._available_bytes:
            reason = NO_MEMORY
        if reason is not None:
            raise NotTestable(reason)
        self._keep.__enter__()
        return self

    def __exit__(self, *_: Any) -> None:
        self._keep.__exit__()

    def trial(self, run: Run) -> "Trial":
        """A trial whose clean runs are done this way."""
        return Trial(self.func, self.args, self.kwargs, self._keep, run)

    def _needs_bytes(self) -> int:
        """At the peak: other arguments, and about as much for results, twice, and for a poison."""
        size = size_to_copy(self.func, self.args, self.kwargs, everything=True)
        return 4 * size


class Trial:
    """Runs an operator in several ways and compares what comes out."""

    def __init__(
        self, func: Any, args: Any, kwargs: Any, keep: StateGuard, run: Run = run_clean
    ) -> None:
        self._run = run
        self._func, self._args, self._kwargs = func, args, kwargs
        self.keep = keep
        self._calls: Dict[str, Call] = {}
        self._references: Dict[str, Outcome] = {}
        self.tests: List[Test] = []

    def call(self, inputs: str) -> Call:
        """Arguments of a kind; made anew for an operator that writes them."""
        call = self._calls.get(inputs)
        if call is None or operator_of(self._func).writes:
            source = (self._func, self._args, self._kwargs)
            call = own_call(*source) if inputs == OWN else other_call(*source, inputs)
            self._calls = {inputs: call}
        return call

    def reference(self, inputs: str) -> Outcome:
        """What a clean run gives."""
        if inputs not in self._references:
            self._references = {inputs: self._run(self.call(inputs), self.keep)}
        return self._references[inputs]

    def same(self, inputs: str, run: Run) -> bool:
        """Whether a run gives the same bits as a clean one."""
        reference = self.reference(inputs)
        return same_results(reference, run(self.call(inputs), self.keep))

    def chains_inside(self) -> Chains:
        """How often each operator ran inside, in a clean run on the program's own arguments."""
        chains: Chains = {}
        run_clean(self.call(OWN), self.keep, chains)
        return chains

    def check_deterministic(self) -> None:
        """Two clean runs; when they differ, no comparison means anything."""
        if not self.same(OWN, self._run):
            raise NotTestable("the operator gives other results each time")
        self.tests.append(make_test(SAME_AGAIN, True, inputs=OWN))

    def others(self) -> Iterator[str]:
        """Kinds of other inputs that the operator takes. Says what it refused, and what stayed."""
        taken = 0
        integers_varied = not integers_in(self._args, self._kwargs)
        for inputs in OTHERS:
            try:
                call = self.call(inputs)
                if not call.varied:
                    continue
                self.reference(inputs)
            except Exception as error:
                reason = error_line(error)
                self.tests.append(make_test(REFUSED, False, inputs=inputs, detail=reason))
                continue
            taken += 1
            integers_varied = integers_varied or not call.integers_kept
            yield inputs
        if taken and not integers_varied:
            self.tests.append(make_test(VALUES_VARIED, False, detail=INTEGERS_KEPT))


def error_line(error: BaseException) -> str:
    """In one short line."""
    text = str(error).strip().splitlines()
    return ("%s: %s" % (type(error).__name__, text[0] if text else ""))[:_MOST_CHARACTERS]


def trial_blocker(func: Any, args: Any, kwargs: Any) -> Optional[str]:
    """Why this operator is not tried again at all; None when it may be."""
    operator = operator_of(func)
    if not operator.name.startswith("aten::"):
        return "operators outside of torch may do more than compute"
    if operator.random:
        return "it draws random numbers"
    if operator.undefined:
        return "it gives memory without writing it"
    for value in flat_results(list(args)) + flat_results(list(kwargs.values())):
        if isinstance(value, torch.Tensor) and value.device.type not in ("cpu", "cuda"):
            return "it runs on %s" % value.device.type
    return None


def try_fill(trial: Trial, inside: InnerOperator, dtype: torch.dtype) -> bool:
    """Whether a fill inside is dead for the program's own arguments; tests are in the trial."""
    if not poisons_for(dtype):
        raise NotTestable(NOT_POISONED)
    if not _poison_inside(trial, inside, dtype, OWN):
        return False
    trial.check_deterministic()
    for inputs in trial.others():
        _poison_inside(trial, inside, dtype, inputs)
    trial.tests.append(_natively(trial, inside))
    return True


def try_write(trial: Trial, inside: InnerOperator) -> bool:
    """Whether a write inside can be left out with the program's own arguments."""
    trial.check_deterministic()
    needed = not _skips(trial, inside, OWN)
    if needed:
        return False
    for inputs in trial.others():
        _skips(trial, inside, inputs)
    trial.tests.append(_natively(trial, inside))
    return True


def _poison_inside(trial: Trial, inside: InnerOperator, dtype: torch.dtype, inputs: str) -> bool:
    """Poison after poison, until one shows."""
    for name, poison in poisons_for(dtype).items():
        same = trial.same(inputs, _with_poison(inside, poison))
        trial.tests.append(make_test(POISON, same, inputs=inputs, poison=name))
        if not same:
            return False
    return True


def _with_poison(inside: InnerOperator, poison: Poison) -> Run:
    def run(call: Call, keep: StateGuard) -> Outcome:
        return run_poisoned(call, keep, inside, poison)

    return run


def _skips(trial: Trial, inside: InnerOperator, inputs: str) -> bool:
    same = trial.same(inputs, lambda call, keep: run_skipped(call, keep, inside))
    trial.tests.append(make_test(SKIP, same, inputs=inputs))
    return same


def _natively(trial: Trial, inside: InnerOperator) -> Test:
    """Whether the operator does this when nothing looks inside, as often as when something does."""
    unavailable = why_unavailable()
    if unavailable is not None:
        return make_test(NATIVE_OPERATOR, False, detail="not run natively: " + unavailable)
    chain = inside.path + (inside.name,)
    try:
        profiled, reference = trial.chains_inside(), trial.reference(OWN)
        call = trial.call(OWN)
        with NativeEvents() as events:
            outcome = run_native(call, trial.keep)
        same = same_results(reference, outcome)
    except Exception as error:
        return make_test(NATIVE_OPERATOR, False, detail="not run natively: " + error_line(error))
    occurrences = count_chain(events.chains, chain)
    if not same:
        detail = "the operator alone gives other results than under the profiler"
        return make_test(NATIVE_OPERATOR, False, detail=detail)
    expected = count_chain(profiled, chain)
    detail = "%s: %d times" % (" > ".join(chain), occurrences)
    if occurrences < expected:
        detail += " instead of %d, when nothing looks inside" % expected
    return make_test(NATIVE_OPERATOR, occurrences >= expected > 0, inputs=OWN, detail=detail)


ALL_OVERWRITTEN = "no operator read it in between, and all of it was overwritten"
SIGN_OF_ZERO = "but for -0.0, which becomes 0.0 when zero is added"
_SEED = 1337


def try_overwritten(trial: Trial, position: int, dtype: torch.dtype) -> bool:
    """Whether an operator gives the same whatever was in the buffer that it overwrites."""
    if not poisons_for(dtype):
        raise NotTestable(NOT_POISONED)
    if not _poison_buffer(trial, position, dtype, OWN):
        return False
    trial.check_deterministic()
    for inputs in trial.others():
        _poison_buffer(trial, position, dtype, inputs)
    trial.tests.append(make_test(UNREAD, True, detail=ALL_OVERWRITTEN))
    return True


def try_unchanged(trial: Trial, position: int) -> bool:
    """Whether an operator leaves the buffer as it was, whatever is in it."""
    if not _leaves(trial, position, OWN):
        return False
    trial.check_deterministic()
    for inputs in trial.others():
        _leaves(trial, position, inputs)
    return True


def try_given_back(trial: Trial, positions: Sequence[int]) -> bool:
    """Whether an operator gives back one of these arguments bit for bit."""
    if not _gives_back(trial, positions, OWN):
        return False
    trial.check_deterministic()
    for inputs in trial.others():
        _gives_back(trial, positions, inputs)
    return True


def try_sum(shape: Sequence[int], dtype: torch.dtype, device: str) -> List[Test]:
    """Whether zero plus something is that something, so that neither zeroing nor sum is needed.

    The program's own values were compared by the pattern, when they were added.
    """
    tests = [make_test(REPLACE, True, inputs=OWN)]
    again = True
    for number, inputs in enumerate(OTHERS):
        addend = torch.empty(tuple(shape), dtype=dtype, device=device)
        source = torch.Generator(device=device)
        source.manual_seed(_SEED + number)
        if dtype.is_floating_point or dtype.is_complex:
            (normal if inputs == RANDOM else extreme)(addend.reshape(-1), source)
        else:
            addend.copy_(drawn(addend, source, -100 if dtype.is_signed else 0, 100))
        total = torch.zeros_like(addend).add_(addend)
        again = again and same_bits(total, torch.zeros_like(addend).add_(addend))
        same = same_bits(total, addend)
        detail = ""
        if not same and same_bits(total, addend + 0):
            same, detail = bool(torch.equal(total, addend)), SIGN_OF_ZERO
        tests.append(make_test(REPLACE, same, inputs=inputs, detail=detail))
    tests.append(make_test(SAME_AGAIN, again))
    return tests


def _poison_buffer(trial: Trial, position: int, dtype: torch.dtype, inputs: str) -> bool:
    for name, poison in poisons_for(dtype).items():
        same = trial.same(inputs, _on_poisoned(position, poison))
        trial.tests.append(make_test(POISON, same, inputs=inputs, poison=name))
        if not same:
            return False
    return True


def _on_poisoned(position: int, poison: Poison) -> Run:
    def run(call: Call, keep: StateGuard) -> Outcome:
        # Poison may change nothing here: the buffer holds what the operator wrote.
        put(poison, [call.written[position]])
        return run_native(call, keep)

    return run


def _leaves(trial: Trial, position: int, inputs: str) -> bool:
    call = trial.call(inputs)
    buffer = call.written[position]
    before = buffer.clone()
    run_native(call, trial.keep)
    same = same_bits(before, call.written[position])
    trial.tests.append(make_test(SKIP, same, inputs=inputs))
    return same


def _gives_back(trial: Trial, positions: Sequence[int], inputs: str) -> bool:
    result, arguments = trial.reference(inputs)[0], trial.call(inputs).args
    same = any(
        position < len(arguments)
        and isinstance(arguments[position], torch.Tensor)
        and same_bits(arguments[position], result)
        for position in positions
    )
    trial.tests.append(make_test(REPLACE, same, inputs=inputs))
    return same


DEAD = "dead initialisation"
REDUNDANT = "redundant write"
GUARD = "guard that never fires"
FOR_OTHERS = "a guard may be there for values that were not tried"
NOT_ALL = "it changes some of the elements, so only a part of it is wasted"
PIECES = "whether the pieces cover all of it for other inputs cannot be tried with one operator"
WHAT_WAS_THERE = (
    "what a fill finds is left there by the program, which a trial of the fill cannot vary"
)

TrialResult = Tuple[bool, List[Test]]
"""Whether the finding holds for the program's own values, and the tests."""
Strategy = Callable[[TrialContext], TrialResult]


def fill_inside(observation: Observation) -> Strategy:
    """Whether a fill inside an operator is dead."""

    def run_trial(bench: TrialContext) -> TrialResult:
        trial = bench.trial(run_clean)
        return try_fill(trial, _inside(observation), observation.dtype), trial.tests

    return run_trial


def is_sum(finding: Finding) -> bool:
    """Whether the finding is about zeros that were added to: its trial needs no operator."""
    return finding.pattern == DEAD and finding.detail in (ADDED, ADDED_TO_GRADIENT)


def sum_with_zeros(observation: Observation) -> List[Test]:
    """Whether zeros that were added to are needed."""
    return try_sum(observation.shape, observation.dtype, observation.device)


def strategy_for(finding: Finding, observation: Observation) -> Optional[Strategy]:
    """How to try a finding of a pattern; None for those that are not tried."""
    if finding.pattern == DEAD:
        return _overwritten(observation)
    if finding.pattern == REDUNDANT:
        return (
            _partly
            if observation.scan.unchanged < observation.scan.count
            else _unchanged(observation)
        )
    if finding.pattern == GUARD:
        return _of_guard(
            _unchanged(observation) if not observation.fresh else _given_back(observation)
        )
    return None


def _of_guard(strategy: Strategy) -> Strategy:
    """A guard that no tried value makes fire may still be there for one that was not tried."""

    def run_trial(bench: TrialContext) -> TrialResult:
        holds, tests = strategy(bench)
        return holds, [*tests, make_test(VALUES_VARIED, False, detail=FOR_OTHERS)]

    return run_trial


def _overwritten(fill: Observation) -> Strategy:
    def run_trial(bench: TrialContext) -> TrialResult:
        position, written = _overwriting(fill, bench)
        if written.numel() * written.element_size() != fill.size_bytes:
            raise NotTestable(PIECES)
        trial = bench.trial(run_native)
        return try_overwritten(trial, position, fill.dtype), trial.tests

    return run_trial


def _unchanged(observation: Observation) -> Strategy:
    def run_trial(bench: TrialContext) -> TrialResult:
        if observation.path:
            trial = bench.trial(run_clean)
            return try_write(trial, _inside(observation)), trial.tests + _doubts(observation, bench)
        if observation.operator.fills:
            raise NotTestable(WHAT_WAS_THERE)
        trial = bench.trial(run_native)
        holds = try_unchanged(trial, observation.position)
        return holds, trial.tests + _doubts(observation, bench)

    return run_trial


def _given_back(observation: Observation) -> Strategy:
    def run_trial(bench: TrialContext) -> TrialResult:
        if observation.path:
            raise NotTestable("its result is new memory inside of an operator")
        trial = bench.trial(run_native)
        holds = try_given_back(trial, GUARDS[observation.operator.name])
        return holds, trial.tests + _doubts(observation, bench)

    return run_trial


def _doubts(observation: Observation, bench: TrialContext) -> List[Test]:
    """Integers all alike may leave memory of integers as it was, where others would not."""
    dtype = observation.dtype
    integers = not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)
    if not integers or (not observation.path and free_integers(bench.func, observation.operator)):
        return []
    return [make_test(VALUES_VARIED, False, detail=INTEGERS_KEPT)]


def _partly(_bench: TrialContext) -> TrialResult:
    return False, [make_test(SKIP, False, inputs=OWN, detail=NOT_ALL)]


def _inside(observation: Observation) -> InnerOperator:
    return InnerOperator(
        observation.number,
        observation.operator.name,
        observation.path,
        observation.shape,
        observation.position,
    )


def _overwriting(fill: Observation, bench: TrialContext) -> Tuple[int, torch.Tensor]:
    """Which of the tensors that the operator wrote lies in the memory that was filled."""
    for position, tensor in enumerate(
        written_tensors(operator_of(bench.func), bench.args, bench.kwargs)
    ):
        if storage_key(tensor) == fill.state.key:
            return position, tensor
    raise NotTestable("it was overwritten inside of an operator")

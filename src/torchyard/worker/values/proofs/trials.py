"""Trials: select one for a finding, and run it with the program's arguments and with others.

Inside an operator a fill is poisoned, or a write is omitted, and all results must stay the same: first with the
program's own arguments, then with others, and natively. Operators of the program: a native run on a poisoned buffer,
or a check whether the buffer changed. A trial works on copies, with limited memory, and does not affect the program.
"""

from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import torch

from torchyard.worker.values.findings import Finding
from torchyard.worker.values.observation import Observation, storage_key
from torchyard.worker.values.operators import operator_of, written_tensors
from torchyard.worker.values.patterns.wasted_writes import (
    ADDED,
    ADDED_TO_GRADIENT,
    GUARDS,
    PASSED,
)
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

INTEGERS_KEPT = "its integers were not varied, and other ones may need it"
NO_MEMORY = "the memory limit of proofs is too small for it"
_MOST_CHARACTERS = 160

Run = Callable[[Call, StateGuard], Outcome]


class NotTestable(Exception):
    """A trial that cannot be run."""


class TrialContext:
    """The operator that just ran, with checks whether a trial is possible."""

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

    def trial(self, run: Run, *, draws: bool = False) -> "Trial":
        """Return a trial whose unmodified runs use `run`; `draws` allows random numbers on the CPU.

        Each run draws the same numbers, which shows whether a fill is needed. Whether a write changes
        anything can depend on the numbers.
        """
        if operator_of(self.func).random and not (draws and _on_cpu(self.args, self.kwargs)):
            raise NotTestable("it draws random numbers")
        return Trial(self.func, self.args, self.kwargs, self._keep, run)

    def _needs_bytes(self) -> int:
        """Return the peak memory: other arguments, twice as much for results, and a poison."""
        size = size_to_copy(self.func, self.args, self.kwargs, everything=True)
        return 4 * size


class Trial:
    """Runs an operator in several ways and compares the results."""

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
        """Return arguments of a kind; created again for an operator that writes them."""
        call = self._calls.get(inputs)
        if call is None or operator_of(self._func).writes:
            source = (self._func, self._args, self._kwargs)
            call = own_call(*source) if inputs == OWN else other_call(*source, inputs)
            self._calls = {inputs: call}
        return call

    def reference(self, inputs: str) -> Outcome:
        """Return the outcome of an unmodified run."""
        if inputs not in self._references:
            self._references = {inputs: self._run(self.call(inputs), self.keep)}
        return self._references[inputs]

    def same(self, inputs: str, run: Run) -> bool:
        """Return whether a run gives the same bits as an unmodified one."""
        reference = self.reference(inputs)
        return same_results(reference, run(self.call(inputs), self.keep))

    def chains_inside(self) -> Chains:
        """Return the inner operators of an unmodified run with the program's own arguments."""
        chains: Chains = {}
        run_clean(self.call(OWN), self.keep, chains)
        return chains

    def check_deterministic(self) -> None:
        """Raise NotTestable if two unmodified runs differ."""
        if not self.same(OWN, self._run):
            raise NotTestable("the operator is not deterministic")
        self.tests.append(make_test(SAME_AGAIN, True, inputs=OWN))

    def holds_for_all(self, test: Callable[[str], bool]) -> bool:
        """Run a test with the program's own arguments and, if it passes, with other ones; return the first outcome."""
        if not test(OWN):
            return False
        self.check_deterministic()
        for inputs in self.others():
            test(inputs)
        return True

    def others(self) -> Iterator[str]:
        """Yield the kinds of other inputs that the operator accepts; record rejected ones."""
        if operator_of(self._func).random:
            return  # samplers that reject numbers can run for ever with invalid parameters
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
    """Return an exception as one short line."""
    text = str(error).strip().splitlines()
    return ("%s: %s" % (type(error).__name__, text[0] if text else ""))[:_MOST_CHARACTERS]


def trial_blocker(func: Any, args: Any, kwargs: Any) -> Optional[str]:
    """Return why an operator is never tested; None if it may be."""
    operator = operator_of(func)
    if not operator.name.startswith("aten::"):
        return "operators of other libraries may have side effects"
    if operator.undefined:
        return "it returns uninitialized memory"
    for value in flat_results(list(args)) + flat_results(list(kwargs.values())):
        if isinstance(value, torch.Tensor) and value.device.type not in ("cpu", "cuda"):
            return "it runs on %s" % value.device.type
    return None


def _on_cpu(args: Any, kwargs: Any) -> bool:
    values = flat_results(list(args)) + flat_results(list(kwargs.values()))
    return all(value.device.type == "cpu" for value in values if isinstance(value, torch.Tensor))


def try_fill(trial: Trial, inside: InnerOperator, dtype: torch.dtype) -> bool:
    """Return whether an inner fill is dead for the program's own arguments."""

    def poisoned(poison: Poison) -> Run:
        return lambda call, keep: run_poisoned(call, keep, inside, poison)

    if not trial.holds_for_all(_poison_test(trial, dtype, poisoned)):
        return False
    trial.tests.append(_natively(trial, inside))
    return True


def try_write(trial: Trial, inside: InnerOperator) -> bool:
    """Return whether an inner write can be omitted with the program's own arguments."""
    trial.check_deterministic()
    if not _skips(trial, inside, OWN):
        return False
    for inputs in trial.others():
        _skips(trial, inside, inputs)
    trial.tests.append(_natively(trial, inside))
    return True


def _poison_test(
    trial: Trial, dtype: torch.dtype, run_with: Callable[[Poison], Run]
) -> Callable[[str], bool]:
    """Return a test that tries poison values until one changes a result."""
    poisons = poisons_for(dtype)
    if not poisons:
        raise NotTestable(NOT_POISONED)

    def unaffected(inputs: str) -> bool:
        for name, poison in poisons.items():
            same = trial.same(inputs, run_with(poison))
            trial.tests.append(make_test(POISON, same, inputs=inputs, poison=name))
            if not same:
                return False
        return True

    return unaffected


def _skips(trial: Trial, inside: InnerOperator, inputs: str) -> bool:
    same = trial.same(inputs, lambda call, keep: run_skipped(call, keep, inside))
    trial.tests.append(make_test(SKIP, same, inputs=inputs))
    return same


def _natively(trial: Trial, inside: InnerOperator) -> Test:
    """Test whether the native operator does the work as often as under the profiler."""
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
        detail = "without the profiler the operator gives different results"
        return make_test(NATIVE_OPERATOR, False, detail=detail)
    expected = count_chain(profiled, chain)
    detail = "%s: %d times" % (" > ".join(chain), occurrences)
    if occurrences < expected:
        detail += " instead of %d without the profiler" % expected
    return make_test(NATIVE_OPERATOR, occurrences >= expected > 0, inputs=OWN, detail=detail)


ALL_OVERWRITTEN = "no operator read it before all of it was overwritten"
SIGN_OF_ZERO = "except for -0.0, which becomes 0.0 when zero is added"
_SEED = 1337


def try_overwritten(trial: Trial, position: int, dtype: torch.dtype) -> bool:
    """Return whether the result is independent of the previous contents of the buffer."""

    def poisoned(poison: Poison) -> Run:
        def run(call: Call, keep: StateGuard) -> Outcome:
            # The poison may change nothing here: the buffer already holds the output.
            put(poison, [call.written[position]])
            return run_native(call, keep)

        return run

    if not trial.holds_for_all(_poison_test(trial, dtype, poisoned)):
        return False
    trial.tests.append(make_test(UNREAD, True, detail=ALL_OVERWRITTEN))
    return True


def try_unchanged(trial: Trial, position: int) -> bool:
    """Return whether an operator leaves the buffer unchanged, whatever it holds."""

    def unchanged(inputs: str) -> bool:
        call = trial.call(inputs)
        before = call.written[position].clone()
        run_native(call, trial.keep)
        same = same_bits(before, call.written[position])
        trial.tests.append(make_test(SKIP, same, inputs=inputs))
        return same

    return trial.holds_for_all(unchanged)


def try_returned_argument(trial: Trial, positions: Sequence[int]) -> bool:
    """Return whether an operator returns one of these arguments bit for bit."""

    def returned(inputs: str) -> bool:
        result, arguments = trial.reference(inputs)[0], trial.call(inputs).args
        same = any(
            position < len(arguments)
            and isinstance(arguments[position], torch.Tensor)
            and same_bits(arguments[position], result)
            for position in positions
        )
        trial.tests.append(make_test(REPLACE, same, inputs=inputs))
        return same

    return trial.holds_for_all(returned)


def try_sum(shape: Sequence[int], dtype: torch.dtype, device: str) -> List[Test]:
    """Test whether zero plus a tensor is that tensor, so that neither fill nor sum is needed."""
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


DEAD = "dead initialisation"
REDUNDANT = "redundant write"
GUARD = "guard that never fires"
FOR_OTHERS = "the guard may be needed for values that were not tried"
NOT_ALL = "it changes some elements, so only a part of the write is wasted"
PIECES = "a trial of one operator cannot show whether the pieces cover it for other inputs"
WHAT_WAS_THERE = "a trial of a fill cannot vary the previous contents, which the program wrote"

TrialResult = Tuple[bool, List[Test]]
"""Whether the finding holds for the program's own values, and its tests."""
Strategy = Callable[[TrialContext], TrialResult]


def fill_inside(observation: Observation) -> Strategy:
    """Return the trial of a fill inside an operator."""

    def run_trial(context: TrialContext) -> TrialResult:
        trial = context.trial(run_clean, draws=True)
        return try_fill(trial, _inside(observation), observation.dtype), trial.tests

    return run_trial


def is_sum(finding: Finding) -> bool:
    """Return whether the finding is about a sum with zeros; its trial needs no operator."""
    return finding.pattern == DEAD and finding.detail in (ADDED, ADDED_TO_GRADIENT)


def sum_with_zeros(observation: Observation) -> List[Test]:
    """Test whether the zeros of a sum are needed."""
    return try_sum(observation.shape, observation.dtype, observation.device)


def strategy_for(finding: Finding, observation: Observation) -> Optional[Strategy]:
    """Return the trial for a finding; None if its pattern is not tested."""
    if finding.pattern == DEAD:
        return _overwritten(observation)
    if finding.pattern == REDUNDANT:
        return (
            _partial_write
            if observation.scan.unchanged < observation.scan.count
            else _unchanged(observation)
        )
    if finding.pattern == GUARD and finding.detail != PASSED:
        return _of_guard(
            _unchanged(observation) if not observation.fresh else _returned_argument(observation)
        )
    return None


def _of_guard(strategy: Strategy) -> Strategy:
    """Extend a trial of a guard: values that were not tried may still need it."""

    def run_trial(context: TrialContext) -> TrialResult:
        holds, tests = strategy(context)
        return holds, [*tests, make_test(VALUES_VARIED, False, detail=FOR_OTHERS)]

    return run_trial


def _overwritten(fill: Observation) -> Strategy:
    def run_trial(context: TrialContext) -> TrialResult:
        position, written = _overwriting(fill, context)
        if written.numel() * written.element_size() != fill.size_bytes:
            raise NotTestable(PIECES)
        trial = context.trial(run_native)
        return try_overwritten(trial, position, fill.dtype), trial.tests

    return run_trial


def _unchanged(observation: Observation) -> Strategy:
    def run_trial(context: TrialContext) -> TrialResult:
        if observation.path:
            trial = context.trial(run_clean)
            return try_write(trial, _inside(observation)), trial.tests + _doubts(
                observation, context
            )
        if observation.operator.fills:
            raise NotTestable(WHAT_WAS_THERE)
        trial = context.trial(run_native)
        holds = try_unchanged(trial, observation.position)
        return holds, trial.tests + _doubts(observation, context)

    return run_trial


def _returned_argument(observation: Observation) -> Strategy:
    def run_trial(context: TrialContext) -> TrialResult:
        if observation.path:
            raise NotTestable("its result is new memory inside an operator")
        trial = context.trial(run_native)
        holds = try_returned_argument(trial, GUARDS[observation.operator.name])
        return holds, trial.tests + _doubts(observation, context)

    return run_trial


def _doubts(observation: Observation, context: TrialContext) -> List[Test]:
    """Return the doubt that other integers may change integer memory."""
    dtype = observation.dtype
    integers = not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)
    if not integers or (not observation.path and free_integers(context.func, observation.operator)):
        return []
    return [make_test(VALUES_VARIED, False, detail=INTEGERS_KEPT)]


def _partial_write(_context: TrialContext) -> TrialResult:
    return False, [make_test(SKIP, False, inputs=OWN, detail=NOT_ALL)]


def _inside(observation: Observation) -> InnerOperator:
    return InnerOperator(
        observation.number,
        observation.operator.name,
        observation.path,
        observation.shape,
        observation.position,
    )


def _overwriting(fill: Observation, context: TrialContext) -> Tuple[int, torch.Tensor]:
    """Return index and tensor of the output that lies in the filled memory."""
    for position, tensor in enumerate(
        written_tensors(operator_of(context.func), context.args, context.kwargs)
    ):
        if storage_key(tensor) == fill.state.key:
            return position, tensor
    raise NotTestable("it was overwritten inside an operator")

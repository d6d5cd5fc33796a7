"""Work inside an operator on trial: whether a fill is dead, a write redundant, whatever the values.

Both are tried on the program's own arguments first, which ends most trials after two runs; then on
others; and at last the operator runs alone, with nothing looking inside, and must do the same work.
"""

import torch

from torchyard.worker.values.arguments import OWN, Call
from torchyard.worker.values.bits import same_results
from torchyard.worker.values.certainty import NATIVE_OPERATOR, POISON, SKIP, Test, make_test
from torchyard.worker.values.native_events import NativeEvents, times_seen, why_unavailable
from torchyard.worker.values.poison import NOT_POISONED, Poison, poisons_for
from torchyard.worker.values.replay import Inside, Outcome, run_native, run_poisoned, run_skipped
from torchyard.worker.values.trial import Run, Trial, Untested, refusal
from torchyard.worker.values.untouched import Untouched


def try_fill(trial: Trial, inside: Inside, dtype: torch.dtype) -> bool:
    """Whether a fill inside is dead for the program's own arguments; tests are in the trial."""
    if not poisons_for(dtype):
        raise Untested(NOT_POISONED)
    if not _poisons(trial, inside, dtype, OWN):
        return False
    trial.check_deterministic()
    for inputs in trial.others():
        _poisons(trial, inside, dtype, inputs)
    trial.tests.append(_natively(trial, inside))
    return True


def try_write(trial: Trial, inside: Inside) -> bool:
    """Whether a write inside can be left out with the program's own arguments."""
    trial.check_deterministic()
    needed = not _skips(trial, inside, OWN)
    if needed:
        return False
    for inputs in trial.others():
        _skips(trial, inside, inputs)
    trial.tests.append(_natively(trial, inside))
    return True


def _poisons(trial: Trial, inside: Inside, dtype: torch.dtype, inputs: str) -> bool:
    """Poison after poison, until one shows."""
    for name, poison in poisons_for(dtype).items():
        same = trial.same(inputs, _with_poison(inside, poison))
        trial.tests.append(make_test(POISON, same, inputs=inputs, poison=name))
        if not same:
            return False
    return True


def _with_poison(inside: Inside, poison: Poison) -> Run:
    def run(call: Call, keep: Untouched) -> Outcome:
        return run_poisoned(call, keep, inside, poison)

    return run


def _skips(trial: Trial, inside: Inside, inputs: str) -> bool:
    same = trial.same(inputs, lambda call, keep: run_skipped(call, keep, inside))
    trial.tests.append(make_test(SKIP, same, inputs=inputs))
    return same


def _natively(trial: Trial, inside: Inside) -> Test:
    """Whether the operator does this when nothing looks inside, as often as when something does."""
    unavailable = why_unavailable()
    if unavailable is not None:
        return make_test(NATIVE_OPERATOR, False, detail="not run natively: " + unavailable)
    chain = inside.path + (inside.name,)
    try:
        watched, reference = trial.chains_inside(), trial.reference(OWN)
        call = trial.call(OWN)
        with NativeEvents() as events:
            outcome = run_native(call, trial.keep)
        same = same_results(reference, outcome)
    except Exception as error:
        return make_test(NATIVE_OPERATOR, False, detail="not run natively: " + refusal(error))
    seen = times_seen(events.chains, chain)
    if not same:
        detail = "the operator alone gives other results than under the profiler"
        return make_test(NATIVE_OPERATOR, False, detail=detail)
    expected = times_seen(watched, chain)
    detail = "%s: %d times" % (" > ".join(chain), seen)
    if seen < expected:
        detail += " instead of %d, when nothing looks inside" % expected
    return make_test(NATIVE_OPERATOR, seen >= expected > 0, inputs=OWN, detail=detail)

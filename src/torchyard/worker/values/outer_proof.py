"""The program's own operators on trial: fills that are overwritten, writes that change nothing.

Here nothing runs inside of an operator, so a trial is a plain run of it: on a buffer that was
poisoned first, or with a look at whether the buffer changed. That the program reads nothing in
between was seen by the watch; what the operator does with other values is tried here. A trial of one
operator says nothing of what the program does between operators with other values.
"""

from typing import List, Sequence

import torch

from torchyard.worker.values.arguments import OTHERS, OWN, RANDOM, Call
from torchyard.worker.values.bits import same_bits
from torchyard.worker.values.certainty import (
    POISON,
    REPLACE,
    SAME_AGAIN,
    SKIP,
    UNREAD,
    Test,
    make_test,
)
from torchyard.worker.values.other_values import drawn, extreme, normal
from torchyard.worker.values.poison import NOT_POISONED, Poison, poisons_for, put
from torchyard.worker.values.replay import Outcome, run_native
from torchyard.worker.values.trial import Run, Trial, Untested
from torchyard.worker.values.untouched import Untouched

ALL_OVERWRITTEN = "no operator read it in between, and all of it was overwritten"
SIGN_OF_ZERO = "but for -0.0, which becomes 0.0 when zero is added"
_SEED = 1337


def try_overwritten(trial: Trial, position: int, dtype: torch.dtype) -> bool:
    """Whether an operator gives the same whatever was in the buffer that it overwrites."""
    if not poisons_for(dtype):
        raise Untested(NOT_POISONED)
    if not _poisons(trial, position, dtype, OWN):
        return False
    trial.check_deterministic()
    for inputs in trial.others():
        _poisons(trial, position, dtype, inputs)
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


def _poisons(trial: Trial, position: int, dtype: torch.dtype, inputs: str) -> bool:
    for name, poison in poisons_for(dtype).items():
        same = trial.same(inputs, _on_poisoned(position, poison))
        trial.tests.append(make_test(POISON, same, inputs=inputs, poison=name))
        if not same:
            return False
    return True


def _on_poisoned(position: int, poison: Poison) -> Run:
    def run(call: Call, keep: Untouched) -> Outcome:
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

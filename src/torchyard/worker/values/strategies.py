"""Which trial a finding gets: inside of an operator or of the operator itself, poison or leaving out.

Knows patterns and trials; the books are kept by `proof`.
"""

from typing import Callable, List, Optional, Tuple

import torch

from torchyard.worker.values.arguments import OWN, free_integers
from torchyard.worker.values.certainty import SKIP, VALUES_VARIED, Test, make_test
from torchyard.worker.values.findings import Finding
from torchyard.worker.values.inner_proof import try_fill, try_write
from torchyard.worker.values.observation import Observation
from torchyard.worker.values.operators import operator_of, written_tensors
from torchyard.worker.values.outer_proof import (
    try_given_back,
    try_overwritten,
    try_sum,
    try_unchanged,
)
from torchyard.worker.values.patterns.dead_initialisation import ADDED, ADDED_TO_GRADIENT
from torchyard.worker.values.patterns.guard import GUARDS
from torchyard.worker.values.replay import Inside, run_clean, run_native
from torchyard.worker.values.storages import storage_key
from torchyard.worker.values.trial import INTEGERS_KEPT, Bench, Untested

DEAD = "dead initialisation"
REDUNDANT = "redundant write"
GUARD = "guard that never fires"
FOR_OTHERS = "a guard may be there for values that were not tried"
NOT_ALL = "it changes some of the elements, so only a part of it is wasted"
PIECES = "whether the pieces cover all of it for other inputs cannot be tried with one operator"
WHAT_WAS_THERE = (
    "what a fill finds is left there by the program, which a trial of the fill cannot vary"
)

Tried = Tuple[bool, List[Test]]
"""Whether the finding holds for the program's own values, and the tests."""
Strategy = Callable[[Bench], Tried]


def fill_inside(seen: Observation) -> Strategy:
    """Whether a fill inside an operator is dead."""

    def try_it(bench: Bench) -> Tried:
        trial = bench.trial(run_clean)
        return try_fill(trial, _inside(seen), seen.dtype), trial.tests

    return try_it


def is_sum(finding: Finding) -> bool:
    """Whether the finding is about zeros that were added to: its trial needs no operator."""
    return finding.pattern == DEAD and finding.detail in (ADDED, ADDED_TO_GRADIENT)


def sum_with_zeros(seen: Observation) -> List[Test]:
    """Whether zeros that were added to are needed."""
    return try_sum(seen.shape, seen.dtype, seen.device)


def strategy_for(finding: Finding, seen: Observation) -> Optional[Strategy]:
    """How to try a finding of a pattern; None for those that are not tried."""
    if finding.pattern == DEAD:
        return _overwritten(seen)
    if finding.pattern == REDUNDANT:
        return _partly if seen.scan.unchanged < seen.scan.count else _unchanged(seen)
    if finding.pattern == GUARD:
        return _of_guard(_unchanged(seen) if not seen.fresh else _given_back(seen))
    return None


def _of_guard(strategy: Strategy) -> Strategy:
    """A guard that no tried value makes fire may still be there for one that was not tried."""

    def try_it(bench: Bench) -> Tried:
        holds, tests = strategy(bench)
        return holds, [*tests, make_test(VALUES_VARIED, False, detail=FOR_OTHERS)]

    return try_it


def _overwritten(fill: Observation) -> Strategy:
    def try_it(bench: Bench) -> Tried:
        position, written = _overwriting(fill, bench)
        if written.numel() * written.element_size() != fill.size_bytes:
            raise Untested(PIECES)
        trial = bench.trial(run_native)
        return try_overwritten(trial, position, fill.dtype), trial.tests

    return try_it


def _unchanged(seen: Observation) -> Strategy:
    def try_it(bench: Bench) -> Tried:
        if seen.path:
            trial = bench.trial(run_clean)
            return try_write(trial, _inside(seen)), trial.tests + _doubts(seen, bench)
        if seen.operator.fills:
            raise Untested(WHAT_WAS_THERE)
        trial = bench.trial(run_native)
        holds = try_unchanged(trial, seen.position)
        return holds, trial.tests + _doubts(seen, bench)

    return try_it


def _given_back(seen: Observation) -> Strategy:
    def try_it(bench: Bench) -> Tried:
        if seen.path:
            raise Untested("its result is new memory inside of an operator")
        trial = bench.trial(run_native)
        holds = try_given_back(trial, GUARDS[seen.operator.name])
        return holds, trial.tests + _doubts(seen, bench)

    return try_it


def _doubts(seen: Observation, bench: Bench) -> List[Test]:
    """Integers all alike may leave memory of integers as it was, where others would not."""
    dtype = seen.dtype
    integers = not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)
    if not integers or (not seen.path and free_integers(bench.func, seen.operator)):
        return []
    return [make_test(VALUES_VARIED, False, detail=INTEGERS_KEPT)]


def _partly(_bench: Bench) -> Tried:
    return False, [make_test(SKIP, False, inputs=OWN, detail=NOT_ALL)]


def _inside(seen: Observation) -> Inside:
    return Inside(seen.number, seen.operator.name, seen.path, seen.shape, seen.position)


def _overwriting(fill: Observation, bench: Bench) -> Tuple[int, torch.Tensor]:
    """Which of the tensors that the operator wrote lies in the memory that was filled."""
    for position, tensor in enumerate(
        written_tensors(operator_of(bench.func), bench.args, bench.kwargs)
    ):
        if storage_key(tensor) == fill.state.key:
            return position, tensor
    raise Untested("it was overwritten inside of an operator")

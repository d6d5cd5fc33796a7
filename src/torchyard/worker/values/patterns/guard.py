"""Guard that never fires: an operator that replaces invalid values and never found one.

`where`, `masked_fill`, `clamp`, `nan_to_num` and similar operators returned their input bit for bit
in every call. This holds for these inputs only, and other inputs may need the guard; so at least
three observations without exception are required, and the finding is never more than likely.
"""

from collections import OrderedDict
from typing import Any, Dict, List, Optional, Tuple

import torch

from torchyard.worker.values.findings import Finding
from torchyard.worker.values.observation import Observation
from torchyard.worker.values.operators import aten
from torchyard.worker.values.patterns import LEAST_FINDING_BYTES, Pattern
from torchyard.worker.values.places import called_by_torch
from torchyard.worker.values.storages import covers

_GUARDED: Tuple[Tuple[str, Tuple[int, ...]], ...] = (
    ("where", (1, 2)),
    (
        (
            "masked_fill masked_scatter clamp clamp_min clamp_max nan_to_num relu threshold hardtanh abs "
            "floor ceil round trunc remainder fmod tril triu"
        ),
        (0,),
    ),
    ("minimum maximum fmin fmax", (0, 1)),
)
GUARDS: Dict[str, Tuple[int, ...]] = {}
"""Operator -> positions of the arguments that it may return unchanged."""
for _names, _positions in _GUARDED:
    for _name in aten(_names):
        GUARDS[_name], GUARDS[_name + "_"] = _positions, (0,)

MASKS = aten("masked_fill masked_fill_ masked_scatter masked_scatter_")
"""Operators whose second argument is a mask that selects the written elements."""

LEAST_OCCURRENCES = 3
_MOST_CAUSES = 4096

_Cause = Tuple[str, Tuple[str, ...], str, int]


class _GuardState:
    """Calls of a guard at one source line."""

    __slots__ = ("bytes", "finding", "fired", "quiet")

    def __init__(self) -> None:
        self.quiet = 0
        self.bytes = 0
        self.fired = False
        self.finding: Optional[Finding] = None


class Guard(Pattern):
    """Guards that never changed a value."""

    name = "guard that never fires"

    def start(self) -> None:
        """Create the state of the pattern."""
        self._guards: "OrderedDict[_Cause, _GuardState]" = OrderedDict()

    def observe(self, observation: Observation) -> None:
        """Count a call of a guard; a guard that fired is ignored from then on."""
        positions = GUARDS.get(observation.operator.name)
        if (
            positions is None
            or observation.size_bytes < LEAST_FINDING_BYTES
            or observation.in_backward
        ):
            return
        if observation.single or observation.dtype is torch.bool:
            return
        place = observation.place
        cause = (observation.operator.name, observation.path, place.file, place.line)
        guard = self._guards.get(cause)
        if guard is None:
            guard = self._guards[cause] = _GuardState()
            if len(self._guards) > _MOST_CAUSES:
                self._guards.popitem(last=False)
        if guard.fired:
            return
        # Guards in torch's own Python code are not the user's.
        fired = True if called_by_torch("distributions") else self._fired(observation, positions)
        if fired is None:
            return
        if fired:
            guard.fired = True
            if guard.finding is not None:
                self.findings.drop(guard.finding)
            return
        guard.quiet += 1
        guard.bytes += observation.size_bytes
        if guard.quiet >= LEAST_OCCURRENCES:
            self._report(observation, guard)

    def _report(self, observation: Observation, guard: _GuardState) -> None:
        detail = "returned its input bit for bit in every call"
        finding = self.report(observation, detail, every_time=False)
        if finding is not None and guard.finding is None:
            guard.finding = finding
            # Add the calls before the minimum was reached.
            finding.count += guard.quiet - 1
            finding.bytes_wasted += guard.bytes - observation.size_bytes
            finding.bytes_written += guard.bytes - observation.size_bytes

    def _fired(self, observation: Observation, positions: Tuple[int, ...]) -> Optional[bool]:
        """Return whether any value was changed; None if unknown."""
        if mask_selects_elements(observation):
            return True  # it fired and wrote the same values: a redundant write
        if not observation.fresh:
            return (
                bool(observation.scan.unchanged != observation.scan.count)
                if observation.compared
                else None
            )
        comparisons: List[bool] = []
        for position in positions:
            guarded = (
                observation.arguments[position] if position < len(observation.arguments) else None
            )
            if isinstance(guarded, torch.Tensor) and guarded.shape == observation.tensor.shape:
                same = self._same_bits(observation, guarded)
                if same:
                    return False
                if same is not None:
                    comparisons.append(same)
        return True if comparisons else None

    def _same_bits(self, observation: Observation, guarded: torch.Tensor) -> Optional[bool]:
        tensor = observation.tensor
        if guarded.dtype != tensor.dtype or guarded.stride() != tensor.stride():
            return None
        state = _state_of(guarded, observation)
        if state is not None and state.hash is not None and covers(guarded, state):
            return bool(state.hash == observation.scan.hash)
        if not self.scanner.can_scan(guarded):
            return None
        scan = self.scanner.scan(guarded, observation.layout)
        return bool(scan.hash == observation.scan.hash)


def mask_selects_elements(observation: Observation) -> bool:
    """Return whether the mask of a guard, if any, selects an element."""
    if observation.operator.name not in MASKS or len(observation.arguments) < 2:
        return False
    return bool(observation.arguments[1].any())


def _state_of(tensor: torch.Tensor, observation: Observation) -> Optional[Any]:
    for argument, state in observation.inputs:
        if argument is tensor:
            return state
    return None

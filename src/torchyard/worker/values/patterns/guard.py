"""Guard that never fires: an operator that replaces invalid values and never found one.

`where`, `masked_fill`, `clamp`, `nan_to_num` and similar operators returned their input bit for bit
in every call. This holds for these inputs only, and other inputs may need the guard; so at least
three observations without exception are required, and the finding is never more than likely.
"""

from collections import OrderedDict
from typing import Any, Dict, List, Optional, Tuple

import torch

from torchyard.worker.values.exchange import Options
from torchyard.worker.values.findings import Finding, Findings
from torchyard.worker.values.observation import Observation
from torchyard.worker.values.patterns import LEAST_FINDING_BYTES, Pattern, evidence_of
from torchyard.worker.values.places import called_by_torch
from torchyard.worker.values.scanning.scanners import Scanners
from torchyard.worker.values.storages import covers

_FIRST = (0,)
_EITHER = (0, 1)
_GUARDED: Dict[str, Tuple[int, ...]] = {
    "where": (1, 2),
    "masked_fill": _FIRST,
    "masked_scatter": _FIRST,
    "clamp": _FIRST,
    "clamp_min": _FIRST,
    "clamp_max": _FIRST,
    "nan_to_num": _FIRST,
    "relu": _FIRST,
    "threshold": _FIRST,
    "hardtanh": _FIRST,
    "abs": _FIRST,
    "floor": _FIRST,
    "ceil": _FIRST,
    "round": _FIRST,
    "trunc": _FIRST,
    "remainder": _FIRST,
    "fmod": _FIRST,
    "tril": _FIRST,
    "triu": _FIRST,
    "minimum": _EITHER,
    "maximum": _EITHER,
    "fmin": _EITHER,
    "fmax": _EITHER,
}
GUARDS: Dict[str, Tuple[int, ...]] = {}
"""Operator -> positions of the arguments that it may return unchanged."""
for _name, _positions in _GUARDED.items():
    GUARDS["aten::" + _name] = _positions
    GUARDS["aten::" + _name + "_"] = _FIRST

MASKS: Dict[str, int] = {
    "aten::masked_fill": 1,
    "aten::masked_fill_": 1,
    "aten::masked_scatter": 1,
    "aten::masked_scatter_": 1,
}
"""Operator -> position of the mask that selects the written elements."""

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

    def __init__(self, findings: Findings, options: Options, scanner: Scanners) -> None:
        super().__init__(findings, options, scanner)
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
        finding = self.findings.add(
            self.name,
            observation,
            observation.size_bytes,
            detail="returned its input bit for bit in every call",
            evidence=lambda: evidence_of(observation),
        )
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
    position = MASKS.get(observation.operator.name)
    if position is None or len(observation.arguments) <= position:
        return False
    return bool(observation.arguments[position].any())


def _state_of(tensor: torch.Tensor, observation: Observation) -> Optional[Any]:
    for argument, state in observation.inputs:
        if argument is tensor:
            return state
    return None

"""Guard that never fires: an operator that filters out bad values and never met one.

`where`, `masked_fill`, `clamp`, `nan_to_num` and similar operators return their input bit for bit,
every time. That is true of these inputs only, and a guard may be there for others; so it takes
three observations without exception, and the finding is never more than likely.
"""

from collections import OrderedDict
from typing import Any, Dict, List, Optional, Tuple

import torch

from torchyard.worker.values.exchange import Options
from torchyard.worker.values.findings import Finding, Findings
from torchyard.worker.values.observation import Observation
from torchyard.worker.values.patterns import WORTH_A_LOOK_BYTES, Pattern, evidence_of
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
"""Operator -> positions of the arguments that it may give back unchanged."""
for _name, _positions in _GUARDED.items():
    GUARDS["aten::" + _name] = _positions
    GUARDS["aten::" + _name + "_"] = _FIRST

MASKS: Dict[str, int] = {
    "aten::masked_fill": 1,
    "aten::masked_fill_": 1,
    "aten::masked_scatter": 1,
    "aten::masked_scatter_": 1,
}
"""Operator -> position of the mask that says which elements it writes."""

LEAST_SIGHTINGS = 3
_MOST_CAUSES = 4096

_Cause = Tuple[str, Tuple[str, ...], str, int]


class _Watched:
    """A guard at a place."""

    __slots__ = ("bytes", "finding", "fired", "quiet")

    def __init__(self) -> None:
        self.quiet = 0
        self.bytes = 0
        self.fired = False
        self.finding: Optional[Finding] = None


class Guard(Pattern):
    """Guards that changed nothing, ever."""

    name = "guard that never fires"

    def __init__(self, findings: Findings, options: Options, scanner: Scanners) -> None:
        super().__init__(findings, options, scanner)
        self._watched: "OrderedDict[_Cause, _Watched]" = OrderedDict()

    def observe(self, seen: Observation) -> None:
        """Count a guard; one that fired is never looked at again."""
        positions = GUARDS.get(seen.operator.name)
        if positions is None or seen.size_bytes < WORTH_A_LOOK_BYTES or seen.in_backward:
            return
        if seen.single or seen.dtype is torch.bool:
            return
        place = seen.place
        cause = (seen.operator.name, seen.path, place.file, place.line)
        watched = self._watched.get(cause)
        if watched is None:
            watched = self._watched[cause] = _Watched()
            if len(self._watched) > _MOST_CAUSES:
                self._watched.popitem(last=False)
        if watched.fired:
            return
        # The guards of torch's own Python code are not the user's.
        fired = True if called_by_torch("distributions") else self._fired(seen, positions)
        if fired is None:
            return
        if fired:
            watched.fired = True
            if watched.finding is not None:
                self.findings.drop(watched.finding)
            return
        watched.quiet += 1
        watched.bytes += seen.size_bytes
        if watched.quiet >= LEAST_SIGHTINGS:
            self._report(seen, watched)

    def _report(self, seen: Observation, watched: _Watched) -> None:
        finding = self.findings.add(
            self.name,
            seen,
            seen.size_bytes,
            detail="gave back its input bit for bit, every time",
            evidence=lambda: evidence_of(seen),
        )
        if finding is not None and watched.finding is None:
            watched.finding = finding
            # The sightings before there was enough to call it one.
            finding.count += watched.quiet - 1
            finding.bytes_wasted += watched.bytes - seen.size_bytes
            finding.bytes_written += watched.bytes - seen.size_bytes

    def _fired(self, seen: Observation, positions: Tuple[int, ...]) -> Optional[bool]:
        """Whether anything was changed; None when that cannot be told."""
        if chose_elements(seen):
            return True  # it fired, and wrote what was there: a redundant write
        if not seen.fresh:
            return bool(seen.scan.unchanged != seen.scan.count) if seen.compared else None
        known: List[bool] = []
        for position in positions:
            guarded = seen.arguments[position] if position < len(seen.arguments) else None
            if isinstance(guarded, torch.Tensor) and guarded.shape == seen.tensor.shape:
                same = self._same_bits(seen, guarded)
                if same:
                    return False
                if same is not None:
                    known.append(same)
        return True if known else None

    def _same_bits(self, seen: Observation, guarded: torch.Tensor) -> Optional[bool]:
        tensor = seen.tensor
        if guarded.dtype != tensor.dtype or guarded.stride() != tensor.stride():
            return None
        state = _state_of(guarded, seen)
        if state is not None and state.hash is not None and covers(guarded, state):
            return bool(state.hash == seen.scan.hash)
        if not self.scanner.can_scan(guarded):
            return None
        found = self.scanner.scan(guarded, seen.layout)
        return bool(found.hash == seen.scan.hash)


def chose_elements(seen: Observation) -> bool:
    """Whether the mask of a guard, if it has one, chose any element."""
    position = MASKS.get(seen.operator.name)
    if position is None or len(seen.arguments) <= position:
        return False
    return bool(seen.arguments[position].any())


def _state_of(tensor: torch.Tensor, seen: Observation) -> Optional[Any]:
    for given, state in seen.inputs:
        if given is tensor:
            return state
    return None

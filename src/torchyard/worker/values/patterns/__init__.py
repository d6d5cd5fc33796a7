"""Patterns of wasted work. To add one: a class in a module here, and a line in `_patterns`.

A pattern sees each observation once, right after the operator ran, while the tensor is at hand. It
must reject quickly: it is asked for every tensor that a program writes. What needs the future (is
the copy ever written? is it read again?) is kept without its tensor and settled at the end of a
step. What a pattern keeps is bounded (`Marks`). Evidence comes from the first occurrence of a
cause, from at most 4096 elements spread over the tensor: bounded, plain JSON, NaN and infinity as
words.
"""

import math
from collections import OrderedDict
from typing import Any, Dict, List, Optional, Tuple, Type, Union

import torch

from torchyard.worker.values.exchange import Options
from torchyard.worker.values.findings import Findings
from torchyard.worker.values.observation import Observation
from torchyard.worker.values.operators import Operator
from torchyard.worker.values.places import Place
from torchyard.worker.values.scanning.scanners import Scanners
from torchyard.worker.values.storages import StorageState

LEAST_FINDING_BYTES = 16 << 10
"""Least size for patterns that ask for a change of the program: below it an operator costs more
than the memory it writes, so there is nothing to gain."""


class Pattern:
    """One kind of waste."""

    name = ""

    def __init__(self, findings: Findings, options: Options, scanner: Scanners) -> None:
        self.findings = findings
        self.options = options
        self.scanner = scanner

    def observe(self, observation: Observation) -> None:
        """Look at what an operator wrote."""

    def fill_covered(self, fill: Observation, by: Operator, place: Place) -> None:
        """A fill was overwritten piece by piece, and nothing of it was read; `by` wrote the last."""

    def end_step(self) -> None:
        """A step of the program is over. The watch is on: no torch operators here."""

    def pause(self) -> None:
        """Steps follow in which memory is not kept track of: drop what waits for it."""

    def finish(self) -> None:
        """The program is over: say what needed the whole of it."""


def _patterns() -> Tuple[Type[Pattern], ...]:
    from torchyard.worker.values.patterns.duplicates import Duplicate, NeedlessCopy, Unchanged
    from torchyard.worker.values.patterns.guard import Guard
    from torchyard.worker.values.patterns.heavy_type import HeavyType
    from torchyard.worker.values.patterns.sparse_gradient import SparseGradient
    from torchyard.worker.values.patterns.uniform_values import (
        Approximate,
        FrequentValues,
        SingleValue,
        Structured,
    )
    from torchyard.worker.values.patterns.wasted_writes import DeadInitialisation, RedundantWrite

    return (
        RedundantWrite,
        DeadInitialisation,
        Duplicate,
        NeedlessCopy,
        SingleValue,
        FrequentValues,
        HeavyType,
        Structured,
        Approximate,
        Guard,
        Unchanged,
        SparseGradient,
    )


def open_patterns(findings: Findings, options: Options, scanner: Scanners) -> List[Any]:
    """One of each."""
    return [kind(findings, options, scanner) for kind in _patterns()]


_SHOWN = 12
_BINS = 16

Number = Union[float, int, str]


def evidence_of(observation: Observation, **more: Any) -> Dict[str, Any]:
    """The values of an observation, and what else a pattern has to say."""
    evidence: Dict[str, Any] = {
        "zero_share": observation.scan.zeros / max(1, observation.scan.count)
    }
    if observation.tensor is not None:
        evidence.update(_values(observation.values()))
    evidence.update(more)
    return evidence


def where(observation: Observation) -> Dict[str, Any]:
    """Another operator that has to do with a finding."""
    place = observation.place
    return {
        "operator": observation.operator.name,
        "file": place.file,
        "line": place.line,
        "backward": place.backward,
    }


def _values(sample: torch.Tensor) -> Dict[str, Any]:
    if sample.is_complex():
        sample = torch.view_as_real(sample).reshape(-1)
    evidence: Dict[str, Any] = {"sample": [plain(item) for item in sample[:_SHOWN].tolist()]}
    numbers = sample.double()
    finite = numbers[torch.isfinite(numbers)]
    if not finite.numel():
        return evidence
    low, high = float(finite.min()), float(finite.max())
    evidence["range"] = [low, high]
    evidence["distinct"] = int(torch.unique(sample).numel())
    evidence["sampled"] = int(sample.numel())
    if low < high and math.isfinite(high - low):
        counts = torch.histc(finite, bins=_BINS, min=low, max=high)
        evidence["histogram"] = {"low": low, "high": high, "counts": _whole(counts)}
    return evidence


def _whole(counts: torch.Tensor) -> List[int]:
    return [int(count) for count in counts.tolist()]


def plain(number: Any) -> Number:
    """A number for JSON."""
    if isinstance(number, bool):
        return int(number)
    if isinstance(number, float) and not math.isfinite(number):
        return str(number)
    return number


_MOST = 4096


class StorageNotes:
    """A note on the present content of storages; the oldest are forgotten first."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._notes: "OrderedDict[int, Tuple[StorageState, int, Any]]" = OrderedDict()

    def put(self, state: StorageState, note: Any = True) -> None:
        """Remember something of what a storage holds now."""
        # The state keeps the identity of its storage from being used again.
        self._notes[state.key] = (state, state.version, note)
        self._notes.move_to_end(state.key)
        if len(self._notes) > self._most:
            self._notes.popitem(last=False)

    def get(self, state: StorageState, writes_ago: int = 0) -> Optional[Any]:
        """What was noted, if the storage was not written since (but for the last few writes)."""
        entry = self._notes.get(state.key)
        if entry is None or entry[0] is not state or entry[1] < state.version - writes_ago:
            return None
        return entry[2]

    def any_of(self, observation: Observation) -> Optional[Any]:
        """What was noted of an input of an operator, or of what it wrote over."""
        if not self._notes:
            return None
        for _, state in observation.inputs:
            note = self.get(state, 1 if state is observation.state else 0)
            if note is not None:
                return note
        return None

    def clear(self) -> None:
        """Forget everything."""
        self._notes.clear()

    def __bool__(self) -> bool:
        return bool(self._notes)

"""Patterns of wasted work. To add one: a class in a module here, and a line in `_patterns`.

A pattern receives each observation once, while the tensor exists, and must reject quickly. Decisions that depend on
later operators are stored without the tensor, in bounded data (`StorageNotes`), and made at the end of a step.
Evidence is taken from the first occurrence of a cause, from at most 4096 elements: plain JSON.
"""

import math
from collections import OrderedDict
from typing import Any, Callable, Dict, List, Optional, Tuple, Type, Union

import torch

from torchyard.worker.values.exchange import Options
from torchyard.worker.values.findings import Finding, Findings
from torchyard.worker.values.observation import Observation, StorageState
from torchyard.worker.values.operators import Operator
from torchyard.worker.values.places import Place
from torchyard.worker.values.scanning.scanners import Scanners

LEAST_FINDING_BYTES = 16 << 10
"""Minimum size for patterns that suggest a change of the program: below it the overhead of an
operator exceeds the cost of the memory that it writes."""


class Pattern:
    """One kind of waste."""

    name = ""

    def __init__(self, findings: Findings, options: Options, scanner: Scanners) -> None:
        self.findings = findings
        self.options = options
        self.scanner = scanner
        self.autograd_node: Callable[[], Any] = getattr(
            torch._C, "_current_autograd_node", lambda: None
        )
        self.start()

    def start(self) -> None:
        """Create the state of the pattern."""

    def observe(self, observation: Observation) -> None:
        """Examine a tensor that an operator wrote."""

    def fill_covered(self, fill: Observation, by: Operator, place: Place) -> None:
        """Handle a fill that was overwritten piece by piece and never read; `by` wrote the last piece."""

    def fill_read(self, fill: Observation) -> None:
        """Handle the first read of a fill."""

    def end_step(self) -> None:
        """Handle the end of a step. The dispatch mode is active: do not call torch operators here."""

    def pause(self) -> None:
        """Drop pending decisions: memory is not tracked in the following steps."""

    def finish(self) -> None:
        """Make the remaining decisions at the end of the program."""

    def in_formula(self, observation: Observation) -> bool:
        """Return whether the formula of a gradient called the operator: the program cannot change it."""
        if not observation.in_backward or observation.path:
            return False
        node = self.autograd_node()
        if node is None or isinstance(node, torch.autograd.function.BackwardCFunction):
            return False
        return type(node).__name__ != "AccumulateGrad"

    def concerns(self, observation: Observation) -> bool:
        """Return whether it is a large computed result of the forward pass."""
        return (
            observation.size_bytes >= LEAST_FINDING_BYTES
            and observation.computed
            and not observation.in_backward
        )

    def report(
        self,
        observation: Observation,
        detail: str,
        share: float = 1.0,
        evidence: Optional[Callable[[], Dict[str, Any]]] = None,
        **options: Any,
    ) -> Optional[Finding]:
        """Count an occurrence that wastes a share of the written bytes; `options` as in `Findings.add`."""
        options.setdefault("every_time", True)
        return self.findings.add(
            options.pop("name", self.name),
            observation,
            int(observation.size_bytes * share),
            detail=detail,
            evidence=evidence or (lambda: evidence_of(observation)),
            **options,
        )


def _patterns() -> Tuple[Type[Pattern], ...]:
    from torchyard.worker.values.patterns.duplicates import Duplicate, NeedlessCopy, Unchanged
    from torchyard.worker.values.patterns.filled_operands import FilledOperand
    from torchyard.worker.values.patterns.heavy_type import HeavyType
    from torchyard.worker.values.patterns.sparse_gradient import SparseGradient
    from torchyard.worker.values.patterns.uniform_values import (
        Approximate,
        FrequentValues,
        SingleValue,
        Structured,
    )
    from torchyard.worker.values.patterns.wasted_writes import (
        DeadInitialisation,
        Guard,
        RedundantWrite,
    )

    return (
        RedundantWrite,
        DeadInitialisation,
        Duplicate,
        NeedlessCopy,
        FilledOperand,
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
    """Return one instance of each pattern."""
    return [kind(findings, options, scanner) for kind in _patterns()]


_SHOWN = 12
_BINS = 16

Number = Union[float, int, str]


def evidence_of(observation: Observation, **more: Any) -> Dict[str, Any]:
    """Return a sample of the values of an observation, with additional entries."""
    evidence: Dict[str, Any] = {
        "zero_share": observation.scan.zeros / max(1, observation.scan.count)
    }
    if observation.tensor is not None:
        evidence.update(_values(observation.values()))
    evidence.update(more)
    return evidence


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compare tensors whose elements may be in different order in memory; rejects quickly."""
    if one.shape != other.shape or one.dtype != other.dtype or one.is_complex():
        return False
    if one.is_neg() or other.is_neg():  # the values are not those in memory
        return False
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    one, other = one.detach().view(words), other.detach().view(words)
    row = (-1,) * (one.dim() - 1)
    return torch.equal(one[row], other[row]) and torch.equal(one, other)


def where(observation: Observation) -> Dict[str, Any]:
    """Describe another operator that a finding refers to."""
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
        evidence["histogram"] = {
            "low": low,
            "high": high,
            "counts": [int(n) for n in counts.tolist()],
        }
    return evidence


def plain(number: Any) -> Number:
    """Return a number for JSON; NaN and infinity become strings."""
    if isinstance(number, bool):
        return int(number)
    if isinstance(number, float) and not math.isfinite(number):
        return str(number)
    return number


_MOST = 4096


class StorageNotes:
    """Notes on the current contents of storages; the oldest are dropped first."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._notes: "OrderedDict[int, Tuple[StorageState, int, Any]]" = OrderedDict()

    def put(self, state: StorageState, note: Any = True) -> None:
        """Attach a note to the current contents of a storage."""
        # The reference to the state prevents reuse of the storage's identity.
        self._notes[state.key] = (state, state.version, note)
        self._notes.move_to_end(state.key)
        if len(self._notes) > self._most:
            self._notes.popitem(last=False)

    def get(self, state: StorageState, writes_ago: int = 0) -> Optional[Any]:
        """Return the note if the storage was not written since, except for the last `writes_ago`."""
        entry = self._notes.get(state.key)
        if entry is None or entry[0] is not state or entry[1] < state.version - writes_ago:
            return None
        return entry[2]

    def any_of(self, observation: Observation) -> Optional[Any]:
        """Return the note on an input of an operator, or on the memory that it overwrote."""
        if not self._notes:
            return None
        for _, state in observation.inputs:
            note = self.get(state, 1 if state is observation.state else 0)
            if note is not None:
                return note
        return None

    def clear(self) -> None:
        """Remove all notes."""
        self._notes.clear()

    def __bool__(self) -> bool:
        return bool(self._notes)

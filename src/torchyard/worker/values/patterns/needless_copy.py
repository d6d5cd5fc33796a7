"""Needless copy, a kind of duplicate: a copy that could have been its source.

A copy has the bits of its source by purpose. It is needless when neither of the two is written as
long as the copy lives: nobody would have noticed had they been one. Copies that change order or
dtype are something else, and so are those that optimisers keep and backward makes.
"""

from collections import OrderedDict
from typing import Any, Dict, List

from torchyard.worker.values.callers import called_by_torch
from torchyard.worker.values.evidence import evidence_of
from torchyard.worker.values.findings import Findings
from torchyard.worker.values.observation import Observation
from torchyard.worker.values.options import Options
from torchyard.worker.values.patterns import WORTH_A_LOOK_BYTES, Pattern
from torchyard.worker.values.scanners import Scanners
from torchyard.worker.values.storages import StorageState, covers

_MOST_WAITING = 1024


class _Copy:
    """A copy of which it is not yet known what becomes of it."""

    __slots__ = ("copy", "copy_version", "evidence", "seen", "source", "source_version")

    def __init__(self, seen: Observation, source: StorageState, evidence: Any) -> None:
        self.seen = seen
        self.source, self.source_version = source, source.version
        self.copy, self.copy_version = seen.state, seen.state.version
        self.evidence = evidence

    @property
    def written(self) -> bool:
        return self.source.version != self.source_version or self.copy.version != self.copy_version


class NeedlessCopy(Pattern):
    """Copies that were never told from their source."""

    name = "duplicate"

    def __init__(self, findings: Findings, options: Options, scanner: Scanners) -> None:
        super().__init__(findings, options, scanner)
        self._waiting: "OrderedDict[int, _Copy]" = OrderedDict()

    def observe(self, seen: Observation) -> None:
        """Remember a copy, to see what becomes of it."""
        if not seen.operator.copies or seen.size_bytes < WORTH_A_LOOK_BYTES:
            return
        if not seen.computed or seen.in_backward or seen.converted or not seen.whole:
            return
        source, state = seen.inputs[0]
        if source.numel() != seen.tensor.numel() or not covers(source, state):
            return
        # Optimisers start their state with a copy of the gradient.
        if state is seen.state or called_by_torch("optim"):
            return
        if state.hash is None and self.scanner.can_scan(source):
            # Memory from outside that was never looked at.
            found = self.scanner.scan(source, seen.layout)
            state.hash = found.hash
        if state.hash != seen.scan.hash:
            return
        self._waiting[seen.state.key] = _Copy(seen, state, evidence_of(seen))
        if len(self._waiting) > _MOST_WAITING:
            self._settle()
            if len(self._waiting) > _MOST_WAITING:
                self._waiting.popitem(last=False)

    def end_step(self) -> None:
        """Judge copies that are gone."""
        self._settle()

    def pause(self) -> None:
        """What becomes of them is not seen."""
        self._waiting.clear()

    def finish(self) -> None:
        """Judge the rest: what was not written until now never will be."""
        self._settle(over=True)
        self._waiting.clear()

    def _settle(self, over: bool = False) -> None:
        ended: List[int] = []
        for key, held in self._waiting.items():
            if held.written:
                ended.append(key)
            elif over or not held.copy.alive:
                ended.append(key)
                self._report(held)
        for key in ended:
            del self._waiting[key]

    def _report(self, held: _Copy) -> None:
        evidence: Dict[str, Any] = held.evidence
        self.findings.add(
            self.name,
            held.seen,
            held.seen.size_bytes,
            detail="a copy, and neither it nor its source was written while it lived",
            evidence=lambda: evidence,
            every_time=True,
        )

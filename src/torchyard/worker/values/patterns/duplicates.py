"""Duplicate, needless copy, unchanged across steps: existing bits are computed or copied again.

Duplicate: bits that existed already in the same step, of its own input or of another operator; what follows is
counted with the first. Recomputation in backward (checkpointing) and equal gradients of different operators are not.

Needless copy: neither side is written as long as the copy lives. Not those that change order or dtype, nor those of
optimisers and of backward.

Unchanged across steps: the k-th call at a source line returns the same bits in at least three steps without
exception. Of a chain of unchanged results, the last one is the finding, and the others are added to it.
"""

from collections import OrderedDict
from functools import partial
from typing import Any, Dict, List, Optional, Tuple

from torchyard.worker.values.findings import LEAST_SHARE, Finding
from torchyard.worker.values.observation import Observation, StorageState, covers
from torchyard.worker.values.patterns import (
    LEAST_FINDING_BYTES,
    Pattern,
    StorageNotes,
    evidence_of,
    where,
)
from torchyard.worker.values.patterns.wasted_writes import GUARDS
from torchyard.worker.values.places import called_by_torch

OWN_INPUT = "the same bits as its own input"
OWN_INPUT_SHARE = 0.9
"""Minimum share of the calls: a factor that is only sometimes one (a mask) is needed."""
_MOST_COMPUTED = 8192
_FORWARD = -1

_Content = Tuple[int, int, Any, int]


class Duplicate(Pattern):
    """Results with the same bits as an input or an earlier result."""

    name = "duplicate"

    def start(self) -> None:
        """Create the state of the pattern."""
        self._first_computed: "OrderedDict[_Content, Observation]" = OrderedDict()
        """The first computation of these bits in this step."""
        self._again = StorageNotes()
        """Duplicates and the finding that they are derived from."""

    def observe(self, observation: Observation) -> None:
        """Compare a computed tensor with those of this step."""
        if (
            observation.size_bytes < LEAST_FINDING_BYTES
            or not observation.computed
            or observation.single
        ):
            return
        if observation.operator.copies and not observation.converted:
            return
        if self._own_input(observation):
            return
        node = self.autograd_node() if observation.in_backward else None
        number = _FORWARD if node is None else node._sequence_nr()
        content = (observation.scan.hash, observation.size_bytes, observation.dtype, number)
        first = self._first_computed.get(content)
        if first is None:
            self._first_computed[content] = observation
            if len(self._first_computed) > _MOST_COMPUTED:
                self._first_computed.popitem(last=False)
        else:
            self._count(observation, first)

    def end_step(self) -> None:
        """Start a new step; equal results of different steps belong to `Unchanged`."""
        self._first_computed.clear()
        self._again.clear()

    def _own_input(self, observation: Observation) -> bool:
        for tensor, state in observation.inputs:
            if state.hash != observation.scan.hash or tensor.dtype != observation.dtype:
                continue
            if not covers(tensor, state) or state.size_bytes != observation.size_bytes:
                continue
            # In a backward pass the cause is the forward operator.
            if not observation.in_backward and observation.operator.name not in GUARDS:
                self._report(observation, OWN_INPUT, None, OWN_INPUT_SHARE)
            return True
        return False

    def _count(self, observation: Observation, first: Observation) -> None:
        cause: Optional[Finding] = self._again.any_of(observation)
        if cause is None:
            detail = "the same bits as %s computed before" % first.operator.name
            cause = self._report(observation, detail, first)
        else:
            cause.bytes_wasted += observation.size_bytes
            cause.bytes_written += observation.size_bytes
            self.findings.on_follow(cause, observation)
        if cause is not None:
            self._again.put(observation.state, cause)

    def _report(
        self,
        observation: Observation,
        detail: str,
        first: Optional[Observation],
        least_share: float = LEAST_SHARE,
    ) -> Optional[Finding]:
        return self.report(
            observation,
            detail,
            evidence=lambda: (
                evidence_of(observation, first=where(first)) if first else evidence_of(observation)
            ),
            least_share=least_share,
        )


_MOST_WAITING = 1024
_NEVER_WRITTEN = "a copy, and neither it nor its source was written during its lifetime"


class _Copy:
    """A copy that is pending: it may still be written."""

    __slots__ = ("copy", "copy_version", "evidence", "observation", "source", "source_version")

    def __init__(self, observation: Observation, source: StorageState, evidence: Any) -> None:
        self.observation = observation
        self.source, self.source_version = source, source.version
        self.copy, self.copy_version = observation.state, observation.state.version
        self.evidence = evidence

    @property
    def written(self) -> bool:
        return self.source.version != self.source_version or self.copy.version != self.copy_version


class NeedlessCopy(Pattern):
    """Copies that never differed from their source."""

    name = "duplicate"

    def start(self) -> None:
        """Create the state of the pattern."""
        self._waiting: "OrderedDict[int, _Copy]" = OrderedDict()

    def observe(self, observation: Observation) -> None:
        """Store a copy until it is written or freed."""
        if not observation.operator.copies or not self.concerns(observation):
            return
        if observation.converted or not observation.whole:
            return
        source, state = observation.inputs[0]
        if source.numel() != observation.tensor.numel() or not covers(source, state):
            return
        # Optimizers initialize their state with a copy of the gradient.
        if state is observation.state or called_by_torch("optim"):
            return
        if state.hash is None and self.scanner.can_scan(source):
            # External memory that was never scanned.
            scan = self.scanner.scan(source, observation.layout)
            state.hash = scan.hash
        if state.hash != observation.scan.hash:
            return
        self._waiting[observation.state.key] = _Copy(observation, state, evidence_of(observation))
        if len(self._waiting) > _MOST_WAITING:
            self._settle()
            if len(self._waiting) > _MOST_WAITING:
                self._waiting.popitem(last=False)

    def end_step(self) -> None:
        """Report copies that were freed without a write."""
        self._settle()

    def pause(self) -> None:
        """Drop pending copies: writes are not observed in the following steps."""
        self._waiting.clear()

    def finish(self) -> None:
        """Report the remaining copies that were never written."""
        self._settle(over=True)
        self._waiting.clear()

    def _settle(self, over: bool = False) -> None:
        ended: List[int] = []
        for key, held in self._waiting.items():
            if held.written:
                ended.append(key)
            elif over or not held.copy.alive:
                ended.append(key)
                self.report(held.observation, _NEVER_WRITTEN, evidence=partial(dict, held.evidence))
        for key in ended:
            del self._waiting[key]


LEAST_STEPS = 3
_MOST_CALLS = 16384

_Call = Tuple[int, int, int]
"""Node of the flow graph, index of the result, index of the call within the step."""


class _Result:
    """Results of one call in the steps so far."""

    def __init__(self, digest: int, size: int) -> None:
        self.hash = digest
        self.size = size
        self.steps = 1
        self.changed = False
        self.serves_changed = False
        """Read by an operator whose result changes between steps."""
        self.serves_unchanged = False
        self.finding: Optional[Finding] = None

    @property
    def only_serves(self) -> bool:
        return self.serves_unchanged and not self.serves_changed


class Unchanged(Pattern):
    """Results that are identical in every step."""

    name = "unchanged across steps"

    def start(self) -> None:
        """Create the state of the pattern."""
        self._results: "OrderedDict[_Call, _Result]" = OrderedDict()
        self._calls: Dict[Tuple[int, int], int] = {}
        self._same = StorageNotes()
        """Storages that hold an unchanged result in this step."""

    def observe(self, observation: Observation) -> None:
        """Compare a result with that of the same call in the previous step."""
        if not self.concerns(observation):
            return
        site = (observation.node, observation.position)
        call = self._calls.get(site, 0)
        self._calls[site] = call + 1
        if observation.operator.copies and not observation.converted:
            return
        key = (observation.node, observation.position, call)
        result = self._results.get(key)
        if result is None:
            self._results[key] = _Result(observation.scan.hash, observation.size_bytes)
            if len(self._results) > _MOST_CALLS:
                self._results.popitem(last=False)
            return
        if not result.changed and (result.hash != observation.scan.hash or observation.single):
            result.changed = True
            if result.finding is not None:
                self.findings.drop(result.finding)
        if self._same:
            self._serve(observation, result)
        if result.changed:
            return
        result.steps += 1
        self._same.put(observation.state, result)
        if result.steps >= LEAST_STEPS and not result.only_serves:
            self._report(observation, result)

    def end_step(self) -> None:
        """Reset the call indices."""
        self._calls.clear()
        self._same.clear()

    def _serve(self, observation: Observation, result: _Result) -> None:
        for _, state in observation.inputs:
            served: Optional[_Result] = self._same.get(state)
            if served is None:
                continue
            if result.changed:
                served.serves_changed = True
            else:
                served.serves_unchanged = True
                if served.finding is not None and served.only_serves:
                    self.findings.drop(served.finding)
                    served.finding = None

    def _report(self, observation: Observation, result: _Result) -> None:
        detail = "the same bits in at least %d consecutive steps" % LEAST_STEPS
        finding = self.report(observation, detail, every_time=False)
        result.finding = finding
        if finding is None:
            return
        behind = _behind(observation, self._same)
        if result.steps == LEAST_STEPS:
            # Count the second step, too; the first one was necessary.
            finding.count += 1
            finding.bytes_wasted += observation.size_bytes
            finding.bytes_written += observation.size_bytes
        finding.bytes_wasted += behind


def _behind(observation: Observation, same: StorageNotes) -> int:
    """Return the bytes of unchanged results that only this one used."""
    served: List[Any] = [same.get(state) for _, state in observation.inputs]
    return sum(result.size for result in served if result is not None and result.only_serves)

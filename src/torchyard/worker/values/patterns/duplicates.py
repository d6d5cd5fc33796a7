"""Duplicate, needless copy, unchanged across steps: existing bits are computed or copied again.

Duplicate: bits that existed already in the same step, of its own input or of another operator, or that another
operator computed in the step before and that still exist; what follows is counted with the first, except the last one
at another line. Recomputation in backward (checkpointing) and equal gradients of different operators are not.

Needless copy: neither side is written as long as the copy lives, or the copy is overwritten before anything reads it,
or only read before its source is written. A copy that changes the order is compared with earlier copies of its source,
and with what the source was copied from. Not those that change the dtype, nor those of optimizers and of backward.

Unchanged across steps: the k-th call at a source line returns the same bits in at least three steps without
exception. Of a chain of unchanged results, the last one is the finding, and the others are added to it.
"""

from collections import OrderedDict
from functools import partial
from typing import Any, Dict, List, Optional, Set, Tuple

import torch

from torchyard.worker.values.findings import LEAST_SHARE, Finding
from torchyard.worker.values.observation import Observation, StorageState, covers
from torchyard.worker.values.operators import aten
from torchyard.worker.values.patterns import (
    LEAST_FINDING_BYTES,
    Pattern,
    StorageNotes,
    evidence_of,
    same_bits,
    where,
)
from torchyard.worker.values.patterns.wasted_writes import GUARDS, LEAST_OCCURRENCES
from torchyard.worker.values.places import (
    called_by_torch,
    caller,
    collated_by_torch,
    names_operator,
)

OWN_INPUT = "the same bits as its own input"
OWN_INPUT_SHARE = 0.9
"""Minimum share of the calls: a factor that is only sometimes one (a mask) is needed."""
OWN_INPUT_CALLS = 2
"""A single product with ones, such as a softmax over one position, is a coincidence."""
_MOST_COMPUTED = 8192
_FORWARD = -1

_Content = Tuple[int, int, Any, int]


class _Repeated:
    """A duplicate: what it is derived from, and what is derived from it."""

    __slots__ = ("cause", "finding", "followed")

    def __init__(self, cause: Optional[Finding], finding: Optional[Finding] = None) -> None:
        self.cause = cause
        """The finding of the first duplicate of the chain; None if the program does not decide about it."""
        self.finding = finding
        """Its own finding, at another line than the first one."""
        self.followed = False


class Duplicate(Pattern):
    """Results with the same bits as an input or an earlier result."""

    name = "duplicate"

    def start(self) -> None:
        """Create the state of the pattern."""
        self._first_computed: "OrderedDict[_Content, Observation]" = OrderedDict()
        """The first computation of these bits in this step."""
        self._earlier: Dict[_Content, Observation] = {}
        """Those of the step before that still exist."""
        self._again = StorageNotes()
        """Duplicates (`_Repeated`) by their memory."""
        self._ends: List[_Repeated] = []
        """Duplicates with a finding of their own: only the last one of a chain keeps it."""

    def observe(self, observation: Observation) -> None:
        """Compare a computed tensor with those of this step."""
        if observation.size_bytes < LEAST_FINDING_BYTES or observation.single:
            return
        if observation.operator.copies and not observation.converted:
            self._pass_on(observation)
            return
        random = observation.operator.random and observation.fresh and not observation.path
        if not (observation.computed or observation.generated or random):
            return
        if _made_inside(observation) or called_by_torch("optim"):
            self._again.put(observation.state, _Repeated(None))
            return
        if self._own_input(observation):
            self._pass_on(observation)
            return
        node = self.autograd_node() if observation.in_backward else None
        number = _FORWARD if node is None else node._sequence_nr()
        content = (observation.scan.hash, observation.size_bytes, observation.dtype, number)
        first = self._first_computed.get(content)
        if first is not None:
            if self._coincides(observation, first):
                self._again.put(observation.state, _Repeated(None))
            else:
                self._count(observation, first)
            return
        observation.input_hashes = _input_hashes(observation)
        self._first_computed[content] = observation
        if len(self._first_computed) > _MOST_COMPUTED:
            self._first_computed.popitem(last=False)
        earlier = self._earlier.get(content)
        # The same call in the next step belongs to `Unchanged`.
        if earlier is not None and earlier.node != observation.node and self._exists(earlier):
            self._count(observation, earlier, by_rows=False)

    def end_step(self) -> None:
        """Start a new step."""
        self._settle()
        self._earlier = {
            content: first
            for content, first in self._first_computed.items()
            if content[-1] == _FORWARD and self._exists(first)
        }
        self._first_computed.clear()
        self._again.clear()

    def finish(self) -> None:
        """Handle the end of the last step."""
        self._settle()

    def pause(self) -> None:
        """Discard the results of the last step: memory is not tracked in the following ones."""
        self._earlier = {}

    def _pass_on(self, observation: Observation) -> None:
        """Treat a copy of a duplicate as the duplicate."""
        repeated = self._again.any_of(observation)
        if repeated is not None:
            self._again.put(observation.state, repeated)

    def _exists(self, first: Observation) -> bool:
        state = first.state
        return state.alive and state.hash == first.scan.hash

    def _own_input(self, observation: Observation) -> bool:
        for tensor, state in observation.inputs:
            if tensor.dtype != observation.dtype:
                continue
            if covers(tensor, state):
                if (state.hash, state.size_bytes) != (
                    observation.scan.hash,
                    observation.size_bytes,
                ):
                    continue
            elif not tensor.is_cpu or not same_bits(tensor, observation.tensor):
                continue
            # In a backward pass the cause is the forward operator.
            if not observation.in_backward and observation.operator.name not in GUARDS:
                finding = self._report(observation, OWN_INPUT, None, OWN_INPUT_SHARE)
                if finding is not None:
                    finding.least_calls = OWN_INPUT_CALLS
            return True
        return False

    def _coincides(self, observation: Observation, first: Observation) -> bool:
        """Return whether the program could not have known that two results are equal."""
        if observation.operator.name in GUARDS and self.in_formula(observation):
            return True
        if observation.operator.name != first.operator.name:
            return observation.dtype is torch.bool  # tests of the same data
        # An iteration that converged computes the same result of other inputs.
        hashes = zip(first.input_hashes, _input_hashes(observation))
        hash_pairs = [
            (one, other) for one, other in hashes if one is not None and other is not None
        ]
        return first.node == observation.node and any(one != other for one, other in hash_pairs)

    def _count(self, observation: Observation, first: Observation, by_rows: bool = True) -> None:
        detail = "the same bits as %s computed before" % first.operator.name
        same_result = (first.node, first.position) == (observation.node, observation.position)
        if same_result and not observation.place.backward:
            detail += ", in an earlier call of this line"
        repeated: Optional[_Repeated] = self._again.any_of(observation)
        if repeated is None:
            if collated_by_torch():
                self._again.put(observation.state, _Repeated(None))
                return
            cause = self._report(observation, detail, first, by_rows=by_rows)
            if cause is not None:
                self._again.put(observation.state, _Repeated(cause))
            return
        cause, finding = repeated.cause, None
        for _, state in observation.inputs:
            followed: Optional[_Repeated] = self._again.get(state)
            if followed is not None:
                followed.followed = True
        if cause is not None:
            place = observation.place
            if place[:2] != cause.place[:2] and len(self._ends) < _MOST_COMPUTED:
                finding = self._report(observation, detail, first, by_rows=by_rows)
            else:
                cause.bytes_wasted += observation.size_bytes
                cause.bytes_written += observation.size_bytes
            self.findings.on_follow(cause, observation)
        repeated = _Repeated(cause, finding)
        self._again.put(observation.state, repeated)
        if finding is not None:
            self._ends.append(repeated)

    def _settle(self) -> None:
        """Of a chain of duplicates at several lines, keep the findings of the first and the last."""
        last = {id(one.finding) for one in self._ends if not one.followed}
        for one in self._ends:
            finding, cause = one.finding, one.cause
            if finding is None or cause is None or id(finding) in last:
                continue
            last.add(id(finding))
            cause.bytes_wasted += finding.bytes_wasted
            cause.bytes_written += finding.bytes_written
            self.findings.drop(finding)
        self._ends = []

    def _report(
        self,
        observation: Observation,
        detail: str,
        first: Optional[Observation],
        least_share: float = LEAST_SHARE,
        by_rows: bool = True,
    ) -> Optional[Finding]:
        finding = self.report(
            observation,
            detail,
            evidence=lambda: (
                evidence_of(observation, first=where(first), caller=caller())
                if first
                else evidence_of(observation)
            ),
            least_share=least_share,
            by_rows=by_rows,
        )
        if finding is not None and observation.operator.name in GUARDS:
            finding.least_calls = LEAST_OCCURRENCES
        return finding


def _input_hashes(observation: Observation) -> Tuple[Optional[int], ...]:
    return tuple(state.hash if covers(one, state) else None for one, state in observation.inputs)


TRIANGLES = aten("tril triu")
COPYING = (
    "clone",
    "contiguous",
    "reshape",
    "flatten",
    "unflatten",
    "to",
    "copy",
    "deepcopy",
    "repeat",
)
"""Methods and functions with which programs copy to another order."""


def _made_inside(observation: Observation) -> bool:
    """Return whether a composite operator made a constant, such as a causal mask: the program cannot reuse it."""
    name = observation.operator.name
    if not (observation.generated or name in TRIANGLES):
        return False
    return not names_operator(name.rpartition("::")[2])


_MOST_WAITING = 1024
_NEVER_WRITTEN = "a copy, and neither it nor its source was written during its lifetime"
_SECOND_COPY = "a second copy, and neither it nor the first one was written during its lifetime"
_BACK = "a copy back to the order of the original, and neither of the two was written during its lifetime"
_NEVER_READ = "copied values that were overwritten before anything read them"
_READ_BEFORE = "a copy that was only read before its source was written"
_READ_BEFORE_SHARE = 0.9
"""Minimum share of the calls: a backup is read again only if it is needed."""


class _Copy:
    """A copy that is pending: it may still be written."""

    __slots__ = (
        "by_rows",
        "copy",
        "copy_version",
        "detail",
        "evidence",
        "observation",
        "partial",
        "reads",
        "source",
        "source_version",
    )

    def __init__(
        self, observation: Observation, source: StorageState, detail: str, evidence: Any
    ) -> None:
        self.observation = observation
        self.detail = detail
        self.source, self.source_version = source, source.version
        self.copy, self.copy_version = observation.state, observation.state.version
        self.evidence = evidence
        self.partial = not covers(observation.inputs[0][0], observation.inputs[0][1])
        """Whether it copies a part of its source, which may be freed earlier."""
        self.reads: Optional[int] = None
        """Reads of the copy until the first write of its source."""
        self.by_rows = True

    @property
    def needed(self) -> bool:
        copy, source = self.copy, self.source
        if copy.outside or source.outside:
            return True  # numpy or another thread may have written it
        if copy.version != self.copy_version or (self.partial and not source.alive):
            return True
        if source.version == self.source_version:
            return False
        # Later reads of the copy would need it.
        return not self.reads or copy.reads != self.reads


class NeedlessCopy(Pattern):
    """Copies that never differed from their source."""

    name = "duplicate"

    def start(self) -> None:
        """Create the state of the pattern."""
        self._waiting: "OrderedDict[int, _Copy]" = OrderedDict()
        self._ordered: "OrderedDict[Tuple[int, Any], Tuple[Observation, int, StorageState, int]]" = OrderedDict()
        """The last copy with another order than its source, by hash and shape."""
        self._originals = StorageNotes()
        """What copies with another order were copied from."""
        self._sources: Dict[int, List[_Copy]] = {}
        """Pending copies by their source."""
        self._nodes: Set[int] = set()
        """Operators that belong to a finding."""
        self._latest = self._step_began = 0

    def observe(self, observation: Observation) -> None:
        """Store a copy until it is written or freed."""
        if not observation.fresh:
            self._overwritten(observation)
            if self._sources:
                self._source_written(observation)
        if not observation.operator.copies or not self.concerns(observation):
            return
        if observation.converted or not observation.whole:
            return
        source, state = observation.inputs[0]
        if source.numel() != observation.tensor.numel():
            return
        # Optimizers initialize their state with a copy of the gradient.
        if state is observation.state or called_by_torch("optim"):
            return
        detail, evidence, by_rows = _NEVER_WRITTEN, evidence_of(observation), True
        if not self._same_order(observation, source, state):
            original: Optional[StorageState] = self._originals.get(state)
            first = self._first_ordered(observation, state)
            if not names_operator(*COPYING, in_torch=False):
                return  # a composite operator, as `gru`, or a module of torch made it
            if original is not None and original.alive and original.hash == observation.scan.hash:
                state, detail = original, _BACK
            elif first is not None:
                detail, by_rows = _SECOND_COPY, first.state.alive
                evidence["first"] = where(first)
                if by_rows:
                    state = first.state
            else:
                self._originals.put(observation.state, state)
                return
        waiting_copy = _Copy(observation, state, detail, evidence)
        # The rows of a step do not show what existed before.
        waiting_copy.by_rows = by_rows and state.born > self._step_began
        if waiting_copy.partial:
            self._settle()  # while the sources of earlier copies exist
        self._latest = max(self._latest, observation.state.born)
        self._waiting[observation.state.key] = waiting_copy
        self._sources.setdefault(state.key, []).append(waiting_copy)
        if len(self._waiting) > _MOST_WAITING:
            self._settle()
            if len(self._waiting) > _MOST_WAITING:
                self._waiting.popitem(last=False)

    def _same_order(
        self, observation: Observation, source: torch.Tensor, state: StorageState
    ) -> bool:
        """Return whether the copy has the same bits in the same order."""
        if source.is_conj() or source.is_neg():
            return False  # copying conjugates or negates
        if not covers(source, state):
            return source.stride() == observation.tensor.stride()
        if state.hash is None and self.scanner.can_scan(source):
            # External memory that was never scanned.
            scan = self.scanner.scan(source, observation.layout)
            state.hash = scan.hash
        return bool(state.hash == observation.scan.hash)

    def _first_ordered(
        self, observation: Observation, source: StorageState
    ) -> Optional[Observation]:
        """Return an earlier copy with the same bits that still exists, or of the same unchanged source."""
        key = (observation.scan.hash, (observation.dtype, observation.shape))
        entry = self._ordered.get(key)
        if entry is not None:
            first, version, first_source, source_version = entry
            same_source = first_source is source and source.version == source_version
            exists = first.state.alive and first.state.hash == observation.scan.hash
            if exists or (same_source and first.state.version == version):
                return first
        version = observation.state.version
        self._ordered[key] = (observation, version, source, source.version)
        if len(self._ordered) > _MOST_WAITING:
            self._ordered.popitem(last=False)
        return None

    def _source_written(self, observation: Observation) -> None:
        """Store how often copies were read before the first write of their source."""
        state = observation.state
        for waiting_copy in self._sources.get(state.key, ()):
            first_write = (
                waiting_copy.source is state and state.version == waiting_copy.source_version + 1
            )
            if first_write and all(
                other is not waiting_copy.copy for _, other in observation.inputs
            ):
                waiting_copy.reads = waiting_copy.copy.reads

    def _overwritten(self, observation: Observation) -> None:
        waiting_copy = self._waiting.get(observation.state.key)
        if (
            waiting_copy is None
            or waiting_copy.copy is not observation.state
            or waiting_copy.copy.version != waiting_copy.copy_version + 1
            or waiting_copy.detail is not _NEVER_WRITTEN
            or observation.was_reads
            or not observation.whole
            or not observation.operator.overwrites
        ):
            return
        del self._waiting[observation.state.key]
        self.report(
            waiting_copy.observation, _NEVER_READ, evidence=partial(dict, waiting_copy.evidence)
        )

    def end_step(self) -> None:
        """Report copies that were freed without a write."""
        self._settle()
        self._step_began = self._latest

    def pause(self) -> None:
        """Drop pending copies, except at known lines: writes are not observed in the following steps."""
        self._settle(over=True, known_only=True)
        self._waiting.clear()
        self._sources.clear()
        self._ordered.clear()
        self._originals.clear()

    def finish(self) -> None:
        """Report the remaining copies that were never written."""
        self._settle(over=True)
        self._waiting.clear()
        self._sources.clear()

    def _settle(self, over: bool = False, known_only: bool = False) -> None:
        for key, waiting_copy in list(self._waiting.items()):
            if not waiting_copy.needed:
                if waiting_copy.copy.alive and not over:
                    continue
                read_before = waiting_copy.source.version != waiting_copy.source_version
                is_reported = waiting_copy.observation.node in self._nodes
                if is_reported or not (known_only or (read_before and waiting_copy.copy.alive)):
                    self._report(waiting_copy, read_before)
            del self._waiting[key]
        self._sources = {}
        for waiting_copy in self._waiting.values():
            self._sources.setdefault(waiting_copy.source.key, []).append(waiting_copy)

    def _report(self, held: _Copy, read_before: bool) -> None:
        finding = self.report(
            held.observation,
            _READ_BEFORE if read_before else held.detail,
            evidence=partial(dict, held.evidence),
            by_rows=held.by_rows and not read_before,
        )
        if finding is not None:
            self._nodes.add(held.observation.node)
            if read_before:
                finding.least_share = _READ_BEFORE_SHARE


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
        self._inside = StorageNotes()
        """Storages that hold constants of composite operators."""

    def observe(self, observation: Observation) -> None:
        """Compare a result with that of the same call in the previous step."""
        if not self.concerns(observation) and not (
            observation.generated and observation.size_bytes >= LEAST_FINDING_BYTES
        ):
            return
        if self._inside.any_of(observation) or _made_inside(observation):
            self._inside.put(observation.state)
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
        self._inside.clear()

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

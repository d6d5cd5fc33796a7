"""Which calls a fix removes: the graph of calls and results, and the chains of waste in it.

A fix removes also what was computed only for the finding, what follows from a result that exists already, and the
backward of both. Each closely observed step is a graph; programs without steps are cut into windows.
"""

from collections import OrderedDict
from typing import AbstractSet, Any, Callable, Dict, List, Optional, Set, Tuple

import torch

from torchyard.worker.values.findings import Finding
from torchyard.worker.values.operators import (
    PLAIN,
    Operator,
    operator_of,
    tensors_in,
    written_tensors,
)
from torchyard.worker.values.places import Place, Site, site_of

WASTED = "wasted"
"""The operator of the finding."""
PASSES = "passes"
"""The same, where readers get the operator's input instead of its result: that input stays."""
REPEATED = "repeated"
"""Repeats an earlier call, on inputs that are wasted themselves."""
ONLY_FOR = "only for it"
"""Its result is read by calls that a fix removes, and by nothing else."""
BACKWARD = "backward"
"""The backward pass of a call that a fix removes."""
SHRINKS = "shrinks"
"""The operator of a finding whose result a fix makes smaller."""
READS = "reads"
"""Reads a result that a fix makes smaller."""
INSIDE = "inside"
"""The waste is a part of what happens inside of this call."""

_REPEATING = frozenset({"duplicate", "unchanged across steps"})
"""Patterns that mean `computed again`: what follows from the result is computed again, too."""
_WIDE = "heavy type"
_WINDOW = 16384
"""Number of calls that are analyzed together in a program without steps."""
_MOST_VALUES = 50_000
_MOST_PAST = 8192
_MOST_SITES = 400
"""Of one finding."""
_NONE: AbstractSet[int] = frozenset()
_ROUNDS = 3
"""Backward calls and their inputs alternate; longer alternations are not followed."""


Form = Tuple[torch.dtype, int]
"""Type and number of elements."""


class Call:
    """One call of an operator."""

    __slots__ = (
        "backward",
        "finding",
        "form",
        "node",
        "own",
        "passes",
        "readers",
        "reads",
        "repeats",
        "role",
        "site",
    )

    def __init__(self, site: Site) -> None:
        self.site = site
        self.reads: List["Call"] = []
        self.readers: List[Tuple["Call", Form]] = []
        """Calls that read its result, and in which form."""
        self.finding: Optional[Finding] = None
        self.role = ""
        self.backward = False
        self.node = -1
        """Number of its autograd node; for a backward call that of the forward call."""
        self.repeats = False
        """Same operator on the same values as an earlier call."""
        self.own = True
        """Whether what it wrote was made by a call of this graph."""
        self.passes = False
        """Whether a fix hands on an input of the form of its result."""
        self.form: Optional[Form] = None


class CallGraph:
    """Follows calls in the order they run; `export` writes the chains into recipes of findings."""

    def __init__(self) -> None:
        self.state_of: Callable[[torch.Tensor], Any] = lambda _tensor: None
        """The state of a tensor's storage; set by the session."""
        self.states: Dict[int, Any] = {}
        """The same for arguments of the operator that just returned, by the identity of the tensor."""
        self._calls: List[Call] = []
        self._writers: Dict[int, Tuple[Any, Call]] = {}
        self._past: "OrderedDict[int, Tuple[Any, Site]]" = OrderedDict()
        """Last writers of storages in graphs that were resolved."""
        self._values: Dict[int, Tuple[Any, int]] = {}
        self._ids: Dict[Any, int] = {}
        self._ids_before: Dict[Any, int] = {}
        self._last_id = 0
        self._pending: List[Tuple[Finding, str]] = []
        """Findings of the call that is running, and what their fix does to it."""
        self._partly: List[Tuple[Call, Finding, str]] = []
        self._counts_by_finding: Dict[int, Tuple[Finding, Dict[Tuple[Site, str], int]]] = {}
        self._occurrences: Dict[int, int] = {}
        self._left_out: Set[int] = set()
        self._broken = ""
        self._node = getattr(torch._C, "_current_autograd_node", lambda: None)
        autograd = getattr(torch._C, "_autograd", None)
        self._sequence = getattr(autograd, "_get_sequence_nr", None)

    def mark(self, finding: Finding, state: Any, role: str = WASTED) -> None:
        """Store an occurrence in the current call or in the last writer of a storage."""
        if self.also(finding, state, role):
            self._occurrences[id(finding)] = self._occurrences.get(id(finding), 0) + 1

    def also(self, finding: Finding, state: Any = None, role: str = WASTED) -> bool:
        """Add a call to an occurrence; return whether the call is known."""
        self._counts_by_finding.setdefault(id(finding), (finding, {}))
        if state is None:
            self._pending.append((finding, role))
            return True
        writer, past = self._writer(state), self._past.get(state.key)
        if writer is not None:
            self._attach(writer, finding, role)
        elif past is not None and past[0] is state:
            self._count(finding, past[1], WASTED if role == PASSES else role)
            if role != PASSES:  # the calls around it are forgotten
                self._left_out.add(id(finding))
        elif role == INSIDE:
            self._pending.append((finding, role))  # memory of the call that is running
        else:
            return False
        return True

    def _attach(self, call: Call, finding: Finding, role: str) -> None:
        if role in (SHRINKS, INSIDE):
            self._partly.append((call, finding, role))
        elif call.finding is None:
            call.finding, call.role, call.passes = finding, WASTED, role == PASSES

    def after_operator(self, func: Any, args: Any, kwargs: Any, result: Any, place: Place) -> None:
        """Add a call that just returned."""
        if self._broken:
            return
        operator = operator_of(func)
        call = Call(site_of(operator.name, place, args, kwargs))
        for finding, role in self._pending:
            self._attach(call, finding, role)
        self._pending.clear()
        arguments = [*args, *kwargs.values()] if kwargs else args
        self._number(call, arguments)
        written = written_tensors(operator, args, kwargs) if operator.writes else []
        key = self._link(call, operator, func, arguments, written)
        made = tensors_in(result if isinstance(result, (list, tuple)) else (result,))
        for position, tensor in enumerate(written + made):
            state = self._state(tensor)
            if state is None:
                continue
            call.form = (tensor.dtype, tensor.numel())
            self._writers[state.key] = (state, call)
            value = None if key is None else self._ids_of(("result", key, position))
            self._values[state.key] = (state, self._fresh() if value is None else value)
        self._calls.append(call)
        if len(self._calls) >= _WINDOW:
            self.resolve()

    def give_up(self, why: str) -> None:
        """Stop tracking calls: chains are unknown from here on."""
        self._broken = why[:160]
        self._calls.clear()
        self._writers.clear()

    def resolve(self) -> None:
        """Find the chains among the calls so far, and start a new graph."""
        calls, self._calls = self._calls, []
        for key, (state, call) in self._writers.items():
            self._past[key] = (state, call.site)
            self._past.move_to_end(key)
        while len(self._past) > _MOST_PAST:
            self._past.popitem(last=False)
        self._writers.clear()
        self._ids, self._ids_before = {}, self._ids
        if len(self._values) > _MOST_VALUES:
            self._values.clear()
        if any(call.finding is not None for call in calls):
            for _ in range(_ROUNDS):
                _follow(calls)
                _precede(calls)
        for call in calls:
            if call.finding is not None:
                self._count(call.finding, call.site, call.role)
        partly, self._partly = self._partly, []
        for start, finding, kind in partly:
            reached = _affected(start, finding) if kind == SHRINKS else [(start, kind)]
            for call, role in reached:
                self._count(finding, call.site, role)
        for call in calls:  # they refer to each other, and the garbage collector is slow
            call.reads.clear()
            call.readers.clear()

    def export(self) -> None:
        """Write into each finding's recipe which calls its fix concerns."""
        self.resolve()
        for finding, counts in self._counts_by_finding.values():
            finding.recipe["sightings"] = self._occurrences.get(id(finding), 0)
            left_out = "calls that were not tracked" if id(finding) in self._left_out else ""
            finding.recipe["calls_unknown"] = self._broken or left_out
            finding.recipe["calls"] = [
                dict(site._asdict(), role=role, calls=count)
                for (site, role), count in counts.items()
            ]

    def _count(self, finding: Finding, site: Site, role: str) -> None:
        counts = self._counts_by_finding.setdefault(id(finding), (finding, {}))[1]
        if (site, role) in counts or len(counts) < _MOST_SITES:
            counts[site, role] = counts.get((site, role), 0) + 1
        else:
            self._left_out.add(id(finding))

    def _number(self, call: Call, given: Any) -> None:
        node = self._node()
        if node is not None:
            call.backward, call.node = True, node._sequence_nr()
        elif (
            self._sequence is not None
            and torch.is_grad_enabled()
            and any(tensor.requires_grad for tensor in tensors_in(given))
        ):
            call.node = self._sequence() - 1

    def _link(
        self,
        call: Call,
        operator: Operator,
        func: Any,
        given: Any,
        written: List[torch.Tensor],
    ) -> Optional[int]:
        """Connect a call to those whose results it reads; return a number for what it computes."""
        overwritten = {id(tensor) for tensor in written} if operator.overwrites else _NONE
        parts: List[Any] = [id(func)]
        for value in given:
            kind = type(value)
            plain = kind in PLAIN
            parts.append((kind, value) if plain else self._part(call, value, overwritten))
        for tensor in written:
            state = self._state(tensor)
            before = None if state is None else self._writer(state)
            call.own = call.own and before is not None
            if before is not None and id(tensor) in overwritten:
                # The contents are not read, but the call needs the memory.
                call.reads.append(before)
        if operator.random or operator.undefined:
            return None
        try:
            key = tuple(parts)
            number = self._ids.get(key) or self._ids_before.get(key)
        except TypeError:  # an argument that cannot be hashed
            return None
        call.repeats = number is not None
        number = self._ids[key] = number or self._fresh()
        return number

    def _part(self, call: Call, value: Any, overwritten: AbstractSet[int]) -> Any:
        if isinstance(value, (list, tuple)):
            return tuple(self._part(call, item, overwritten) for item in value)
        if not isinstance(value, torch.Tensor):
            return (type(value), value)
        state = self.states.get(id(value)) or self._state(value)
        if state is None:
            return self._fresh()
        shape, dtype = tuple(value.shape), value.dtype
        if id(value) in overwritten:
            return (shape, dtype)
        key = state.key
        writer = self._writers.get(key)
        if writer is not None and writer[0] is state and writer[1] not in call.reads:
            call.reads.append(writer[1])
            writer[1].readers.append((call, (dtype, value.numel())))
        identified = self._values.get(key)
        if identified is None or identified[0] is not state:
            identified = self._values[key] = (state, self._fresh())
        return (identified[1], value.storage_offset(), shape, value.stride(), dtype)

    def _ids_of(self, key: Any) -> int:
        number = self._ids.get(key) or self._ids_before.get(key) or self._fresh()
        self._ids[key] = number
        return number

    def _fresh(self) -> int:
        self._last_id += 1
        return self._last_id

    def _state(self, tensor: torch.Tensor) -> Any:
        try:
            return self.state_of(tensor)
        except (NotImplementedError, RuntimeError):  # no storage: sparse, nested
            return None

    def _writer(self, state: Any) -> Optional[Call]:
        writer = self._writers.get(state.key)
        return writer[1] if writer is not None and writer[0] is state else None


def _follow(calls: List[Call]) -> None:
    """Find, in order, calls that repeat on wasted inputs, and the backward of removed calls."""
    removed: Dict[int, Finding] = {}
    for call in calls:
        finding = call.finding
        if finding is None and call.backward:
            finding = removed.get(call.node)
            call.role = BACKWARD if finding is not None else ""
        if finding is None and call.repeats:
            finding = _repeated_for(call)
            call.role = REPEATED if finding is not None else ""
        call.finding = finding
        if finding is not None and call.node >= 0 and not call.backward:
            removed.setdefault(call.node, finding)


def _repeated_for(call: Call) -> Optional[Finding]:
    for read in call.reads:
        if read.finding is not None and read.finding.pattern in _REPEATING:
            return read.finding
    return None


def _precede(calls: List[Call]) -> None:
    """Find, in reverse order, calls whose results only removed calls read."""
    for call in reversed(calls):
        if call.finding is not None or not call.readers or not call.own:
            continue
        if all(_removed(reader, form) for reader, form in call.readers):
            call.finding, call.role = call.readers[-1][0].finding, ONLY_FOR


def _removed(reader: Call, form: Form) -> bool:
    """Return whether a fix removes this reader and does not pass on its input."""
    return reader.finding is not None and not (reader.passes and form == reader.form)


def _affected(start: Call, finding: Finding) -> List[Tuple[Call, str]]:
    """Return the call, its readers and, for a dtype that is too wide, what they compute in it."""
    affected: Dict[int, Tuple[Call, str]] = {id(start): (start, SHRINKS)}
    waiting = [start]
    while waiting:
        call = waiting.pop()
        for reader, _ in call.readers:
            if id(reader) not in affected:
                affected[id(reader)] = (reader, READS)
                if finding.pattern == _WIDE and _dtype(reader) is _dtype(start):
                    waiting.append(reader)
    return list(affected.values())


def _dtype(call: Call) -> Optional[torch.dtype]:
    return call.form[0] if call.form is not None else None

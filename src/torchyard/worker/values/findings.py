"""Findings and the flow graph: repetitions at one source line are one finding, or one node.

A cause is a pattern, an operator and a source line, not a module: twenty layers that call one line have one cause.
In surveyed steps the rows of a result show whether a finding still holds; where they cannot (dead initialisation),
the same operators in the same order count as a repetition.
"""

from typing import Any, Callable, Dict, List, Optional, Tuple

from torchyard.worker.values.observation import Observation
from torchyard.worker.values.places import Place
from torchyard.worker.values.surveys.survey import (
    EARLIER,
    EQUAL,
    FREQUENT,
    NARROW,
    REPEATED,
    SINGLE,
    Surveyed,
)

Cause = Tuple[str, str, Tuple[str, ...], str, int, bool]
ResultKey = Tuple[int, int]
"""Node of the flow graph and index of its result."""
_PRIVATE = frozenset(
    {
        "by_rows",
        "by_shape",
        "every_time",
        "hits",
        "least_calls",
        "least_share",
        "persistent",
        "proven",
        "proven_at",
        "reason",
        "shared",
        "used",
    }
)
_MOST_FINDINGS = 5000
_MOST_MODULES = 8
_STEPS_TO_TELL = 3
"""With fewer steps, the first one cannot be distinguished from the rest."""
LEAST_SHARE = 1 / 3
"""Default minimum share of the calls."""
_MOST_STEPS = 1000


class Finding:
    """One cause of wasted work with its counts, evidence and proof."""

    def __init__(self, pattern: str, observation: Observation) -> None:
        self.pattern = pattern
        self.operator = observation.operator.name
        self.overload = str(observation.func)
        self.path = observation.path
        self.place: Place = observation.place
        self.node = observation.node
        self.shape = observation.shape
        self.dtype = str(observation.dtype).replace("torch.", "")
        self.count = 0
        self.bytes_wasted = 0
        self.bytes_written = 0
        """All bytes written in the counted calls, wasted or not."""
        self.modules: Dict[str, int] = {}
        self.steps: List[int] = []
        self.detail = ""
        """One-line description, such as `float32 that is exactly bfloat16`."""
        self.evidence: Dict[str, Any] = {}
        """Sample, histogram and range of the first occurrence."""
        self.proof: Dict[str, Any] = {}
        """Certainty, reason and tests; filled by `Proofs`."""
        self.proven = 0
        """Number of calls proven to be wasted for every input of these shapes."""
        self.proven_at: Dict[Any, int] = {}
        """Proven calls by call site, if known."""
        self.reason = ""
        """Reason of the proof."""
        self.by_shape = False
        """Whether the reason depends on the shape of each call."""
        self.shared = False
        """Whether the reason depends on which other code can access the memory."""
        self.worth: Dict[str, Any] = {}
        self.recipe: Dict[str, Any] = {}
        """The operator and its wasted part without values, for pricing."""
        self.every_time = False
        self.least_share = LEAST_SHARE
        self.least_calls = 1
        """Fewer calls may be a coincidence."""
        self.persistent = False
        self.by_rows = True
        """Whether the rows of surveyed steps show the pattern."""
        self.hits: Dict[ResultKey, int] = {}
        """Number of occurrences per result."""
        self.used = 0
        """Number of calls of the same line whose result was needed."""

    @property
    def cause(self) -> Cause:
        """Key that merges occurrences into one finding."""
        return _cause(self.pattern, self.operator, self.path, self.place)

    def as_dict(self) -> Dict[str, Any]:
        """For JSON."""
        data = {name: getattr(self, name) for name in vars(self) if name not in _PRIVATE}
        data["place"] = self.place._asdict()
        data["path"] = list(self.path)
        data["shape"] = list(self.shape)
        return data


def cause_of(pattern: str, observation: Observation) -> Cause:
    """Return the key of the finding that an occurrence belongs to."""
    return _cause(pattern, observation.operator.name, observation.path, observation.place)


def _cause(pattern: str, operator: str, path: Tuple[str, ...], place: Place) -> Cause:
    return pattern, operator, path, place.file, place.line, place.backward


class Findings:
    """All findings of a profile, by cause."""

    def __init__(self) -> None:
        self._by_cause: Dict[Cause, Finding] = {}
        self._calls_by_result: Dict[ResultKey, int] = {}
        self._steps = 0
        self.on_add: Callable[[Finding, Observation], None] = lambda _finding, _observation: None
        """Callback for every counted occurrence; `Proofs` tests some of them."""
        self.on_follow: Callable[[Finding, Observation], None] = lambda _finding, _observation: None
        """Callback for work that is derived from a finding and added to it."""
        self.left_out = 0
        """Occurrences beyond the maximum number of causes."""

    def count_call(self, observation: Observation) -> None:
        """Count an observed call, wasteful or not."""
        self.count_miss((observation.node, observation.position))

    def end_step(self) -> None:
        """Count a finished step."""
        self._steps += 1

    def add(
        self,
        pattern: str,
        observation: Observation,
        wasted_bytes: int,
        *,
        detail: str = "",
        evidence: Optional[Callable[[], Dict[str, Any]]] = None,
        every_time: bool = False,
        least_share: float = LEAST_SHARE,
        persistent: bool = False,
        by_rows: bool = True,
    ) -> Optional[Finding]:
        """Count an occurrence; `evidence` is called only for the first one of a cause.

        With `every_time` it is reported only if it holds in `least_share` of the calls: see
        `is_rule`. `persistent` tensors are created at the start and used in every step. Without
        `by_rows`, surveyed steps with the same operators count as repetitions.
        """
        place = observation.place
        cause = cause_of(pattern, observation)
        finding = self._by_cause.get(cause)
        if finding is None:
            if len(self._by_cause) >= _MOST_FINDINGS:
                self.left_out += 1
                return None
            finding = self._by_cause[cause] = Finding(pattern, observation)
            finding.detail = detail
            finding.every_time, finding.persistent = every_time, persistent
            finding.least_share, finding.by_rows = least_share, by_rows
            if evidence is not None:
                finding.evidence = evidence()
        finding.count += 1
        finding.bytes_wasted += wasted_bytes
        finding.bytes_written += observation.size_bytes
        result_key = (observation.node, observation.position)
        finding.hits[result_key] = finding.hits.get(result_key, 0) + 1
        if place.module and (
            place.module in finding.modules or len(finding.modules) < _MOST_MODULES
        ):
            finding.modules[place.module] = finding.modules.get(place.module, 0) + 1
        _add_step(finding, observation.step)
        self.on_add(finding, observation)
        return finding

    def count_repeat(self, finding: Finding, result_key: ResultKey, step: int) -> None:
        """Count an occurrence in a surveyed step, with average bytes."""
        if finding.proven == finding.count and not finding.by_shape:
            finding.proven += 1  # the source of the program proves every call of this line
        finding.bytes_wasted += finding.bytes_wasted // finding.count
        finding.bytes_written += finding.bytes_written // finding.count
        finding.count += 1
        finding.hits[result_key] = finding.hits.get(result_key, 0) + 1
        self.count_miss(result_key)
        _add_step(finding, step)

    def count_miss(self, result_key: ResultKey) -> None:
        """Count a call without an occurrence."""
        self._calls_by_result[result_key] = self._calls_by_result.get(result_key, 0) + 1

    def calls_of(self, finding: Finding) -> int:
        """Return the number of calls of a finding's operator, wasteful or not."""
        return sum(self._calls_by_result.get(result_key, 0) for result_key in finding.hits)

    def is_start(self, finding: Finding) -> bool:
        """Return whether a line ran once, in a program without steps in which other lines ran in a loop."""
        once = not self._steps and self.calls_of(finding) == 1
        return once and max(self._calls_by_result.values()) >= _STEPS_TO_TELL

    def drop(self, finding: Finding) -> None:
        """Remove a finding that was refuted."""
        self._by_cause.pop(finding.cause, None)

    def candidates(self) -> List[Finding]:
        """Return all findings, including those below the minimum share."""
        return list(self._by_cause.values())

    def all(self) -> List[Finding]:
        """Return the findings to report, in order of first occurrence."""
        return [finding for finding in self._by_cause.values() if self.is_rule(finding)]

    def is_rule(self, finding: Finding) -> bool:
        """Return whether a finding is typical of the program and not only of its start.

        It must hold in a minimum share of the calls (one line may have several callers) and not only in the first steps:
        many programs compute with constants once.
        """
        if not finding.every_time:
            return True
        at_start = self._steps >= _STEPS_TO_TELL and finding.steps == [1]
        if at_start and not finding.persistent:
            return False
        hits = sum(finding.hits.values())
        return hits >= max(finding.least_calls, finding.least_share * self.calls_of(finding))


def _add_step(finding: Finding, step: int) -> None:
    if len(finding.steps) < _MOST_STEPS and (not finding.steps or finding.steps[-1] != step):
        finding.steps.append(step)


_ANY = EQUAL | FREQUENT | NARROW | REPEATED | SINGLE
SHOWN_BY: Dict[str, int] = {
    "redundant write": EQUAL | REPEATED | EARLIER,
    "duplicate": EQUAL,
    "single zero": SINGLE | FREQUENT | NARROW,  # zeros of both signs are shown as narrow only
    "single value": SINGLE,
    "frequent values": FREQUENT | SINGLE,
    "heavy type": NARROW | FREQUENT,
    "guard that never fires": EQUAL | REPEATED,
    "unchanged across steps": REPEATED,
    "sparse gradient": FREQUENT | SINGLE,
}
"""Row flags that confirm a pattern; other patterns have none."""
NEVER_AGAIN = ("guard that never fires", "unchanged across steps")
"""Patterns that a single exception refutes."""


def count_surveyed(findings: Findings, surveyed: Surveyed) -> None:
    """Update findings with the rows of a surveyed step."""
    if surveyed.closely:
        return
    by_result: Dict[ResultKey, List[Finding]] = {}
    for finding in findings.candidates():
        for result_key in finding.hits:
            by_result.setdefault(result_key, []).append(finding)
    if not by_result:
        return
    for result_key, flags in zip(surveyed.result_keys, surveyed.shows):
        for finding in by_result.get(result_key, ()):
            required = SHOWN_BY.get(finding.pattern) if finding.by_rows else None
            holds = surveyed.regular if required is None else bool(flags & required)
            if holds:
                findings.count_repeat(finding, result_key, surveyed.step)
            else:
                findings.count_miss(result_key)
                if finding.pattern in NEVER_AGAIN:
                    findings.drop(finding)


_Key = Tuple[str, Place, Tuple[str, ...]]
OUTSIDE = -1
"""Memory that existed before profiling started."""


class Flow:
    """Nodes and edges of the flow graph with counts."""

    def __init__(self) -> None:
        self._ids: Dict[_Key, int] = {}
        self._keys: List[_Key] = []
        self._calls: List[int] = []
        self._written: List[int] = []
        self._edges: Dict[Tuple[int, int], List[int]] = {}

    def node(self, operator: str, place: Place, path: Tuple[str, ...]) -> int:
        """Return the node of an operator at a source line and count a call."""
        key = (operator, place, path)
        node = self._ids.get(key)
        if node is None:
            node = self._ids[key] = len(self._keys)
            self._keys.append(key)
            self._calls.append(0)
            self._written.append(0)
        self._calls[node] += 1
        return node

    def place(self, node: int) -> Place:
        """Return the source line of a node."""
        return self._keys[node][1]

    def wrote(self, node: int, size_bytes: int) -> None:
        """Add bytes written by a node."""
        self._written[node] += size_bytes

    def read(self, writer: int, reader: int, size_bytes: int) -> None:
        """Add bytes that a reader read from their last writer."""
        edge = self._edges.get((writer, reader))
        if edge is None:
            self._edges[writer, reader] = [1, size_bytes]
        else:
            edge[0] += 1
            edge[1] += size_bytes

    def as_dict(self) -> Dict[str, Any]:
        """For JSON."""
        nodes = [
            {
                "id": number,
                "operator": operator,
                "place": place._asdict(),
                "path": list(path),
                "calls": self._calls[number],
                "written_bytes": self._written[number],
            }
            for number, (operator, place, path) in enumerate(self._keys)
        ]
        edges = [
            {"writer": writer, "reader": reader, "count": count, "bytes": size}
            for (writer, reader), (count, size) in self._edges.items()
        ]
        return {"nodes": nodes, "edges": edges}

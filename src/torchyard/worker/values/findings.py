"""Findings and the flow graph: what repeats at one place is one finding, or one node, with a count.

A cause is a pattern, an operator (and the operators around it) and a place in the program. The
module is not part of it: twenty layers that call one line have one cause. A finding is made in a
closely observed step. In a surveyed step its place appears as rows, which show whether the finding
still holds; where rows cannot show it (an initialisation that is dead because of the order of
operators), the same operators in the same order count as a repetition.
"""

from typing import Any, Callable, Dict, List, Optional, Tuple

from torchyard.worker.values.observation import Observation
from torchyard.worker.values.places import Place
from torchyard.worker.values.surveys.recorded_step import (
    EQUAL,
    FREQUENT,
    NARROW,
    REPEATED,
    SINGLE,
    Surveyed,
)

Cause = Tuple[str, str, Tuple[str, ...], str, int, bool]
Sight = Tuple[int, int]
"""A node of the flow graph and which of its results: one result of an operator at a place."""
_PRIVATE = frozenset(
    {
        "by_shape",
        "every_time",
        "hits",
        "least_share",
        "made_to_stay",
        "proven",
        "proven_at",
        "reason",
        "shared",
    }
)
_MOST_FINDINGS = 5000
_MOST_MODULES = 8
_STEPS_TO_TELL = 3
"""With fewer, the first step cannot be told from the rest."""
LEAST_SHARE = 1 / 3
"""Of the calls at a place."""
_MOST_STEPS = 1000


class Finding:
    """One cause of wasted work, with everything that was seen of it."""

    __slots__ = (
        "by_shape",
        "bytes_wasted",
        "bytes_written",
        "count",
        "detail",
        "dtype",
        "every_time",
        "evidence",
        "hits",
        "least_share",
        "made_to_stay",
        "modules",
        "node",
        "operator",
        "overload",
        "path",
        "pattern",
        "place",
        "proof",
        "proven",
        "proven_at",
        "reason",
        "recipe",
        "shape",
        "shared",
        "steps",
        "worth",
    )

    def __init__(self, pattern: str, seen: Observation) -> None:
        self.pattern = pattern
        self.operator = seen.operator.name
        self.overload = str(seen.func)
        self.path = seen.path
        self.place: Place = seen.place
        self.node = seen.node
        self.shape = seen.shape
        self.dtype = str(seen.dtype).replace("torch.", "")
        self.count = 0
        self.bytes_wasted = 0
        self.bytes_written = 0
        """By this operator at this place, whether wasted or not, as far as the pattern counts it."""
        self.modules: Dict[str, int] = {}
        self.steps: List[int] = []
        self.detail = ""
        """One line that says what exactly, such as `float32 that is exactly bfloat16`."""
        self.evidence: Dict[str, Any] = {}
        """Sample, histogram, range: of the first time."""
        self.proof: Dict[str, Any] = {}
        """Filled by `proof`: certainty (see `certainty`), why, and the tests."""
        self.proven = 0
        """Calls in which the work does not matter for any input of these shapes."""
        self.proven_at: Dict[Any, int] = {}
        """The same by the place of the call in the source, where that is known."""
        self.reason = ""
        """Why that is so."""
        self.by_shape = False
        """Whether the reason rests on the shape of each call."""
        self.shared = False
        """Whether the reason rests on what else of the program refers to the memory."""
        self.worth: Dict[str, Any] = {}
        self.recipe: Dict[str, Any] = {}
        """The operator and the wasted part of it, without their values, for `worth`."""
        self.every_time = False
        self.least_share = LEAST_SHARE
        self.made_to_stay = False
        self.hits: Dict[Sight, int] = {}
        """Where it was seen, and how often there."""

    @property
    def cause(self) -> Cause:
        """What makes two sightings one finding."""
        place = self.place
        return (self.pattern, self.operator, self.path, place.file, place.line, place.backward)

    def as_dict(self) -> Dict[str, Any]:
        """For JSON."""
        data = {name: getattr(self, name) for name in self.__slots__ if name not in _PRIVATE}
        data["place"] = self.place._asdict()
        data["path"] = list(self.path)
        data["shape"] = list(self.shape)
        return data


class Findings:
    """All findings of a profile, by cause."""

    def __init__(self) -> None:
        self._found: Dict[Cause, Finding] = {}
        self._looked: Dict[Sight, int] = {}
        self._steps = 0
        self.on_add: Callable[[Finding, Observation], None] = lambda _finding, _seen: None
        """Told of every sighting that was counted; `proof` tests some of them."""
        self.on_follow: Callable[[Finding, Observation], None] = lambda _finding, _seen: None
        """Told of work that is wasted because of a finding, and counted with it."""
        self.left_out = 0
        """Sightings beyond the most causes that are kept."""

    def looked_at(self, seen: Observation) -> None:
        """Count an observation, wasteful or not."""
        sight = (seen.node, seen.position)
        self._looked[sight] = self._looked.get(sight, 0) + 1

    def end_step(self) -> None:
        """A step of the program is over."""
        self._steps += 1

    def add(
        self,
        pattern: str,
        seen: Observation,
        wasted_bytes: int,
        *,
        detail: str = "",
        evidence: Optional[Callable[[], Dict[str, Any]]] = None,
        every_time: bool = False,
        least_share: float = LEAST_SHARE,
        made_to_stay: bool = False,
    ) -> Optional[Finding]:
        """Count a sighting; `evidence` is asked only for the first of a cause.

        With `every_time` it is a finding only while it holds as a rule, in `least_share` of the
        calls: see `is_rule`. What is `made_to_stay` is made at the start and used in every step.
        """
        place = seen.place
        cause = (
            pattern,
            seen.operator.name,
            seen.path,
            place.file,
            place.line,
            place.backward,
        )
        finding = self._found.get(cause)
        if finding is None:
            if len(self._found) >= _MOST_FINDINGS:
                self.left_out += 1
                return None
            finding = self._found[cause] = Finding(pattern, seen)
            finding.detail = detail
            finding.every_time, finding.made_to_stay = every_time, made_to_stay
            finding.least_share = least_share
            if evidence is not None:
                finding.evidence = evidence()
        finding.count += 1
        finding.bytes_wasted += wasted_bytes
        finding.bytes_written += seen.size_bytes
        sight = (seen.node, seen.position)
        finding.hits[sight] = finding.hits.get(sight, 0) + 1
        if place.module and (
            place.module in finding.modules or len(finding.modules) < _MOST_MODULES
        ):
            finding.modules[place.module] = finding.modules.get(place.module, 0) + 1
        _add_step(finding, seen.step)
        self.on_add(finding, seen)
        return finding

    def again(self, finding: Finding, sight: Sight, step: int) -> None:
        """Count a sighting in a step that was surveyed: as much as one is on average."""
        if finding.proven == finding.count and not finding.by_shape:
            finding.proven += 1  # the source of the program says so of every call of its line
        finding.bytes_wasted += finding.bytes_wasted // finding.count
        finding.bytes_written += finding.bytes_written // finding.count
        finding.count += 1
        finding.hits[sight] = finding.hits.get(sight, 0) + 1
        self.missed(sight)
        _add_step(finding, step)

    def missed(self, sight: Sight) -> None:
        """Count a look that found nothing, or that `again` counts besides."""
        self._looked[sight] = self._looked.get(sight, 0) + 1

    def calls_of(self, finding: Finding) -> int:
        """How often the operator at the place of a finding was called, wasteful or not."""
        return sum(self._looked.get(sight, 0) for sight in finding.hits)

    def drop(self, finding: Finding) -> None:
        """Take back a finding that turned out to be none."""
        self._found.pop(finding.cause, None)

    def seen(self) -> List[Finding]:
        """Whatever was seen, also what is no rule (yet)."""
        return list(self._found.values())

    def all(self) -> List[Finding]:
        """In the order they were first seen."""
        return [found for found in self._found.values() if self.is_rule(found)]

    def is_rule(self, finding: Finding) -> bool:
        """Whether it is how the program works, and not how it starts.

        Weights that start as zero, a first hidden state, an empty cache: many programs compute with
        constants once. So what was seen must hold for some share of the times (a third by default:
        two of three calls on one line may well be right), and not in the first of three or more
        steps alone.
        """
        if not finding.every_time:
            return True
        at_start = self._steps >= _STEPS_TO_TELL and finding.steps == [1]
        if at_start and not finding.made_to_stay:
            return False
        return finding.least_share * self.calls_of(finding) <= sum(finding.hits.values())


def _add_step(finding: Finding, step: int) -> None:
    if len(finding.steps) < _MOST_STEPS and (not finding.steps or finding.steps[-1] != step):
        finding.steps.append(step)


_ANY = EQUAL | FREQUENT | NARROW | REPEATED | SINGLE
SHOWN_BY: Dict[str, int] = {
    "redundant write": EQUAL | REPEATED,
    "duplicate": EQUAL,
    "single zero": SINGLE | FREQUENT | NARROW,  # zeros of both signs are narrow only
    "single value": SINGLE,
    "frequent values": FREQUENT | SINGLE,
    "heavy type": NARROW | FREQUENT,
    "guard that never fires": EQUAL | REPEATED,
    "unchanged across steps": REPEATED,
    "sparse gradient": FREQUENT | SINGLE,
}
"""By pattern; those that are not here have nothing that a row shows."""
NEVER_AGAIN = ("guard that never fires", "unchanged across steps")
"""Patterns that one exception ends."""


def count_surveyed(findings: Findings, surveyed: Surveyed) -> None:
    """Add a surveyed step."""
    if surveyed.closely:
        return
    watched: Dict[Sight, List[Finding]] = {}
    for finding in findings.seen():
        for sight in finding.hits:
            watched.setdefault(sight, []).append(finding)
    if not watched:
        return
    for sight, shown in zip(surveyed.sights, surveyed.shows):
        for finding in watched.get(sight, ()):
            needed = SHOWN_BY.get(finding.pattern)
            holds = surveyed.regular if needed is None else bool(shown & needed)
            if holds:
                findings.again(finding, sight, surveyed.step)
            else:
                findings.missed(sight)
                if finding.pattern in NEVER_AGAIN:
                    findings.drop(finding)


_Key = Tuple[str, Place, Tuple[str, ...]]
OUTSIDE = -1
"""Memory that was there before anything was watched."""


class Flow:
    """Nodes and edges, counted."""

    def __init__(self) -> None:
        self._ids: Dict[_Key, int] = {}
        self._keys: List[_Key] = []
        self._calls: List[int] = []
        self._written: List[int] = []
        self._edges: Dict[Tuple[int, int], List[int]] = {}

    def node(self, operator: str, place: Place, path: Tuple[str, ...]) -> int:
        """The node of an operator at a place; counts a call."""
        key = (operator, place, path)
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = len(self._keys)
            self._keys.append(key)
            self._calls.append(0)
            self._written.append(0)
        self._calls[found] += 1
        return found

    def place(self, node: int) -> Place:
        """Where a node is."""
        return self._keys[node][1]

    def wrote(self, node: int, size_bytes: int) -> None:
        """The node wrote so much."""
        self._written[node] += size_bytes

    def read(self, writer: int, reader: int, size_bytes: int) -> None:
        """Data went from its last writer to a reader."""
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

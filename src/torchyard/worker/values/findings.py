"""Findings: what was seen again and again at one place is one finding with a count.

A cause is a pattern, an operator (and the operators around it) and a place in the program. The
module is not part of it: twenty layers that call one line have one cause.
"""

from typing import Any, Callable, Dict, List, Optional, Tuple

from torchyard.worker.values.observation import Observation
from torchyard.worker.values.places import Place

Cause = Tuple[str, str, Tuple[str, ...], str, int, bool]
_MOST_FINDINGS = 5000
_MOST_MODULES = 8
_MOST_STEPS = 1000


class Finding:
    """One cause of wasted work, with everything that was seen of it."""

    __slots__ = (
        "bytes_wasted",
        "bytes_written",
        "count",
        "detail",
        "dtype",
        "evidence",
        "modules",
        "node",
        "operator",
        "overload",
        "path",
        "pattern",
        "place",
        "proof",
        "shape",
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
        self.shape = tuple(seen.tensor.shape)
        self.dtype = str(seen.tensor.dtype).replace("torch.", "")
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
        """Filled by `proof`: status (proven, likely, input-dependent) and the tests behind it."""
        self.worth: Dict[str, Any] = {}

    @property
    def cause(self) -> Cause:
        """What makes two sightings one finding."""
        place = self.place
        return (self.pattern, self.operator, self.path, place.file, place.line, place.backward)

    def as_dict(self) -> Dict[str, Any]:
        """For JSON."""
        data = {name: getattr(self, name) for name in self.__slots__}
        data["place"] = self.place._asdict()
        data["path"] = list(self.path)
        data["shape"] = list(self.shape)
        return data


class Findings:
    """All findings of a profile, by cause."""

    def __init__(self) -> None:
        self._found: Dict[Cause, Finding] = {}
        self.left_out = 0
        """Sightings beyond the most causes that are kept."""

    def add(
        self,
        pattern: str,
        seen: Observation,
        wasted_bytes: int,
        *,
        detail: str = "",
        evidence: Optional[Callable[[], Dict[str, Any]]] = None,
    ) -> Optional[Finding]:
        """Count a sighting; `evidence` is asked only for the first of a cause."""
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
            if evidence is not None:
                finding.evidence = evidence()
        finding.count += 1
        finding.bytes_wasted += wasted_bytes
        finding.bytes_written += seen.size_bytes
        if place.module and (
            place.module in finding.modules or len(finding.modules) < _MOST_MODULES
        ):
            finding.modules[place.module] = finding.modules.get(place.module, 0) + 1
        if len(finding.steps) < _MOST_STEPS and (
            not finding.steps or finding.steps[-1] != seen.step
        ):
            finding.steps.append(seen.step)
        return finding

    def drop(self, finding: Finding) -> None:
        """Take back a finding that turned out to be none."""
        self._found.pop(finding.cause, None)

    def all(self) -> List[Finding]:
        """In the order they were first seen."""
        return list(self._found.values())

"""Unchanged across steps: every step computes the same bits again, so one step would suffice.

The k-th call of an operator at a place is compared with the k-th call of the steps before. It takes
three steps without an exception. Fills, copies and random numbers are not computed, and gradients
cannot be kept; where one unchanged result only serves the next, the last is the finding, and the
others are counted with it.
"""

from collections import OrderedDict
from typing import Any, Dict, List, Optional, Tuple

from torchyard.worker.values.evidence import evidence_of
from torchyard.worker.values.findings import Finding, Findings
from torchyard.worker.values.marks import Marks
from torchyard.worker.values.observation import Observation
from torchyard.worker.values.options import Options
from torchyard.worker.values.patterns import WORTH_A_LOOK_BYTES, Pattern
from torchyard.worker.values.scanners import Scanners

LEAST_STEPS = 3
_MOST_CALLS = 16384

_Call = Tuple[int, int, int]
"""Node of the flow graph, which of its results, and the how manieth call in the step."""


class _Result:
    """What one call gave in the steps so far."""

    __slots__ = (
        "changed",
        "finding",
        "hash",
        "serves_changed",
        "serves_unchanged",
        "size",
        "steps",
    )

    def __init__(self, digest: int, size: int) -> None:
        self.hash = digest
        self.size = size
        self.steps = 1
        self.changed = False
        self.serves_changed = False
        """Read by an operator whose result changes."""
        self.serves_unchanged = False
        self.finding: Optional[Finding] = None

    @property
    def only_serves(self) -> bool:
        return self.serves_unchanged and not self.serves_changed


class Unchanged(Pattern):
    """The same result in every step."""

    name = "unchanged across steps"

    def __init__(self, findings: Findings, options: Options, scanner: Scanners) -> None:
        super().__init__(findings, options, scanner)
        self._results: "OrderedDict[_Call, _Result]" = OrderedDict()
        self._calls: Dict[Tuple[int, int], int] = {}
        self._same = Marks()
        """Memory that holds an unchanged result, in this step."""

    def observe(self, seen: Observation) -> None:
        """Compare with the same call of the step before."""
        if seen.size_bytes < WORTH_A_LOOK_BYTES or not seen.computed or seen.in_backward:
            return
        site = (seen.node, seen.position)
        call = self._calls.get(site, 0)
        self._calls[site] = call + 1
        if seen.operator.copies and not seen.converted:
            return
        key = (seen.node, seen.position, call)
        result = self._results.get(key)
        if result is None:
            self._results[key] = _Result(seen.scan.hash, seen.size_bytes)
            if len(self._results) > _MOST_CALLS:
                self._results.popitem(last=False)
            return
        if not result.changed and (result.hash != seen.scan.hash or seen.single):
            self._change(result)
        if self._same:
            self._serve(seen, result)
        if result.changed:
            return
        result.steps += 1
        self._same.put(seen.state, result)
        if result.steps >= LEAST_STEPS and not result.only_serves:
            self._report(seen, result)

    def end_step(self) -> None:
        """Count calls anew."""
        self._calls.clear()
        self._same.clear()

    def _change(self, result: _Result) -> None:
        result.changed = True
        if result.finding is not None:
            self.findings.drop(result.finding)

    def _serve(self, seen: Observation, result: _Result) -> None:
        for _, state in seen.inputs:
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

    def _report(self, seen: Observation, result: _Result) -> None:
        finding = self.findings.add(
            self.name,
            seen,
            seen.size_bytes,
            detail="the same bits in each of %d steps and more" % LEAST_STEPS,
            evidence=lambda: evidence_of(seen),
        )
        result.finding = finding
        if finding is None:
            return
        behind = _behind(seen, self._same)
        if result.steps == LEAST_STEPS:
            # The second step could have been spared as well; the first could not.
            finding.count += 1
            finding.bytes_wasted += seen.size_bytes
            finding.bytes_written += seen.size_bytes
        finding.bytes_wasted += behind


def _behind(seen: Observation, same: Marks) -> int:
    """Bytes of unchanged results that only served this one."""
    served: List[Any] = [same.get(state) for _, state in seen.inputs]
    return sum(result.size for result in served if result is not None and result.only_serves)

"""Duplicate: an operator computed bits that were there already, in the same step.

Either those of its own input (a factor of one, padding by nothing) or those that another operator
computed before. What follows from duplicates is duplicated, too, and counted with the first of
them. Backward computing what forward had computed is how memory is saved (checkpointing), and no
finding; gradients of different operators that happen to be alike are none, either, but one operator
that makes the same gradient twice is (`x * x`). Copies are the business of `needless_copy`, constants of `single_value`.
"""

from collections import OrderedDict
from typing import Any, Optional, Tuple

import torch

from torchyard.worker.values.evidence import evidence_of, where
from torchyard.worker.values.findings import LEAST_SHARE, Finding, Findings
from torchyard.worker.values.marks import Marks
from torchyard.worker.values.observation import Observation
from torchyard.worker.values.options import Options
from torchyard.worker.values.patterns import WORTH_A_LOOK_BYTES, Pattern
from torchyard.worker.values.patterns.guard import GUARDS
from torchyard.worker.values.scanners import Scanners
from torchyard.worker.values.storages import covers

OWN_INPUT = "the same bits as its own input"
OWN_INPUT_SHARE = 0.9
"""Of the calls: a factor that is one now and then (a mask that drops nothing) is needed."""
_MOST_KNOWN = 8192
_FORWARD = -1

_Content = Tuple[int, int, Any, int]


class Duplicate(Pattern):
    """The same bits computed again."""

    name = "duplicate"

    def __init__(self, findings: Findings, options: Options, scanner: Scanners) -> None:
        super().__init__(findings, options, scanner)
        self._known: "OrderedDict[_Content, Observation]" = OrderedDict()
        """Who computed these bits first in this step."""
        self._node = getattr(torch._C, "_current_autograd_node", lambda: None)
        self._again = Marks()
        """Duplicates, with the finding that they follow from."""

    def observe(self, seen: Observation) -> None:
        """Look a computed tensor up among those of this step."""
        if seen.size_bytes < WORTH_A_LOOK_BYTES or not seen.computed or seen.single:
            return
        if seen.operator.copies and not seen.converted:
            return
        if self._own_input(seen):
            return
        node = self._node() if seen.in_backward else None
        number = _FORWARD if node is None else node._sequence_nr()
        content = (seen.scan.hash, seen.size_bytes, seen.dtype, number)
        first = self._known.get(content)
        if first is None:
            self._known[content] = seen
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        else:
            self._count(seen, first)

    def end_step(self) -> None:
        """What is the same in the next step is not computed twice, but unchanged."""
        self._known.clear()
        self._again.clear()

    def _own_input(self, seen: Observation) -> bool:
        for tensor, state in seen.inputs:
            if state.hash != seen.scan.hash or tensor.dtype != seen.dtype:
                continue
            if not covers(tensor, state) or state.size_bytes != seen.size_bytes:
                continue
            # In a backward it follows from the operator in the forward.
            if not seen.in_backward and seen.operator.name not in GUARDS:
                self._report(seen, OWN_INPUT, None, OWN_INPUT_SHARE)
            return True
        return False

    def _count(self, seen: Observation, first: Observation) -> None:
        cause: Optional[Finding] = self._again.any_of(seen)
        if cause is None:
            detail = "the same bits as %s computed before" % first.operator.name
            cause = self._report(seen, detail, first)
        else:
            cause.bytes_wasted += seen.size_bytes
            cause.bytes_written += seen.size_bytes
            self.findings.on_follow(cause, seen)
        if cause is not None:
            self._again.put(seen.state, cause)

    def _report(
        self,
        seen: Observation,
        detail: str,
        first: Optional[Observation],
        least_share: float = LEAST_SHARE,
    ) -> Optional[Finding]:
        return self.findings.add(
            self.name,
            seen,
            seen.size_bytes,
            detail=detail,
            evidence=lambda: evidence_of(seen, first=where(first)) if first else evidence_of(seen),
            every_time=True,
            least_share=least_share,
        )

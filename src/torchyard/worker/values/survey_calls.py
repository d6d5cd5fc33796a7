"""Operators in a surveyed step: each is found again by its turn, and what it wrote is given to the survey.

To walk the stack for every operator costs more than to scan what it wrote. Steps are alike, so the
n-th operator of this step is the n-th of the last one while it is the same operator; from the first
that is not, places are looked up again until the step ends.
"""

from typing import Any, Callable, Container, List, Tuple

import torch

from torchyard.worker.values.counts import Counts
from torchyard.worker.values.layouts import LAYOUTS
from torchyard.worker.values.operators import Operator, operator_of, tensors_in, written_tensors
from torchyard.worker.values.options import Options
from torchyard.worker.values.scan import flat_memory
from torchyard.worker.values.scanners import DEVICES
from torchyard.worker.values.survey import Survey

_Turn = Tuple[Any, int]


class SurveyCalls:
    """The turns of this step and of the last."""

    def __init__(self, survey: Survey, options: Options, counts: Counts) -> None:
        self._survey = survey
        self._least_bytes = options.least_bytes
        self._counts = counts
        self._last: List[_Turn] = []
        self._turns: List[_Turn] = []
        self.lost = False
        """Whether the order was another one in this step."""

    def remember(self, func: Any, node: int) -> None:
        """An operator whose node is known."""
        self._turns.append((func, node))

    def end_step(self) -> None:
        """The next step is expected to be like this one."""
        self._last, self._turns, self.lost = self._turns, [], False

    def call(self, func: Any, args: Any, keywords: Any, site: Callable[[Operator], int]) -> Any:
        """Run an operator and survey what it wrote; `site` gives the node of one out of turn."""
        operator = operator_of(func)
        if operator.inert:
            return func(*args, **keywords)
        self._counts.operators += 1
        turn = len(self._turns)
        if not self.lost and turn < len(self._last) and self._last[turn][0] is func:
            node = self._last[turn][1]
        else:
            self.lost = True
            node = site(operator)
        self._turns.append((func, node))
        if not operator.writes:
            result = func(*args, **keywords)
            if not operator.undefined:
                self._give(tensors_in((result,)), node)
            return result
        written = written_tensors(operator, args, keywords)
        for tensor in written:
            self._survey.about_to_write(_key(tensor))
        result = func(*args, **keywords)
        if not operator.undefined:
            self._give(written, node)
            if operator.fresh:
                known = {id(tensor) for tensor in written}
                self._give(tensors_in((result,)), node, known)
        return result

    def _give(self, tensors: List[torch.Tensor], node: int, known: Container[int] = ()) -> None:
        counts = self._counts
        for position, tensor in enumerate(tensors):
            if known and id(tensor) in known:
                continue
            size = tensor.numel() * tensor.element_size()
            counts.written_bytes += size
            if size < self._least_bytes:
                counts.small_bytes += size
                continue
            layout = LAYOUTS.get(tensor.dtype)
            if (
                layout is None
                or tensor.layout is not torch.strided
                or tensor.device.type not in DEVICES
                or flat_memory(tensor) is None
            ):
                counts.not_seen_bytes += size
                continue
            self._survey.add(tensor, (node, position), layout, _key(tensor))


def _key(tensor: torch.Tensor) -> int:
    """The identity of its storage."""
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else 0

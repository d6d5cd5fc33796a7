"""The score of a step: its operators in order, what each wrote, and when that was scanned.

Steps are alike, so a step that was surveyed is the score of the next. While the same operators come
in the same order and write tensors of the same sizes, nothing is looked up: tensors are held, and
scanned where they were scanned before. To look up places, storages and sizes costs more than the
scan. At the first difference the rest of the step is surveyed the long way.
"""

from typing import Any, List, NamedTuple, Optional, Tuple

import torch

from torchyard.worker.values.device_scan import Batch, DeviceScanner
from torchyard.worker.values.layouts import LAYOUTS, Layout
from torchyard.worker.values.operators import Operator, tensors_in, written_tensors
from torchyard.worker.values.places import Place
from torchyard.worker.values.step_rows import StepRows


class Output(NamedTuple):
    """One tensor of an operator that is scanned."""

    place: int
    """Among the tensors that it writes and returns."""
    numel: int
    dtype: torch.dtype
    cpu: bool
    row: int
    layout: Layout


class Flush(NamedTuple):
    """Tensors that were scanned together."""

    scanner: DeviceScanner
    batch: Batch
    rows: List[int]
    first: int
    """How many were scanned on the device before them in this step."""


class Turn:
    """One operator."""

    __slots__ = (
        "flush_after",
        "flush_before",
        "func",
        "node",
        "operator",
        "outputs",
        "place",
        "single",
        "sizes",
    )

    def __init__(
        self, func: Any, operator: Operator, node: int, place: Optional[Place] = None
    ) -> None:
        self.func = func
        self.operator = operator
        self.node = node
        """-1 while only its place is known."""
        self.place = place
        self.outputs: Tuple[Output, ...] = ()
        self.flush_before: Optional[Flush] = None
        """Because it writes over what waits to be scanned."""
        self.flush_after: Optional[Flush] = None
        """Because enough waits, or the step is over."""
        self.single = not operator.writes
        """Whether all it can write is its result."""
        self.sizes = (0, 0, 0)
        """Bytes that it writes, in small tensors, and that are not seen."""

    @property
    def one(self) -> Optional[Output]:
        """Its output, when that is its whole result and waits for a launch."""
        whole = self.operator.returns_written or (self.single and not self.operator.many_results)
        if not whole or len(self.outputs) != 1 or self.outputs[0].cpu:
            return None
        return self.outputs[0]


class Score(NamedTuple):
    """A step that can be played again."""

    turns: List[Turn]
    rows: StepRows


def outputs_of(turn: Turn, args: Any, keywords: Any, result: Any) -> List[torch.Tensor]:
    """Everything that an operator wrote, in the order of `Output.place`: arguments, then results."""
    if turn.single:
        return tensors_in((result,))
    return [tensor for _, tensor in numbered_outputs(turn, args, keywords, result)]


def numbered_outputs(
    turn: Turn, args: Any, keywords: Any, result: Any
) -> List[Tuple[int, torch.Tensor]]:
    """The same with positions: arguments and results are counted from 0 each."""
    written = [] if turn.single else written_tensors(turn.operator, args, keywords)
    return number_outputs(turn.operator, written, tensors_in((result,)))


def number_outputs(
    operator: Operator, written: List[torch.Tensor], results: List[torch.Tensor]
) -> List[Tuple[int, torch.Tensor]]:
    """The same of tensors that are known already."""
    if operator.undefined:
        return []
    if not operator.writes:
        return list(enumerate(results))
    numbered = list(enumerate(written))
    if operator.fresh:
        known = {id(tensor) for tensor in written}
        numbered += [(at, one) for at, one in enumerate(results) if id(one) not in known]
    return numbered


def output_at(place: int, row: int, tensor: torch.Tensor) -> Output:
    """What is expected to be written there again."""
    layout = LAYOUTS[tensor.dtype]
    return Output(place, tensor.numel(), tensor.dtype, tensor.is_cpu, row, layout)

"""Single value: a fill of full size that operators only read as an operand; a number would broadcast.

Excluded are fills that are written later, everything that is trained, and the start of an accumulator: an operator
that reads a fill in its first call only (`total = total + x`).
"""

from typing import Dict, List, Set

import torch

from torchyard.worker.values.findings import Finding
from torchyard.worker.values.observation import Observation, Reader
from torchyard.worker.values.operators import aten
from torchyard.worker.values.patterns import LEAST_FINDING_BYTES, Pattern
from torchyard.worker.values.places import called_by_torch
from torchyard.worker.values.scanning.cpu_scan import bits_to_number

BROADCASTING = aten(
    "add sub rsub mul div addcmul addcdiv lerp minimum maximum fmin fmax pow eq ne lt le gt ge where "
    "floor_divide remainder fmod clamp clamp_min clamp_max atan2 hypot xlogy copysign logaddexp "
    "mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward "
    "binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits"
)
"""Operators that give the same result if an operand is expanded from a single element."""
ADDING_SOURCES = aten("scatter_add index_add")
_SOURCE = 3
"""Position of the added tensor among the arguments of these operators."""
_MOST_FILLS = 1024


def is_operand(reader: Reader, count: int) -> bool:
    """Return whether an operand could be one number: another one has at least as many elements."""
    return (
        (reader.operator in BROADCASTING or _is_added(reader))
        and not reader.trained
        and any(numel >= count for _, numel in reader.others)
    )


def _is_added(reader: Reader) -> bool:
    return reader.operator in ADDING_SOURCES and reader.position == _SOURCE


class _Fill:
    """A fill that is pending: it may still be written or read by another operator."""

    __slots__ = ("nodes", "observation", "version")

    def __init__(self, observation: Observation) -> None:
        self.observation = observation
        self.version = observation.state.version
        self.nodes: Set[int] = set()
        """Operators that read it."""

    @property
    def pending(self) -> bool:
        state = self.observation.state
        return state.alive and state.version == self.version and state.readers is not None

    @property
    def is_operand(self) -> bool:
        state = self.observation.state
        readers = state.readers if state.version == self.version else None
        count = self.observation.scan.count
        return bool(readers) and all(is_operand(reader, count) for reader in readers or ())


class FilledOperand(Pattern):
    """Constants of full size that are only read as operands."""

    name = "single value"

    def start(self) -> None:
        """Create the state of the pattern."""
        self._fills: Dict[int, _Fill] = {}
        self._always: Dict[int, bool] = {}
        """Operators that read a fill, and whether they read one in every call."""
        self._findings: Dict[int, List[Finding]] = {}
        """Findings by the operators that read the fill."""

    def observe(self, observation: Observation) -> None:
        """Store a fill, or note that an operator reads one."""
        if observation.path or observation.in_backward:
            return
        self._note_reader(observation)
        if (
            observation.operator.fills
            and observation.fresh
            and observation.whole
            and observation.dtype is not torch.bool
            and observation.size_bytes >= LEAST_FINDING_BYTES
        ):
            if len(self._fills) >= _MOST_FILLS:
                self._settle()
            if len(self._fills) < _MOST_FILLS and not called_by_torch("optim"):
                observation.state.readers = set()
                self._fills[observation.state.key] = _Fill(observation)

    def end_step(self) -> None:
        """Report fills that were freed without a write."""
        self._settle()

    def pause(self) -> None:
        """Drop pending fills, except of known lines: writes are not observed in the following steps."""
        self._settle()
        reported = {finding.node for findings in self._findings.values() for finding in findings}
        for fill in self._fills.values():
            if fill.observation.node in reported:
                self._report(fill)
        self._fills.clear()

    def finish(self) -> None:
        """Report the remaining fills that were never written."""
        for fill in self._fills.values():
            self._report(fill)
        self._fills.clear()

    def _note_reader(self, observation: Observation) -> None:
        node, reads = observation.node, False
        for _, state in observation.inputs:
            fill = self._fills.get(state.key)
            if fill is not None and fill.observation.state is state:
                fill.nodes.add(node)
                reads = True
        if reads:
            self._always.setdefault(node, True)
        elif self._always.get(node):
            self._always[node] = False
            for finding in self._findings.pop(node, ()):
                self.findings.drop(finding)

    def _settle(self) -> None:
        for key, fill in list(self._fills.items()):
            if not fill.pending:
                del self._fills[key]
                self._report(fill)

    def _report(self, fill: _Fill) -> None:
        if not fill.is_operand or not all(self._always[node] for node in fill.nodes):
            return
        observation = fill.observation
        number = bits_to_number(observation.scan.first_bits, observation.layout)
        detail = "every element is %g, and it is only read as an operand" % number
        name = "single zero" if observation.single_zero else self.name
        finding = self.report(observation, detail, name=name, persistent=True)
        for node in fill.nodes if finding is not None else ():
            findings = self._findings.setdefault(node, [])
            if finding is not None and finding not in findings:
                findings.append(finding)

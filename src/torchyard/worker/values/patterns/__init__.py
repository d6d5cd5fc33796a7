"""Every pattern of wasted work. Adding one: a module with a class, and a line in PATTERNS.

A pattern sees each observation once, right after the operator ran, and while the tensor is at
hand. It must be quick to say no: it is asked for every tensor that a program writes.
"""

from typing import Any, List, Tuple, Type

from torchyard.worker.values.findings import Findings
from torchyard.worker.values.observation import Observation
from torchyard.worker.values.operators import Operator
from torchyard.worker.values.options import Options
from torchyard.worker.values.places import Place
from torchyard.worker.values.scan import Scanner


class Pattern:
    """One kind of waste."""

    name = ""

    def __init__(self, findings: Findings, options: Options, scanner: Scanner) -> None:
        self.findings = findings
        self.options = options
        self.scanner = scanner

    def observe(self, seen: Observation) -> None:
        """Look at what an operator wrote."""

    def fill_covered(self, fill: Observation, by: Operator, place: Place) -> None:
        """A fill was overwritten piece by piece, and nothing of it was read; `by` wrote the last."""

    def end_step(self, step: int) -> None:
        """A step of the program is over."""

    def finish(self) -> None:
        """The program is over: say what needed the whole of it."""


def _patterns() -> Tuple[Type[Pattern], ...]:
    from torchyard.worker.values.patterns.redundant_write import RedundantWrite
    from torchyard.worker.values.patterns.single_value import SingleValue

    return (RedundantWrite, SingleValue)


def open_patterns(findings: Findings, options: Options, scanner: Scanner) -> List[Any]:
    """One of each."""
    return [kind(findings, options, scanner) for kind in _patterns()]

"""Every pattern of wasted work. Adding one: a module with a class, and a line in PATTERNS.

A pattern sees each observation once, right after the operator ran, and while the tensor is at
hand. It must be quick to say no: it is asked for every tensor that a program writes. What needs the
future (is the copy ever written? is it read again?) is kept without its tensor and settled at the
end of a step. What a pattern keeps is bounded.
"""

from typing import Any, List, Tuple, Type

from torchyard.worker.values.findings import Findings
from torchyard.worker.values.observation import Observation
from torchyard.worker.values.operators import Operator
from torchyard.worker.values.options import Options
from torchyard.worker.values.places import Place
from torchyard.worker.values.scanners import Scanners

WORTH_A_LOOK_BYTES = 16 << 10
"""Least size for patterns that ask for a change of the program: below it an operator costs more
than the memory it writes, so there is nothing to gain."""


class Pattern:
    """One kind of waste."""

    name = ""

    def __init__(self, findings: Findings, options: Options, scanner: Scanners) -> None:
        self.findings = findings
        self.options = options
        self.scanner = scanner

    def observe(self, seen: Observation) -> None:
        """Look at what an operator wrote."""

    def fill_covered(self, fill: Observation, by: Operator, place: Place) -> None:
        """A fill was overwritten piece by piece, and nothing of it was read; `by` wrote the last."""

    def end_step(self) -> None:
        """A step of the program is over. The watch is on: no torch operators here."""

    def pause(self) -> None:
        """Steps follow in which memory is not kept track of: drop what waits for it."""

    def finish(self) -> None:
        """The program is over: say what needed the whole of it."""


def _patterns() -> Tuple[Type[Pattern], ...]:
    from torchyard.worker.values.patterns.approximate import Approximate
    from torchyard.worker.values.patterns.dead_initialisation import DeadInitialisation
    from torchyard.worker.values.patterns.duplicate import Duplicate
    from torchyard.worker.values.patterns.frequent_values import FrequentValues
    from torchyard.worker.values.patterns.guard import Guard
    from torchyard.worker.values.patterns.heavy_type import HeavyType
    from torchyard.worker.values.patterns.needless_copy import NeedlessCopy
    from torchyard.worker.values.patterns.redundant_write import RedundantWrite
    from torchyard.worker.values.patterns.single_value import SingleValue
    from torchyard.worker.values.patterns.sparse_gradient import SparseGradient
    from torchyard.worker.values.patterns.structured import Structured
    from torchyard.worker.values.patterns.unchanged import Unchanged

    return (
        RedundantWrite,
        DeadInitialisation,
        Duplicate,
        NeedlessCopy,
        SingleValue,
        FrequentValues,
        HeavyType,
        Structured,
        Approximate,
        Guard,
        Unchanged,
        SparseGradient,
    )


def open_patterns(findings: Findings, options: Options, scanner: Scanners) -> List[Any]:
    """One of each."""
    return [kind(findings, options, scanner) for kind in _patterns()]

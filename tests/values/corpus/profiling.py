"""Profile a program of the corpus."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tests.values.corpus.program import Program, Waste
from torchyard.worker.values.exchange import Options
from torchyard.worker.values.findings import Finding
from torchyard.worker.values.profiling_session import ProfilingSession

SEED = 20


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What was found in one program."""

    program: Program
    findings: tuple[Finding, ...]

    @property
    def missed(self) -> tuple[Waste, ...]:
        """Planted and not found."""
        return tuple(waste for waste in self.program.wastes if not self._found(waste))

    @property
    def others(self) -> tuple[Finding, ...]:
        """Found and not planted; in a clean program each is false."""
        wanted = {(waste.pattern, waste.line) for waste in self.program.wastes}
        return tuple(
            found for found in self.findings if (found.pattern, found.place.line) not in wanted
        )

    def _found(self, waste: Waste) -> bool:
        return any(
            found.pattern == waste.pattern
            and found.place.line == waste.line
            and found.place.file == self.program.file
            # Looking inside finds the operator that wrote, which another may have called.
            and waste.operator in (found.operator, *([] if waste.deep else found.path[:1]))
            and (bool(found.path) or not waste.deep)
            for found in self.findings
        )


def watch(program: Program, *, deep: bool = False) -> Outcome:
    """Run it once, from the same random numbers each time."""
    torch.manual_seed(SEED)
    session = ProfilingSession(Options(deep=deep, approximate=program.approximate, prove=False))
    session.start()
    try:
        program.run()
    finally:
        session.stop()
    return Outcome(program=program, findings=tuple(session.findings.all()))

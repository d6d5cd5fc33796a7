"""One run of `torchyard bench`: measures with progress, shows the table, knows the exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torchyard.cli.invoke import INTERRUPTED
from torchyard.cli.output import print_data, talk
from torchyard.cli.progress import Heard, show_progress
from torchyard.core.comparison import Comparison, Verdict
from torchyard.core.machine import Wish
from torchyard.core.study import Study
from torchyard.errors import (
    ResultsDamaged,
    StepFailed,
    Untrustworthy,
    WorkerFailed,
    WrongResults,
)

if TYPE_CHECKING:
    from torchyard.workflow.quiet_machine import QuietMachine

__all__ = ["BenchSession", "exit_code_of"]


@dataclass(kw_only=True)
class BenchSession:
    """A study on its way into a run folder."""

    study: Study
    folder: Path
    quiet: bool
    wish: Wish | None = None
    """How the machine is tuned for the run; None leaves it as it is."""
    revision: str = ""
    notes: Sequence[str] = ()
    comparisons: list[Comparison] = field(default_factory=list)

    def run(self) -> int:
        """Measure; the exit code. After Ctrl-C, what was measured so far is kept."""
        from torchyard.workflow.quiet_machine import QuietMachine

        heard = Heard()
        quieted = QuietMachine(self.wish)
        try:
            try:
                self._measure(quieted, heard)
            finally:
                for line in quieted.after:
                    talk(f"warning: {line}")
        except KeyboardInterrupt:
            self.comparisons = self._kept() or heard.comparisons
            if not self.comparisons:
                raise
            wanted = len(self.study.candidates) * len(self.study.workloads)
            talk(f"interrupted: {len(self.comparisons)} of {wanted} comparisons were made")
            return INTERRUPTED
        code = exit_code_of(self.comparisons)
        if code == WorkerFailed.exit_code:
            talk("every comparison failed")
        elif code == Untrustworthy.exit_code:
            talk("some results are untrusted: see the notes, and `torchyard explain untrusted`")
        elif code == WrongResults.exit_code:
            talk("every candidate computes wrong results: see the notes")
        return code if code or quieted.is_back else StepFailed.exit_code

    def _measure(self, quieted: QuietMachine, heard: Heard) -> None:
        from torchyard.workflow.bench_run import run_bench

        with quieted:
            for line in quieted.before:
                talk(f"warning: {line}")
            with show_progress(heard, quiet=self.quiet) as listener:
                self.comparisons = run_bench(
                    self.study,
                    folder=self.folder,
                    command=list(sys.argv),
                    listener=listener,
                    tuned=quieted.tuned,
                    revision=self.revision,
                    notes=self.notes,
                )

    def print_json(self) -> None:
        """The run as one JSON object."""
        from torchyard.cli.report import render

        print_data(render(self.folder, "json"))

    def print_table(self) -> None:
        """The verdicts as a table that fits the terminal, and the summary below it."""
        from rich.console import Console

        from torchyard.reports.guard_text import disturbed_lines
        from torchyard.reports.terminal import comparison_table, summary_lines

        console = Console(highlight=False, emoji=False)
        budget = self.study.budget
        console.print(comparison_table(self.comparisons, precision_goal=budget.precision_goal))
        for line in summary_lines(self.comparisons, confidence=1 - budget.alpha):
            console.print(line, markup=False, soft_wrap=True)
        for line in disturbed_lines(self.comparisons):
            console.print(f"disturbed: {line}", markup=False, soft_wrap=True)

    def unread_guards(self) -> list[str]:
        """Names of guards that could not read on this machine."""
        from torchyard.reports.guard_text import unread_guards
        from torchyard.results.run_reader import read_run

        return [name for name, _ in unread_guards(read_run(self.folder))]

    def _kept(self) -> list[Comparison]:
        from torchyard.results.run_reader import read_run

        try:
            return list(read_run(self.folder).comparisons)
        except ResultsDamaged:
            # Ctrl-C came before the folder was made.
            return []


def exit_code_of(comparisons: Sequence[Comparison]) -> int:
    """5 when every comparison failed, 9 when none is right, 6 when one must not be trusted, else 0."""
    verdicts = {row.verdict for row in comparisons}
    if verdicts == {Verdict.FAILED}:
        return WorkerFailed.exit_code
    if verdicts and verdicts <= {Verdict.FAILED, Verdict.WRONG}:
        return WrongResults.exit_code
    if not all(row.trusted for row in comparisons):
        return Untrustworthy.exit_code
    return 0

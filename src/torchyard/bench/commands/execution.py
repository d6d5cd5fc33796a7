"""Execute `torchyard bench`: measure with progress, print the table, choose the exit code.

`plan_text` describes the study for `--dry-run`. Loaded after the options are parsed, because it
imports the measuring code.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from torchyard.cli.invoke import INTERRUPTED
from torchyard.cli.output import data_console, print_data, print_line, print_message
from torchyard.cli.progress import ComparisonCollector, show_progress
from torchyard.core.comparison import Comparison, Verdict
from torchyard.core.events import Event, Listener
from torchyard.core.short_names import short_labels, with_short_workloads
from torchyard.core.study import COMMAND_SUITE, DEFAULT_ENVIRONMENT, Environment, Study, Variant
from torchyard.core.units import format_bytes, format_count, format_duration, format_percent
from torchyard.errors import (
    MissingTool,
    ResultsDamaged,
    StepFailed,
    Untrustworthy,
    WorkerFailed,
    WrongResults,
)
from torchyard.machine.model import QuietRequest
from torchyard.presentation.safe_text import plain_lines
from torchyard.process.ending import MISSING_TARGET
from torchyard.worker.bench.options import as_text

_STDERR_LINES: Final = 20


def plan_text(study: Study) -> str:
    """Describe variants, workloads, budget and settings, with every default spelled out."""
    budget, settings = study.budget, study.settings
    rows = len(study.candidates) * len(study.workloads)
    layout = "paired layout" if settings.paired_layout else "independent layouts"
    limit = settings.memory_limit_bytes
    lines = [f"study {study.name}", "", "baseline"]
    lines += _variant(study.baseline)
    lines += ["candidates"]
    for candidate in study.candidates:
        lines += _variant(candidate)
    lines += ["workloads", *_workload_lines(study)]
    lines += [
        "budget",
        (
            f"  {format_count(rows, 'comparison')}, at most {_seconds(budget.time_s)} of measuring time"
            f" per workload ({_seconds(budget.time_s * len(study.workloads))} in total, excluding the"
            " first start and compilation)"
        ),
        (
            f"  until the verdict is clear and the confidence interval is within"
            f" ±{format_percent(budget.precision_goal)}; differences below"
            f" {format_percent(budget.margin)} count as the same"
        ),
        f"  {budget.min_launches} to {budget.max_launches} launches, alpha {budget.alpha:g}",
        "settings",
        (
            f"  blocks of {_seconds(settings.block_s)}, seed {settings.seed},"
            f" threads {settings.threads or 'one per core'}"
        ),
        f"  data relocation {settings.reseat}, {layout},"
        f" accuracy {'checked' if settings.check_accuracy else 'not checked'}"
        + (", L2 flushed" if settings.flush_l2 else ""),
        (
            f"  limits: start {_seconds(settings.start_limit_s)}, step {_seconds(settings.step_limit_s)},"
            f" block {_seconds(settings.block_limit_s)},"
            f" memory {format_bytes(limit) if limit is not None else 'none'}"
        ),
    ]
    return "\n".join(lines)


def _workload_lines(study: Study) -> list[str]:
    """Return the labels; a short name of a user's file is followed by its path."""
    labels = short_labels(study.workloads)
    return [
        f"  {labels[one.label]}" + (f" ({one.name})" if labels[one.label] != one.label else "")
        for one in study.workloads
    ]


def _variant(variant: Variant) -> list[str]:
    if variant.backend == "command":
        return [f"  {variant.name}", f"    {as_text(dict(variant.options[2:]))}"]
    lines = [
        (
            f"  {variant.name}: {variant.backend}, {variant.precision}, "
            f"target {variant.target.name} ({variant.target.python})"
        )
    ]
    if variant.file:
        lines.append(f"    file {variant.file}")
    if variant.options:
        lines.append(f"    options {as_text(dict(variant.options))}")
    lines += [f"    {key}={value}" for key, value in variant.target.variables]
    if variant.environment != DEFAULT_ENVIRONMENT:
        lines += _environment(variant.environment)
    return lines


def _environment(environment: Environment) -> list[str]:
    lines = [f"    environment {environment.name}"]
    lines += [f"    {key}={value}" for key, value in environment.variables]
    lines += [f"    preload {library}" for library in environment.preload]
    if environment.threads is not None:
        lines.append(f"    threads {environment.threads}")
    lines += [f"    cores {environment.cores}"] if environment.cores else []
    lines += [f"    memory {environment.memory}"] if environment.memory else []
    if environment.instances > 1:
        lines.append(f"    {environment.instances} parallel instances")
    return lines


def _seconds(duration_s: float) -> str:
    return format_duration(duration_s * 1e9)


if TYPE_CHECKING:
    from torchyard.bench.time_estimate import TimeEstimate
    from torchyard.machine.quieting.quiet_run import QuietMachine


@dataclass(kw_only=True)
class BenchSession:
    """Run a study into a run folder, and print its results."""

    study: Study
    folder: Path
    quiet: bool
    wish: QuietRequest | None = None
    """How to quiet the machine for the run; None leaves it as it is."""
    revision: str = ""
    notes: Sequence[str] = ()
    estimate: TimeEstimate | None = None
    """Estimated wall time, recorded with the run."""
    comparisons: list[Comparison] = field(default_factory=list)

    def run(self) -> int:
        """Measure and return the exit code. After Ctrl-C, the results so far are kept."""
        from torchyard.machine.quieting.quiet_run import QuietMachine

        progress = ComparisonCollector()
        quieted = QuietMachine(self.wish)
        try:
            try:
                self._measure(quieted, progress)
            finally:
                for line in quieted.after:
                    print_message(f"warning: {line}")
        except KeyboardInterrupt:
            self.comparisons = self._kept() or progress.comparisons
            if not self.comparisons:
                print_message(f"interrupted before the first pair; run folder: {self.folder}")
                raise
            self._print_interrupted(completed=len(progress.comparisons))
            return INTERRUPTED
        code = exit_code_of(self.comparisons)
        if code in {WorkerFailed.exit_code, MissingTool.exit_code}:
            print_message("every comparison failed")
            self._print_program_errors()
        elif code == Untrustworthy.exit_code:
            print_message(
                "some results are untrusted; see the notes and `torchyard explain untrusted`"
            )
        elif code == WrongResults.exit_code:
            print_message("every candidate computes wrong results; see the notes")
        return code if code or quieted.is_back else StepFailed.exit_code

    def _print_interrupted(self, *, completed: int) -> None:
        """Print how much was measured, and how to measure the rest."""
        planned = len(self.study.candidates) * len(self.study.workloads)
        partial = sum(
            one.estimate is not None and one.estimate.pairs > 0 for one in self.comparisons
        )
        partial = max(0, partial - completed)
        parts = [f"interrupted: {completed} of {planned} comparisons completed"]
        parts += [f"{partial} with the pairs so far"] if partial else []
        print_message(", ".join(parts))
        from torchyard.bench.report.shown_run import row_command
        from torchyard.results.run_reader import read_run

        command = row_command(read_run(self.folder), "N")
        print_message(f"bench does not resume; repeat a row: {command}, or start the command again")

    def _print_program_errors(self) -> None:
        """Print the end of the standard error of whole programs that failed."""
        failures = {
            one.failure.variant: one.failure
            for one in self.comparisons
            if one.failure is not None and one.workload.suite == COMMAND_SUITE
        }
        for failure in failures.values():
            for line in plain_lines(failure.log_tail).splitlines()[-_STDERR_LINES:]:
                print_message(f"{failure.variant}: {line}")

    def _measure(self, quieted: QuietMachine, progress: ComparisonCollector) -> None:
        from torchyard.bench.bench_run import run_bench

        with quieted:
            for line in quieted.before:
                print_message(f"warning: {line}")
            with show_progress(progress, quiet=self.quiet) as listener:
                self.comparisons = run_bench(
                    self.study,
                    folder=self.folder,
                    command=list(sys.argv),
                    listener=self._with_short_names(listener),
                    tuned=quieted.tuned,
                    revision=self.revision,
                    notes=self.notes,
                    estimate=self.estimate,
                )

    def _with_short_names(self, listener: Listener) -> Listener:
        """Return a listener that replaces labels by the shown ones before it passes events on."""
        labels = short_labels(self.study.workloads)

        def listen(event: Event) -> None:
            listener(replace(event, workload=labels.get(event.workload, event.workload)))

        return listen

    def print_json(self) -> None:
        """Print the run as one JSON object."""
        from torchyard.bench.commands.report import render

        print_data(render(self.folder, "json"))

    def print_table(self) -> None:
        """Print the verdicts as a table that fits the terminal, followed by the summary."""
        from torchyard.bench.report.generation import generation_lines
        from torchyard.bench.report.suite_summary import disturbed_lines, summary_lines
        from torchyard.bench.report.text import comparison_table

        console = data_console()
        budget = self.study.budget
        comparisons = with_short_workloads(self.comparisons)
        console.print(comparison_table(comparisons, precision_goal=budget.precision_goal))
        for line in summary_lines(comparisons, confidence=1 - budget.alpha):
            print_line(console, line)
        for line in generation_lines(comparisons):
            print_line(console, line)
        for line in disturbed_lines(comparisons):
            print_line(console, f"disturbed: {line}")

    def print_answer(self) -> None:
        """Print the answer in one sentence."""
        from torchyard.bench.report.suite_summary import answer_text

        budget = self.study.budget
        comparisons = with_short_workloads(self.comparisons)
        text = answer_text(comparisons, confidence=1 - budget.alpha, margin=budget.margin)
        print_line(data_console(), text)

    def unavailable_sensors(self) -> list[str]:
        """Return the names of sensors that are unavailable on this machine."""
        from torchyard.bench.report.suite_summary import unavailable_sensors
        from torchyard.results.run_reader import read_run

        return [name for name, _ in unavailable_sensors(read_run(self.folder))]

    def _kept(self) -> list[Comparison]:
        from torchyard.results.run_reader import read_run

        try:
            return list(read_run(self.folder).comparisons)
        except ResultsDamaged:
            # Interrupted before the folder was created.
            return []


def exit_code_of(comparisons: Sequence[Comparison]) -> int:
    """Return 5 if every comparison failed, 9 if no result is correct, 6 if any is untrusted, else 0.

    It is 4 if every comparison failed because a target has no Python interpreter or no torch.
    """
    verdicts = {row.verdict for row in comparisons}
    if verdicts == {Verdict.FAILED}:
        kinds = {"" if row.failure is None else row.failure.kind for row in comparisons}
        return MissingTool.exit_code if kinds <= MISSING_TARGET else WorkerFailed.exit_code
    if verdicts and verdicts <= {Verdict.FAILED, Verdict.WRONG}:
        return WrongResults.exit_code
    if not all(row.trusted for row in comparisons):
        return Untrustworthy.exit_code
    return 0

"""`torchyard.sweep`: measure whole suites, and the result as rows and a table."""

from __future__ import annotations

import math
import time as clock
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torchyard.api.result import Run, data_frame, html_result
from torchyard.core.units import format_count
from torchyard.presentation.safe_text import one_line
from torchyard.sweep.model import SweepRow, SweepSummary, SweepView

Words = str | Sequence[str]
"""One name, several separated by commas, or a sequence of names."""

MOST_SHOWN: Final = 40
"""Rows in the HTML of a notebook."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Sweep:
    """The result of a sweep: one row per workload, mode, precision and candidate."""

    folder: Path
    """The folder of the sweep."""
    summary: SweepSummary
    """Means, corrected verdicts and warnings, as in `torchyard sweep report`."""
    runs: tuple[Run, ...]
    """The joined runs, one per precision."""

    @property
    def rows(self) -> tuple[SweepRow, ...]:
        """All rows, in plan order, also failed and unfinished ones."""
        return self.summary.rows

    def report(self) -> str:
        """Return the text of `torchyard sweep report`."""
        from torchyard.sweep.report.text import sweep_text

        return sweep_text(self.summary)

    def to_pandas(self) -> Any:
        """Return a DataFrame with one row per row."""
        return data_frame([_record(row) for row in self.rows])

    def __repr__(self) -> str:
        counts = Counter(map(_state, self.rows))
        states = ", ".join(f"{count} {state}" for state, count in counts.most_common())
        count = format_count(len(self.rows), "comparison")
        return f"<Sweep {one_line(self.summary.name)}: {count} ({states}), {self.folder}>"

    def _repr_html_(self) -> str:
        from torchyard.sweep.report.text import (
            group_name,
            mean_cell,
            passed_text,
            row_name,
            speedup_cell,
            with_short_names,
        )

        summary = with_short_names(self.summary)
        rows = {}
        for group in summary.groups:
            mean = mean_cell(group.common, untrusted=group.untrusted)
            name = f"mean of {group_name(group.key)} · {group.key.candidate}"
            rows[name] = f"{mean}, {passed_text(group)} passed"
        for row in summary.rows[:MOST_SHOWN]:
            speedup = " ".join(filter(None, speedup_cell(row)))
            state = _state(row)
            rows[row_name(row)] = f"{state}, {speedup}" if row.speedup is not None else state
        notes = list(summary.doubts)
        if len(summary.rows) > MOST_SHOWN:
            notes.append(f"{len(summary.rows) - MOST_SHOWN} more rows: see rows or to_pandas()")
        comparisons = [one for run in self.runs for one in run.record.comparisons]
        return html_result(comparisons, {**rows, "folder": str(self.folder)}, notes)


def sweep(
    suites: Words = (),
    *,
    workloads: Words = (),
    study: str | Path | None = None,
    backends: Words = (),
    modes: Words = (),
    precisions: Words = (),
    only: Words = (),
    exclude: Words = (),
    baseline: str | None = None,
    device: str | None = None,
    batch_size: int | str | None = None,
    threads: int | None = None,
    time: str | float | None = None,
    budget: str | float | None = None,
    name: str = "",
    folder: str | Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Sweep:
    """Measure whole suites, as `torchyard sweep` does, and return their rows.

        torchyard.sweep("models", backends=["inductor", "aot_eager"], time="20s")
        torchyard.sweep(workloads="my_model.py:Net", modes="training", budget="10m")
        torchyard.sweep(study="nightly.toml")

    Parameters are the options of `torchyard sweep`; several names are a sequence, or a text with
    commas. Numbers for `time` and `budget` are seconds. `study` is a study file, whose values the
    other parameters override. `folder` is the new folder of the sweep, by default one in the sweeps
    directory. `progress` is called with a line of text for every cell that ends.

    Cells run in fresh processes of this interpreter. After Ctrl-C, `torchyard sweep --resume FOLDER`
    measures the remaining cells.
    """
    from torchyard.sweep.commands.cell_progress import EndedCells
    from torchyard.sweep.commands.plan_text import estimate_of
    from torchyard.sweep.commands.run import plan_of_options, run
    from torchyard.sweep.execution import SweepExecution, check_before_running, create_folder

    began_s = clock.monotonic()
    options = {
        **{str(one.name): () if one.multiple else None for one in run.params},
        "suites": _words(suites),
        "workloads": _words(workloads),
        "backends": _words(backends),
        "modes": _words(modes),
        "precisions": _words(precisions),
        "only": _words(only),
        "exclude": _words(exclude),
        "baseline": baseline,
        "device": device,
        "batch_size": _text(batch_size),
        "threads": _text(threads),
        "time": _duration(time),
        "budget": _duration(budget),
        "name": name,
    }
    study_path = None if study is None else Path(study)
    plan, _ = plan_of_options(study_path, options, command=["torchyard.sweep"])
    check_before_running(plan)
    sweep_folder = create_folder(plan, None if folder is None else Path(folder))
    estimate = estimate_of(plan, sweep_folder.folder, calibrating=False, quiet=True)
    limit_s = plan.limits.budget_s
    execution = SweepExecution(
        folder=sweep_folder,
        expected_s=estimate.expected_s(),
        first_launch_s=estimate.first_launch_s(),
        deadline_s=math.inf if limit_s is None else began_s + limit_s,
    )
    ended = EndedCells(sweep_folder.folder)

    def listen(view: SweepView) -> None:
        if progress is not None:
            for line in ended.update(view):
                progress(line)

    try:
        execution.run(listen)
    except KeyboardInterrupt as error:
        error.add_note(f"resume with: torchyard sweep --resume {sweep_folder.folder}")
        raise
    runs = tuple(Run(record=one) for one in execution.runs.values())
    return Sweep(folder=sweep_folder.folder, summary=execution.summary(), runs=runs)


def _words(words: Words) -> tuple[str, ...]:
    return (words,) if isinstance(words, str) else tuple(words)


def _text(number: float | str | None) -> str | None:
    return None if number is None else str(number)


def _duration(duration: str | float | None) -> str | None:
    return f"{duration:g}s" if isinstance(duration, int | float) else duration


def _state(row: SweepRow) -> str:
    """Return the verdict of a row, or why it has none."""
    from torchyard.sweep.report.text import end_text

    return row.verdict.value if row.end == "passed" else end_text(row.end)


def _record(row: SweepRow) -> dict[str, object]:
    interval = row.interval
    return {
        "suite": row.suite,
        "workload": row.workload,
        "mode": row.mode,
        "precision": row.precision,
        "baseline": row.baseline,
        "candidate": row.candidate,
        "end": row.end,
        "verdict": row.verdict.value,
        "speedup": row.speedup,
        "low": None if interval is None else interval.low,
        "high": None if interval is None else interval.high,
        "p_value": row.p_value if row.p_adjusted is None else row.p_adjusted,
        "baseline_s": None if row.baseline_ns is None else row.baseline_ns / 1e9,
        "candidate_s": None if row.candidate_ns is None else row.candidate_ns / 1e9,
        "compile_s": row.compile_s,
        "memory_ratio": row.memory_ratio,
        "graph_breaks": row.graph_breaks,
        "launches": row.launches,
        "trusted": row.trusted,
        "reason": row.reason,
        "run": row.run,
    }

"""Read the rows of a sweep, one per cell and candidate, from one sweep folder or several shards.

Combines the plan with the runs and the outcomes of attempts, so that failed cells are included. A
cell that is in several sweeps is taken from the last one that finished it. Read-only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from torchyard.core.comparison import (
    WITHOUT_SPEED,
    Accuracy,
    AccuracyStatus,
    Comparison,
    Failure,
    Verdict,
)
from torchyard.core.records import encode
from torchyard.core.study import Workload
from torchyard.errors import TorchyardError, UsageError
from torchyard.files.safe_reading import read_tail_text
from torchyard.results.run_reader import Run, read_run
from torchyard.sweep.folder import SweepFolder
from torchyard.sweep.model import Attempt, CellStatus, End, Outcome, SweepPlan, SweepRow

FAILURE_ENDS: Final[Mapping[str, End]] = {
    "raised": "raised",
    "cannot-build": "unsupported",
    "crashed": "crashed",
    "killed": "crashed",
    "out-of-memory": "out-of-memory",
    "timeout": "hung",
    "protocol": "crashed",
    "no-python": "unsupported",
    "no-torch": "unsupported",
    "interrupted": "not-finished",
    "refused": "unsupported",
}
"""End of a row by failure kind of a worker (`process.ending`), or `refused` by the executor."""
_OUTCOME_ENDS: Final[Mapping[Outcome, End]] = {
    "finished": "not-finished",
    "interrupted": "not-finished",
    "died": "crashed",
    "time-limit": "hung",
    "memory-limit": "out-of-memory",
    "pre-empted": "not-finished",
    "node-failed": "not-finished",
    "cancelled": "not-finished",
    "refused": "unsupported",
}
_ACCURACY_ENDS: Final[Mapping[AccuracyStatus, End]] = {
    AccuracyStatus.PASS: "passed",
    AccuracyStatus.LESS_ACCURATE: "passed",
    AccuracyStatus.FAIL: "wrong",
    AccuracyStatus.RANDOM: "random",
    AccuracyStatus.NONDETERMINISTIC: "nondeterministic",
    AccuracyStatus.UNCHECKED: "unchecked",
}
ENDS_WITH_SPEEDUP: Final[frozenset[End]] = frozenset(
    {"passed", "nondeterministic", "random", "unchecked"}
)
"""Ends of rows with a usable speedup. Means include `passed` only, except `not_wrong`."""
_LOG_BYTES: Final = 8192

Names = tuple[str, str, str, str]
"""Label of the workload, precision, baseline, candidate."""


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """A comparison and the run that contains it."""

    comparison: Comparison
    run: Run

    @property
    def precision(self) -> str:
        """The precision of the baseline, which distinguishes the runs of a sweep."""
        return self.run.study.baseline.precision

    @property
    def given_up(self) -> bool:
        """Whether it only records that its cell failed; the cell has more details."""
        failure = self.comparison.failure
        return failure is not None and failure.phase == "cell"

    @property
    def checked(self) -> bool:
        """Whether the accuracy check was on."""
        return self.run.study.settings.check_accuracy


def comparisons_of(runs: Sequence[Run]) -> dict[Names, RunComparison]:
    """Return comparisons by name; if several runs contain one, the last run wins."""
    comparisons = {}
    for run in runs:
        for one in run.comparisons:
            item = RunComparison(comparison=one, run=run)
            comparisons[(one.workload.label, item.precision, one.baseline, one.candidate)] = item
    return comparisons


def names_of(status: CellStatus) -> Iterator[Names]:
    """Return the names of the comparisons of a cell."""
    study = status.cell.study
    for candidate in study.candidates:
        yield (
            study.workloads[0].label,
            status.cell.precision,
            study.baseline.name,
            candidate.name,
        )


def row_of(item: RunComparison, *, status: CellStatus | None, uncorrected: Verdict) -> SweepRow:
    """Return the row of a measured comparison; `uncorrected` is its verdict before correction."""
    one = item.comparison
    estimate = one.estimate if one.estimate is not None and one.estimate.launches else None
    end, reason = _end_of(one, checked=item.checked)
    before, after = one.baseline_metrics, one.candidate_metrics
    verdict = one.state if one.state in WITHOUT_SPEED else uncorrected
    memory = None
    if before.peak_memory_bytes and after.peak_memory_bytes:
        same_method = before.memory_method == after.memory_method
        memory = after.peak_memory_bytes / before.peak_memory_bytes if same_method else None
    return SweepRow(
        cell=status.cell.id if status else "",
        suite=one.workload.suite,
        workload=one.workload.label,
        mode=one.workload.mode,
        precision=item.precision,
        baseline=one.baseline,
        candidate=one.candidate,
        end=end,
        speedup=estimate.speedup if estimate else None,
        interval=estimate.interval if estimate else None,
        verdict=verdict,
        verdict_alone=verdict,
        p_value=estimate.p_value if estimate else None,
        launches=estimate.launches if estimate else 0,
        baseline_ns=before.time_ns,
        candidate_ns=after.time_ns,
        compile_s=after.compile_cold_s,
        memory_ratio=memory,
        graph_breaks=after.graph_break_count,
        break_even=_break_even(one, uncorrected) if end in ENDS_WITH_SPEEDUP else None,
        untrusted=one.untrusted,
        reason="; ".join(
            [*(f"untrusted: {why}" for why in one.untrusted), *filter(None, [reason])]
        ),
        log=one.failure.log if one.failure else "",
        log_tail=one.failure.log_tail if one.failure else "",
        tries=_tries(status),
        run=item.run.id,
    )


def provisional_comparisons(status: CellStatus, folder: Path | None) -> dict[Names, RunComparison]:
    """Return the comparisons of an unfinished cell with launches so far, from the sweep's folder."""
    if folder is None or not status.is_open or not status.run:
        return {}
    try:
        comparisons = comparisons_of([read_run(folder / status.run)])
    except TorchyardError:
        return {}  # no launch yet
    return {
        names: item
        for names, item in comparisons.items()
        if item.comparison.estimate is not None and item.comparison.estimate.launches
    }


_PROVISIONAL: Final = (
    *("speedup", "interval", "launches", "baseline_ns", "candidate_ns", "compile_s"),
    *("untrusted", "run"),
)
"""Fields of a row that are known while its cell is measured."""


def provisional_row(item: RunComparison, status: CellStatus, names: Names) -> SweepRow:
    """Return the row of a comparison whose cell is not finished."""
    measured = row_of(item, status=status, uncorrected=Verdict.UNDECIDED)
    launches = f"{measured.launches} launch{'' if measured.launches == 1 else 'es'}"
    return replace(
        row_without_result(status, names),
        end="provisional",
        **{name: getattr(measured, name) for name in _PROVISIONAL},
        reason="; ".join([f"{launches} so far", *measured.untrusted, _why_no_result(status, None)]),
    )


def row_without_result(
    status: CellStatus, names: Names, *, folder: Path | None = None, log_tail: str = ""
) -> SweepRow:
    """Return the row of a comparison without a measurement.

    With the sweep's folder, the end of its log is read unless `log_tail` is given.
    """
    _, precision, baseline, candidate = names
    workload: Workload = status.cell.study.workloads[0]
    ended_attempts = [attempt for attempt in status.attempts if attempt.outcome is not None]
    last = ended_attempts[-1] if ended_attempts else None
    failed = status.state == "failed"
    end: End = "not-finished"
    if failed and last is not None and last.outcome is not None:
        end = _OUTCOME_ENDS[last.outcome]
    return SweepRow(
        cell=status.cell.id,
        suite=workload.suite,
        workload=workload.label,
        mode=workload.mode,
        precision=precision,
        baseline=baseline,
        candidate=candidate,
        end=end,
        verdict=Verdict.FAILED if failed else Verdict.UNDECIDED,
        verdict_alone=Verdict.FAILED if failed else Verdict.UNDECIDED,
        reason=_why_no_result(status, last),
        log=last.log if last and not last.idle else "",
        log_tail=log_tail
        or (_log_tail(folder, last.log) if folder and last and last.log and failed else ""),
        tries=_tries(status),
    )


def _why_no_result(status: CellStatus, last: Attempt | None) -> str:
    if status.state == "done":
        return "the run of its cell does not contain this comparison"
    if status.state == "failed":
        reason = status.text or (last.why if last else "") or "no reason recorded"
        outcome = (
            f"{last.outcome}: " if last and last.outcome and last.outcome not in reason else ""
        )
        return outcome + reason
    activity = f": {status.text}" if status.text else ""
    return f"{status.state}{activity}"


def _end_of(comparison: Comparison, *, checked: bool) -> tuple[End, str]:
    failure, accuracy, estimate = comparison.failure, comparison.accuracy, comparison.estimate
    if failure is not None:
        return FAILURE_ENDS.get(failure.kind, "crashed"), _failure_reason(failure)
    if comparison.verdict is Verdict.FAILED:
        return "not-finished", "no reason recorded"
    end = _ACCURACY_ENDS[accuracy.status] if accuracy is not None else "unchecked"
    if end == "wrong":
        return end, f"wrong results: {_accuracy_reason(accuracy)}"
    if estimate is None or not estimate.launches:
        why = "; ".join(estimate.reasons) if estimate else "nothing was measured"
        return "not-finished", f"no speedup: {why}"
    if end == "random":
        return end, "the workload draws random numbers that backends draw differently"
    if end == "nondeterministic":
        return end, f"two runs of the baseline differ: {_accuracy_reason(accuracy)}"
    if end == "unchecked":
        # Not a failure if the check is off: the summary has a warning for the whole sweep.
        return (end, f"not checked: {_accuracy_reason(accuracy)}") if checked else ("passed", "")
    if accuracy is not None and accuracy.status is AccuracyStatus.LESS_ACCURATE:
        return end, f"less accurate: {_accuracy_reason(accuracy)}"
    return end, ""


def _failure_reason(failure: Failure) -> str:
    hint = f" ({failure.hint})" if failure.hint else ""
    return f"{failure.kind} in {failure.variant}, {failure.phase}: {failure.message}{hint}"


def _accuracy_reason(accuracy: Accuracy | None) -> str:
    reason = accuracy.detail or accuracy.method if accuracy is not None else ""
    return reason or "no reason recorded"


def _break_even(comparison: Comparison, verdict: Verdict) -> float | None:
    """Return the iterations that amortize compilation, for candidates with verdict faster."""
    iterations = comparison.break_even_iterations
    if verdict is not Verdict.FASTER or iterations is None or iterations == math.inf:
        return None
    return iterations


def _tries(status: CellStatus | None) -> int:
    return sum(attempt.counts for attempt in status.attempts) if status else 0


def _log_tail(folder: Path, name: str) -> str:
    """Return the end of a log inside the folder; empty for a path outside it."""
    path = (folder / name).resolve()
    is_inside = path.is_relative_to(folder.resolve())
    return read_tail_text(path, _LOG_BYTES) if is_inside else ""


@dataclass(frozen=True, kw_only=True)
class SweepParts:
    """The input of a summary, from one sweep or several."""

    plan: SweepPlan
    statuses: list[CellStatus]
    runs: list[Run]
    folders: list[Path]
    """The sweep folder of each status."""
    doubts: tuple[str, ...] = ()
    """Warnings about reading them as one sweep."""


def read_sweeps(folders: Sequence[Path]) -> SweepParts:
    """Read one sweep, or several as one."""
    sweeps = [SweepFolder.open(folder) for folder in folders]
    first = sweeps[0]
    if len(sweeps) == 1:
        statuses = first.statuses()
        return SweepParts(
            plan=first.plan,
            statuses=statuses,
            runs=_runs(first, statuses),
            folders=[first.folder] * len(statuses),
        )
    for other in sweeps[1:]:
        _check_compatible(first, other)
    cells = _merged_cells(sweeps)
    plan = replace(
        first.plan,
        name=" and ".join(dict.fromkeys(sweep.plan.name for sweep in sweeps)),
        cells=tuple(status.cell for status, _ in cells),
        shard=(1, 1),
    )
    return SweepParts(
        plan=plan,
        statuses=[status for status, _ in cells],
        runs=[read_run(folder / status.run) for status, folder in cells if status.state == "done"],
        folders=[folder for _, folder in cells],
        doubts=tuple(_missing_shards([sweep.plan.shard for sweep in sweeps])),
    )


def _runs(sweep: SweepFolder, statuses: Sequence[CellStatus]) -> list[Run]:
    """Return the joined runs, or the runs of finished cells while the sweep is running."""
    is_complete = not any(status.is_open for status in statuses)
    joined = [Path(path) for path in sweep.runs().values()] if is_complete else []
    of_cells = [sweep.folder / status.run for status in statuses if status.state == "done"]
    for folders in (joined, of_cells):
        try:
            runs = [read_run(folder) for folder in folders]
        except TorchyardError:
            continue  # a joined run was removed: the cells still have the data
        if runs:
            return runs
    return []


def _check_compatible(first: SweepFolder, other: SweepFolder) -> None:
    """Raise UsageError unless verdicts can be corrected over the cells of both sweeps."""
    for what, one, another in (
        ("--null", first.plan.null, other.plan.null),
        ("--alpha", _alpha_and_margin(first)[0], _alpha_and_margin(other)[0]),
        ("--margin", _alpha_and_margin(first)[1], _alpha_and_margin(other)[1]),
    ):
        if one != another:
            raise UsageError(
                f"{first.folder} and {other.folder} cannot be read as one sweep",
                why=f"they differ in {what}: {one} and {another}",
                hint="report them separately",
            )
    ours, others = _definitions(first), _definitions(other)
    for name in ours.keys() & others.keys():
        fields = [key for key in ours[name] if ours[name][key] != others[name].get(key)]
        if fields:
            raise UsageError(
                f"{first.folder} and {other.folder} cannot be read as one sweep",
                why=f"{name} differs in {', '.join(fields)}",
                hint="report them separately, or give the variants different names",
            )


def _definitions(sweep: SweepFolder) -> dict[str, dict[str, Any]]:
    """Return the definitions of variants by name and precision, and the settings; without paths."""
    definitions: dict[str, dict[str, Any]] = {}
    for cell in sweep.plan.cells:
        definitions["the measurement"] = encode(cell.study.settings)
        for variant in cell.study.variants:
            record = encode(variant)
            record["target"] = record["target"]["variables"]
            definitions[f"{variant.name} ({cell.precision})"] = record
    return definitions


def _alpha_and_margin(sweep: SweepFolder) -> tuple[float | None, float | None]:
    cells = sweep.plan.cells
    return (cells[0].study.budget.alpha, cells[0].study.budget.margin) if cells else (None, None)


def _merged_cells(sweeps: Sequence[SweepFolder]) -> list[tuple[CellStatus, Path]]:
    """Return each cell once, with the folder of its sweep."""
    cells: dict[object, tuple[CellStatus, Path]] = {}
    for sweep in sweeps:
        for status in sweep.statuses():
            key = tuple(names_of(status))
            if key not in cells or cells[key][0].state != "done" or status.state == "done":
                cells[key] = (status, sweep.folder)
    return list(cells.values())


def _missing_shards(shards: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Yield a warning for each set of shards that is incomplete."""
    for parts in sorted({of for _, of in shards}):
        present = {part for part, of in shards if of == parts}
        missing = [str(part) for part in range(1, parts + 1) if part not in present]
        if missing:
            yield (
                f"missing shards of {parts}: {', '.join(missing)}; "
                "corrections and means cover the other shards only"
            )

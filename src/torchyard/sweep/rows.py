"""The rows of a sweep, one per cell and candidate, read from one sweep folder or several shards.

Combines the plan with the contents of the runs and the endings of attempts, so that nothing is
missing because it failed. A cell that several sweeps hold is taken from the last one that finished
it. Changes nothing on disk.
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
from torchyard.files.safe_reading import read_tail
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
"""For each kind of trouble with a worker (`process.trouble`), and what an executor would not run."""
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
    AccuracyStatus.NONDETERMINISTIC: "non-deterministic",
    AccuracyStatus.UNCHECKED: "unchecked",
}
CLAIMING: Final[frozenset[End]] = frozenset({"passed", "non-deterministic", "random", "unchecked"})
"""Ends of rows that say how fast something is. Means hold those that passed, and one of them all."""
_LOG_BYTES: Final = 8192

Names = tuple[str, str, str, str]
"""Label of the workload, precision, baseline, candidate."""


@dataclass(frozen=True, kw_only=True)
class FoundComparison:
    """A comparison with the run it stands in."""

    comparison: Comparison
    run: Run

    @property
    def precision(self) -> str:
        """Of the baseline, by which runs of a sweep are told apart."""
        return self.run.study.baseline.precision

    @property
    def given_up(self) -> bool:
        """Whether it only says that its cell has no run: the cell itself knows more."""
        failure = self.comparison.failure
        return failure is not None and failure.phase == "cell"

    @property
    def checked(self) -> bool:
        """Whether results were to be checked."""
        return self.run.study.settings.check_accuracy


def comparisons_of(runs: Sequence[Run]) -> dict[Names, FoundComparison]:
    """By name; where several runs hold one, the last of them speaks."""
    found = {}
    for run in runs:
        for one in run.comparisons:
            held = FoundComparison(comparison=one, run=run)
            found[(one.workload.label, held.precision, one.baseline, one.candidate)] = held
    return found


def names_of(status: CellStatus) -> Iterator[Names]:
    """What the cell is to compare."""
    study = status.cell.study
    for candidate in study.candidates:
        yield (
            study.workloads[0].label,
            status.cell.precision,
            study.baseline.name,
            candidate.name,
        )


def row_of(found: FoundComparison, *, status: CellStatus | None, alone: Verdict) -> SweepRow:
    """The row of a comparison that was made; its verdict is not corrected yet."""
    one = found.comparison
    estimate = one.estimate if one.estimate is not None and one.estimate.launches else None
    end, reason = _end_of(one, checked=found.checked)
    before, after = one.baseline_metrics, one.candidate_metrics
    verdict = one.state if one.state in WITHOUT_SPEED else alone
    memory = None
    if before.peak_memory_bytes and after.peak_memory_bytes:
        like_for_like = before.memory_method == after.memory_method
        memory = after.peak_memory_bytes / before.peak_memory_bytes if like_for_like else None
    return SweepRow(
        cell=status.cell.id if status else "",
        suite=one.workload.suite,
        workload=one.workload.label,
        mode=one.workload.mode,
        precision=found.precision,
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
        break_even=_break_even(one, alone) if end in CLAIMING else None,
        untrusted=one.untrusted,
        reason="; ".join(
            [*(f"untrusted: {why}" for why in one.untrusted), *filter(None, [reason])]
        ),
        log=one.failure.log if one.failure else "",
        log_tail=one.failure.log_tail if one.failure else "",
        tries=_tries(status),
        run=found.run.id,
    )


def row_without_result(
    status: CellStatus, names: Names, *, folder: Path | None = None, log_tail: str = ""
) -> SweepRow:
    """The row of a comparison that nothing was measured of.

    With the sweep's folder, the end of its log is read unless it is given.
    """
    _, precision, baseline, candidate = names
    workload: Workload = status.cell.study.workloads[0]
    ended = [attempt for attempt in status.attempts if attempt.outcome is not None]
    last = ended[-1] if ended else None
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
        log=last.log if last else "",
        log_tail=log_tail
        or (_log_tail(folder, last.log) if folder and last and last.log and failed else ""),
        tries=_tries(status),
    )


def _why_no_result(status: CellStatus, last: Attempt | None) -> str:
    if status.state == "done":
        return "its run has no such comparison"
    if status.state == "failed":
        said = status.text or (last.why if last else "") or "no reason was recorded"
        outcome = f"{last.outcome}: " if last and last.outcome and last.outcome not in said else ""
        return outcome + said
    now = f": {status.text}" if status.text else ""
    return f"{status.state}{now}"


def _end_of(comparison: Comparison, *, checked: bool) -> tuple[End, str]:
    failure, accuracy, estimate = comparison.failure, comparison.accuracy, comparison.estimate
    if failure is not None:
        return FAILURE_ENDS.get(failure.kind, "crashed"), _failure_reason(failure)
    if comparison.verdict is Verdict.FAILED:
        return "not-finished", "no reason was recorded"
    end = _ACCURACY_ENDS[accuracy.status] if accuracy is not None else "unchecked"
    if end == "wrong":
        return end, f"wrong results: {_accuracy_reason(accuracy)}"
    if estimate is None or not estimate.launches:
        why = "; ".join(estimate.reasons) if estimate else "nothing was measured"
        return "not-finished", f"no number: {why}"
    if end == "random":
        return end, "the workload draws random numbers that backends draw differently"
    if end == "non-deterministic":
        return end, f"two runs of one side differ: {_accuracy_reason(accuracy)}"
    if end == "unchecked":
        # Left out on request it is no failure of the row; the sweep says so as a whole.
        return (end, f"not checked: {_accuracy_reason(accuracy)}") if checked else ("passed", "")
    if accuracy is not None and accuracy.status is AccuracyStatus.LESS_ACCURATE:
        return end, f"less accurate: {_accuracy_reason(accuracy)}"
    return end, ""


def _failure_reason(failure: Failure) -> str:
    hint = f" ({failure.hint})" if failure.hint else ""
    return f"{failure.kind} in {failure.variant}, {failure.phase}: {failure.message}{hint}"


def _accuracy_reason(accuracy: Accuracy | None) -> str:
    said = accuracy.detail or accuracy.method if accuracy is not None else ""
    return said or "no reason was recorded"


def _break_even(comparison: Comparison, alone: Verdict) -> float | None:
    """Iterations that pay for compiling; only of candidates that are faster for sure."""
    found = comparison.break_even_iterations
    return found if alone is Verdict.FASTER and found is not None and found < math.inf else None


def _tries(status: CellStatus | None) -> int:
    return sum(attempt.counts for attempt in status.attempts) if status else 0


def _log_tail(folder: Path, name: str) -> str:
    """The end of a log inside the folder; nothing of files elsewhere, whatever a record says."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        return ""
    try:
        return read_tail(path, _LOG_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


@dataclass(frozen=True, kw_only=True)
class SweepParts:
    """What a summary is made of, from one sweep or from several."""

    plan: SweepPlan
    statuses: list[CellStatus]
    runs: list[Run]
    folders: list[Path]
    """Of the sweep that each status is from."""
    doubts: tuple[str, ...] = ()
    """Doubts about reading them as one."""


def read_sweeps(folders: Sequence[Path]) -> SweepParts:
    """One sweep as it is, or several as one."""
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
        _check_alike(first, other)
    kept = _of_all(sweeps)
    plan = replace(
        first.plan,
        name=" and ".join(dict.fromkeys(sweep.plan.name for sweep in sweeps)),
        cells=tuple(status.cell for status, _ in kept),
        shard=(1, 1),
    )
    return SweepParts(
        plan=plan,
        statuses=[status for status, _ in kept],
        runs=[read_run(folder / status.run) for status, folder in kept if status.state == "done"],
        folders=[folder for _, folder in kept],
        doubts=tuple(_missing([sweep.plan.shard for sweep in sweeps])),
    )


def _runs(sweep: SweepFolder, statuses: Sequence[CellStatus]) -> list[Run]:
    """The joined runs, or while the sweep goes on those of the cells that have one."""
    joined = [Path(path) for path in sweep.runs().values()]
    places = [sweep.folder / status.run for status in statuses if status.state == "done"]
    for chosen in (joined, places):
        try:
            found = [read_run(place) for place in chosen]
        except TorchyardError:
            continue  # a joined run was removed: the cells still have everything
        if found:
            return found
    return []


def _check_alike(first: SweepFolder, other: SweepFolder) -> None:
    """Verdicts are corrected over all cells, which must ask the same question."""
    for what, one, another in (
        ("--null", first.plan.null, other.plan.null),
        ("--alpha", _asked(first)[0], _asked(other)[0]),
        ("--margin", _asked(first)[1], _asked(other)[1]),
    ):
        if one != another:
            raise UsageError(
                f"{first.folder} and {other.folder} cannot be read as one sweep",
                why=f"they differ in {what}: {one} and {another}",
                hint="report them one by one",
            )
    known, others = _definitions(first), _definitions(other)
    for name in known.keys() & others.keys():
        fields = [key for key in known[name] if known[name][key] != others[name].get(key)]
        if fields:
            raise UsageError(
                f"{first.folder} and {other.folder} cannot be read as one sweep",
                why=f"{name} differs in {', '.join(fields)}: the same name would stand for both",
                hint="report them one by one, or give the variants different names",
            )


def _definitions(sweep: SweepFolder) -> dict[str, dict[str, Any]]:
    """What each name stands for: variants of a precision, and the settings; not where targets lie."""
    found: dict[str, dict[str, Any]] = {}
    for cell in sweep.plan.cells:
        found["the measurement"] = encode(cell.study.settings)
        for variant in cell.study.variants:
            record = encode(variant)
            record["target"] = record["target"]["variables"]
            found[f"{variant.name} ({cell.precision})"] = record
    return found


def _asked(sweep: SweepFolder) -> tuple[float | None, float | None]:
    cells = sweep.plan.cells
    return (cells[0].study.budget.alpha, cells[0].study.budget.margin) if cells else (None, None)


def _of_all(sweeps: Sequence[SweepFolder]) -> list[tuple[CellStatus, Path]]:
    """Every cell once, with the folder of its sweep."""
    kept: dict[object, tuple[CellStatus, Path]] = {}
    for sweep in sweeps:
        for status in sweep.statuses():
            key = tuple(names_of(status))
            if key not in kept or kept[key][0].state != "done" or status.state == "done":
                kept[key] = (status, sweep.folder)
    return list(kept.values())


def _missing(shards: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Which shards are not among them."""
    for parts in sorted({of for _, of in shards}):
        here = {part for part, of in shards if of == parts}
        gone = [str(part) for part in range(1, parts + 1) if part not in here]
        if gone:
            yield (
                f"of {parts} parts, {', '.join(gone)} not among these: "
                "corrections and means are those of the others"
            )

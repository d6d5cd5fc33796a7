"""The rows of a sweep: one per cell and candidate, whether or not there is a number.

Joins what was planned with what the runs hold and with how attempts ended, so that nothing is
missing because it failed. Knows nothing of means, corrections or reports.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchyard.core.comparison import Accuracy, AccuracyStatus, Comparison, Failure, Verdict
from torchyard.core.sweep import Attempt, CellStatus, Outcome
from torchyard.core.sweep_summary import End, SweepRow
from torchyard.core.workload import Workload
from torchyard.results.run_reader import Run

__all__ = [
    "CLAIMING",
    "FAILURE_ENDS",
    "FoundComparison",
    "Names",
    "comparisons_of",
    "names_of",
    "row_of",
    "row_without_result",
]

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
    decided = one.verdict not in {Verdict.WRONG, Verdict.FAILED}
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
        verdict=alone if decided else one.verdict,
        verdict_alone=alone if decided else one.verdict,
        p_value=estimate.p_value if estimate else None,
        launches=estimate.launches if estimate else 0,
        baseline_ns=before.time_ns,
        candidate_ns=after.time_ns,
        compile_s=after.compile_cold_s,
        memory_ratio=memory,
        break_even=_break_even(one, alone) if end in CLAIMING else None,
        busy=one.busy,
        reason=reason,
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
        with path.open("rb") as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - _LOG_BYTES))
            return log.read().decode("utf-8", "replace")
    except OSError:
        return ""

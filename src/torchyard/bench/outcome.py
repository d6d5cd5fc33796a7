"""Build a comparison from measurements: estimate, accuracy, metrics, verdict and notes.

Includes the plausibility check of times: a candidate that returns cached results does no work, so
its arithmetic rate exceeds what the device can do, or its call takes less time than torch needs to
start a single operator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Final

from torchyard.bench.preparation import PreparationState
from torchyard.core.block import Block
from torchyard.core.comparison import (
    DROPPED,
    NOISY,
    WRONG_RESULTS,
    Accuracy,
    AccuracyStatus,
    Comparison,
    Estimate,
    Failure,
    VariantMetrics,
    Verdict,
)
from torchyard.core.roofline import MachinePeak, attainment_of
from torchyard.core.study import Budget, Study, Variant, Workload
from torchyard.core.units import format_duration
from torchyard.machine.system.cores import available_cores
from torchyard.stats.estimate import estimate
from torchyard.stats.pairs import PairedLaunches, pair_blocks, summarize_guards
from torchyard.stats.stopping import InterimAnalysis
from torchyard.worker.bench import options
from torchyard.worker.wire import PROCESS_WIDE

MAX_SHARE_OF_PEAK: Final = 3.0
"""An algorithm may need fewer operations than eager code: 2.25 times fewer in a Winograd convolution."""
CPU_FLOPS_PER_CORE: Final = {"float32": 6e9 * 128, "other": 6e9 * 4096}
"""Upper bound for any core: 6 GHz, four 512-bit units; matrix tiles in short formats."""
GPU_FLOPS: Final = {"float32": 1e16, "other": 1e17}
"""Upper bound for any single GPU."""
DISPATCH_NS: Final = 1000.0
"""Lower bound of the time to call a single operator from Python."""
DISPATCH_RATIO: Final = 20.0


def implausible_times(
    baseline: VariantMetrics,
    candidate: VariantMetrics,
    *,
    device: str,
    precision: str,
    cores: int,
    peak: MachinePeak | None = None,
) -> list[str]:
    """Return why the candidate's time is implausible; empty if it is plausible."""
    reasons = []
    time_ns, rate = candidate.time_ns, candidate.flops_per_second
    kind = precision if precision == "float32" else "other"
    limit = cores * CPU_FLOPS_PER_CORE[kind] if device == "cpu" else GPU_FLOPS[kind]
    if rate is not None and rate > limit:
        reasons.append(
            f"faster than the hardware allows: {rate / 1e12:.3g} TFLOP/s exceeds the upper bound of "
            f"{limit / 1e12:.3g} TFLOP/s for this device"
        )
    elif peak is not None and (share := _share_of_peak(candidate, peak)) > MAX_SHARE_OF_PEAK:
        reasons.append(f"faster than the hardware allows: {share:.3g} times the measured peak")
    baseline_ns = baseline.time_ns
    if time_ns and baseline_ns and time_ns < DISPATCH_NS and baseline_ns > DISPATCH_RATIO * time_ns:
        reasons.append(
            f"a call takes {format_duration(time_ns)}, less than dispatching one operator, and "
            f"{format_duration(baseline_ns)} in the baseline: it cannot have computed the result"
        )
    return reasons


def _share_of_peak(metrics: VariantMetrics, peak: MachinePeak) -> float:
    attained = attainment_of(metrics, peak)
    return 0.0 if attained is None else attained.roof_share


_PROCESS_SURVIVES: Final = frozenset({"raised", "cannot-build"})
"""Failure kinds after which the process continues, so that the failing variant is known."""


@dataclass
class Spent:
    """Time and launches used, summed over launches."""

    elapsed_s: float = 0.0
    rounds_s: float = 0.0
    timed_s: float = 0.0
    launches: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def timed_share(self) -> float | None:
        """Share of the measuring time inside timed blocks, without process starts."""
        return self.timed_s / self.rounds_s if self.rounds_s > 0 else None


def make_estimate(
    paired: PairedLaunches, analyses: Sequence[InterimAnalysis], budget: Budget, spent: Spent
) -> Estimate:
    """Estimate the speedup of one comparison from its pairs."""
    return estimate(
        paired.medians,
        looks=analyses,
        budget=budget,
        seconds_per_launch=spent.elapsed_s / spent.launches if spent.launches else None,
        pairs_dropped=paired.dropped,
        mean_launches=paired.means,
        never_same=paired.never_same,
    )


class SessionData:
    """Measurements of a session so far; sessions of workloads and of programs extend it."""

    def __init__(self, study: Study, workload: Workload) -> None:
        self._study = study
        self._workload = workload
        self._active = list(study.candidates)
        self._blocks: list[Block] = []
        self._failures: dict[str, Failure] = {}
        self._failed_in: dict[str, int] = {}
        """Launch in which a candidate, or its baseline, failed."""
        self._analyses: dict[str, list[InterimAnalysis]] = {v.name: [] for v in study.candidates}
        self._spent = Spent()
        self._spent_at_stop: dict[str, Spent] = {}

    def _make_comparisons(
        self, candidates: Iterable[Variant], prepared: PreparationState, fraction: float
    ) -> list[Comparison]:
        """Return the comparisons with the data so far, after a fraction of the time."""
        return [
            make_comparison(
                self._workload,
                self._study.baseline,
                candidate,
                blocks=self._blocks_of(candidate),
                analyses=self._analyses_so_far(candidate, fraction),
                budget=self._study.budget,
                prepared=prepared,
                spent=self._spent_at_stop.get(candidate.name, self._spent),
                failure=self._failures.get(candidate.name),
            )
            for candidate in candidates
        ]

    def _blocks_of(self, candidate: Variant) -> list[Block]:
        """Return all blocks before the launch in which the candidate or its baseline failed."""
        failed_in = self._failed_in.get(candidate.name)
        if failed_in is None:
            return self._blocks
        return [block for block in self._blocks if block.launch < failed_in]

    def _analyses_so_far(self, candidate: Variant, fraction: float) -> list[InterimAnalysis]:
        """Return the analyses so far, and one more if an interrupted launch added pairs since."""
        analyses = self._analyses[candidate.name]
        paired = pair_blocks(self._blocks_of(candidate), self._study.baseline.name, candidate.name)
        launches = len(paired.medians)
        if launches == (analyses[-1].launches if analyses else 0):
            return analyses
        return [*analyses, InterimAnalysis(launches=launches, fraction=fraction)]

    def _stop(self, candidate: Variant) -> None:
        """Stop measuring a candidate."""
        self._active.remove(candidate)
        self._spent_at_stop[candidate.name] = Spent(**asdict(self._spent))


def make_comparison(
    workload: Workload,
    baseline: Variant,
    candidate: Variant,
    *,
    blocks: Sequence[Block],
    analyses: Sequence[InterimAnalysis],
    budget: Budget,
    prepared: PreparationState,
    spent: Spent,
    failure: Failure | None,
) -> Comparison:
    """Return the comparison; `failed` takes precedence over `wrong`, and that over any speed.

    `blocks` and `analyses` end before the launch that failed. A candidate that failed has the verdict
    `failed`, even if earlier launches have results. If the baseline failed, the earlier launches are
    used if there are enough of them for a verdict.
    """
    accuracy = prepared.accuracy.get(candidate.name)
    notes = list(dict.fromkeys([*prepared.notes_about(baseline, candidate), *spent.notes]))
    untrusted: list[str] = []
    comparison_estimate: Estimate | None = None
    verdict = Verdict.FAILED
    paired = pair_blocks(blocks, baseline.name, candidate.name)
    before_failure = make_estimate(paired, analyses, budget, spent) if paired.usable else None
    if failure is not None and _leaves_launches_usable(failure, candidate, paired, budget):
        failed = f"{failure.variant} failed ({failure.kind}, {failure.phase}): {failure.message}"
        notes.insert(0, f"{failed}; based on the {paired.usable} launches before the failure")
        if baseline.process_key == candidate.process_key and failure.kind not in _PROCESS_SURVIVES:
            untrusted.append(f"the process that both variants share died: {failed}")
        failure = None
    if failure is not None and before_failure is not None:
        notes.append(_before_failure_text(before_failure))
    if failure is None:
        before_failure = None
        comparison_estimate = make_estimate(paired, analyses, budget, spent)
        verdict = comparison_estimate.verdict
        total = paired.pairs + paired.dropped
        reasons = ", ".join(f"{reason} ({count})" for reason, count in paired.reasons[:3])
        if paired.busy:
            untrusted.append(
                f"{NOISY}: {paired.disturbed} of {total} pairs were disturbed: {reasons}"
            )
        notes.extend(text for text in paired.one_sided if text not in comparison_estimate.reasons)
        if paired.dropped:
            notes.append(f"{paired.dropped} of {total}{DROPPED}{reasons}")
        if accuracy is not None:
            if accuracy.status is AccuracyStatus.FAIL:
                verdict = Verdict.WRONG
                notes.insert(0, f"{WRONG_RESULTS}{accuracy.detail}")
            notes += _accuracy_notes(accuracy, candidate)
    times = _times_of_estimate(paired, comparison_estimate) or (
        _block_time(blocks, baseline),
        _block_time(blocks, candidate),
    )
    metrics = (
        replace(prepared.metrics_of(baseline), time_ns=times[0]),
        replace(prepared.metrics_of(candidate), time_ns=times[1]),
    )
    if failure is None:
        untrusted += _untrusted(prepared, baseline, candidate)
        if verdict is not Verdict.WRONG:
            untrusted += implausible_times(
                *metrics,
                device=workload.device,
                precision=candidate.precision,
                cores=available_cores(),
                peak=prepared.peaks.get(candidate.name),
            )
    return Comparison(
        workload=workload,
        baseline=baseline.name,
        candidate=candidate.name,
        verdict=verdict,
        estimate=comparison_estimate,
        accuracy=accuracy,
        baseline_metrics=metrics[0],
        candidate_metrics=metrics[1],
        failure=failure,
        before_failure=before_failure,
        shared_process=baseline.process_key == candidate.process_key,
        elapsed_s=spent.elapsed_s,
        timed_share=spent.timed_share,
        guards=summarize_guards(blocks, baseline.name, candidate.name),
        notes=tuple(notes),
        untrusted=tuple(untrusted),
    )


def _untrusted(prepared: PreparationState, baseline: Variant, candidate: Variant) -> list[str]:
    """Return the reasons of the checks not to trust the numbers.

    A process-wide change by a variant affects every comparison that uses this process.
    """
    process_keys = {baseline.process_key, candidate.process_key}
    reasons = [
        f"{variant.name} {text}"
        for variant, text in prepared.untrusted
        if variant.name in {baseline.name, candidate.name}
        or (variant.process_key in process_keys and text.startswith(PROCESS_WIDE))
    ]
    accuracy = prepared.accuracy.get(candidate.name)
    if accuracy is not None and accuracy.status is AccuracyStatus.UNCHECKED:
        reasons.append(f"results could not be checked: {accuracy.detail}")
    return list(dict.fromkeys(reasons))


def _accuracy_notes(accuracy: Accuracy, candidate: Variant) -> list[str]:
    """Return notes on the limits of the accuracy check."""
    notes = []
    if accuracy.nondeterminism:
        differs = accuracy.nondeterminism
        notes.append(f"two runs of the baseline differ by up to {differs:.2g}")
    if accuracy.candidate_nondeterminism:
        differs = accuracy.candidate_nondeterminism
        notes.append(f"two runs of the candidate differ by up to {differs:.2g}")
    if "fallback_random" in accuracy.method:
        notes.append(
            "random numbers: results were checked in code compiled with fallback_random; the timed code "
            "draws other random numbers, and its means and variances over several draws agree"
        )
    if accuracy.without_reference:
        notes.append(
            "results compared with the baseline's instead of a float64 reference: "
            f"{accuracy.without_reference}"
        )
    changing = options.that_change_results(dict(candidate.options))
    changing = [name for name in changing if name != options.WEIGHTS]  # described with the result
    if changing and accuracy.max_error is not None:
        notes.append(
            f"{' and '.join(changing)} reduces precision: "
            f"largest difference from the baseline {accuracy.max_error:.3g}"
        )
    return notes


def _leaves_launches_usable(
    failure: Failure, candidate: Variant, paired: PairedLaunches, budget: Budget
) -> bool:
    """Whether another variant failed and the launches before suffice for a verdict."""
    enough = max(min(3, budget.max_launches), min(budget.min_launches, budget.max_launches), 2)
    return failure.variant != candidate.name and paired.usable >= enough


def _before_failure_text(estimate: Estimate) -> str:
    interval = estimate.interval
    interval_text = "" if interval is None else f" [{interval.low:.3f}, {interval.high:.3f}]"
    launches = f"{estimate.launches} launch{'es' if estimate.launches != 1 else ''}"
    return f"before the failure {launches} showed {estimate.speedup:.3f}x{interval_text}; this is not a result"


def _times_of_estimate(
    paired: PairedLaunches, estimate: Estimate | None
) -> tuple[float, float] | None:
    """Return times of baseline and candidate whose ratio is the speedup of the estimate.

    Each launch contributes the median over its pairs of the geometric mean of both times, as it
    contributes the median log ratio to the estimate.
    """
    if estimate is None or not estimate.launches:
        return None
    centers = [
        median(math.log(pair.baseline_ns) + math.log(pair.candidate_ns) for pair in launch) / 2.0
        for launch in paired.times
        if launch
    ]
    center, half = math.fsum(centers) / len(centers), math.log(estimate.speedup) / 2.0
    return math.exp(center + half), math.exp(center - half)


def _block_time(blocks: Sequence[Block], variant: Variant) -> float | None:
    """Return the median over clean blocks, for a variant that was not compared."""
    own_blocks = [block for block in blocks if block.variant == variant.name]
    chosen = [block for block in own_blocks if not block.dirty] or own_blocks
    return median(block.median_ns for block in chosen) if chosen else None

"""From measurements to a comparison: estimate, accuracy, metrics, verdict and notes.

Includes the plausibility check of times: a candidate that returns cached results does no work, so
its arithmetic rate exceeds what the device can do, or its call takes less time than torch needs to
start a single operator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

from torchyard.bench.preparation import Knowledge
from torchyard.core.block import Block
from torchyard.core.comparison import (
    Accuracy,
    AccuracyStatus,
    Comparison,
    Estimate,
    Failure,
    VariantMetrics,
    Verdict,
)
from torchyard.core.roofline import MachinePeak, attainment_of
from torchyard.core.study import Budget, Variant, Workload
from torchyard.core.units import format_duration
from torchyard.machine.system.cores import available_cores
from torchyard.stats.estimate import estimate
from torchyard.stats.pairs import PairedLaunches, pair_blocks, summarize_guards
from torchyard.stats.stopping import Look
from torchyard.worker.bench import options

BEYOND_PEAK: Final = 3.0
"""An algorithm may need fewer operations than eager code's: 2.25 times fewer in a Winograd convolution."""
CPU_FLOPS_PER_CORE: Final = {"float32": 6e9 * 128, "other": 6e9 * 4096}
"""More than any core can do: 6 GHz, four 512-bit units; matrix tiles in short formats."""
GPU_FLOPS: Final = {"float32": 1e16, "other": 1e17}
"""More than any single GPU can do."""
DISPATCH_NS: Final = 1000.0
"""Python and torch need longer to call a single operator."""
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
    """Why the candidate's time cannot be that of the work; empty when it can."""
    found = []
    time_ns, rate = candidate.time_ns, candidate.flops_per_second
    kind = precision if precision == "float32" else "other"
    limit = cores * CPU_FLOPS_PER_CORE[kind] if device == "cpu" else GPU_FLOPS[kind]
    if rate is not None and rate > limit:
        found.append(
            f"faster than the hardware allows: {rate / 1e12:.3g} TFLOP/s, "
            f"and {limit / 1e12:.3g} is more than this device can do"
        )
    elif peak is not None and (share := _share_of_peak(candidate, peak)) > BEYOND_PEAK:
        found.append(f"faster than the hardware allows: {share:.3g} times the measured peak")
    slowest = baseline.time_ns
    if time_ns and slowest and time_ns < DISPATCH_NS and slowest > DISPATCH_RATIO * time_ns:
        found.append(
            f"a call takes {format_duration(time_ns)}, less than starting one operator does, "
            f"and the baseline's {format_duration(slowest)}: it cannot have computed anything"
        )
    return found


def _share_of_peak(metrics: VariantMetrics, peak: MachinePeak) -> float:
    attained = attainment_of(metrics, peak)
    return 0.0 if attained is None else attained.roof_share


_PROCESS_LIVES: Final = frozenset({"raised", "cannot-build"})
"""Kinds of failure that leave the process alive, so that the variant in question is known."""

_PROCESS_WIDE = ("changed ", "replaced ")


@dataclass
class Spent:
    """Where the time went, summed over launches."""

    elapsed_s: float = 0.0
    rounds_s: float = 0.0
    timed_s: float = 0.0
    launches: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def timed_share(self) -> float | None:
        """Share of the measuring time inside timed blocks; starting processes is not in it."""
        return self.timed_s / self.rounds_s if self.rounds_s > 0 else None


def make_estimate(
    paired: PairedLaunches, looks: Sequence[Look], budget: Budget, spent: Spent
) -> Estimate:
    """The statistics of one comparison's pairs."""
    return estimate(
        paired.medians,
        looks=looks,
        budget=budget,
        seconds_per_launch=spent.elapsed_s / spent.launches if spent.launches else None,
        pairs_dropped=paired.dropped,
        mean_launches=paired.means,
        never_same=paired.never_same,
    )


def make_comparison(
    workload: Workload,
    baseline: Variant,
    candidate: Variant,
    *,
    blocks: Sequence[Block],
    looks: Sequence[Look],
    budget: Budget,
    knowledge: Knowledge,
    spent: Spent,
    failure: Failure | None,
) -> Comparison:
    """The row. Wrong beats fast, failed beats everything.

    `blocks` and `looks` end before the launch in which something failed. A candidate that failed has
    failed, whatever the launches before said. Where the baseline failed, those launches still compare
    the two, if they are as many as a verdict needs.
    """
    accuracy = knowledge.accuracy.get(candidate.name)
    notes = list(dict.fromkeys([*knowledge.notes_about(baseline, candidate), *spent.notes]))
    untrusted: list[str] = []
    found: Estimate | None = None
    verdict = Verdict.FAILED
    paired = pair_blocks(blocks, baseline.name, candidate.name)
    before_failure = make_estimate(paired, looks, budget, spent) if paired.usable else None
    if failure is not None and _leaves_launches_usable(failure, candidate, paired, budget):
        failed = f"{failure.variant} failed ({failure.kind}, {failure.phase}): {failure.message}"
        notes.insert(0, f"{failed}; measured in the {paired.usable} launches before")
        if baseline.process_key == candidate.process_key and failure.kind not in _PROCESS_LIVES:
            untrusted.append(f"the process that both variants share ended: {failed}")
        failure = None
    if failure is not None and before_failure is not None:
        notes.append(_before_failure_text(before_failure))
    if failure is None:
        before_failure = None
        found = make_estimate(paired, looks, budget, spent)
        verdict = found.verdict
        total = paired.pairs + paired.dropped
        said = ", ".join(f"{reason} ({count})" for reason, count in paired.reasons[:3])
        if paired.busy:
            untrusted.append(
                f"noisy machine: {paired.disturbed} of {total} pairs were disturbed: {said}"
            )
        notes.extend(text for text in paired.one_sided if text not in found.reasons)
        if paired.dropped:
            notes.append(f"{paired.dropped} of {total} pairs left out: {said}")
        if accuracy is not None:
            if accuracy.status is AccuracyStatus.FAIL:
                verdict = Verdict.WRONG
                notes.insert(0, f"wrong results: {accuracy.detail}")
            notes += _accuracy_notes(accuracy, candidate)
    times = _times_of_estimate(paired, found) or (
        _block_time(blocks, baseline),
        _block_time(blocks, candidate),
    )
    metrics = (
        replace(knowledge.metrics_of(baseline), time_ns=times[0]),
        replace(knowledge.metrics_of(candidate), time_ns=times[1]),
    )
    if failure is None:
        untrusted += _untrusted(knowledge, baseline, candidate)
        if verdict is not Verdict.WRONG:
            untrusted += implausible_times(
                *metrics,
                device=workload.device,
                precision=candidate.precision,
                cores=available_cores(),
                peak=knowledge.peaks.get(candidate.name),
            )
    return Comparison(
        workload=workload,
        baseline=baseline.name,
        candidate=candidate.name,
        verdict=verdict,
        estimate=found,
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


def _untrusted(knowledge: Knowledge, baseline: Variant, candidate: Variant) -> list[str]:
    """Why the numbers must not be trusted, as the checks found it.

    What a variant changed of its process concerns every row that this process has a part in.
    """
    rows = {baseline.process_key, candidate.process_key}
    found = [
        f"{variant.name} {text}"
        for variant, text in knowledge.untrusted
        if variant.name in {baseline.name, candidate.name}
        or (variant.process_key in rows and text.startswith(_PROCESS_WIDE))
    ]
    accuracy = knowledge.accuracy.get(candidate.name)
    if accuracy is not None and accuracy.status is AccuracyStatus.UNCHECKED:
        found.append(f"results could not be checked: {accuracy.detail}")
    return list(dict.fromkeys(found))


def _accuracy_notes(accuracy: Accuracy, candidate: Variant) -> list[str]:
    """What a reader must know of the check: where it says less than it seems to."""
    notes = []
    if accuracy.nondeterminism:
        differs = accuracy.nondeterminism
        notes.append(f"two runs of the baseline differ by up to {differs:.2g}")
    if accuracy.candidate_nondeterminism:
        differs = accuracy.candidate_nondeterminism
        notes.append(f"two runs of the candidate differ by up to {differs:.2g}")
    if "fallback_random" in accuracy.method:
        notes.append(
            "random numbers: results checked in code compiled with fallback_random; the timed code "
            "draws other numbers, and its means and variances over several draws agree"
        )
    if accuracy.without_reference:
        notes.append(
            "results compared with the baseline's instead of a float64 reference: "
            f"{accuracy.without_reference}"
        )
    changing = options.that_change_results(dict(candidate.options))
    if changing and accuracy.max_error is not None:
        notes.append(
            f"{' and '.join(changing)} computes in less precision: "
            f"largest difference from the baseline {accuracy.max_error:.3g}"
        )
    return notes


def _leaves_launches_usable(
    failure: Failure, candidate: Variant, paired: PairedLaunches, budget: Budget
) -> bool:
    """Whether the candidate is not to blame and the launches before suffice for a verdict."""
    enough = max(2, min(budget.min_launches, budget.max_launches))
    return failure.variant != candidate.name and paired.usable >= enough


def _before_failure_text(found: Estimate) -> str:
    interval = found.interval
    ends = "" if interval is None else f" [{interval.low:.3f}, {interval.high:.3f}]"
    launches = f"{found.launches} launch{'es' if found.launches != 1 else ''}"
    return f"before the failure {launches} showed {found.speedup:.3f}x{ends}: not a result"


def _times_of_estimate(
    paired: PairedLaunches, found: Estimate | None
) -> tuple[float, float] | None:
    """Times of baseline and candidate that belong to the estimate: their ratio is its speedup.

    Each launch counts with the median over its pairs of the geometric mean of both times, as it
    counts with the median log ratio in the estimate.
    """
    if found is None or not found.launches:
        return None
    middles = [
        median(math.log(pair.baseline_ns) + math.log(pair.candidate_ns) for pair in launch) / 2.0
        for launch in paired.times
        if launch
    ]
    middle, half = math.fsum(middles) / len(middles), math.log(found.speedup) / 2.0
    return math.exp(middle + half), math.exp(middle - half)


def _block_time(blocks: Sequence[Block], variant: Variant) -> float | None:
    """Median over clean blocks, for a variant that was not compared."""
    own = [block for block in blocks if block.variant == variant.name]
    chosen = [block for block in own if not block.dirty] or own
    return median(block.median_ns for block in chosen) if chosen else None

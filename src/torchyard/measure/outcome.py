"""From what was measured to the row of the table: estimate, accuracy, metrics, verdict, notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from torchyard.core.block import Block
from torchyard.core.comparison import (
    BUSY,
    Accuracy,
    AccuracyStatus,
    Comparison,
    Estimate,
    Failure,
    VariantMetrics,
    Verdict,
)
from torchyard.core.study import Budget
from torchyard.core.variant import Variant
from torchyard.core.workload import Workload
from torchyard.measure.guard_summary import summarize_guards
from torchyard.measure.pairs import PairedLaunches, pair_blocks
from torchyard.measure.preparation import Knowledge
from torchyard.stats.estimate import estimate
from torchyard.stats.sequential import Look
from torchyard.worker import options

__all__ = ["BUSY", "Spent", "make_comparison", "make_estimate"]


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
    """The row. Wrong beats fast, failed beats everything."""
    accuracy = knowledge.accuracy.get(candidate.name)
    notes = list(dict.fromkeys([*knowledge.notes_about(baseline, candidate), *spent.notes]))
    found: Estimate | None = None
    verdict = Verdict.FAILED
    if failure is None:
        paired = pair_blocks(blocks, baseline.name, candidate.name)
        found = make_estimate(paired, looks, budget, spent)
        verdict = found.verdict
        total = paired.pairs + paired.dropped
        said = ", ".join(f"{reason} ({count})" for reason, count in paired.reasons[:3])
        if paired.busy:
            notes.insert(0, f"{BUSY}: {paired.disturbed} of {total} pairs were disturbed: {said}")
        elif paired.dropped:
            notes.append(f"{paired.dropped} of {total} pairs left out: {said}")
        if accuracy is not None:
            if accuracy.status is AccuracyStatus.FAIL:
                verdict = Verdict.WRONG
                notes.insert(0, f"wrong results: {accuracy.detail}")
            notes += _accuracy_notes(accuracy, candidate)
    return Comparison(
        workload=workload,
        baseline=baseline.name,
        candidate=candidate.name,
        verdict=verdict,
        estimate=found,
        accuracy=accuracy,
        baseline_metrics=_metrics(knowledge, baseline, blocks),
        candidate_metrics=_metrics(knowledge, candidate, blocks),
        failure=failure,
        shared_process=baseline.process_key == candidate.process_key,
        elapsed_s=spent.elapsed_s,
        timed_share=spent.timed_share,
        guards=summarize_guards(blocks, baseline.name, candidate.name),
        notes=tuple(notes),
    )


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


def _metrics(knowledge: Knowledge, variant: Variant, blocks: Sequence[Block]) -> VariantMetrics:
    times = [block.median_ns for block in blocks if block.variant == variant.name]
    clean = [b.median_ns for b in blocks if b.variant == variant.name and not b.dirty]
    chosen = clean or times
    return replace(knowledge.metrics_of(variant), time_ns=median(chosen) if chosen else None)

"""How the numbers were made, in sentences, from the settings the run really had."""

from __future__ import annotations

from torchyard.core.study import Study
from torchyard.core.units import format_percent
from torchyard.reports.wording import about_duration

__all__ = ["method_sentences"]


def method_sentences(study: Study) -> list[str]:
    """For readers who were not there."""
    budget, settings = study.budget, study.settings
    confidence = f"{100 * (1 - budget.alpha):g}%"
    stop = (
        f"Measuring a comparison stopped at a verdict with an interval of "
        f"±{format_percent(budget.precision_goal)}, or after {about_duration(budget.time_s)}."
        if budget.precision_goal
        else f"Every comparison used its whole {about_duration(budget.time_s)}."
    )
    sentences = [
        (
            "Each launch started fresh processes. Variants that differ only in backend shared a "
            "process, the model and the inputs."
        ),
        (
            f"Baseline and candidate ran in pairs of short blocks (about {settings.block_s:g} s), in "
            "random order, after warm-up. Compile time is not part of the times."
        ),
        (
            "A speedup is baseline time over candidate time: above 1 the candidate is faster. Each "
            "launch gives the median over its pairs; the speedup is their geometric mean."
        ),
        (
            f"The interval covers the true speedup in {confidence} of cases and speaks for launches, "
            "not for single iterations, because the same code differs between processes. Where only "
            "one launch ran, it speaks for those processes only, and the notes say so."
        ),
        (
            f"Same means that the whole interval lies within ±{format_percent(budget.margin)} of no "
            "difference. Undecided is an answer too: the data allow more than one verdict."
        ),
        stop,
        (
            "p-values are two-sided, valid for stopping early, and adjusted for the number of "
            "comparisons (Benjamini-Hochberg)."
        ),
        (
            "Pairs that the guards saw disturbed (waiting for a core, paging, stolen time, throttled "
            "or fallen clocks) were dropped and are counted."
        ),
    ]
    if settings.check_accuracy:
        sentences.append(
            "The candidate's results were compared with the baseline's on the same inputs and "
            "seeds, and with a float64 run where there was memory for one. A candidate whose error "
            "rounding does not explain is wrong and never called faster."
        )
    else:
        sentences.append("Results were not compared: the check of accuracy was switched off.")
    return sentences

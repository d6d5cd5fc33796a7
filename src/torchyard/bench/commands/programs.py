"""`torchyard bench --command`: the study of whole programs from the options."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from torchyard.bench.commands.options import checked_numbers
from torchyard.bench.program_session import MAX_PAIRS, MIN_PAIRS, WARM_UP_RUNS, program_study
from torchyard.core.study import Budget, MeasureSettings, Study
from torchyard.errors import UsageError

_WITHOUT_EFFECT: Final = {
    "suites": "--suite",
    "only": "--only",
    "modes": "--mode",
    "device": "--device",
    "batch_size": "--batch-size",
    "optimizer_step": "--optimizer-step",
    "eval_mode": "--eval-mode",
    "ranks": "--ranks",
    "baseline": "--baseline",
    "candidates": "--candidate",
    "backend": "--backend",
    "precision": "--precision",
    "targets": "--target",
    "environments": "--env",
    "preloads": "--preload",
    "threads": "--threads",
    "reseat": "--reseat",
    "paired_layout": "--paired-layout",
    "start": "--start",
    "flush_l2": "--flush-l2",
    "check_accuracy": "--accuracy",
    "memory_limit": "--memory-limit",
}
"""Options about torch, by parameter: programs are run as they are."""


def study_of_commands(files: tuple[str, ...], options: dict[str, Any]) -> Study:
    """Return the study that compares the commands of the options."""
    commands = options["commands"]
    if len(commands) < 2:  # noqa: PLR2004
        raise UsageError(
            "one --command is given", hint="give at least two: the first is the baseline"
        )
    given = [
        name for key, name in _WITHOUT_EFFECT.items() if options.get(key) not in (None, (), "")
    ]
    if files or given:
        raise UsageError(
            f"{files[0] if files else given[0]} cannot be combined with --command",
            why="whole programs are run as they are",
            hint="write it into the commands: variables as `env NAME=value python a.py`",
        )
    numbers = checked_numbers(options, "time", "precision_goal", "margin", "max_launches")
    budget = replace(Budget(min_launches=MIN_PAIRS, max_launches=MAX_PAIRS), **numbers)
    budget = replace(budget, min_launches=min(budget.min_launches, budget.max_launches))
    warm_up = WARM_UP_RUNS if options["warmup"] is None else options["warmup"]
    study = program_study(commands, shell=options["shell"], warm_up=warm_up, budget=budget)
    settings = replace(MeasureSettings(), **checked_numbers(options, "seed", "step_limit"))
    return replace(study, settings=settings)

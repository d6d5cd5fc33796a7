"""Studies of `torchyard bench` that are not of workloads: whole programs, a training script, a row of a run."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from torchyard.bench.commands.options import checked_numbers, request_of_options
from torchyard.bench.program_session import MAX_PAIRS, MIN_PAIRS, WARM_UP_RUNS, program_study
from torchyard.bench.report.shown_run import study_of_row
from torchyard.bench.request import WorkloadChoice
from torchyard.bench.study_assembly import assemble
from torchyard.cli.options import given_options
from torchyard.core.study import SCRIPT_FOLDER, SCRIPT_SUITE, Budget, MeasureSettings, Study
from torchyard.errors import UsageError
from torchyard.results.commands.options import find_run
from torchyard.results.run_reader import read_run

_ABOUT_WORKLOADS: Final = (
    *("suites", "only", "modes", "batch_size", "optimizer_step", "eval_mode"),
    *("reseat", "flush_l2", "backend"),
)
"""Options about built-in workloads: a script creates its model and data itself."""
_ABOUT_TORCH: Final = (
    *(
        *_ABOUT_WORKLOADS,
        "device",
        "ranks",
        "nodes",
        "baseline",
        "candidates",
        "precision",
        "targets",
    ),
    *("environments", "preloads", "threads", "paired_layout", "start", "check_accuracy"),
    "memory_limit",
)
"""Programs are run as they are."""
_BUDGET: Final = ("time", "precision_goal", "margin", "max_launches")
_ALLOWED_WITH_ROW: Final = {
    *("row", "run_dir", "revision", "notes", "replace", "html", "csv", "dry_run", "quiet"),
    *("tune", "tune_profile", "cores", *_BUDGET),
}
"""Options that may change: how long to measure, and where results go."""


def _without_effect(options: dict[str, Any], parameters: Iterable[str]) -> list[str]:
    """Return the names of those options that have a value."""
    names = {one.name: max(one.opts, key=len) for one in click.get_current_context().command.params}
    return [names[key] for key in parameters if options.get(key) not in (None, (), "")]


def study_of_commands(files: tuple[str, ...], options: dict[str, Any]) -> Study:
    """Return the study that compares the commands of the options."""
    commands = options["commands"]
    if len(commands) < 2:  # noqa: PLR2004
        raise UsageError(
            "one --command is given", hint="give at least two: the first is the baseline"
        )
    unsupported = _without_effect(options, _ABOUT_TORCH)
    if files or unsupported:
        raise UsageError(
            f"{files[0] if files else unsupported[0]} cannot be combined with --command",
            why="whole programs are run as they are",
            hint="remove it; a command sets variables as `env NAME=value python a.py`",
        )
    numbers = checked_numbers(options, *_BUDGET)
    budget = replace(Budget(min_launches=MIN_PAIRS, max_launches=MAX_PAIRS), **numbers)
    budget = replace(budget, min_launches=min(budget.min_launches, budget.max_launches))
    warm_up = WARM_UP_RUNS if options["warmup"] is None else options["warmup"]
    study = program_study(commands, shell=options["shell"], warm_up=warm_up, budget=budget)
    settings = replace(MeasureSettings(), **checked_numbers(options, "seed", "step_limit"))
    return replace(study, settings=settings)


def study_of_script(files: tuple[str, ...], options: dict[str, Any]) -> Study:
    """Return the study that compares variants in the steps of a script."""
    unsupported = _without_effect(options, _ABOUT_WORKLOADS)
    if files or unsupported:
        raise UsageError(
            f"{files[0] if files else unsupported[0]} cannot be combined with --script",
            why="the script creates its model and its data itself",
            hint="pass arguments to the script with --script-args",
        )
    path = Path(options["script"]).expanduser().absolute()
    if not path.is_file():
        raise UsageError(
            f"--script: the file {options['script']!r} does not exist",
            hint="give the path of a Python file",
        )
    parameters: dict[str, str] = {SCRIPT_FOLDER: str(Path.cwd())}
    if options["step"] is not None:
        parameters["step"] = _step_name(options["step"])
    if options["script_args"]:
        parameters["arguments"] = _arguments(options["script_args"])
    request = replace(
        request_of_options(options),
        workloads=(
            WorkloadChoice(
                where="--script",
                suite=SCRIPT_SUITE,
                name=str(path),
                modes=("training",),
                parameters=tuple(sorted(parameters.items())),
            ),
        ),
    )
    # The memory of a script cannot be relocated from outside.
    request = replace(request, settings={**request.settings, "reseat": "off"})
    return assemble(request, here=sys.executable)


def _step_name(text: str) -> str:
    if not all(part.isidentifier() for part in text.split(".")):
        raise UsageError(
            f"--step: {text!r} is not the name of a function",
            hint="write train_step, Trainer.step or trainer.step",
        )
    return text


def _arguments(text: str) -> str:
    try:
        shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"--script-args: {text!r} cannot be split", why=str(error), hint="close every quote"
        ) from error
    return text


def study_of_row_option(files: tuple[str, ...], options: dict[str, Any]) -> Study:
    """Return the study of the row; options of the time budget override those of the run."""
    unsupported = given_options(click.get_current_context(), options, but=_ALLOWED_WITH_ROW)
    if files or unsupported:
        raise UsageError(
            f"{files[0] if files else unsupported[0]} cannot be combined with --row",
            why="the row is repeated with the settings of its run",
            hint="remove it; --time, --launches, --margin and --precision-goal may be given",
        )
    text, _, number = options["row"].rpartition(":")
    if not text or not number.isdecimal():
        raise UsageError(
            f"--row: {options['row']!r} is not a row of a run",
            hint="write RUN:N, such as latest:1; `torchyard report` shows the rows",
        )
    study = study_of_row(read_run(find_run(text)), int(number[:9]))
    budget = replace(study.budget, **checked_numbers(options, *_BUDGET))
    least = min(budget.min_launches, budget.max_launches)
    return replace(study, budget=replace(budget, min_launches=least))

"""The options of `torchyard sweep`, and what they ask for as a `SweepRequest`.

One word per idea: an option is called like the key of the table `[sweep]` that it overrides. Lists
are written with commas, or by giving the option again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from torchyard.cli.sections import all_options, section
from torchyard.cli.study_options import (
    BASELINE_OPTIONS,
    BATCH_OPTION,
    DEVICE_OPTIONS,
    LARGEST,
    LARGEST_BATCH_OPTION,
    LIMIT_OPTIONS,
    MEASURE_OPTIONS,
    NOTE_OPTIONS,
    PLACE_OPTIONS,
    STOP_OPTIONS,
    checked_numbers,
    request_of_study_options,
    spec_of_option,
)

__all__ = [
    "NOT_WITH_RESUME",
    "check_calibration",
    "sweep_options",
    "sweep_request_of_options",
]

F = TypeVar("F", bound=Callable[..., Any])

# Written out because `core` must not be loaded for `--help`; a test holds it to the type there.
EXECUTORS: Final = ("local", "slurm")

_what, _run, _how = section("What to run"), section("What to compare"), section("How to measure")
_where, _out = section("Where cells run"), section("Where results go")

_OPTIONS: Final = (
    _what("--suites", multiple=True, metavar="LIST", help="Suites to run whole: models,kernels."),
    _what(
        "--workload",
        "workloads",
        multiple=True,
        metavar="WORKLOAD",
        help="One more: SUITE/NAME, NAME, NAME:key=value,..., FILE.py or FILE.py:THING.",
    ),
    _what(
        "--modes",
        multiple=True,
        metavar="LIST",
        help="inference (when left out), training, or inference,training.",
    ),
    _what(
        "--only",
        multiple=True,
        metavar="PATTERN",
        help="Keep workloads that fit, such as 'timm/resnet*'; any of several.",
    ),
    _what("--exclude", multiple=True, metavar="PATTERN", help="Leave out workloads that fit."),
    _what(
        "--shard",
        metavar="PART/PARTS",
        help="One of equal parts, such as 1/4; the parts of one request never overlap.",
    ),
    *(option for option in DEVICE_OPTIONS if option is not BATCH_OPTION),
    LARGEST_BATCH_OPTION,
    *BASELINE_OPTIONS,
    _run(
        "--backends",
        multiple=True,
        metavar="LIST",
        help="Candidates of every cell, such as inductor,aot_eager; inductor when left out.",
    ),
    _run(
        "--precisions",
        multiple=True,
        metavar="LIST",
        help="A cell of each workload for each: float32 (when left out), float16, bfloat16, amp.",
    ),
    _run(
        "--null/--no-null",
        default=None,
        help="Each candidate is the baseline again: shows how often this machine cries wolf.",
    ),
    *PLACE_OPTIONS,
    *STOP_OPTIONS,
    *MEASURE_OPTIONS,
    *LIMIT_OPTIONS,
    _how("--cell-limit", metavar="DURATION", help="Wall time of one try at a cell; no limit."),
    _how("--tries", metavar="N", help="How often a cell is tried whose process dies or hangs; 2."),
    _where("--executor", metavar="NAME", help="local (when left out) or slurm."),
    _where(
        "--at-most",
        metavar="N",
        help="Cells under way at once, 1 here. They prepare side by side; time is taken of one.",
    ),
    _where("--partition", metavar="NAME", help="Of Slurm, as are the next ones: where jobs go."),
    _where("--account", metavar="NAME", help="Who pays."),
    _where("--qos", metavar="NAME", help="Quality of service."),
    _where("--gpus", metavar="N", help="GPUs of one job: a number, or h200:1."),
    _where("--cpus", metavar="N", help="Processors of one job."),
    _where("--job-memory", metavar="SIZE", help="Memory of one job, such as 16G."),
    _where(
        "--exclusive/--no-exclusive", default=None, help="Whether a job has its node to itself."
    ),
    _where("--job-time", metavar="DURATION", help="Time limit of a job, such as 2h."),
    _where(
        "--slurm",
        multiple=True,
        metavar="OPTION=VALUE",
        help="Another option of sbatch, such as constraint=h200.",
    ),
    _out("--plan", "plan_only", is_flag=True, help="Show the plan, and run nothing."),
    _out(
        "--calibrate",
        is_flag=True,
        help="First build each workload and run it once, for better estimates of time and memory.",
    ),
    _out(
        "--resume",
        metavar="FOLDER|latest",
        help="Go on with a sweep, with its own plan; finished cells are not repeated.",
    ),
    _out(
        "--take-over",
        is_flag=True,
        help="With --resume, measure cells here that other processes may still run: for attempts "
        "of another host or container that has ended.",
    ),
    _out(
        "--run-dir",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="FOLDER",
        help="Keep the sweep here instead of in the sweeps' home.",
    ),
    _out(
        "--name", metavar="TEXT", help="What its runs are called; the study file's name, or sweep."
    ),
    *NOTE_OPTIONS,
    _out("-q", "--quiet", is_flag=True, help="No plan and no progress on stderr."),
)

NOT_WITH_RESUME: Final = frozenset({"resume", "quiet", "calibrate", "plan_only", "take_over"})
"""Options beside these would change a plan that is already there."""


def sweep_options(command: F) -> F:
    """Every option of `sweep` except those that all commands have."""
    return all_options(_OPTIONS)(command)


def check_calibration(plan: Any, *, calibrating: bool) -> None:
    """Raise UsageError where what would be looked at is not what cells run, or not where."""
    from torchyard.errors import UsageError

    if calibrating and plan.largest_batches:
        raise UsageError(
            "--calibrate looks at workloads as they are, and their batch sizes are to be searched for",
            hint="leave it out, or name a batch size",
        )
    if calibrating and plan.executor.name != "local":
        raise UsageError(
            "--calibrate looks at this machine, and cells run elsewhere",
            hint="leave it out; kept runs of the cluster tell how long cells take",
        )


def sweep_request_of_options(options: dict[str, Any]) -> Any:
    """The `SweepRequest` that the options make; paths in them are relative to the current folder."""
    from dataclasses import replace

    from torchyard.config.request import WorkloadChoice
    from torchyard.config.sweep_request import (
        Patterns,
        SweepRequest,
        check_executor,
        parse_shard,
        read_modes,
        read_precisions,
    )
    from torchyard.config.workload_spec import check_suite, choose_workload

    folder = Path.cwd()
    searched = options["batch_size"] == LARGEST
    if searched:
        options = {**options, "batch_size": None}
    suites = _listed(options["suites"])
    for suite in suites:
        check_suite(suite, where="--suites")
    whole = [WorkloadChoice(where="--suites", suite=suite) for suite in suites]
    single = [
        choose_workload(spec_of_option(text, "--workload", folder)) for text in options["workloads"]
    ]
    study = replace(
        request_of_study_options(options),
        name=(options["name"] or "").strip(),
        workloads=(*whole, *single),
        modes=read_modes(_listed(options["modes"]), where="--modes"),
        candidates=tuple(
            spec_of_option(text, "--backends", folder) for text in _listed(options["backends"])
        ),
    )
    executor = options["executor"]
    limits = checked_numbers(options, "cell_limit", "tries")
    return SweepRequest(
        study=study,
        precisions=read_precisions(_listed(options["precisions"]), where="--precisions"),
        patterns=Patterns(only=options["only"], exclude=options["exclude"]),
        shard=None if options["shard"] is None else parse_shard(options["shard"]),
        cell_s=limits.get("cell_s"),
        tries=limits.get("tries"),
        null=options["null"],
        largest_batches=True if searched else None,
        executor=None if executor is None else check_executor(executor, where="--executor"),
        executor_options=_executor_options(options),
    )


def _executor_options(options: dict[str, Any]) -> dict[str, Any]:
    """By the names that executors know."""
    names = {"job_time": "time", "job_memory": "memory", "at_most": "at-most"}
    said = ("partition", "account", "qos", "gpus", "cpus", "job_memory", "exclusive", "job_time")
    found = {
        names.get(name, name): options[name]
        for name in (*said, "at_most")
        if options[name] is not None
    }
    for text in options["slurm"]:
        name, equals, value = text.partition("=")
        found[f"slurm-{name.strip()}"] = value if equals else True
    return found


def _listed(texts: Sequence[str]) -> list[str]:
    """The words of options that take lists, each once."""
    words = [word.strip() for text in texts for word in text.split(",")]
    return list(dict.fromkeys(word for word in words if word))

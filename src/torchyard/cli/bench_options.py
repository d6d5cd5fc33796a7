"""The options of `torchyard bench`, and what they ask for as a `Request`.

One word per idea: an option is called like the key of the study file that it overrides.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from torchyard.cli.sections import all_options, section
from torchyard.cli.study_options import (
    BASELINE_OPTIONS,
    BATCH_OPTION,
    DEVICE_OPTIONS,
    LARGEST_BATCH_OPTION,
    LIMIT_OPTIONS,
    MEASURE_OPTIONS,
    NOTE_OPTIONS,
    PLACE_OPTIONS,
    STOP_OPTIONS,
    request_of_study_options,
    spec_of_option,
)

__all__ = ["bench_options", "request_of_options"]

F = TypeVar("F", bound=Callable[..., Any])

# Written out because `core` must not be loaded for `--help`; a test holds them to the types there.
MODES: Final = ("inference", "training")
PRECISIONS: Final = ("float32", "float16", "bfloat16", "amp")
TUNES: Final = ("auto", "cpu", "gpu", "all")

_what, _run = section("What to run"), section("What to compare")
_how, _out = section("How to measure"), section("Where results go")

_OPTIONS: Final = (
    _what("--suite", "suites", multiple=True, metavar="SUITE", help="Every workload of a suite."),
    _what(
        "--only",
        multiple=True,
        metavar="WORKLOAD",
        help="One workload: SUITE/NAME, NAME, NAME:key=value,..., FILE.py or FILE.py:THING.",
    ),
    _what(
        "--mode",
        "modes",
        multiple=True,
        type=click.Choice(MODES),
        help="Give it twice for both; inference when left out.",
    ),
    *(option for option in DEVICE_OPTIONS if option is not BATCH_OPTION),
    LARGEST_BATCH_OPTION,
    *BASELINE_OPTIONS,
    _run(
        "--candidate",
        "candidates",
        multiple=True,
        metavar="SPEC",
        help="Variant to judge, such as inductor, inductor:max-autotune+bfloat16 or "
        "mine.py:function. Without it: the other targets, else the environments, else inductor.",
    ),
    _run(
        "--precision",
        type=click.Choice(PRECISIONS),
        help="For every variant that names none; float32 when left out.",
    ),
    *PLACE_OPTIONS,
    *STOP_OPTIONS,
    *MEASURE_OPTIONS,
    _how(
        "--tune",
        is_flag=True,
        help="Quiet the machine for this run and put everything back after it; needs root.",
    ),
    _how(
        "--tune-profile",
        type=click.Choice(TUNES),
        default="auto",
        help="With --tune: cpu, gpu or all, as in `torchyard machine tune`; auto is what the "
        "devices need.",
    ),
    _how(
        "--cores",
        metavar="LIST|auto",
        help="With --tune: set these processors apart, such as 2-7, and measure on them.",
    ),
    *LIMIT_OPTIONS,
    _out(
        "--run-dir",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="FOLDER",
        help="Keep the run here instead of in the runs' home.",
    ),
    *NOTE_OPTIONS,
    _out("--replace", is_flag=True, help="Remove an earlier run in --run-dir."),
    _out(
        "--html",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Write the report as one HTML file.",
    ),
    _out(
        "--csv",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Write the table as CSV.",
    ),
    _out("--dry-run", is_flag=True, help="Show what would run, and run nothing."),
    _out("-q", "--quiet", is_flag=True, help="No progress on stderr."),
)


def bench_options(command: F) -> F:
    """Every option of `bench` except those that all commands have."""
    return all_options(_OPTIONS)(command)


def request_of_options(options: dict[str, Any]) -> Any:
    """The `Request` that the options make; paths in them are relative to the current folder."""
    from dataclasses import replace

    from torchyard.config.request import WorkloadChoice
    from torchyard.config.workload_spec import check_suite, choose_workload

    folder = Path.cwd()
    said = request_of_study_options(options)
    for suite in options["suites"]:
        check_suite(suite, where="--suite")
    whole = [WorkloadChoice(where="--suite", suite=suite) for suite in options["suites"]]
    single = [choose_workload(spec_of_option(text, "--only", folder)) for text in options["only"]]
    return replace(
        said,
        candidates=tuple(
            spec_of_option(text, "--candidate", folder) for text in options["candidates"]
        ),
        precision=options["precision"],
        workloads=(*whole, *single),
        modes=tuple(dict.fromkeys(options["modes"])),
    )

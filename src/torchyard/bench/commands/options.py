"""Options of `torchyard bench`, and those that every command with a study shares, as a `Request`.

An option has the name of the study file key that it overrides. `bench` and `sweep` select workloads
and variants in different ways; targets, time budget and worker settings are the same and are
defined here once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from torchyard.cli.options import all_options, section

Option = Callable[[Any], Any]

# Written out because `core` must not be loaded for `--help`; a test holds it to the type there.
RESEATS: Final = ("auto", "pages", "heap", "off")

_what, _run, _when = section("What to run"), section("What to compare"), section("When to stop")
_how, _out = section("How to measure"), section("Where results go")

BATCH_OPTION: Final[Option] = _what(
    "--batch-size", metavar="N", help="The workload's own when left out."
)
LARGEST: Final = "largest"
"""As a batch size: search for it."""
LARGEST_BATCH_OPTION: Final[Option] = _what(
    "--batch-size",
    metavar=f"N|{LARGEST}",
    help=f"The workload's own when left out; `{LARGEST}` searches for the largest that fits first.",
)
DEVICE_OPTIONS: Final[tuple[Option, ...]] = (
    _what("--device", metavar="DEVICE", help="cpu (when left out), cuda, cuda:1, ..."),
    BATCH_OPTION,
    _what(
        "--optimizer-step/--no-optimizer-step",
        default=None,
        help="Whether training includes the optimiser's step.",
    ),
)

BASELINE_OPTIONS: Final[tuple[Option, ...]] = (
    _run(
        "--baseline",
        metavar="SPEC",
        help="Variant to compare with: parts joined by +, each a backend, precision, target, "
        "environment or option, such as eager+channels-last. Without it: eager, on the first "
        "target.",
    ),
)

PLACE_OPTIONS: Final[tuple[Option, ...]] = (
    _run(
        "--target",
        "targets",
        multiple=True,
        metavar="NAME=PYTHON",
        help="An interpreter with a torch: a path, the folder of a virtual environment, or build:NAME.",
    ),
    _run(
        "--env",
        "environments",
        multiple=True,
        metavar="NAME=K=V[,K=V...]",
        help="An environment: variables that its processes start with.",
    ),
    _run(
        "--preload",
        "preloads",
        multiple=True,
        metavar="NAME=LIB[:LIB]",
        help="Shared libraries that the environment NAME loads first.",
    ),
)

STOP_OPTIONS: Final[tuple[Option, ...]] = (
    _when(
        "--time",
        metavar="DURATION",
        help="Measuring time of one workload, shared by its candidates; 60s.",
    ),
    _when(
        "--precision-goal",
        metavar="PERCENT",
        help="Half-width of the interval that is wanted; 1%. 0% uses the whole time.",
    ),
    _when("--margin", metavar="PERCENT", help="Differences below it are called the same; 1%."),
    _when("--launches", "max_launches", metavar="N", help="Launches at most; 60."),
)

MEASURE_OPTIONS: Final[tuple[Option, ...]] = (
    _how("--threads", metavar="N", help="Threads of torch; one for each core when left out."),
    _how("--seed", metavar="N", help="Seed of inputs, weights and the order of pairs; 1337."),
    _how(
        "--reseat",
        type=click.Choice(RESEATS),
        help="How data moves to fresh memory between blocks; auto.",
    ),
    _how(
        "--paired-layout/--randomize-addresses",
        "paired_layout",
        default=None,
        help="Both sides of a launch start with one memory layout (this is so when left out), or "
        "each with its own.",
    ),
    _how(
        "--flush-l2/--no-flush-l2",
        default=None,
        help="Flush the L2 cache of the GPU, or the caches of the CPU, before each iteration; "
        "no when left out.",
    ),
    _how(
        "--accuracy/--no-accuracy",
        "check_accuracy",
        default=None,
        help="Check results against the baseline and float64; yes when left out.",
    ),
)

MEMORY_LIMIT: Final[Option] = _how(
    "--memory-limit", metavar="SIZE", help="Memory of one worker, such as 8GiB."
)


def step_limit(when_left_out: str) -> Option:
    """The time for one step of a worker; what it is when left out differs from command to command."""
    return _how(
        "--step-limit",
        metavar="DURATION",
        help=f"For building, checking, compiling and warming up; {when_left_out}.",
    )


LIMIT_OPTIONS: Final[tuple[Option, ...]] = (MEMORY_LIMIT, step_limit("600s"))

NOTE_OPTIONS: Final[tuple[Option, ...]] = (
    _out(
        "--revision",
        metavar="TEXT",
        help="What is measured, such as a commit; the CI job's commit or torch's own when left out.",
    ),
    _out("--note", "notes", multiple=True, metavar="TEXT", help="Keep a note with the run."),
)


def request_of_study_options(options: dict[str, Any]) -> Any:
    """The part of a `Request` that these options say; paths are relative to the current folder.

    A command need not have them all: one that it has not is one that was not given.
    """
    from torchyard.bench.request import Request
    from torchyard.cli.build_target import with_build_folder
    from torchyard.core.variant_parts import parse_target
    from torchyard.errors import UsageError

    folder = Path.cwd()
    targets = [
        parse_target(with_build_folder(text), folder=folder, where="--target")
        for text in options.get("targets", ())
    ]
    for name in {target.name for target in targets}:
        if sum(target.name == name for target in targets) > 1:
            raise UsageError(
                f"--target: the name {name!r} is given twice", hint="give each its own name"
            )
    baseline = options.get("baseline")
    return Request(
        targets={target.name: target for target in targets},
        environments=_environments(
            options.get("environments", ()), options.get("preloads", ()), folder
        ),
        baseline=spec_of_option(baseline, "--baseline", folder) if baseline is not None else None,
        device=options.get("device"),
        batch_size=checked_numbers(options, "batch_size").get("batch_size"),
        optimizer_step=options.get("optimizer_step"),
        budget=checked_numbers(options, "time", "precision_goal", "margin", "max_launches"),
        settings={
            **checked_numbers(options, "threads", "seed", "memory_limit", "step_limit"),
            **{
                key: options[key]
                for key in ("reseat", "paired_layout", "flush_l2", "check_accuracy")
                if options.get(key) is not None
            },
        },
    )


def spec_of_option(text: str, where: str, folder: Path) -> Any:
    """The text of an option that is a variant or a workload."""
    from torchyard.bench.request import SpecText

    return SpecText(text=text, where=where, folder=folder)


def checked_numbers(options: dict[str, Any], *names: str) -> dict[str, Any]:
    """Those of the options that are given, read and in range, by the field that each fills."""
    from torchyard.core.number_checks import CHECKS

    said = {"max_launches": "--launches"}
    return {
        CHECKS[name].field_name: CHECKS[name].read(
            options[name], where=said.get(name, "--" + name.replace("_", "-"))
        )
        for name in names
        if options.get(name) is not None
    }


def _environments(
    texts: tuple[str, ...], preloads: tuple[str, ...], folder: Path
) -> dict[str, Any]:
    """Environments by name; a preload joins the variables of the same name."""
    from torchyard.core.study import Environment
    from torchyard.core.variant_parts import check_name
    from torchyard.errors import UsageError

    variables: dict[str, dict[str, str]] = {}
    libraries: dict[str, list[str]] = {}
    for text in texts:
        name, _, rest = text.partition("=")
        check_name(name, where="--env")
        for item in rest.split(","):
            key, equals, value = item.partition("=")
            if not equals or not key:
                raise UsageError(
                    f"--env: {item!r} in {text!r} is no variable",
                    hint="write NAME=KEY=VALUE,KEY=VALUE, such as one=OMP_NUM_THREADS=1",
                )
            variables.setdefault(name, {})[key] = value
    for text in preloads:
        name, equals, rest = text.partition("=")
        check_name(name, where="--preload")
        found = [library for library in rest.split(":") if library]
        if not equals or not found:
            raise UsageError(
                f"--preload: {text!r} names no library",
                hint="write NAME=LIBRARY, such as tcmalloc=libtcmalloc.so.4",
            )
        libraries.setdefault(name, []).extend(
            str(folder / Path(library).expanduser()) if "/" in library else library
            for library in found
        )
    return {
        name: Environment(
            name=name,
            variables=tuple(variables.get(name, {}).items()),
            preload=tuple(libraries.get(name, ())),
        )
        for name in dict.fromkeys([*variables, *libraries])
    }


F = TypeVar("F", bound=Callable[..., Any])

# Written out because `core` must not be loaded for `--help`; a test holds them to the types there.
MODES: Final = ("inference", "training")
PRECISIONS: Final = ("float32", "float16", "bfloat16", "amp")
TUNES: Final = ("auto", "cpu", "gpu", "all")

_bench_what, _bench_run = section("What to run"), section("What to compare")
_how, _out = section("How to measure"), section("Where results go")

_OPTIONS: Final = (
    _bench_what(
        "--suite", "suites", multiple=True, metavar="SUITE", help="Every workload of a suite."
    ),
    _bench_what(
        "--only",
        multiple=True,
        metavar="WORKLOAD",
        help="One workload: SUITE/NAME, NAME, NAME:key=value,..., FILE.py or FILE.py:THING.",
    ),
    _bench_what(
        "--mode",
        "modes",
        multiple=True,
        type=click.Choice(MODES),
        help="Give it twice for both; inference when left out.",
    ),
    *(option for option in DEVICE_OPTIONS if option is not BATCH_OPTION),
    LARGEST_BATCH_OPTION,
    *BASELINE_OPTIONS,
    _bench_run(
        "--candidate",
        "candidates",
        multiple=True,
        metavar="SPEC",
        help="Variant to judge, such as inductor, inductor:max-autotune+bfloat16 or "
        "mine.py:function. Without it: the other targets, else the environments, else inductor.",
    ),
    _bench_run(
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
        help="With --tune: cpu, gpu or all, as in `torchyard machine quiet`; auto is what the "
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

    from torchyard.bench.request import WorkloadChoice
    from torchyard.bench.workload_text import check_suite, choose_workload

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

"""Options that every command with a study has, and what they ask for as a `Request`.

`bench` and `sweep` choose workloads and variants each in its own way; where those run, when measuring
stops and what a worker may use is said alike, and is here once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from torchyard.cli.sections import section

__all__ = [
    "BASELINE_OPTIONS",
    "BATCH_OPTION",
    "DEVICE_OPTIONS",
    "LARGEST",
    "LARGEST_BATCH_OPTION",
    "LIMIT_OPTIONS",
    "MEASURE_OPTIONS",
    "MEMORY_LIMIT",
    "NOTE_OPTIONS",
    "PLACE_OPTIONS",
    "RESEATS",
    "STOP_OPTIONS",
    "checked_numbers",
    "request_of_study_options",
    "spec_of_option",
]

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
    from torchyard.cli.build_names import with_build_folder
    from torchyard.config.interpreters import parse_target
    from torchyard.config.request import Request
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
    from torchyard.config.request import SpecText

    return SpecText(text=text, where=where, folder=folder)


def checked_numbers(options: dict[str, Any], *names: str) -> dict[str, Any]:
    """Those of the options that are given, read and in range, by the field that each fills."""
    from torchyard.config.checks import CHECKS

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
    from torchyard.config.names import check_name
    from torchyard.core.variant import Environment
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

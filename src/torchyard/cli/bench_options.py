"""The options of `torchyard bench`, and what they ask for as a `Request`.

One word per idea: an option is called like the key of the study file that it overrides.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from torchyard.cli.sections import section

__all__ = ["bench_options", "request_of_options"]

F = TypeVar("F", bound=Callable[..., Any])

# Written out because `core` must not be loaded for `--help`; a test holds them to the types there.
MODES: Final = ("inference", "training")
PRECISIONS: Final = ("float32", "float16", "bfloat16", "amp")
RESEATS: Final = ("auto", "pages", "heap", "off")
TUNES: Final = ("auto", "cpu", "gpu", "all")

_what, _run, _when = section("What to run"), section("What to compare"), section("When to stop")
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
    _what("--device", metavar="DEVICE", help="cpu (when left out), cuda, cuda:1, ..."),
    _what("--batch-size", metavar="N", help="The workload's own when left out."),
    _what(
        "--optimizer-step/--no-optimizer-step",
        default=None,
        help="Whether training includes the optimiser's step.",
    ),
    _run(
        "--baseline",
        metavar="SPEC",
        help="Variant to compare with: parts joined by +, each a backend, precision, target or "
        "environment. Without it: eager, on the first target.",
    ),
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
        help="Empty the GPU's L2 cache before each iteration; no when left out.",
    ),
    _how(
        "--accuracy/--no-accuracy",
        "check_accuracy",
        default=None,
        help="Check results against the baseline and float64; yes when left out.",
    ),
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
    _how("--memory-limit", metavar="SIZE", help="Memory of one worker, such as 8GiB."),
    _how(
        "--step-limit",
        metavar="DURATION",
        help="For building, checking, compiling and warming up; 600s.",
    ),
    _out(
        "--run-dir",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="FOLDER",
        help="Keep the run here instead of in the runs' home.",
    ),
    _out(
        "--revision",
        metavar="TEXT",
        help="What is measured, such as a commit; the CI job's commit or torch's own when left out.",
    ),
    _out("--note", "notes", multiple=True, metavar="TEXT", help="Keep a note with the run."),
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
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def request_of_options(options: dict[str, Any]) -> Any:
    """The `Request` that the options make; paths in them are relative to the current folder."""
    from torchyard.cli.build_names import with_build_folder
    from torchyard.config.interpreters import parse_target
    from torchyard.config.request import Request, WorkloadChoice
    from torchyard.config.workload_spec import check_suite, choose_workload
    from torchyard.errors import UsageError

    folder = Path.cwd()
    targets = [
        parse_target(with_build_folder(text), folder=folder, where="--target")
        for text in options["targets"]
    ]
    for name in {target.name for target in targets}:
        if sum(target.name == name for target in targets) > 1:
            raise UsageError(
                f"--target: the name {name!r} is given twice", hint="give each its own name"
            )
    for suite in options["suites"]:
        check_suite(suite, where="--suite")
    whole = [WorkloadChoice(where="--suite", suite=suite) for suite in options["suites"]]
    single = [choose_workload(_spec(text, "--only", folder)) for text in options["only"]]
    baseline = options["baseline"]
    return Request(
        targets={target.name: target for target in targets},
        environments=_environments(options["environments"], options["preloads"], folder),
        baseline=_spec(baseline, "--baseline", folder) if baseline is not None else None,
        candidates=tuple(_spec(text, "--candidate", folder) for text in options["candidates"]),
        precision=options["precision"],
        workloads=(*whole, *single),
        modes=tuple(dict.fromkeys(options["modes"])),
        device=options["device"],
        batch_size=_checked(options, "batch_size").get("batch_size"),
        optimizer_step=options["optimizer_step"],
        budget=_checked(options, "time", "precision_goal", "margin", "max_launches"),
        settings={
            **_checked(options, "threads", "seed", "memory_limit", "step_limit"),
            **{
                key: options[key]
                for key in ("reseat", "paired_layout", "flush_l2", "check_accuracy")
                if options[key] is not None
            },
        },
    )


def _spec(text: str, where: str, folder: Path) -> Any:
    from torchyard.config.request import SpecText

    return SpecText(text=text, where=where, folder=folder)


def _checked(options: dict[str, Any], *names: str) -> dict[str, Any]:
    from torchyard.config.checks import CHECKS

    said = {"max_launches": "--launches"}
    return {
        CHECKS[name].field_name: CHECKS[name].read(
            options[name], where=said.get(name, "--" + name.replace("_", "-"))
        )
        for name in names
        if options[name] is not None
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

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

from torchyard.cli.options import Count, all_options, section

Option = Callable[[Any], Any]

# Repeated here to keep `--help` fast, which does not import `core`; a test compares both.
RESEATS: Final = ("auto", "pages", "heap", "off")
STARTS: Final = ("auto", "fork", "fresh")

_what, _run, _when = section("What to run"), section("What to compare"), section("When to stop")
_how, _out = section("How to measure"), section("Where results go")

BATCH_OPTION: Final[Option] = _what(
    "--batch-size", metavar="N", help="Batch size. [default: the workload's own]"
)
LARGEST: Final = "largest"
"""Value of `--batch-size` that searches for the largest size."""
LARGEST_BATCH_OPTION: Final[Option] = _what(
    "--batch-size",
    metavar=f"N|{LARGEST}",
    help=f"Batch size; `{LARGEST}` searches for the largest that fits first. [default: the "
    "workload's own]",
)
RANKS_OPTION: Final[Option] = _what(
    "--ranks",
    metavar="N",
    help="Processes of one process group, each with its own batch; the slowest counts. Training needs ddp, fsdp2 or FILE.py:FUNCTION in every variant. [default: 1]",
)
NODES_OPTION: Final[Option] = _what(
    "--nodes",
    metavar="N",
    help="Nodes of the Slurm allocation to spread the ranks over. [default: 1]",
)
DEVICE_OPTIONS: Final[tuple[Option, ...]] = (
    _what("--device", metavar="DEVICE", help="cpu, cuda, cuda:1, xpu, ... [default: cpu]"),
    BATCH_OPTION,
    _what(
        "--optimizer-step/--no-optimizer-step",
        default=None,
        help="Include the optimizer step in a training iteration. [default: no-optimizer-step]",
    ),
    _what(
        "--eval-mode/--no-eval-mode",
        default=None,
        help="Train in evaluation mode: no dropout, fixed statistics of norms. "
        "[default: no-eval-mode]",
    ),
)

BASELINE_OPTIONS: Final[tuple[Option, ...]] = (
    _run(
        "--baseline",
        metavar="SPEC",
        help="Variant to compare with: backend, precision, target, environment and options, joined by +, such as eager+channels-last. [default: eager on the first target]",
    ),
)

PLACE_OPTIONS: Final[tuple[Option, ...]] = (
    _run(
        "--target",
        "targets",
        multiple=True,
        metavar="NAME=PYTHON",
        help="Interpreter with PyTorch: a path, the folder of a virtual environment, or build:NAME.",
    ),
    _run(
        "--env",
        "environments",
        multiple=True,
        metavar="NAME=K=V[,K=V...]",
        help="Environment: variables set in its processes.",
    ),
    _run(
        "--preload",
        "preloads",
        multiple=True,
        metavar="NAME=LIB[:LIB]",
        help="Shared libraries preloaded in the environment NAME.",
    ),
)

STOP_OPTIONS: Final[tuple[Option, ...]] = (
    _when(
        "--time",
        metavar="DURATION",
        help="Measuring time of a workload, shared by its candidates. [default: 60s]",
    ),
    _when(
        "--precision-goal",
        metavar="PERCENT",
        help="Target half-width of the confidence interval; 0% uses the whole time. [default: 1%]",
    ),
    _when(
        "--margin",
        metavar="PERCENT",
        help="Differences below this count as the same. [default: 1%]",
    ),
    _when(
        "--launches", "max_launches", metavar="N", help="Maximum number of launches. [default: 60]"
    ),
)

MEASURE_OPTIONS: Final[tuple[Option, ...]] = (
    _how("--threads", metavar="N", help="PyTorch threads. [default: one per core]"),
    _how(
        "--seed",
        metavar="N",
        help="Seed of inputs, weights and the order of pairs. [default: 1337]",
    ),
    _how(
        "--reseat",
        type=click.Choice(RESEATS),
        help="How data is relocated in memory between blocks. [default: auto]",
    ),
    _how(
        "--paired-layout/--randomize-addresses",
        "paired_layout",
        default=None,
        help="Give both variants of a launch the same memory layout, or each its own. "
        "[default: paired-layout]",
    ),
    _how(
        "--start",
        type=click.Choice(STARTS),
        help="Fork processes from one that has imported torch, or start new interpreters; auto forks where "
        "that is safe. [default: auto]",
    ),
    _how(
        "--flush-l2/--no-flush-l2",
        default=None,
        help="Flush the L2 cache of the GPU, or the caches of the CPU, before each iteration. "
        "[default: no-flush-l2]",
    ),
    _how(
        "--accuracy/--no-accuracy",
        "check_accuracy",
        default=None,
        help="Check results against the baseline and a float64 reference. [default: accuracy]",
    ),
)

MEMORY_LIMIT: Final[Option] = _how(
    "--memory-limit", metavar="SIZE", help="Memory limit of one worker, such as 8GiB."
)


def step_limit(default: str) -> Option:
    """Return the option for the time limit of one worker step; the default depends on the command."""
    return _how(
        "--step-limit",
        metavar="DURATION",
        help=f"Time limit of building, checking, compiling and warming up. [default: {default}]",
    )


LIMIT_OPTIONS: Final[tuple[Option, ...]] = (MEMORY_LIMIT, step_limit("600s"))

NOTE_OPTIONS: Final[tuple[Option, ...]] = (
    _out(
        "--revision",
        metavar="TEXT",
        help="What is measured, such as a commit. [default: the commit of the CI job, else of torch]",
    ),
    _out(
        "--note",
        "notes",
        multiple=True,
        metavar="TEXT",
        help="Store a note with the run. May be repeated.",
    ),
)


def request_of_study_options(options: dict[str, Any]) -> Any:
    """Return the part of a `Request` that these options set; paths are relative to the current folder.

    A command may have only some of them; a missing option counts as not given.
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
        optimizer_step=options.get("optimizer_step"),
        eval_mode=options.get("eval_mode"),
        **checked_numbers(options, "batch_size", "ranks", "nodes"),
        budget=checked_numbers(options, "time", "precision_goal", "margin", "max_launches"),
        settings={
            **checked_numbers(options, "threads", "seed", "memory_limit", "step_limit"),
            **{
                key: options[key]
                for key in ("reseat", "paired_layout", "start", "flush_l2", "check_accuracy")
                if options.get(key) is not None
            },
        },
    )


def spec_of_option(text: str, where: str, folder: Path) -> Any:
    """Return the text of an option that names a variant or a workload."""
    from torchyard.bench.request import SpecText

    return SpecText(text=text, where=where, folder=folder)


def checked_numbers(options: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the given options as checked numbers, by the name of the field that each sets."""
    from torchyard.core.number_checks import CHECKS

    option_names = {"max_launches": "--launches"}
    return {
        CHECKS[name].field_name: CHECKS[name].read(
            options[name], where=option_names.get(name, "--" + name.replace("_", "-"))
        )
        for name in names
        if options.get(name) is not None
    }


def _environments(
    texts: tuple[str, ...], preloads: tuple[str, ...], folder: Path
) -> dict[str, Any]:
    """Return environments by name; a preload is merged with variables of the same name."""
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
                    f"--env: {item!r} in {text!r} is not a variable",
                    hint="write NAME=KEY=VALUE,KEY=VALUE, such as one=OMP_NUM_THREADS=1",
                )
            variables.setdefault(name, {})[key] = value
    for text in preloads:
        name, equals, rest = text.partition("=")
        check_name(name, where="--preload")
        names = [library for library in rest.split(":") if library]
        if not equals or not names:
            raise UsageError(
                f"--preload: {text!r} names no library",
                hint="write NAME=LIBRARY, such as tcmalloc=libtcmalloc.so.4",
            )
        libraries.setdefault(name, []).extend(
            str(folder / Path(library).expanduser()) if "/" in library else library
            for library in names
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

# Repeated here to keep `--help` fast, which does not import `core`; a test compares both.
MODES: Final = ("inference", "training", "generate", "prefill", "decode")
PRECISIONS: Final = ("float32", "float16", "bfloat16", "amp")
TUNES: Final = ("auto", "cpu", "gpu", "all")


_OPTIONS: Final = (
    _what(
        "--suite",
        "suites",
        multiple=True,
        metavar="SUITE",
        help="Run every workload of a suite. May be repeated.",
    ),
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
        help="May be repeated. `generate`: prefill and decode of a language model. "
        "[default: inference]",
    ),
    _what(
        "--script",
        metavar="FILE.py",
        help="Training script whose steps are timed; it runs in the current folder.",
    ),
    _what(
        "--step",
        metavar="NAME",
        help="With --script: function whose calls are the steps: train_step, Trainer.step, trainer.step. [default: steps of the optimizer]",
    ),
    _what(
        "--script-args",
        metavar="TEXT",
        help="With --script: its arguments: '--epochs 2 --batch 32'.",
    ),
    *(option for option in DEVICE_OPTIONS if option is not BATCH_OPTION),
    LARGEST_BATCH_OPTION,
    RANKS_OPTION,
    NODES_OPTION,
    *BASELINE_OPTIONS,
    _run(
        "--candidate",
        "candidates",
        multiple=True,
        metavar="SPEC",
        help="Variant to compare: inductor, inductor:max-autotune+bfloat16, mine.py:function. [default: the other targets, else the environments, else inductor]",
    ),
    _run(
        "--row",
        metavar="RUN:N",
        help="Repeat row N of an earlier run with its settings.",
    ),
    _run(
        "--command",
        "commands",
        multiple=True,
        metavar="COMMAND",
        help="A whole program, such as 'python a.py'; the first is the baseline.",
    ),
    _run("--shell", is_flag=True, help="Run the commands by /bin/sh."),
    _run(
        "--warmup",
        type=Count(0, 1000),
        metavar="N",
        help="Runs of each command before timing. [default: 1]",
    ),
    _run(
        "--backend",
        metavar="SPEC",
        help="With several files: how they run, such as inductor+bfloat16. [default: eager]",
    ),
    _run(
        "--precision",
        type=click.Choice(PRECISIONS),
        help="Precision of every variant that names none. [default: float32]",
    ),
    *PLACE_OPTIONS,
    *STOP_OPTIONS,
    *MEASURE_OPTIONS,
    _how(
        "--tune",
        is_flag=True,
        help="Quiet the machine for this run; needs root.",
    ),
    _how(
        "--tune-profile",
        type=click.Choice(TUNES),
        default="auto",
        help="With --tune: what to quiet; auto: the devices that are used. [default: auto]",
    ),
    _how(
        "--cores",
        metavar="LIST|auto",
        help="With --tune: cores to isolate and measure on, such as 2-7.",
    ),
    *LIMIT_OPTIONS,
    _out(
        "--run-dir",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="FOLDER",
        help="Store the run here instead of in the results directory.",
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
    _out("--why", is_flag=True, help="Explain the largest difference afterwards: `torchyard why`."),
    _out("--dry-run", is_flag=True, help="Show the plan without running it."),
    _out("-q", "--quiet", is_flag=True, help="No progress on stderr."),
)


bench_options: Final = all_options(_OPTIONS)
"""Adds the options of `bench`, except those common to all commands."""


def request_of_options(options: dict[str, Any]) -> Any:
    """Return the `Request` of the options; paths are relative to the current folder."""
    from dataclasses import replace

    from torchyard.bench.request import WorkloadChoice
    from torchyard.bench.workload_text import check_suite, choose_workload
    from torchyard.core.study import modes_named

    folder = Path.cwd()
    request = request_of_study_options(options)
    for suite in options["suites"]:
        check_suite(suite, where="--suite")
    whole = [WorkloadChoice(where="--suite", suite=suite) for suite in options["suites"]]
    single = [choose_workload(spec_of_option(text, "--only", folder)) for text in options["only"]]
    if options.get("python_file") is not None:
        single.insert(0, choose_workload(spec_of_option(options["python_file"], "FILE.py", folder)))
    backend = options.get("backend")
    return replace(
        request,
        candidates=tuple(
            spec_of_option(text, "--candidate", folder) for text in options["candidates"]
        ),
        files=tuple(
            spec_of_option(text, "FILE.py", folder) for text in options.get("other_files", ())
        ),
        backend=spec_of_option(backend, "--backend", folder) if backend is not None else None,
        precision=options["precision"],
        workloads=(*whole, *single),
        modes=modes_named(options["modes"]),
    )

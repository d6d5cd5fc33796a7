"""`torchyard sweep run`: options, plan, and start or resume of a sweep.

An option has the name of the key of the `[sweep]` table that it overrides. Lists are written with
commas, or by repeating the option.
"""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from torchyard.bench.commands.options import (
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
from torchyard.cli.options import (
    FILE,
    FOLDER,
    SectionedCommand,
    all_options,
    given_options,
    section,
    without_defaults,
)
from torchyard.cli.output import common_options, print_message, print_result

if TYPE_CHECKING:
    from torchyard.sweep.folder import SweepFolder
    from torchyard.sweep.model import SweepPlan

F = TypeVar("F", bound=Callable[..., Any])

# Repeated here because `--help` must not load `sweep.model`; a test compares the two.
EXECUTORS: Final = ("local", "slurm")

_what, _run, _how = section("What to run"), section("What to compare"), section("How to measure")
_where, _out = section("Where cells run"), section("Where results go")

_OPTIONS: Final = (
    _what("--suites", multiple=True, metavar="LIST", help="Suites to run, such as models,kernels."),
    _what(
        "--workload",
        "workloads",
        multiple=True,
        metavar="WORKLOAD",
        help="Add a workload: SUITE/NAME, NAME, NAME:key=value,..., FILE.py or FILE.py:OBJECT.",
    ),
    _what(
        "--modes",
        multiple=True,
        metavar="LIST",
        help="inference, training, generate, or several joined by commas. [default: inference]",
    ),
    _what(
        "--only",
        multiple=True,
        metavar="PATTERN",
        help="Run only workloads that match, such as 'timm/resnet*'; repeatable.",
    ),
    _what("--exclude", multiple=True, metavar="PATTERN", help="Skip workloads that match."),
    _what(
        "--shard",
        metavar="PART/PARTS",
        help="Run one of several equal parts, such as 1/4.",
    ),
    *(option for option in DEVICE_OPTIONS if option is not BATCH_OPTION),
    LARGEST_BATCH_OPTION,
    *BASELINE_OPTIONS,
    _run(
        "--backends",
        multiple=True,
        metavar="LIST",
        help="Candidates of every cell, such as inductor,aot_eager. [default: inductor]",
    ),
    _run(
        "--precisions",
        multiple=True,
        metavar="LIST",
        help="Precisions, one cell each: float32, float16, bfloat16, amp. [default: float32]",
    ),
    _run(
        "--null/--no-null",
        default=None,
        help="A/A sweep, for the false alarm rate: each candidate is the baseline again.",
    ),
    *PLACE_OPTIONS,
    *STOP_OPTIONS,
    *MEASURE_OPTIONS,
    *LIMIT_OPTIONS,
    _how(
        "--budget",
        metavar="DURATION",
        help="Wall time of the sweep, such as 30m: one launch of each cell, then more where they bring a verdict soonest. [default: until every cell is decided]",
    ),
    _how(
        "--cell-limit",
        metavar="DURATION",
        help="Wall time of one attempt at a cell. [default: none]",
    ),
    _how("--tries", metavar="N", help="Attempts at a cell that crashes or hangs. [default: 2]"),
    _where("--executor", metavar="NAME", help="local or slurm. [default: local]"),
    _where(
        "--at-most",
        metavar="N",
        help="Concurrent cells, timed one at a time. [default: 1 with local]",
    ),
    _where(
        "--reserve-cores",
        metavar="N",
        help="CPUs for the timed cell; other cells compile on the rest. 0 pauses them. "
        "[default: up to 4 for cells on a GPU if enough remain, else 0]",
    ),
    _where("--partition", metavar="NAME", help="Slurm partition."),
    _where("--account", metavar="NAME", help="Slurm account."),
    _where("--qos", metavar="NAME", help="Slurm quality of service."),
    _where("--gpus", metavar="N", help="GPUs per job: a number, or h200:1."),
    _where("--cpus", metavar="N", help="CPUs per job."),
    _where("--job-memory", metavar="SIZE", help="Memory per job, such as 16G."),
    _where("--exclusive/--no-exclusive", default=None, help="Whether each job gets a whole node."),
    _where("--job-time", metavar="DURATION", help="Time limit per job, such as 2h."),
    _where(
        "--slurm",
        multiple=True,
        metavar="OPTION=VALUE",
        help="Any other sbatch option, such as constraint=h200.",
    ),
    _out("--plan", "plan_only", is_flag=True, help="Show the plan and exit."),
    _out(
        "--calibrate",
        is_flag=True,
        help="Run each workload once first, for better time and memory estimates.",
    ),
    _out(
        "--resume",
        metavar="FOLDER|latest",
        help="Resume a sweep with its own plan.",
    ),
    _out(
        "--take-over",
        is_flag=True,
        help="With --resume, also measure cells that another host or container, now ended, had started.",
    ),
    _out(
        "--run-dir",
        type=FOLDER,
        metavar="FOLDER",
        help="Folder of the sweep. [default: a new one in the sweeps directory]",
    ),
    _out(
        "--name",
        metavar="TEXT",
        help="Name of its runs. [default: the study file's name, or sweep]",
    ),
    *NOTE_OPTIONS,
    _out("-q", "--quiet", is_flag=True, help="Do not show plan and progress on stderr."),
)

ALLOWED_WITH_RESUME: Final = frozenset(
    {"resume", "quiet", "calibrate", "plan_only", "take_over", "budget"}
)
"""Options allowed with --resume. All others would change the existing plan."""


def sweep_options(command: F) -> F:
    """Add the options of `sweep run`, except those that all commands have."""
    return all_options(_OPTIONS)(command)


def check_calibration(plan: Any, *, calibrating: bool) -> None:
    """Raise UsageError if a calibration would not match what the cells run, or where."""
    from torchyard.errors import UsageError

    if calibrating and plan.largest_batches:
        raise UsageError(
            "--calibrate cannot be combined with a batch size search",
            why="workloads are calibrated with their own batch size",
            hint="remove --calibrate, or set a batch size",
        )
    if calibrating and plan.executor.name != "local":
        raise UsageError(
            "--calibrate needs --executor local",
            why="it measures this machine, but the cells run on a cluster",
            hint="remove --calibrate; estimates use earlier runs of the cluster",
        )


def sweep_request_of_options(options: dict[str, Any]) -> Any:
    """Return the `SweepRequest` of the options; paths are relative to the current folder."""
    from dataclasses import replace

    from torchyard.bench.request import WorkloadChoice
    from torchyard.bench.workload_text import check_suite, choose_workload
    from torchyard.sweep.sweep_file import (
        Patterns,
        SweepRequest,
        check_executor,
        executor_options,
        parse_shard,
        read_modes,
        read_precisions,
    )

    folder = Path.cwd()
    search_batch = options["batch_size"] == LARGEST
    if search_batch:
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
    limits = checked_numbers(options, "budget", "cell_limit", "tries")
    return SweepRequest(
        study=study,
        precisions=read_precisions(_listed(options["precisions"]), where="--precisions"),
        patterns=Patterns(only=options["only"], exclude=options["exclude"]),
        shard=None if options["shard"] is None else parse_shard(options["shard"]),
        budget_s=limits.get("budget_s"),
        cell_s=limits.get("cell_s"),
        tries=limits.get("tries"),
        null=options["null"],
        largest_batches=True if search_batch else None,
        executor=None if executor is None else check_executor(executor, where="--executor"),
        executor_options=executor_options(options, map(_sbatch_option, options["slurm"])),
    )


def _sbatch_option(text: str) -> tuple[str, str | bool]:
    name, equals, value = text.partition("=")
    return name.strip(), value if equals else True


def _listed(texts: Sequence[str]) -> list[str]:
    """Split comma-separated options into words, without duplicates."""
    words = [word.strip() for text in texts for word in text.split(",")]
    return list(dict.fromkeys(word for word in words if word))


_HELP = """
\b
Examples:
  torchyard sweep --suites models --plan
  torchyard sweep --suites models,kernels --backends inductor,aot_eager --time 20s
  torchyard sweep --suites models,kernels --budget 30m
  torchyard sweep nightly.toml --shard 1/4 --run-dir part-1
  torchyard sweep --suites models --null
  torchyard sweep --suites timm --device cuda --at-most 6 --reserve-cores 4
  torchyard sweep --resume latest

Measure whole suites. Each workload in each mode and precision is a cell, which is measured like
`torchyard bench`; the cells of each precision become one run. Options override the study file. Exit
code 5 if every cell failed, 6 if a result is untrusted, 124 if the time budget ended before any cell
had a launch, 130 after Ctrl-C.
"""


@click.command("run", cls=SectionedCommand, help=_HELP)
@click.argument(
    "study",
    required=False,
    metavar="[STUDY.toml]",
    type=FILE,
)
@sweep_options
@common_options
def run(study: Path | None, as_json: bool, **options: Any) -> int:
    """Plan and run a sweep, or resume one."""
    from torchyard.bench.target_checks import check_backends
    from torchyard.errors import UsageError
    from torchyard.sweep.commands.cell_progress import SweepSession
    from torchyard.sweep.commands.plan_text import estimate_of, sweep_plan_text
    from torchyard.sweep.execution import check_before_running, create_folder

    began_s = time.monotonic()
    quiet, calibrating = options["quiet"], options["calibrate"]
    folder: SweepFolder | None = None
    notes: list[str] = []
    if options["take_over"] and options["resume"] is None:
        raise UsageError("--take-over needs --resume", hint="add --resume FOLDER")
    if options["resume"] is not None:
        folder = _open_for_resume(study, options)
        plan, notes = _remaining_plan(folder, options)
    else:
        explicit, defaults = without_defaults(click.get_current_context(), options)
        plan, notes = plan_of_options(
            study,
            explicit,
            defaults,
            command=sys.argv,
            revision=options["revision"],
            notes=options["notes"],
        )
    check_calibration(plan, calibrating=calibrating)
    if plan.executor.name == "local":
        check_backends(cell.study for cell in plan.cells)
    if options["plan_only"]:
        return _show_plan(plan, folder, notes, options, as_json=as_json)
    check_before_running(plan)
    folder = folder or create_folder(plan, options["run_dir"])
    try:
        estimate = estimate_of(plan, folder.folder, calibrating=calibrating, quiet=quiet)
    except KeyboardInterrupt:
        print_message(f"resume with: torchyard sweep --resume {shlex.quote(str(folder.folder))}")
        raise
    if not quiet and plan.cells:
        print_message(sweep_plan_text(plan, estimate, notes=notes))
    if not quiet:
        print_message(f"sweep folder: {folder.folder}")
    session = SweepSession(
        folder=folder,
        quiet=quiet,
        expected_s=estimate.expected_s(),
        first_launch_s=estimate.first_launch_s(),
        deadline_s=math.inf if plan.limits.budget_s is None else began_s + plan.limits.budget_s,
        take_over=options["take_over"],
    )
    code = session.run_with_progress()
    if as_json:
        session.print_json()
    elif session.runs:
        session.print_table()
    if not quiet:
        for name, joined in session.runs.items():
            print_message(f"run {name}: {joined.folder}")
    return code


def _show_plan(
    plan: SweepPlan,
    folder: SweepFolder | None,
    notes: list[str],
    options: dict[str, Any],
    *,
    as_json: bool,
) -> int:
    """Print the plan and its estimate on stdout."""
    from torchyard.core.records import encode
    from torchyard.errors import NothingToDo
    from torchyard.sweep.commands.plan_text import estimate_of, sweep_plan_text

    if not plan.cells:
        raise NothingToDo("the sweep has no open cells", why="; ".join(notes))
    place = folder.folder if folder is not None else options["run_dir"]
    estimate = estimate_of(
        plan,
        place,
        calibrating=options["calibrate"],
        quiet=options["quiet"],
        keep=folder is not None,
    )
    whole = {
        **encode(estimate),
        "time_s": estimate.time_s,
        "first_pass_s": estimate.first_pass_s(),
    }
    text = sweep_plan_text(plan, estimate, all_cells=True, notes=notes)
    print_result({"plan": plan, "estimate": whole, "notes": notes}, text, as_json=as_json)
    return 0


def _open_for_resume(study: Path | None, options: dict[str, Any]) -> SweepFolder:
    """Return the sweep to resume; raise UsageError if options would change its plan."""
    from torchyard.errors import UsageError
    from torchyard.sweep.commands.manage import find_sweep
    from torchyard.sweep.folder import SweepFolder

    conflicting = [str(study)] if study is not None else []
    conflicting += given_options(click.get_current_context(), options, but=ALLOWED_WITH_RESUME)
    if conflicting:
        raise UsageError(
            f"--resume cannot be combined with {', '.join(conflicting)}",
            why="a sweep is resumed with its own plan",
            hint="remove these, or start a new sweep",
        )
    folder = SweepFolder.open(find_sweep(options["resume"]))
    if not options["plan_only"]:
        with folder.driving():  # fails here, before a calibration could disturb a running sweep
            pass
    return folder


def _remaining_plan(folder: SweepFolder, options: dict[str, Any]) -> tuple[SweepPlan, list[str]]:
    """Return the plan with the open cells only, and a note about the others.

    A time budget applies to each execution; `--budget` replaces the one of the plan.
    """
    from dataclasses import replace

    from torchyard.errors import UsageError
    from torchyard.sweep.commands.cell_progress import counts_text

    statuses = folder.statuses()
    closed = [status for status in statuses if not status.is_open]
    open_cells = tuple(status.cell for status in statuses if status.is_open)
    notes = [f"not included: {counts_text(closed)} in earlier runs"] if closed else []
    budget = checked_numbers(options, "budget")
    if budget and folder.plan.executor.name != "local":
        raise UsageError("--budget needs a sweep on this machine", hint="remove --budget")
    limits = replace(folder.plan.limits, **budget)
    return replace(folder.plan, cells=open_cells, limits=limits), notes


def plan_of_options(
    study: Path | None,
    given: dict[str, Any],
    defaults: dict[str, Any] | None = None,
    *,
    command: Sequence[str],
    revision: str | None = None,
    notes: Sequence[str] = (),
) -> tuple[SweepPlan, list[str]]:
    """Return the plan of the study file and options, and notes about it.

    `given` overrides the study file, which overrides `defaults`.
    """
    from torchyard.bench.commands.bench import revision_of_option
    from torchyard.sweep.plan import plan_sweep, unmatched_patterns
    from torchyard.sweep.sweep_file import (
        SweepRequest,
        check_executor_options,
        merge_sweeps,
        read_sweep_file,
    )

    from_file = read_sweep_file(study) if study is not None else SweepRequest()
    from_options = sweep_request_of_options(given)
    below = from_file
    if defaults is not None:
        below = merge_sweeps(sweep_request_of_options(defaults), from_file)
    request = merge_sweeps(below, from_options)
    check_executor_options(request, from_options)
    plan = plan_sweep(
        request,
        here=sys.executable,
        command=command,
        revision=revision_of_option(revision),
        notes=[note.strip() for note in notes if note.strip()],
    )
    unmatched = unmatched_patterns(request, here=sys.executable)
    return plan, [f"the pattern {pattern!r} matches no workload" for pattern in unmatched]

"""`torchyard values SCRIPT` and `torchyard values show`: profile a program, show a stored profile.

`torchyard values sweep` is `operator_sweep/command.py`, `torchyard values fix` is `patching/command.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from torchyard.cli.group import CommandTable, RunningGroup
from torchyard.cli.options import (
    FILE,
    FOLDER,
    Count,
    SectionedCommand,
    note_options_behind,
    section,
)
from torchyard.cli.output import (
    check_writable,
    common_options,
    print_data,
    print_json,
    print_message,
    printable,
    write_file,
)

_what, _how, _out = section("What to run"), section("Profiling"), section("Output")

_RUN_HELP = """
\b
Examples:
  torchyard values train.py --epochs 1
  torchyard values --deep --html waste.html train.py
  torchyard values --workload models/gpt --mode training --steps 8
  torchyard values --target build:pytorch-2.6.0-trimmed -m mypackage.train
  torchyard values --ranks 2 train_ddp.py
  torchyard values -m torch.distributed.run -- --nproc-per-node 2 train_ddp.py

Run a Python program and inspect the values that its operators write. The program keeps its output,
signals and exit code; if it fails, the findings so far are stored and reported. The exit code is 7
if the program succeeded and a finding meets a --fail-on condition.

A program that succeeds is then run again without the profiler, to confirm and time the findings.
"""


@click.command(
    cls=SectionedCommand,
    help=_RUN_HELP,
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGUMENTS]...")
@_what("-m", "module", metavar="MODULE", help="Run a module, as `python -m` does.")
@_what(
    "--workload", metavar="SUITE/NAME", help="Profile a workload of a suite instead of a script."
)
@_what(
    "--mode",
    type=click.Choice(("inference", "training")),
    default="training",
    help="Mode of the workload. [default: training]",
)
@_what("--steps", default=4, type=Count(1), help="Steps of the workload. [default: 4]")
@_what("--batch-size", type=Count(1), help="Batch size of the workload. [default: its own]")
@_what(
    "--device",
    default="cpu",
    metavar="DEVICE",
    help="Device of the workload: cpu, cuda, cuda:1. [default: cpu]",
)
@_what(
    "--precision",
    type=click.Choice(("float32", "float16", "bfloat16", "amp")),
    default="float32",
    help="Precision of the workload. [default: float32]",
)
@_what(
    "--target",
    metavar="PYTHON",
    help="Python interpreter or build:NAME. [default: this interpreter]",
)
@_what(
    "--ranks",
    default=1,
    type=Count(1),
    metavar="N",
    help="Start N processes of the script, with the variables of a process group. [default: 1]",
)
@_what("--eager", is_flag=True, help="Disable torch.compile and profile the eager program.")
@_how("--deep/--fast", default=False, help="Also profile inside C++ operators. [default: fast]")
@_how(
    "--every", default=1, type=Count(1), metavar="N", help="Profile every N-th step. [default: 1]"
)
@_how(
    "--skip-steps",
    default=0,
    type=Count(0),
    metavar="N",
    help="Skip the first N steps. [default: 0]",
)
@_how(
    "--close-steps",
    default=3,
    type=Count(0),
    metavar="N",
    help="Profile N steps in full, then only changes; 0: all steps in full. [default: 3]",
)
@_how(
    "--last-step",
    default=0,
    type=Count(0),
    metavar="N",
    help="Stop profiling after step N. [default: no limit]",
)
@_how(
    "--least",
    default="4KiB",
    metavar="SIZE",
    help="Only count tensors below this size. [default: 4KiB]",
)
@_how("--memory", default="256MiB", metavar="SIZE", help="Limit of extra memory. [default: 256MiB]")
@_how(
    "--device-memory",
    default="4GiB",
    metavar="SIZE",
    help="Limit of extra GPU memory. [default: 4GiB]",
)
@_how("--prove/--no-prove", default=True, help="Test findings with trials. [default: prove]")
@_how(
    "--once",
    is_flag=True,
    help="Run the program only once: findings are neither confirmed nor timed.",
)
@_how(
    "--gains",
    is_flag=True,
    help="Measure what fixes save: run the program with and without the largest fixes; takes minutes.",
)
@_how("--approximate", is_flag=True, help="Also report approximate patterns (hints, not proofs).")
@_out(
    "--fail-on",
    "limits",
    multiple=True,
    metavar="LIMIT",
    help="Fail if a finding meets the condition: any, proven, tested, a pattern, share=1%, ...",
)
@_out("--html", type=FILE, help="Write an HTML report to a file.")
@_out("--run-dir", type=FOLDER, help="Directory for the profile; must be new or empty.")
@_out("-q", "--quiet", is_flag=True, help="Do not print progress to stderr.")
@common_options
def run(program: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Profile a program."""
    from torchyard.core.records import encode
    from torchyard.errors import GateFailed, UsageError
    from torchyard.values.fail_on import crossed, parse_limit
    from torchyard.values.pattern_texts import pattern_names
    from torchyard.values.profiled_run import profile_program
    from torchyard.values.report.findings_text import values_text

    if not options["quiet"]:
        note_options_behind(((options["module"],) if options["module"] else ()) + program)
    request = _request(program, as_json, options)
    limits = [parse_limit(text, pattern_names()) for text in options["limits"]]
    if options["html"] is not None:
        check_writable(options["html"], option="--html")
    if options["once"] and options["gains"]:
        raise UsageError(
            "--once and --gains cannot be combined: gains need more runs of the program",
            hint="remove one of them",
        )
    say = (lambda _: None) if options["quiet"] else print_message
    profile, path = profile_program(
        request, folder=options["run_dir"], say=say, gains=options["gains"], once=options["once"]
    )
    if options["html"] is not None:
        from torchyard.values.report.findings_page import values_html

        write_file(options["html"], values_html(profile), option="--html")
    failed = crossed(profile, limits)
    if as_json:
        failing = [{"limit": limit.text, "finding": encode(one)} for limit, one in failed]
        print_json({"profile": encode(profile), "file": str(path), "crossed": failing})
    else:
        sys.stdout.flush()
        print_data(printable(values_text(profile)))
    say(f"profile: {path}")
    if profile.exit_code:
        return profile.exit_code
    for limit, finding in failed:
        where = f"{finding.place.file}:{finding.place.line}"
        print_message(
            printable(f"--fail-on {limit.text}: {finding.pattern} by {finding.operator} at {where}")
        )
    return GateFailed.exit_code if failed else 0


def _request(program: tuple[str, ...], as_json: bool, options: dict[str, Any]) -> Any:
    from torchyard.cli.build_target import target_or_here
    from torchyard.core.units import parse_bytes
    from torchyard.errors import UsageError
    from torchyard.values.model import ProfileRequest, ProfilingOptions

    if options["module"]:
        program = ("-m", options["module"], *program)
    if bool(program) == bool(options["workload"]):
        raise UsageError(
            "give a script or a workload" + (", not both" if program else ""),
            hint="`torchyard values SCRIPT` or `torchyard values --workload SUITE/NAME`",
        )
    if options["workload"] and options["ranks"] > 1:
        raise UsageError(
            "a workload has no ranks in `values`", hint="remove --ranks, or give a script"
        )
    target = target_or_here(options["target"])
    return ProfileRequest(
        target=target,
        program=program,
        workload=_workload(options) if options["workload"] else None,
        steps=options["steps"],
        precision=options["precision"],
        eager=options["eager"],
        ranks=options["ranks"],
        quiet_program=as_json,
        options=ProfilingOptions(
            deep=options["deep"],
            every=options["every"],
            first_steps=options["skip_steps"],
            close_steps=options["close_steps"],
            last_step=options["last_step"],
            least_bytes=parse_bytes(options["least"]),
            memory_bytes=parse_bytes(options["memory"]),
            device_memory_bytes=parse_bytes(options["device_memory"]),
            prove=options["prove"],
            approximate=options["approximate"],
        ),
    )


def _workload(options: dict[str, Any]) -> Any:
    from dataclasses import replace

    from torchyard.bench.request import SpecText
    from torchyard.bench.workload_text import choose_workload, expand
    from torchyard.core.variant_parts import PROFILED_DEVICES, check_device
    from torchyard.errors import UsageError

    spec = SpecText(text=options["workload"], where="--workload", folder=Path.cwd())
    choice = choose_workload(spec)
    device = check_device(options["device"], where="--device", kinds=PROFILED_DEVICES)
    settings = {"modes": (options["mode"],), "batch_size": options["batch_size"]}
    workload = expand(replace(choice, device=device, optimizer_step=True, **settings))[0]
    if workload.ranks > 1:
        raise UsageError("values does not support several ranks", hint="remove ranks=N")
    return workload


if TYPE_CHECKING:
    from torchyard.values.model import ValueProfile


FORMATS = ("text", "markdown", "html", "json", "dot", "graph-json")

_SHOW_HELP = """
\b
Examples:
  torchyard values show                                   the latest profile
  torchyard values show latest --format html --output waste.html
  torchyard values show ./profile --format dot | dot -Tsvg > flow.svg

Show a stored profile: `latest`, a folder, or a file.
"""


@click.command(help=_SHOW_HELP)
@click.argument("profile", default="latest")
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="text", help="[default: text]"
)
@click.option("--output", type=FILE, metavar="FILE", help="Write to a file instead of stdout.")
@common_options
def show(profile: str, form: str, output: Path | None, as_json: bool) -> None:
    """Show a stored profile."""
    from torchyard.core.records import encode
    from torchyard.values.model import find_profile, read_profile

    if output is not None:
        check_writable(output, option="--output")
    stored = read_profile(find_profile(profile))
    if as_json:
        print_json({"profile": encode(stored)})
        return
    text = _text(stored, form)
    if output is not None:
        write_file(output, text, option="--output")
    else:
        print_data(text if form == "html" else printable(text))


def _text(profile: ValueProfile, form: str) -> str:
    from torchyard.values.report.findings_page import values_html
    from torchyard.values.report.findings_text import (
        flow_dot,
        flow_json,
        values_json,
        values_markdown,
        values_text,
    )

    forms: dict[str, Callable[[ValueProfile], str]] = {
        "text": values_text,
        "markdown": values_markdown,
        "html": values_html,
        "json": values_json,
        "dot": flow_dot,
        "graph-json": flow_json,
    }
    return forms[form](profile)


VALUES_COMMANDS: Final[CommandTable] = {
    "sweep": (
        "torchyard.values.operator_sweep.command:sweep",
        "search the operators of a torch build for wasted work",
    ),
    "fix": (
        "torchyard.values.patching.command:fix",
        "propose verified source patches for findings",
    ),
    "show": ("torchyard.values.command:show", "show a stored profile in any format"),
}
"""Name -> (location of the click command, one line of help)."""

_GROUP_HELP = """
\b
Examples:
  torchyard values train.py --epochs 1
  torchyard values --deep --html waste.html train.py
  torchyard values --workload models/gpt --mode training
  torchyard values --fail-on proven,share=1% train.py
  torchyard values show latest --format html --output waste.html
  torchyard values fix train.py

Find wasted work in a PyTorch program by value profiling: writes that change nothing, zeros that are
overwritten, redundant copies, dtypes that are too wide. All arguments after SCRIPT are passed to the
script.
"""


@click.group(
    cls=RunningGroup,
    table=VALUES_COMMANDS,
    run="torchyard.values.command:run",
    run_help="`torchyard values run --help` shows the options.",
    help=_GROUP_HELP,
    no_args_is_help=True,
    subcommand_metavar="SCRIPT|COMMAND [OPTIONS]",
)
def values() -> None:
    """Find wasted work by value profiling."""

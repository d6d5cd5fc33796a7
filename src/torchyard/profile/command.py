"""The click command `torchyard profile`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchyard.cli import output
from torchyard.cli.options import (
    FILE,
    FOLDER,
    Count,
    SectionedCommand,
    Threads,
    note_options_behind,
    section,
)
from torchyard.errors import MissingTool, UsageError

if TYPE_CHECKING:
    from torchyard.profile.model import ToolProfile
    from torchyard.profile.tool_run import PlannedRun


_what, _how, _out = section("What to run"), section("Recording"), section("Output")

TOOL_NAMES = ("torch", "perf", "callgrind", "nsys", "ncu", "rocprof", "gvprof")

_HELP = """
\b
Examples:
  torchyard profile train.py --epochs 1                      torch.profiler
  torchyard profile --skip-steps 2 --active-steps 5 --html time.html train.py
  torchyard profile --tool perf --target build:pytorch-2.6.0-trimmed train.py
  torchyard profile --tool gvprof --dry-run train.py         print the command only
  torchyard profile --show latest --html time.html

Run a Python program under a profiler. The program keeps its output, signals and exit code; if it
fails, the data recorded so far are kept. If the profiler is not installed, the command prints what is
missing and the exact command line, and exits with code 4.

\b
Tools:
  torch      operators, kernels, memory and a Chrome trace (torch.profiler in the target)
  perf       stack samples; software and hardware counters
  callgrind  exact instruction counts per function; very slow
  nsys, ncu  timeline and kernel metrics of NVIDIA GPUs
  rocprof    kernels and memory copies of AMD GPUs (rocprofv3)
  gvprof     value patterns of CUDA programs (GVProf's hpcrun)
"""


@click.command(
    cls=SectionedCommand,
    help=_HELP,
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGUMENTS]...")
@_what(
    "--tool",
    type=click.Choice(TOOL_NAMES),
    default="torch",
    help="Profiler to use. [default: torch]",
)
@_what("-m", "module", metavar="MODULE", help="Run a module, as `python -m` does.")
@_what(
    "--target",
    metavar="PYTHON|build:NAME",
    help="Python interpreter or build to run the program with. [default: this interpreter]",
)
@_what("--dry-run", is_flag=True, help="Print the shell command without running it.")
@_what("--show", metavar="PROFILE", help="Show a stored profile: latest, a folder or a file.")
@_how(
    *("--skip-steps", "skip_steps"),
    default=0,
    type=Count(0),
    metavar="N",
    help="Optimizer steps to skip before recording (torch, callgrind, nsys, ncu). [default: 0]",
)
@_how(
    *("--warm-steps", "warm_steps"),
    default=0,
    type=Count(0),
    metavar="N",
    help="Warm-up steps: profiler on, nothing recorded (torch). [default: 0]",
)
@_how(
    *("--active-steps", "active_steps"),
    default=0,
    type=Count(0),
    metavar="N",
    help="Steps to record after that. [default: all remaining steps]",
)
@_how(
    "--limit",
    default="60s",
    metavar="TIME",
    help="Stop recording after this time (torch). [default: 60s]",
)
@_how("--shapes/--no-shapes", default=True, help="Record input shapes (torch). [default: shapes]")
@_how(
    "--memory/--no-memory", default=True, help="Record memory use (torch, nsys). [default: memory]"
)
@_how(
    "--stacks/--no-stacks",
    default=False,
    help="Record Python stacks (torch, nsys). [default: no-stacks]",
)
@_how(
    "--event",
    "events",
    multiple=True,
    metavar="NAME",
    help="perf: event; nsys: API; ncu: section; rocprof: counter; gvprof: analysis (data_flow, value_pattern).",
)
@_how(
    "--frequency",
    default=199,
    type=Count(1, 100_000),
    help="Samples per second (perf). [default: 199]",
)
@_how(
    "--call-graph",
    type=click.Choice(("fp", "dwarf", "lbr")),
    default="fp",
    help="Stack unwinding method (perf). [default: fp]",
)
@_how(
    "--launches",
    default=100,
    type=Count(1),
    help="Kernel launches to profile (ncu). [default: 100]",
)
@_how(
    "--threads",
    type=Threads(),
    help="Threads of OpenMP, MKL and OpenBLAS. [default: unchanged; callgrind: 1]",
)
@_how(
    "--knob",
    "knobs",
    multiple=True,
    metavar="NAME=VALUE",
    help="Control knob of GVProf's hpcrun (-ck).",
)
@_how(
    "--tool-arg", "extra", multiple=True, metavar="WORD", help="Argument passed on to the profiler."
)
@_out("--rows", default=20, type=Count(1), help="Rows of the table. [default: 20]")
@_out("--html", type=FILE, help="Write an HTML report to a file.")
@_out("--run-dir", type=FOLDER, help="Directory for the results; must be new or empty.")
@_out("-q", "--quiet", is_flag=True, help="Do not print progress to stderr.")
@output.common_options
def profile(program: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Run a program under a profiler."""
    if options["html"] is not None:
        output.check_writable(options["html"], option="--html")
    if options["show"] is not None:
        return _show_stored(program, as_json, options)
    if not options["quiet"]:
        note_options_behind(((options["module"],) if options["module"] else ()) + program)
    planned = _plan(program, options)
    if options["dry_run"]:
        if as_json:
            output.print_json(_command_record(planned))
        else:
            output.print_data(output.printable(planned.shell))
        return 0
    if planned.installed is None:
        return _report_missing_tool(planned, as_json=as_json)
    from torchyard.profile.tool_run import run_planned

    report_progress = (lambda _: None) if options["quiet"] else output.print_message
    result, path = run_planned(
        planned, folder=options["run_dir"], quiet_program=as_json, report_progress=report_progress
    )
    _show(result, path, as_json, options)
    report_progress(f"profile: {path}")
    return result.exit_code


def _plan(program: tuple[str, ...], options: dict[str, Any]) -> PlannedRun:
    from torchyard.cli.build_target import target_or_here
    from torchyard.core.units import parse_duration_s
    from torchyard.profile.tool_run import plan_run
    from torchyard.profile.tools.interface import ToolOptions

    if options["module"]:
        program = ("-m", options["module"], *program)
    target = target_or_here(options["target"])
    tool_options = ToolOptions(
        **{
            key: options[key]
            for key in (
                *("shapes", "memory", "stacks", "skip_steps", "warm_steps", "active_steps"),
                *("events", "call_graph", "launches", "threads", "extra"),
            )
        },
        most_s=parse_duration_s(options["limit"]),
        frequency_hz=options["frequency"],
        knobs=tuple(_knob(text) for text in options["knobs"]),
    )
    return plan_run(options["tool"], target, program, tool_options)


def _knob(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(
            f"--knob: {text!r} is not of the form NAME=VALUE",
            hint="for example --knob HPCRUN_SANITIZER_DATA_FLOW_HASH=1",
        )
    return name, value


def _report_missing_tool(planned: PlannedRun, *, as_json: bool) -> int:
    """Print the command line on stdout and what is missing on stderr."""
    error = MissingTool(
        f"--tool {planned.tool.name}: {planned.missing}",
        why="the command printed on stdout was not run",
        hint=f"install {planned.tool.name}: {planned.tool.package}",
    )
    if as_json:
        record = {
            "kind": type(error).__name__,
            "exit_code": error.exit_code,
            "what": error.what,
            "why": error.why,
            "hint": error.hint,
            "log": error.log,
        }
        output.print_json({"error": record, **_command_record(planned)})
    else:
        output.print_data(output.printable(planned.shell))
    sys.stdout.flush()
    output.print_error(error, as_json=False, exit_code=error.exit_code)
    return error.exit_code


def _command_record(planned: PlannedRun) -> dict[str, Any]:
    return {
        "tool": planned.tool.name,
        "installed": planned.installed is not None,
        "command": list(planned.command.words),
        "variables": dict(planned.command.variables),
        "shell": planned.shell,
        "notes": list(planned.command.notes),
    }


def _show_stored(program: tuple[str, ...], as_json: bool, options: dict[str, Any]) -> int:
    from torchyard.profile.model import find_tool_profile, read_tool_profile

    if program or options["module"] or options["dry_run"]:
        raise UsageError(
            "--show cannot be combined with a program, -m or --dry-run",
            hint="remove them, or remove --show to run the program",
        )
    path = find_tool_profile(options["show"])
    _show(read_tool_profile(path), path, as_json, options)
    return 0


def _show(result: ToolProfile, path: Path, as_json: bool, options: dict[str, Any]) -> None:
    from torchyard.core.records import encode
    from torchyard.profile.report import profile_text

    page: Path | None = options["html"]
    if page is not None:
        from torchyard.profile.report import profile_page

        files_at = os.path.relpath(path.parent, page.absolute().parent)
        output.write_file(page, profile_page(result, files_at=files_at), option="--html")
    if as_json:
        output.print_json({"profile": encode(result), "file": str(path)})
    else:
        sys.stdout.flush()
        text = profile_text(result, folder=path.parent, rows=options["rows"])
        output.print_data(output.printable(text))

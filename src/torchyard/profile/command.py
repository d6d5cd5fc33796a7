"""The click command `torchyard profile`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchyard.cli.options import Count, SectionedCommand, Threads, section
from torchyard.cli.output import (
    check_writable,
    common_options,
    print_data,
    print_error,
    print_json,
    printable,
    talk,
    write_file,
)

if TYPE_CHECKING:
    from torchyard.profile.model import ToolProfile
    from torchyard.profile.tool_run import PlannedRun

__all__ = ["profile"]

_what, _how, _out = section("What to run"), section("How to look"), section("Where results go")

TOOL_NAMES = ("torch", "perf", "callgrind", "nsys", "ncu", "rocprof", "gvprof")

_HELP = """
\b
Examples:
  torchyard profile train.py --epochs 1                      torch.profiler
  torchyard profile --skip-steps 2 --active-steps 5 --html time.html train.py
  torchyard profile --tool perf --target build:pytorch-2.6.0-trimmed train.py
  torchyard profile --tool gvprof --dry-run train.py         only print the command
  torchyard profile --show latest --html time.html

Run a program as Python runs it under a profiler, with the library path, variables and options that
a Python program in a target needs. Its output, signals and exit code are its own; when it fails,
what was recorded up to there is kept. Where the tool is not installed, the exact command is printed
with what is missing, and the exit code is 4.

\b
Tools:
  torch      operators, kernels, memory and a Chrome trace, inside the target
  perf       sampled stacks, counters of the kernel and processor
  callgrind  instructions of every function, exactly and slowly
  nsys, ncu  timeline and kernel counters of NVIDIA GPUs
  rocprof    kernels and copies of AMD GPUs (rocprofv3)
  gvprof     values of CUDA programs (GVProf's hpcrun)
"""


@click.command(
    cls=SectionedCommand,
    help=_HELP,
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGUMENTS]...")
@_what("--tool", type=click.Choice(TOOL_NAMES), default="torch", help="torch when left out.")
@_what("-m", "module", metavar="MODULE", help="Run a module, as `python -m` does.")
@_what(
    "--target",
    metavar="PYTHON|build:NAME",
    help="Interpreter with a torch; this one when left out.",
)
@_what("--dry-run", is_flag=True, help="Run nothing, and print the command for a shell.")
@_what("--show", metavar="PROFILE", help="Show a kept one again: latest, a folder or a file.")
@_how(
    *("--skip-steps", "skip_steps"),
    default=0,
    type=Count(0),
    metavar="N",
    help="Leave out the optimiser's first steps (torch, callgrind, nsys, ncu).",
)
@_how(
    *("--warm-steps", "warm_steps"),
    default=0,
    type=Count(0),
    metavar="N",
    help="Then have the profiler on for so many without recording (torch).",
)
@_how(
    *("--active-steps", "active_steps"),
    default=0,
    type=Count(0),
    metavar="N",
    help="Then record so many; to the end when left out.",
)
@_how(
    "--limit",
    default="60s",
    metavar="TIME",
    help="Stop recording after it (torch); 60s.",
)
@_how("--shapes/--no-shapes", default=True, help="Input shapes (torch); yes when left out.")
@_how("--memory/--no-memory", default=True, help="Memory (torch, nsys); yes when left out.")
@_how("--stacks/--no-stacks", default=False, help="Python stacks (torch, nsys); no.")
@_how(
    "--event",
    "events",
    multiple=True,
    metavar="NAME",
    help="perf: event to sample; nsys: API to trace; ncu: section; rocprof: counter; gvprof: "
    "data_flow, value_pattern, ...",
)
@_how("--frequency", default=199, type=Count(1, 100_000), help="Samples a second (perf).")
@_how(
    "--call-graph",
    type=click.Choice(("fp", "dwarf", "lbr")),
    default="fp",
    help="How perf walks stacks; fp.",
)
@_how("--launches", default=100, type=Count(1), help="Kernels to look at (ncu); 100.")
@_how("--threads", type=Threads(), help="Of torch's libraries; callgrind takes 1.")
@_how("--knob", "knobs", multiple=True, metavar="NAME=VALUE", help="Of GVProf's hpcrun (-ck).")
@_how("--tool-arg", "extra", multiple=True, metavar="WORD", help="Hand a word to the tool.")
@_out("--rows", default=20, type=Count(1), help="Rows of the table; 20.")
@_out("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write the page to a file.")
@_out("--run-dir", type=click.Path(file_okay=False, path_type=Path), help="Keep results here.")
@_out("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@common_options
def profile(program: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Run a program under a profiler."""
    if options["html"] is not None:
        check_writable(options["html"], option="--html")
    if options["show"] is not None:
        return _show_again(program, as_json, options)
    planned = _plan(program, options)
    if options["dry_run"]:
        if as_json:
            print_json(_command_record(planned))
        else:
            print_data(printable(planned.shell))
        return 0
    if planned.found is None:
        return _say_missing(planned, as_json=as_json)
    from torchyard.profile.tool_run import run_planned

    say = (lambda _: None) if options["quiet"] else talk
    made, path = run_planned(planned, folder=options["run_dir"], quiet_program=as_json, say=say)
    _show(made, path, as_json, options)
    say(f"profile: {path}")
    return made.exit_code


def _plan(program: tuple[str, ...], options: dict[str, Any]) -> PlannedRun:
    from torchyard.cli.build_target import with_build_folder
    from torchyard.core.study import Target
    from torchyard.core.units import parse_duration_s
    from torchyard.core.variant_parts import parse_target
    from torchyard.profile.tool_run import plan_run
    from torchyard.profile.tools.interface import ToolOptions

    if options["module"]:
        program = ("-m", options["module"], *program)
    target = Target(name="here", python=sys.executable)
    if options["target"]:
        text = with_build_folder(options["target"])
        target = parse_target(text, folder=Path.cwd(), where="--target", default_name="target")
    asked = ToolOptions(
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
    return plan_run(options["tool"], target, program, asked)


def _knob(text: str) -> tuple[str, str]:
    from torchyard.errors import UsageError

    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"--knob: {text!r} has no value", hint="write NAME=VALUE")
    return name, value


def _say_missing(planned: PlannedRun, *, as_json: bool) -> int:
    """What is missing, and on stdout the command that would be run."""
    from torchyard.errors import MissingTool

    error = MissingTool(
        f"--tool {planned.tool.name}: {planned.missing}",
        why="the command on stdout is what would be run",
        hint=f"install it: {planned.tool.package}",
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
        print_json({"error": record, **_command_record(planned)})
    else:
        print_data(printable(planned.shell))
    sys.stdout.flush()
    print_error(error, as_json=False, exit_code=error.exit_code)
    return error.exit_code


def _command_record(planned: PlannedRun) -> dict[str, Any]:
    return {
        "tool": planned.tool.name,
        "installed": planned.found is not None,
        "command": list(planned.command.words),
        "variables": dict(planned.command.variables),
        "shell": planned.shell,
        "notes": list(planned.command.notes),
    }


def _show_again(program: tuple[str, ...], as_json: bool, options: dict[str, Any]) -> int:
    from torchyard.errors import UsageError
    from torchyard.profile.model import find_tool_profile, read_tool_profile

    if program or options["module"] or options["dry_run"]:
        raise UsageError("--show runs nothing", hint="leave out the program and --dry-run")
    path = find_tool_profile(options["show"])
    _show(read_tool_profile(path), path, as_json, options)
    return 0


def _show(made: ToolProfile, path: Path, as_json: bool, options: dict[str, Any]) -> None:
    from torchyard.core.records import encode
    from torchyard.profile.report import profile_text

    page: Path | None = options["html"]
    if page is not None:
        from torchyard.profile.report_page import profile_page

        files_at = os.path.relpath(path.parent, page.absolute().parent)
        write_file(page, profile_page(made, files_at=files_at), option="--html")
    if as_json:
        print_json({"profile": encode(made), "file": str(path)})
    else:
        sys.stdout.flush()
        text = profile_text(made, folder=path.parent, rows=options["rows"])
        print_data(printable(text))

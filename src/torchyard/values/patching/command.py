"""`torchyard values fix`: verified patches for wasted work."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from torchyard.cli.options import FOLDER, Count, SectionedCommand, section
from torchyard.cli.output import common_options, print_data, print_json, print_message, printable

_what, _how, _out = section("What to patch"), section("Patches"), section("Output")
_INTERRUPTED: Final = 130

_HELP = """
\b
Examples:
  torchyard values fix train.py --epochs 1
  torchyard values fix latest
  torchyard values fix latest --finding 2 --apply
  torchyard values fix --class narrower-type train.py
  torchyard values fix SWEEP --source pytorch --rebuild

Propose source patches for the findings of a profile (`latest`, a folder, a file) or of a program, which is
profiled first. A patch is proposed only if the source implies that results stay the same, and verified in
a copy of the program: results must be equal bit for bit on several seeds, with garbage in uninitialized
memory, and paired runs measure the saving. For other findings the reason is printed.

No file is changed without --apply. The program runs about 20 times for one patch and 15 times for each
further one, which repeats its side effects. The exit code is 3 if no patch is proposed.

SWEEP is the folder of `torchyard values sweep`: patches of torch's own C++ source. It is that of the build, or
--source names that of the release. --rebuild builds a second library from the patched files and compares
results, tests and speed of both.
"""


class FixCommand(SectionedCommand):
    """A command whose words after a script belong to the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Separate the options of the command from the words of the program."""
        for number, word in enumerate(args):
            if word == "--":
                break
            if word == "-m":
                args = [*args[: number + 2], "--", *args[number + 2 :]]
                break
            if word.endswith(".py"):
                args = [*args[:number], "--", *args[number:]]
                break
        return super().parse_args(ctx, args)


@click.command(cls=FixCommand, help=_HELP)
@click.argument(
    "words", nargs=-1, type=click.UNPROCESSED, metavar="RUN|SCRIPT|SWEEP [ARGUMENTS]..."
)
@_what("-m", "module", metavar="MODULE", help="Run a module, as `python -m` does.")
@_what(
    "--target",
    metavar="PYTHON",
    help="Python interpreter or build:NAME. [default: this interpreter]",
)
@_what(
    "--finding", type=Count(1), metavar="N", help="Only this finding of the report. [default: all]"
)
@_how(
    "--class",
    "classes",
    multiple=True,
    type=click.Choice(("narrower-type", "sparse-gradient")),
    help=(
        "Also propose boolean masks (narrower-type) or sparse gradients of embeddings, which round differently."
    ),
)
@_how("--apply", "apply", is_flag=True, help="Change the files, after verification.")
@_how(
    "--source",
    type=FOLDER,
    help="With SWEEP of an installed torch: source tree of PyTorch in the same version.",
)
@_how("--rebuild", is_flag=True, help="With SWEEP: build and check the patched library.")
@_how(
    "--time",
    default="20s",
    show_default=True,
    metavar="DURATION",
    help="With --rebuild: measuring time of each comparison.",
)
@_out(
    "--run-dir", type=FOLDER, help="Directory for the profile of a program; must be new or empty."
)
@_out("-q", "--quiet", is_flag=True, help="Do not print progress to stderr.")
@common_options
def fix(words: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Propose verified patches."""
    from torchyard.cli.build_target import target_or_here
    from torchyard.core.records import encode
    from torchyard.errors import NothingToDo
    from torchyard.values.operator_sweep.model import SETTINGS_FILE
    from torchyard.values.patching.report import fix_text
    from torchyard.values.patching.session import apply_patches, fix_profile

    say = (lambda _: None) if options["quiet"] else print_message
    if len(words) == 1 and Path(words[0], SETTINGS_FILE).is_file():
        return _fix_torch(Path(words[0]), as_json, options, say)
    for option in ("rebuild", "source"):
        hint = "only torch itself is built: give the folder of a sweep"
        _refuse(f"--{option}", options[option], hint)
    target = target_or_here(options["target"])
    path, exit_code = _profile(words, target, as_json, options, say)
    if exit_code:
        return exit_code
    report, folder = fix_profile(
        path, target=target, finding=options["finding"], classes=options["classes"], say=say
    )
    if options["apply"] and report.proposed and not report.interrupted:
        report = apply_patches(report, folder)
    if as_json:
        print_json({"fixes": encode(report), "folder": str(folder)})
    else:
        print_data(printable(fix_text(report, folder=str(folder))))
    if report.interrupted:
        return _INTERRUPTED
    return 0 if report.proposed else NothingToDo.exit_code


def _fix_torch(sweep: Path, as_json: bool, options: dict[str, Any], say: Any) -> int:
    from torchyard.core.records import encode
    from torchyard.core.units import parse_duration_s
    from torchyard.errors import NothingToDo
    from torchyard.values.torch_patches.report import torch_fix_text
    from torchyard.values.torch_patches.session import fix_torch

    _refuse("--apply", options["apply"], "apply the printed patches to your source tree")
    _refuse("--target", options["target"], "the sweep names the interpreter")
    _refuse("--class", options["classes"], "classes are for patches of programs")
    report, folder = fix_torch(
        sweep,
        source_tree=options["source"],
        finding=options["finding"],
        rebuild=options["rebuild"],
        time_s=parse_duration_s(options["time"]),
        say=say,
    )
    if as_json:
        print_json({"patches": encode(report), "folder": str(folder)})
    else:
        print_data(printable(torch_fix_text(report, folder=str(folder))))
    if report.interrupted:
        return _INTERRUPTED
    return 0 if report.proposed else NothingToDo.exit_code


def _refuse(option: str, given: Any, hint: str) -> None:
    from torchyard.errors import UsageError

    if given:
        raise UsageError(f"{option} does not apply here", hint=hint)


def _profile(
    words: tuple[str, ...], target: Any, as_json: bool, options: dict[str, Any], say: Any
) -> tuple[Path, int]:
    """Return the file of the profile, after profiling a program; and the exit code of a program that failed."""
    from torchyard.errors import UsageError
    from torchyard.values.model import ProfileRequest, find_profile
    from torchyard.values.profiled_run import profile_program

    program = ("-m", options["module"], *words) if options["module"] else words
    if not program:
        program = ("latest",)
    if not options["module"] and not program[0].endswith(".py"):
        if len(program) > 1:
            raise UsageError(
                f"unexpected argument {program[1]!r} after a profile",
                hint="give one profile, or a script with its arguments",
            )
        return find_profile(program[0]), 0
    request = ProfileRequest(target=target, program=program, quiet_program=as_json)
    profile, path = profile_program(request, folder=options["run_dir"], say=say)
    if profile.exit_code:
        say(f"the program failed, so no patch is proposed; profile: {path}")
    elif profile.state != "finished":
        say(f"the program did not finish, so no patch is proposed; profile: {path}")
        return path, _INTERRUPTED
    return path, profile.exit_code or 0

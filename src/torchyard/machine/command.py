"""The group `torchyard machine`, and its commands `show`, `boot` and `restore`.

Subcommands are named as text and loaded on use: `audit` and `quiet` live in the `audit` package and
`peak` in `bench`, because they measure.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from torchyard.cli.group import CommandTable, LazyGroup
from torchyard.cli.output import common_options, print_data, print_json, print_message, printable
from torchyard.errors import (
    NotAllowed,
    NothingToDo,
    StepFailed,
    TorchyardError,
    Untrustworthy,
    UsageError,
)
from torchyard.machine.command_options import machine_at, root_option

if TYPE_CHECKING:
    from torchyard.machine.boot_parameters import BootLines, BootRequest
    from torchyard.machine.system.file_tree import FileTree

MACHINE_COMMANDS: Final[CommandTable] = {
    "show": (
        "torchyard.machine.command:show",
        "show facts, current state and advice; is it fit for benchmarks?",
    ),
    "quiet": (
        "torchyard.audit.command_quiet:quiet",
        "reduce noise, for one command or until `restore`",
    ),
    "restore": ("torchyard.machine.command:restore", "restore the settings that `quiet` changed"),
    "boot": ("torchyard.machine.command:boot", "print kernel boot parameters, and check them"),
    "audit": ("torchyard.audit.command:audit", "measure the noise and name its sources"),
    "peak": (
        "torchyard.bench.roofline.command:peak",
        "measure peak arithmetic throughput and memory bandwidth",
    ),
}
"""Name -> (location of the click command, one-line summary)."""

DEPRECATED_NAMES: Final = {"tune": "quiet"}
"""Old name -> present name; accepted with a note on stderr and listed nowhere."""

_GROUP_HELP = """
\b
Examples:
  torchyard machine show                       facts, state and advice; exit code 6 if unfit
  torchyard machine audit --seconds 60         the smallest difference resolvable here
  torchyard machine peak                       the peak rates that kernels are compared with
  sudo torchyard machine quiet --dry-run       what would be changed, and what cannot be
  sudo torchyard machine quiet -- python train.py
  sudo torchyard machine restore

Inspect this machine, reduce its noise and restore it. Inspection needs no root.
"""


class _MachineGroup(LazyGroup):
    """The group, with the names of earlier releases."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Replace a deprecated name before the lookup."""
        name = DEPRECATED_NAMES.get(args[0]) if args else None
        if name is not None:
            if not ctx.resilient_parsing:  # shell completion prints nothing
                sys.stderr.write(
                    f"`torchyard machine {args[0]}` is deprecated: use `torchyard machine {name}`\n"
                )
            args = [name, *args[1:]]
        return super().resolve_command(ctx, args)


@click.group(cls=_MachineGroup, table=MACHINE_COMMANDS, help=_GROUP_HELP)
def machine() -> None:
    """Inspect, quiet and restore this machine."""


_SHOW_HELP = """
\b
Examples:
  torchyard machine show
      facts, current state and ranked advice
  torchyard machine show --json
      the same as JSON
  torchyard machine show --root ./copy
      another machine, from a copy of its /proc and /sys

Show everything that makes benchmarks noisy.

Exit code 6: measurements taken now are not trustworthy, because of other programs, steal time, memory
pressure, thermal throttling or battery power.
"""


@click.command(help=_SHOW_HELP)
@root_option
@common_options
def show(root: Path, as_json: bool) -> int:
    """Show this machine."""
    from torchyard.machine.advice import view_machine
    from torchyard.machine.report import machine_json, machine_text

    with machine_at(root, gpus=True) as machine:
        view = view_machine(machine)
        quieting, notes = _quieting_state(machine.files)
    if as_json:
        print_json({"machine": machine_json(view, quieting=quieting)})
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        print_data(printable(machine_text(view, notes=notes, width=width)))
    return 0 if view.fit else Untrustworthy.exit_code


def _quieting_state(files: FileTree) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """Return the quieting recorded in the journal, as plain values and as a sentence."""
    from torchyard.machine.quieting.journal import boot_of, journal_folder, read_journal
    from torchyard.process.owner import is_gone

    try:
        journal = read_journal(journal_folder(files))
    except TorchyardError as error:  # `show` must work when the journal is damaged
        return {"trouble": error.what}, (f"{error.what}. {error.hint}".rstrip(". ") + ".",)
    if journal is None:
        return None, ()
    if journal.boot != boot_of(files):
        state, hint = "undone by a reboot", "sudo torchyard machine restore"
    elif journal.is_standing:
        state, hint = "in force", "sudo torchyard machine restore"
    elif files.live and not is_gone(journal.owner):
        state, hint = "in force for a running command", ""
    else:
        state, hint = "interrupted and not restored", "sudo torchyard machine restore"
    knobs = list(dict.fromkeys(setting.knob for setting in journal.settings if setting.changes))
    document = {"state": state, "mode": journal.mode, "started": journal.started, "knobs": knobs}
    sentence = f"machine quieting is {state} ({journal.who}): {', '.join(knobs) or 'no knob'}"
    return document, (sentence + (f"; {hint}" if hint else ""),)


_BOOT_HELP = """
\b
Examples:
  torchyard machine boot --cores auto             isolate cores at boot
  torchyard machine boot --cores 2-7 --cstates    and disable deep idle states
  torchyard machine boot --check                  after the reboot: what took effect

Print the kernel command line for GRUB and for systemd-boot, merged with the present one. Nothing is
written: edit the line, run the command below it, reboot, and use --check, which exits with code 6 if a
parameter is not in force.
"""


@click.command(help=_BOOT_HELP)
@click.option("--cores", metavar="LIST|auto", help="Isolate these CPUs, such as 2-7.")
@click.option("--cstates", is_flag=True, help="Disable deep idle states.")
@click.option("--check", is_flag=True, help="Report what took effect; print no new lines.")
@root_option
@common_options
def boot(cores: str | None, cstates: bool, check: bool, root: Path, as_json: bool) -> int:
    """Print or check kernel boot parameters."""
    from torchyard.machine.boot_parameters import BootRequest
    from torchyard.machine.quieting.journal import boot_of
    from torchyard.machine.system.cores import choose_cores

    with machine_at(root, gpus=False) as machine:
        files = machine.files
    if not check and cores is None and not cstates:
        raise UsageError(
            "no boot parameter was requested", hint="add --cores, --cstates or --check"
        )
    request = None
    if cores is not None or cstates:
        choice = choose_cores(files, cores) if cores is not None else None
        for note in choice.notes if choice is not None else ():
            print_message(f"note: {note}")
        chosen = choice.cores if choice is not None else ()
        request = BootRequest(cores=chosen, cstates=cstates, boot=boot_of(files))
    if check:
        return _check(files, request, as_json=as_json)
    assert request is not None  # noqa: S101  # checked above
    return _print_lines(files, request, as_json=as_json)


def _print_lines(files: FileTree, request: BootRequest, *, as_json: bool) -> int:
    from torchyard.core.records import encode
    from torchyard.machine.boot_parameters import boot_lines, save_boot_request
    from torchyard.machine.quieting.journal import journal_folder

    lines = boot_lines(files, request)
    if not lines.words:
        raise NothingToDo(
            "no boot parameter does this on this machine", why="; ".join(lines.warnings)
        )
    try:
        save_boot_request(journal_folder(files), request)
        saved = True
    except NotAllowed as error:
        saved = False
        print_message(f"not saved for --check: {error.what}; repeat the same options with --check")
    if as_json:
        print_json({"boot": {**encode(lines), "remembered": saved}})
    else:
        print_data(printable(_lines_text(lines)))
    for warning in lines.warnings if not as_json else ():
        print_message(f"warning: {warning}")
    return 0


def _lines_text(lines: BootLines) -> str:
    return "\n".join(
        (
            f"GRUB: in /etc/default/grub (merged with {lines.grub_from})",
            f"  {lines.grub_line}",
            "  then: sudo update-grub                                   Debian, Ubuntu",
            "    or: sudo grub2-mkconfig -o /boot/grub2/grub.cfg        Fedora, SUSE",
            "    or: sudo grub-mkconfig -o /boot/grub/grub.cfg          Arch",
            "systemd-boot: the `options` line of the entry in /boot/loader/entries/",
            f"  options {lines.loader_line}",
            "  or with kernel-install: the same line in /etc/kernel/cmdline",
            f"  {lines.loader_line}",
            '  then: sudo kernel-install add "$(uname -r)" "/lib/modules/$(uname -r)/vmlinuz"',
            "reboot, then: torchyard machine boot --check",
        )
    )


def _check(files: FileTree, given: BootRequest | None, *, as_json: bool) -> int:
    from torchyard.core.records import encode
    from torchyard.machine.boot_parameters import effects, read_boot_request
    from torchyard.machine.quieting.journal import boot_of, journal_folder

    request = given or read_boot_request(journal_folder(files))
    if request is None:
        raise NothingToDo(
            "no saved boot request",
            hint="add --cores or --cstates to --check, or run `torchyard machine boot` without --check",
        )
    checked = effects(files, request)
    good = all(effect.good for effect in checked)
    restarted = given is not None or request.boot != boot_of(files)
    if as_json:
        rows = [{**encode(effect), "good": effect.good} for effect in checked]
        print_json({"boot": {"good": good, "restarted": restarted, "words": rows}})
    else:
        for effect in checked:
            state = "in force" if effect.in_force else "on the command line"
            if not effect.good:
                state = "NOT in force" if effect.on_line else "NOT on the command line"
            print_data(printable(f"{effect.word:<44}{state:<25}{effect.shown}"))
    if not restarted:
        print_message("the machine has not been rebooted since the parameters were requested")
    return 0 if good else Untrustworthy.exit_code


_RESTORE_HELP = """
\b
Examples:
  sudo torchyard machine restore
  sudo torchyard machine restore --json

Restore the original values after `torchyard machine quiet` without a command, or after one that
was killed.

Exit code 0: everything is restored. 3: there was nothing to restore. 5: something could not be
restored; it stays in the journal for the next attempt.
"""


@click.command(help=_RESTORE_HELP)
@root_option
@common_options
def restore(root: Path, as_json: bool) -> int:
    """Restore this machine."""
    from torchyard.machine.quieting.restoring import restore as restore_machine
    from torchyard.machine.report import restored_json, restored_text

    with machine_at(root, gpus=False) as machine:
        restored = restore_machine(machine)
    if as_json:
        print_json({"restore": restored_json(restored)})
    else:
        print_data(printable(restored_text(restored)))
    return 0 if restored.complete else StepFailed.exit_code

"""The commands `torchyard machine show`, `machine boot` and `machine restore`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchyard.cli.output import common_options, print_data, print_json, printable, talk
from torchyard.machine.command_options import machine_at, root_option

if TYPE_CHECKING:
    from torchyard.machine.system.file_tree import FileTree


_SHOW_HELP = """
\b
Examples:
  torchyard machine show
      facts, state and ranked advice
  torchyard machine show --json
      the same for a program
  torchyard machine show --root ./copy
      another machine, from a copy of its /proc and /sys

Look at everything that makes benchmarks unsteady. Changes nothing and needs no root; what cannot be
read is shown with the reason. Watches the machine for half a second. Ends with exit code 0 when
it is fit for benchmarks, with or without advice, and 6 when numbers taken now must not be believed:
other programs are busy, the host takes time, memory is short, heat or a battery holds clocks down.
"""


@click.command(help=_SHOW_HELP)
@root_option
@common_options
def show(root: Path, as_json: bool) -> int:
    """Show this machine."""
    from torchyard.errors import Untrustworthy
    from torchyard.machine.report import machine_json, machine_text
    from torchyard.machine.view import view_machine

    with machine_at(root, gpus=True) as machine:
        view = view_machine(machine)
        tune, notes = _tune(machine.files)
    if as_json:
        print_json({"machine": machine_json(view, tune=tune)})
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        print_data(printable(machine_text(view, notes=notes, width=width)))
    return 0 if view.fit else Untrustworthy.exit_code


def _tune(files: FileTree) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """The tune that is in force, as plain values and in a sentence."""
    from torchyard.errors import TorchyardError
    from torchyard.machine.quieting.journal import boot_of, journal_folder, read_journal
    from torchyard.process.owner import is_gone

    try:
        text = read_journal(journal_folder(files))
    except TorchyardError as error:  # looking must work on a machine that is in trouble
        return {"trouble": error.what}, (f"{error.what}. {error.hint}".rstrip(". ") + ".",)
    if text is None:
        return None, ()
    if text.boot != boot_of(files):
        state, hint = "undone by a restart of the machine", "sudo torchyard machine restore"
    elif text.mode == "standing" and text.tuned:
        state, hint = "in force", "sudo torchyard machine restore"
    elif files.live and not is_gone(text.owner):
        state, hint = "in force for a running command", ""
    else:
        state, hint = "cut off and not put back", "sudo torchyard machine restore"
    knobs = list(dict.fromkeys(setting.knob for setting in text.settings if setting.changes))
    said = {"state": state, "mode": text.mode, "started": text.started, "knobs": knobs}
    sentence = f"a tune is {state} ({text.who}): {', '.join(knobs) or 'no knob'}"
    return said, (sentence + (f"; {hint}" if hint else ""),)


if TYPE_CHECKING:
    from torchyard.machine.boot_parameters import BootLines, BootWish
    from torchyard.machine.system.file_tree import FileTree


_BOOT_HELP = """
\b
Examples:
  torchyard machine boot --cores auto             set cores apart from the start
  torchyard machine boot --cores 2-7 --cstates    and forbid deep idle states
  torchyard machine boot --check                  after the restart: what took effect

Print the exact lines for grub and for systemd-boot, joined with what is there now. The boot
loader is never written: put the line in by hand, run the command below it, restart, and check.
What was asked for is remembered for --check, which ends with exit code 6 when something is not
in force. Much of it needs no restart: see `torchyard machine tune`.
"""


@click.command(help=_BOOT_HELP)
@click.option("--cores", metavar="LIST|auto", help="Set these processors apart, such as 2-7.")
@click.option("--cstates", is_flag=True, help="Forbid deep idle states.")
@click.option("--check", is_flag=True, help="Say what took effect, and write nothing.")
@root_option
@common_options
def boot(cores: str | None, cstates: bool, check: bool, root: Path, as_json: bool) -> int:
    """Show or check the boot line."""
    from torchyard.errors import UsageError
    from torchyard.machine.boot_parameters import BootWish
    from torchyard.machine.quieting.journal import boot_of
    from torchyard.machine.system.cores import choose_cores

    with machine_at(root, gpus=False) as machine:
        files = machine.files
    if not check and cores is None and not cstates:
        raise UsageError("nothing is asked for", hint="give --cores, --cstates or both, or --check")
    wish = None
    if cores is not None or cstates:
        choice = choose_cores(files, cores) if cores is not None else None
        for note in choice.notes if choice is not None else ():
            talk(f"note: {note}")
        chosen = choice.cores if choice is not None else ()
        wish = BootWish(cores=chosen, cstates=cstates, boot=boot_of(files))
    if check:
        return _check(files, wish, as_json=as_json)
    assert wish is not None  # noqa: S101  # something was asked for
    return _print_lines(files, wish, as_json=as_json)


def _print_lines(files: FileTree, wish: BootWish, *, as_json: bool) -> int:
    from torchyard.core.records import encode
    from torchyard.errors import NotAllowed, NothingToDo
    from torchyard.machine.boot_parameters import boot_lines, remember_boot_wish
    from torchyard.machine.quieting.journal import journal_folder

    lines = boot_lines(files, wish)
    if not lines.words:
        raise NothingToDo(
            "there is no word for that on this machine", why="; ".join(lines.warnings)
        )
    try:
        remember_boot_wish(journal_folder(files), wish)
        remembered = True
    except NotAllowed as error:
        remembered = False
        talk(f"not remembered for --check: {error.what}; give the same options with --check")
    if as_json:
        print_json({"boot": {**encode(lines), "remembered": remembered}})
    else:
        print_data(printable(_lines_text(lines)))
    for warning in lines.warnings if not as_json else ():
        talk(f"warning: {warning}")
    return 0


def _lines_text(lines: BootLines) -> str:
    return "\n".join(
        (
            f"grub: in /etc/default/grub (joined with {lines.grub_from})",
            f"  {lines.grub_line}",
            "  then: sudo update-grub                                   Debian, Ubuntu",
            "    or: sudo grub2-mkconfig -o /boot/grub2/grub.cfg        Fedora, SUSE",
            "    or: sudo grub-mkconfig -o /boot/grub/grub.cfg          Arch",
            "systemd-boot: the `options` line of the entry in /boot/loader/entries/",
            f"  options {lines.loader_line}",
            "  or with kernel-install: the same words in /etc/kernel/cmdline",
            f"  {lines.loader_line}",
            '  then: sudo kernel-install add "$(uname -r)" "/lib/modules/$(uname -r)/vmlinuz"',
            "restart, then: torchyard machine boot --check",
        )
    )


def _check(files: FileTree, asked: BootWish | None, *, as_json: bool) -> int:
    from torchyard.core.records import encode
    from torchyard.errors import NothingToDo, Untrustworthy
    from torchyard.machine.boot_parameters import effects, recall_boot_wish
    from torchyard.machine.quieting.journal import boot_of, journal_folder

    wish = asked or recall_boot_wish(journal_folder(files))
    if wish is None:
        raise NothingToDo(
            "no boot line is remembered",
            hint="give --cores or --cstates with --check, or ask for lines first",
        )
    found = effects(files, wish)
    good = all(effect.good for effect in found)
    restarted = asked is not None or wish.boot != boot_of(files)
    if as_json:
        rows = [{**encode(effect), "good": effect.good} for effect in found]
        print_json({"boot": {"good": good, "restarted": restarted, "words": rows}})
    else:
        for effect in found:
            state = "in force" if effect.in_force else "on the boot line"
            if not effect.good:
                state = "NOT in force" if effect.on_line else "NOT on the boot line"
            print_data(printable(f"{effect.word:<44}{state:<22}{effect.shown}"))
    if not restarted:
        talk("the machine was not restarted since the lines were asked for")
    return 0 if good else Untrustworthy.exit_code


_RESTORE_HELP = """
\b
Examples:
  sudo torchyard machine restore
  sudo torchyard machine restore --json

Put back what a standing tune, or one that was killed, found on this machine. Values are read back
after writing. Ends with exit code 0 when everything is back, 3 when there was nothing to restore
and 5 when something could not be put back: that stays in the journal for the next try.
"""


@click.command(help=_RESTORE_HELP)
@root_option
@common_options
def restore(root: Path, as_json: bool) -> int:
    """Restore this machine."""
    from torchyard.errors import StepFailed
    from torchyard.machine.quieting.restoring import restore as put_back
    from torchyard.machine.report import restored_json, restored_text

    with machine_at(root, gpus=False) as machine:
        restored = put_back(machine)
    if as_json:
        print_json({"restore": restored_json(restored)})
    else:
        print_data(printable(restored_text(restored)))
    return 0 if restored.complete else StepFailed.exit_code

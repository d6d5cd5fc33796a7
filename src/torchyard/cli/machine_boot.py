"""`torchyard machine boot`: lines for the boot loader, and what they brought."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchyard.cli.output import common_options, print_data, print_json, printable, talk
from torchyard.cli.wish_options import machine_at, root_option

if TYPE_CHECKING:
    from torchyard.machine.boot_line import BootLines, BootWish
    from torchyard.machine.file_tree import FileTree

__all__ = ["boot"]

_HELP = """
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


@click.command(help=_HELP)
@click.option("--cores", metavar="LIST|auto", help="Set these processors apart, such as 2-7.")
@click.option("--cstates", is_flag=True, help="Forbid deep idle states.")
@click.option("--check", is_flag=True, help="Say what took effect, and write nothing.")
@root_option
@common_options
def boot(cores: str | None, cstates: bool, check: bool, root: Path, as_json: bool) -> int:
    """Show or check the boot line."""
    from torchyard.errors import UsageError
    from torchyard.machine.boot_line import BootWish
    from torchyard.machine.core_choice import choose_cores
    from torchyard.machine.journal import boot_of

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
    from torchyard.machine.boot_line import boot_lines
    from torchyard.machine.boot_memory import remember_boot_wish
    from torchyard.machine.journal import journal_folder

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
    from torchyard.machine.boot_line import effects
    from torchyard.machine.boot_memory import recall_boot_wish
    from torchyard.machine.journal import boot_of, journal_folder

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

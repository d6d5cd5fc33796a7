"""`torchyard machine tune`: quiet the machine, for one command or until `restore`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchyard.cli.output import common_options, print_data, print_json, printable, talk
from torchyard.cli.sections import SectionedCommand
from torchyard.cli.tune_measure import measure_options, measure_tune, refuse_measuring
from torchyard.cli.wish_options import machine_at, root_option, wish_of_options, wish_options

if TYPE_CHECKING:
    from torchyard.core.machine import Wish
    from torchyard.core.machine_change import Restored, Tuned
    from torchyard.machine.knob import Machine

__all__ = ["tune"]

_HELP = """
\b
Examples:
  torchyard machine tune --dry-run
      what would be written, what cannot be and why; needs no root
  sudo torchyard machine tune -- python train.py
      quiet the machine for one command and put everything back after it
  sudo torchyard machine tune --cores auto --frequency 2500 -- taskset -c 2-7 ./bench
      the same with cores set apart and a fixed clock
  sudo torchyard machine tune --profile all
      processor, kernel and GPUs, until `torchyard machine restore`
  torchyard machine tune --user --cores 2-7 -- python train.py
      what a user may do: pinning, priority, variables
  sudo torchyard machine tune --measure --each
      how much of the noise each knob takes away: audits with and without it

Every value that is found is on disk before the first one is written, and is put back after the
command, on errors, on Ctrl-C and after kill -9. A command after `sudo` runs as root.
With a command, stdout is the command's: the table and --json go to stderr.
"""


@click.command(cls=SectionedCommand, help=_HELP)
@wish_options
@click.option("--dry-run", is_flag=True, help="Write nothing, and show what would be written.")
@click.option("--user", is_flag=True, help="Only what needs no root and ends with the process.")
@measure_options
@root_option
@common_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND ARGS...]")
def tune(
    command: tuple[str, ...], dry_run: bool, user: bool, root: Path, as_json: bool, **options: Any
) -> int:
    """Tune this machine."""
    from torchyard.machine.command_run import check_command
    from torchyard.machine.tuning import wants_gpus

    refuse_measuring(options, command=command, dry_run=dry_run, root=root)
    if command:
        check_command(command)
    with machine_at(root, gpus=False) as bare:
        wish, notes = wish_of_options(bare.files, {**options, "user": user})
    for note in notes:
        talk(f"note: {note}")
    with machine_at(root, gpus=wants_gpus(wish) and not user) as machine:
        if options["measure"]:
            return measure_tune(machine, wish, options, user=user, as_json=as_json)
        if user:
            return _user(machine, wish, command, as_json=as_json, dry_run=dry_run)
        if dry_run:
            return _dry_run(machine, wish, as_json=as_json)
        if command:
            return _for_command(machine, wish, command, as_json=as_json)
        return _standing(machine, wish, as_json=as_json)


def _dry_run(machine: Machine, wish: Wish, *, as_json: bool) -> int:
    from torchyard.machine.tuning import dry_run

    _show(dry_run(machine, wish), as_json=as_json, mode="dry-run")
    return 0


def _standing(machine: Machine, wish: Wish, *, as_json: bool) -> int:
    from torchyard.machine.tuning import tune_standing

    tuned = tune_standing(machine, wish)
    _show(tuned, as_json=as_json, mode="standing")
    if tuned.written:
        talk("put it back with: sudo torchyard machine restore")
    return _exit_code(tuned)


def _for_command(machine: Machine, wish: Wish, command: tuple[str, ...], *, as_json: bool) -> int:
    from torchyard.machine.command_run import run_command
    from torchyard.machine.process_settings import process_settings
    from torchyard.machine.tuning import Tuning

    tuning = Tuning(machine, wish)
    try:
        with tuning:
            _say_earlier(tuning.before)
            _show(tuning.tuned, as_json=as_json, mode="session", to_stderr=True)
            settings = process_settings(machine, wish, tuned=tuning.tuned)
            end = run_command(command, settings)
    finally:
        code = _say_restored(tuning.restored)
    for name, reason in end.refused:
        talk(f"{name}: refused for the command, because {reason}")
    return end.exit_code or code


def _user(
    machine: Machine, wish: Wish, command: tuple[str, ...], *, as_json: bool, dry_run: bool
) -> int:
    from torchyard.core.machine import Wish
    from torchyard.machine.command_run import run_command, shell_line
    from torchyard.machine.process_settings import process_settings
    from torchyard.machine.tuning import dry_run as look
    from torchyard.machine.tuning import survey

    settings = process_settings(machine, wish)
    left = look(machine, Wish(profiles=wish.profiles, cores=wish.cores))
    line = shell_line(settings, command or ("COMMAND",))
    disturbances = _left(left)
    running = bool(command) and not dry_run
    if as_json:
        states = survey(machine, wish, reaches=("process",))
        document = {
            "shell_line": line,
            "knobs": [
                {"knob": state.knob, "unavailable": state.unavailable, "notes": list(state.notes)}
                for state in states
            ],
            "left": disturbances,
        }
        _print({"tune": {"mode": "user", **document}}, to_stderr=running)
    elif not running:
        print_data(printable(line))
    if not as_json:
        for item in disturbances:
            talk(f"left as it is: {item['knob']} ({item['effect']}): {item['found']}")
    if not running:
        return 0
    end = run_command(command, settings)
    for name, reason in end.refused:
        talk(f"{name}: refused, because {reason}")
    return end.exit_code


def _left(tuned: Tuned) -> list[dict[str, str]]:
    """What only root could quiet: knobs that would write something, largest effect first."""
    from torchyard.core.machine import EFFECTS
    from torchyard.machine.knobs import KNOBS

    kept = {change.setting for change in tuned.changes}
    found: list[dict[str, str]] = []
    for state in tuned.knobs:
        waiting = [setting for setting in state.settings if setting not in kept]
        if waiting:
            values = ", ".join(dict.fromkeys(setting.found for setting in waiting))
            effect = KNOBS[state.knob].effect
            found.append({"knob": state.knob, "effect": effect, "found": values})
    return sorted(found, key=lambda item: [str(effect) for effect in EFFECTS].index(item["effect"]))


def _show(tuned: Tuned, *, as_json: bool, mode: str, to_stderr: bool = False) -> None:
    from torchyard.cli.tune_text import tuned_json, tuned_summary, tuned_text

    dry = mode == "dry-run"
    if as_json:
        _print({"tune": tuned_json(tuned, mode=mode)}, to_stderr=to_stderr)
        return
    text = printable(tuned_text(tuned, dry_run=dry))
    if to_stderr:
        talk(text)
    else:
        print_data(text)
    talk(tuned_summary(tuned, dry_run=dry))


def _print(document: dict[str, Any], *, to_stderr: bool) -> None:
    if not to_stderr:
        print_json(document)
        return
    import json

    from torchyard.cli.output import SCHEMA

    sys.stderr.write(json.dumps({"schema": SCHEMA, **document}, indent=2) + "\n")
    sys.stderr.flush()


def _say_earlier(restored: Restored | None) -> None:
    if restored is not None:
        talk("an earlier tune was cut off: its values were put back first")


def _say_restored(restored: Restored | None) -> int:
    """What could not be put back; the exit code for that."""
    from torchyard.cli.tune_text import restored_text
    from torchyard.errors import StepFailed

    if restored is None:
        return 0
    if not restored.complete or any(item.meanwhile for item in restored.settings):
        talk(restored_text(restored))
    if restored.complete:
        return 0
    talk("try again with: sudo torchyard machine restore")
    return StepFailed.exit_code


def _exit_code(tuned: Tuned) -> int:
    """4 when everything was refused, 3 when no knob can do anything here, else 0."""
    from torchyard.errors import NotAllowed, NothingToDo

    if not any(state.settings for state in tuned.knobs):
        return NothingToDo.exit_code
    good = any(change.state in ("written", "already so") for change in tuned.changes)
    return 0 if good or not tuned.refused else NotAllowed.exit_code

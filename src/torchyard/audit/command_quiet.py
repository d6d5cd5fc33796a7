"""The command `torchyard machine quiet`: quiet the machine for one command or until `restore`.

With `--measure` it also measures the effect; that is why the command lives here and not in
`machine`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from torchyard.cli.options import Number, SectionedCommand, all_options, section
from torchyard.cli.output import common_options, print_data, print_json, printable, talk
from torchyard.errors import UsageError
from torchyard.machine.command_options import machine_at, root_option, wish_of_options, wish_options

if TYPE_CHECKING:
    from torchyard.audit.model import TuneEffect
    from torchyard.machine.knob import Machine
    from torchyard.machine.model import Wish


F = TypeVar("F", bound=Callable[..., Any])
MEASURE_OPTIONS: Final = ("measure", "each", "seconds", "target")
_SHORTEST_S: Final = 10.0

_measure = section("How much it helps")
_OPTIONS: Final = (
    _measure(
        "--measure",
        is_flag=True,
        help="Audit the machine before, tuned and after putting it back, and show the difference.",
    ),
    _measure("--each", is_flag=True, help="With --measure: every knob alone, too."),
    _measure(
        "--seconds",
        type=Number(_SHORTEST_S, 1e6),
        default=60.0,
        show_default=True,
        help="With --measure: time of one audit.",
    ),
    _measure(
        "--target",
        metavar="PYTHON|build:NAME",
        help="With --measure: interpreter with torch; this one when left out.",
    ),
)


def measure_options(command: F) -> F:
    """The options of `--measure`."""
    return all_options(_OPTIONS)(command)


def refuse_measuring(
    options: dict[str, Any], *, command: tuple[str, ...], dry_run: bool, root: Path
) -> None:
    """Say what does not go together, before anything is touched."""
    if not options["measure"]:
        if options["each"] or options["target"] is not None:
            word = "--each" if options["each"] else "--target"
            raise UsageError(f"{word} belongs to --measure", hint="add --measure")
        return
    for given, word, why in (
        (bool(command), "a command", "the audits are what runs"),
        (dry_run, "--dry-run", "what is not written cannot be measured"),
        (root != Path("/"), "--root", "a copy of a machine has no noise"),
    ):
        if given:
            raise UsageError(
                f"--measure does not go with {word}", why=why, hint=f"leave out {word}"
            )


def measure_tune(
    machine: Machine, wish: Wish, options: dict[str, Any], *, user: bool, as_json: bool
) -> int:
    """Measure and show; what was measured before Ctrl-C is shown, too."""
    from torchyard.audit.kept_audits import audits_home, new_audit_path, write_audit
    from torchyard.audit.quieting_effect import EffectPlan, EffectRun, audit_command
    from torchyard.cli.invoke import INTERRUPTED

    command = audit_command()
    if options["target"] is not None:
        command = (*command, "--target", options["target"])
    plan = EffectPlan(
        wish=wish, seconds=options["seconds"], each=options["each"], user=user, command=command
    )
    run = EffectRun(machine, plan, on_step=talk)
    interrupted = False
    kept: list[Path] = []
    try:
        run.run()
    except KeyboardInterrupt:
        if not run.effects:
            raise
        interrupted = True
        talk("interrupted: this is what was measured so far; the machine is put back")
    finally:
        for audit in run.audits:
            kept.append(new_audit_path(audit, audits_home()))
            write_audit(audit, kept[-1])
    if as_json:
        print_json({"tune_effect": _document(run.effects, kept, user=user)})
    else:
        print_data(printable(_text(run.effects, user=user)))
    for path in kept:
        talk(f"kept: {path}")
    return INTERRUPTED if interrupted else 0


def _document(effects: list[TuneEffect], kept: list[Path], *, user: bool) -> dict[str, Any]:
    from torchyard.core.records import encode

    return {
        "mode": "user" if user else "session",
        "audits": [str(path) for path in kept],
        "effects": [
            {
                "what": effect.what,
                "written": list(effect.written),
                "refused": encode(effect.refused),
                "changes": encode(effect.changes),
                "unsteady": list(effect.unsteady),
                "resolvable": {
                    "plain": [encode(audit.in_minutes(5)) for audit in effect.plain],
                    "tuned": encode(effect.tuned.in_minutes(5)),
                },
            }
            for effect in effects
        ],
    }


def _text(effects: list[TuneEffect], *, user: bool) -> str:
    from torchyard.audit.report import effects_text

    return effects_text(effects, user=user)


if TYPE_CHECKING:
    from torchyard.machine.knob import Machine
    from torchyard.machine.model import Restored, Tuned, Wish


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
    from torchyard.machine.quieting.apply_settings import wants_gpus
    from torchyard.machine.quieting.process_settings import check_command

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
    from torchyard.machine.quieting.apply_settings import dry_run

    _show(dry_run(machine, wish), as_json=as_json, mode="dry-run")
    return 0


def _standing(machine: Machine, wish: Wish, *, as_json: bool) -> int:
    from torchyard.machine.quieting.apply_settings import tune_standing

    tuned = tune_standing(machine, wish)
    _show(tuned, as_json=as_json, mode="standing")
    if tuned.written:
        talk("put it back with: sudo torchyard machine restore")
    return _exit_code(tuned)


def _for_command(machine: Machine, wish: Wish, command: tuple[str, ...], *, as_json: bool) -> int:
    from torchyard.machine.quieting.apply_settings import Tuning
    from torchyard.machine.quieting.process_settings import process_settings, run_command

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
    from torchyard.machine.model import Wish
    from torchyard.machine.quieting.apply_settings import dry_run as look
    from torchyard.machine.quieting.apply_settings import survey
    from torchyard.machine.quieting.process_settings import (
        process_settings,
        run_command,
        shell_line,
    )

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
    from torchyard.machine.knobs import KNOBS
    from torchyard.machine.model import EFFECTS

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
    from torchyard.machine.report import tuned_json, tuned_summary, tuned_text

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
    from torchyard.errors import StepFailed
    from torchyard.machine.report import restored_text

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

"""The command `torchyard machine quiet`: quiet the machine for one command or until `restore`.

With `--measure` it also measures the effect; that is why the command lives here and not in
`machine`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from torchyard.cli.options import Number, SectionedCommand, all_options, section
from torchyard.cli.output import common_options, print_data, print_json, print_message, printable
from torchyard.errors import NotAllowed, NothingToDo, StepFailed, UsageError
from torchyard.machine.command_options import (
    machine_at,
    quiet_options,
    request_from_options,
    root_option,
)

if TYPE_CHECKING:
    from torchyard.audit.model import QuietingEffect
    from torchyard.machine.knob import Machine
    from torchyard.machine.model import AppliedSettings, QuietRequest, Restored


_SHORTEST_S: Final = 10.0

_measure = section("Measuring the effect")
_OPTIONS: Final = (
    _measure(
        "--measure",
        is_flag=True,
        help="Audit the machine before, during and after quieting.",
    ),
    _measure("--each", is_flag=True, help="With --measure: also measure each knob alone."),
    _measure(
        "--seconds",
        type=Number(_SHORTEST_S, 1e6),
        default=60.0,
        show_default=True,
        help="With --measure: duration of one audit.",
    ),
    _measure(
        "--target",
        metavar="PYTHON|build:NAME",
        help="With --measure: interpreter with torch.  [default: this interpreter]",
    ),
)


def refuse_measuring(
    options: dict[str, Any], *, command: tuple[str, ...], dry_run: bool, root: Path
) -> None:
    """Refuse conflicting options before anything is changed."""
    if not options["measure"]:
        if options["each"] or options["target"] is not None:
            word = "--each" if options["each"] else "--target"
            raise UsageError(f"{word} requires --measure", hint="add --measure")
        return
    for is_used, word, why in (
        (bool(command), "a command", "it runs audits, no other command"),
        (dry_run, "--dry-run", "a dry run changes nothing that could be measured"),
        (root != Path("/"), "--root", "a copy of a machine cannot be measured"),
    ):
        if is_used:
            raise UsageError(
                f"--measure cannot be combined with {word}",
                why=why,
                hint=f"remove {word.replace('a command', 'the command')}",
            )


def measure_effect(
    machine: Machine, request: QuietRequest, options: dict[str, Any], *, user: bool, as_json: bool
) -> int:
    """Measure the effect and show it; after Ctrl-C, show what was measured so far."""
    from torchyard.audit.audit_files import audits_home, new_audit_path, write_audit
    from torchyard.audit.quieting_effect import EffectPlan, EffectRun, audit_command
    from torchyard.audit.report import effects_text
    from torchyard.cli.invoke import INTERRUPTED

    command = audit_command()
    if options["target"] is not None:
        command = (*command, "--target", options["target"])
    plan = EffectPlan(
        request=request,
        seconds=options["seconds"],
        each=options["each"],
        user=user,
        command=command,
    )
    run = EffectRun(machine, plan, on_step=print_message)
    interrupted = False
    paths: list[Path] = []
    try:
        run.run()
    except KeyboardInterrupt:
        if not run.effects:
            raise
        interrupted = True
        print_message("interrupted: showing what was measured so far; the machine is restored")
    finally:
        for audit in run.audits:
            paths.append(new_audit_path(audit, audits_home()))
            write_audit(audit, paths[-1])
    if as_json:
        print_json({"tune_effect": _document(run.effects, paths, user=user)})
    else:
        print_data(printable(effects_text(run.effects, user=user)))
    for path in paths:
        print_message(f"saved: {path}")
    return INTERRUPTED if interrupted else 0


def _document(effects: list[QuietingEffect], kept: list[Path], *, user: bool) -> dict[str, Any]:
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
                    "tuned": encode(effect.quieted.in_minutes(5)),
                },
            }
            for effect in effects
        ],
    }


_HELP = """
\b
Examples:
  torchyard machine quiet --dry-run
      what would be written, what cannot be, and why; needs no root
  sudo torchyard machine quiet -- python train.py
      quiet the machine for one command and restore it afterwards
  sudo torchyard machine quiet --cores auto --frequency 2500 -- taskset -c 2-7 ./bench
      the same with isolated cores and a fixed clock
  sudo torchyard machine quiet --profile all
      CPU, kernel and GPUs, until `torchyard machine restore`
  torchyard machine quiet --user --cores 2-7 -- python train.py
      without root: pinning, priority and environment variables
  sudo torchyard machine quiet --measure --each
      how much noise each knob removes: audits with and without it

Change machine settings that make measurements noisy. The original values are saved first, and restored
after the command, on errors, on Ctrl-C and after kill -9. Without a command, the settings stay until
`torchyard machine restore`.

With a command, the table and --json go to stderr.
"""


@click.command(cls=SectionedCommand, help=_HELP)
@quiet_options
@click.option("--dry-run", is_flag=True, help="Show what would be written; write nothing.")
@click.option("--user", is_flag=True, help="Only process settings, which need no root.")
@all_options(_OPTIONS)
@root_option
@common_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND ARGS...]")
def quiet(
    command: tuple[str, ...], dry_run: bool, user: bool, root: Path, as_json: bool, **options: Any
) -> int:
    """Quiet this machine."""
    from torchyard.machine.quieting.apply_settings import needs_gpus
    from torchyard.machine.quieting.quiet_run import check_command

    refuse_measuring(options, command=command, dry_run=dry_run, root=root)
    if command:
        check_command(command)
    with machine_at(root, gpus=False) as bare:
        request, notes = request_from_options(bare.files, {**options, "user": user})
    for note in notes:
        print_message(f"note: {note}")
    with machine_at(root, gpus=needs_gpus(request) and not user) as machine:
        if options["measure"]:
            return measure_effect(machine, request, options, user=user, as_json=as_json)
        if user:
            return _user(machine, request, command, as_json=as_json, dry_run=dry_run)
        if dry_run:
            return _dry_run(machine, request, as_json=as_json)
        if command:
            return _for_command(machine, request, command, as_json=as_json)
        return _standing(machine, request, as_json=as_json)


def _dry_run(machine: Machine, request: QuietRequest, *, as_json: bool) -> int:
    from torchyard.machine.quieting.apply_settings import dry_run

    _show(dry_run(machine, request), as_json=as_json, mode="dry-run")
    return 0


def _standing(machine: Machine, request: QuietRequest, *, as_json: bool) -> int:
    from torchyard.machine.quieting.apply_settings import apply_until_restore

    applied = apply_until_restore(machine, request)
    _show(applied, as_json=as_json, mode="standing")
    if applied.written:
        print_message("to restore: sudo torchyard machine restore")
    return _exit_code(applied)


def _for_command(
    machine: Machine, request: QuietRequest, command: tuple[str, ...], *, as_json: bool
) -> int:
    from torchyard.machine.quieting.apply_settings import QuietSession
    from torchyard.machine.quieting.quiet_run import process_settings, run_command

    session = QuietSession(machine, request)
    try:
        with session:
            if session.before is not None:
                print_message(
                    "an earlier session was interrupted: its settings were restored first"
                )
            _show(session.applied, as_json=as_json, mode="session", to_stderr=True)
            settings = process_settings(machine, request, applied=session.applied)
            end = run_command(command, settings)
    finally:
        restore_code = _report_restore(session.restored)
    for name, reason in end.refused:
        print_message(f"{name}: refused for the command, because {reason}")
    return end.exit_code or restore_code


def _user(
    machine: Machine,
    request: QuietRequest,
    command: tuple[str, ...],
    *,
    as_json: bool,
    dry_run: bool,
) -> int:
    from torchyard.machine.model import QuietRequest
    from torchyard.machine.quieting.apply_settings import dry_run as dry_run_as_root
    from torchyard.machine.quieting.apply_settings import survey
    from torchyard.machine.quieting.quiet_run import process_settings, run_command, shell_line

    settings = process_settings(machine, request)
    line = shell_line(settings, command or ("COMMAND",))
    needs_root = _needs_root(
        dry_run_as_root(machine, QuietRequest(profiles=request.profiles, cores=request.cores))
    )
    running = bool(command) and not dry_run
    if as_json:
        states = survey(machine, request, reaches=("process",))
        document = {
            "shell_line": line,
            "knobs": [
                {"knob": state.knob, "unavailable": state.unavailable, "notes": list(state.notes)}
                for state in states
            ],
            "left": needs_root,
        }
        _print({"tune": {"mode": "user", **document}}, to_stderr=running)
    elif not running:
        print_data(printable(line))
    if not as_json:
        for item in needs_root:
            print_message(f"needs root: {item['knob']} ({item['effect']} effect): {item['found']}")
    if not running:
        return 0
    end = run_command(command, settings)
    for name, reason in end.refused:
        print_message(f"{name}: refused, because {reason}")
    return end.exit_code


def _needs_root(planned: AppliedSettings) -> list[dict[str, str]]:
    """List the knobs that would write something as root, largest effect first."""
    from torchyard.machine.knobs import KNOBS
    from torchyard.machine.model import EFFECTS

    names = sorted(planned.to_write, key=lambda name: EFFECTS.index(KNOBS[name].described.effect))
    return [
        {
            "knob": name,
            "effect": KNOBS[name].described.effect,
            "found": ", ".join(dict.fromkeys(item.found for item in planned.to_write[name])),
        }
        for name in names
    ]


def _show(applied: AppliedSettings, *, as_json: bool, mode: str, to_stderr: bool = False) -> None:
    from torchyard.machine.report import quieting_json, quieting_summary, quieting_table

    dry = mode == "dry-run"
    if as_json:
        _print({"tune": quieting_json(applied, mode=mode)}, to_stderr=to_stderr)
        return
    text = printable(quieting_table(applied, dry_run=dry))
    if to_stderr:
        print_message(text)
    else:
        print_data(text)
    print_message(quieting_summary(applied, dry_run=dry))


def _print(document: dict[str, Any], *, to_stderr: bool) -> None:
    if not to_stderr:
        print_json(document)
        return
    import json

    from torchyard.cli.output import SCHEMA

    sys.stderr.write(json.dumps({"schema": SCHEMA, **document}, indent=2) + "\n")
    sys.stderr.flush()


def _report_restore(restored: Restored | None) -> int:
    """Report what could not be restored, and return the exit code for that."""
    from torchyard.machine.report import restored_text

    if restored is None:
        return 0
    if not restored.complete or any(item.meanwhile for item in restored.settings):
        print_message(restored_text(restored))
    if restored.complete:
        return 0
    print_message("to try again: sudo torchyard machine restore")
    return StepFailed.exit_code


def _exit_code(applied: AppliedSettings) -> int:
    """Return 4 if every write was refused, 3 if no knob is available here, else 0."""
    if not any(state.settings for state in applied.knobs):
        return NothingToDo.exit_code
    good = any(change.state in ("written", "already so") for change in applied.changes)
    return 0 if good or not applied.refused else NotAllowed.exit_code

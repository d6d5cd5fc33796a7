"""`torchyard machine tune --measure`: options, progress and the table of what a tune changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from torchyard.cli.number_types import Number
from torchyard.cli.output import print_data, print_json, printable, talk
from torchyard.cli.sections import all_options, section
from torchyard.errors import UsageError

if TYPE_CHECKING:
    from torchyard.core.machine import Wish
    from torchyard.core.tune_effect import TuneEffect
    from torchyard.machine.knob import Machine

__all__ = ["MEASURE_OPTIONS", "measure_options", "measure_tune", "refuse_measuring"]

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
    from torchyard.cli.invoke import INTERRUPTED
    from torchyard.results.audit_files import audits_home, new_audit_path, write_audit
    from torchyard.workflow.tune_effect import EffectPlan, EffectRun, audit_command

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
    from torchyard.reports.effect_text import effects_text

    return effects_text(effects, user=user)

# ruff: noqa: INP001  # beside the pages, not a package
"""The reference page about knobs. Used by generate.py, which writes it."""

from __future__ import annotations

from collections.abc import Callable

from torchyard.machine.knob import Knob
from torchyard.machine.knobs import KNOBS, RESTORE_ORDER, WRITE_ORDER

_REACH = {
    "machine": "the machine, until it is put back",
    "held": "the machine, as long as a process of ours lives",
    "process": "one process and its children",
}
_SECTIONS: tuple[tuple[str, Callable[[Knob], bool]], ...] = (
    ("Processor and kernel", lambda knob: knob.profile == "cpu" and knob.reach != "process"),
    ("GPUs", lambda knob: knob.profile == "gpu"),
    ("One process: `tune --user`", lambda knob: knob.reach == "process"),
)


def knobs_page(written_by: str) -> str:
    """Every knob, what it is for, and in which order they are written and put back."""
    lines = [written_by, "# Knobs\n"]
    lines += [
        (
            "What `torchyard machine quiet` can set. `torchyard machine quiet --dry-run` says what each of "
            "them finds on a machine\nand what it would write there. Effect is how much of the noise "
            "is at stake at most: *large* above 5 %, *medium* above 1 %,\n*small* less, or only for "
            "some programs. Knobs that are not used by default need `--only NAME` or the option\n"
            "that they belong to.\n"
        )
    ]
    for title, belongs in _SECTIONS:
        lines += [f"## {title}\n"]
        for knob in KNOBS.values():
            if belongs(knob):
                lines += _knob(knob)
    lines += ["## Order\n", "When settings are written:\n", *_order(WRITE_ORDER), ""]
    lines += ["When they are put back:\n", *_order(RESTORE_ORDER)]
    return "\n".join(lines) + "\n"


def _knob(knob: Knob) -> list[str]:
    facts = [
        f"effect {knob.effect}",
        "by default" if knob.default else "not by default",
        "needs root" if knob.needs_root else "needs no root",
        f"reaches {_REACH[knob.reach]}",
    ]
    return [
        f"### {knob.name}\n",
        f"{_sentence(knob.about)} ({'; '.join(facts)})\n",
        f"{knob.why}\n",
    ]


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:].rstrip(".") + "."


def _order(order: tuple[tuple[str, str, str], ...]) -> list[str]:
    rows = [f"| {first} | {then} | {reason} |" for first, then, reason in order]
    return ["| first | then | because |", "|---|---|---|", *rows]

# ruff: noqa: INP001  # beside the pages, not a package
"""Generate the reference page about knobs; used by generate.py."""

from __future__ import annotations

from collections.abc import Callable

from torchyard.machine.knob import Knob
from torchyard.machine.knobs import KNOBS

_REACH = {"machine": "", "held": "while a process of Torchyard runs", "process": ""}
_SECTIONS: tuple[tuple[str, Callable[[Knob], bool]], ...] = (
    (
        "Processor and kernel of the whole machine, as root",
        lambda knob: knob.profile == "cpu" and knob.reach != "process",
    ),
    ("GPUs, as root", lambda knob: knob.profile == "gpu"),
    (
        "One process and its children, without root: `machine quiet --user`",
        lambda knob: knob.reach == "process",
    ),
)


def knobs_page(written_by: str) -> str:
    """Return the page of all knobs."""
    lines = [written_by, "# Knobs\n"]
    lines += [
        (
            "Settings that `torchyard machine quiet` can change; `--dry-run` shows their values. In parentheses: an upper "
            "bound of the effect on\nthe noise, *large* above 5 %, *medium* above 1 %, *small* less, or only for some "
            "programs. *Optional* knobs need `--only NAME` or\ntheir option. A knob applies until it is restored.\n"
        )
    ]
    for title, belongs in _SECTIONS:
        lines += [f"## {title}\n"]
        for knob in KNOBS.values():
            if belongs(knob):
                lines += _knob(knob)
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _knob(knob: Knob) -> list[str]:
    facts = [
        knob.described.effect,
        "" if knob.described.default else "optional",
        _REACH[knob.reach],
    ]
    about = knob.described.about.rstrip(".")
    return [
        f"- **`{knob.name}`**: {about} ({'; '.join(filter(None, facts))}). {knob.described.why}"
    ]

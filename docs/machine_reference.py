# ruff: noqa: INP001  # beside the pages, not a package
"""Generate the reference page about knobs; used by generate.py."""

from __future__ import annotations

from collections.abc import Callable

from torchyard.machine.knob import Knob
from torchyard.machine.knobs import KNOBS

_REACH = {
    "machine": "",
    "held": "while a process of Torchyard runs",
    "process": "one process and its children",
}
_SECTIONS: tuple[tuple[str, Callable[[Knob], bool]], ...] = (
    ("Processor and kernel", lambda knob: knob.profile == "cpu" and knob.reach != "process"),
    ("GPUs", lambda knob: knob.profile == "gpu"),
    ("One process: `machine quiet --user`", lambda knob: knob.reach == "process"),
)


def knobs_page(written_by: str) -> str:
    """Return the page of all knobs."""
    lines = [written_by, "# Knobs\n"]
    lines += [
        (
            "Settings that `torchyard machine quiet` can change; `--dry-run` shows their values. Effect is an upper "
            "bound on the\nnoise: *large* above 5 %, *medium* above 1 %, *small* less, or only for some programs. "
            "*Optional* knobs need `--only NAME` or\ntheir option. Unless stated otherwise, a knob needs root and "
            "applies to the whole machine until it is restored.\n"
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
        f"effect {knob.described.effect}",
        "" if knob.described.default else "optional",
        "" if knob.needs_root else "no root",
        _REACH[knob.reach],
    ]
    about = knob.described.about.rstrip(".")
    return [
        f"- **`{knob.name}`**: {about} ({'; '.join(filter(None, facts))}). {knob.described.why}"
    ]

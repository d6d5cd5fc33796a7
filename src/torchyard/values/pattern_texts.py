"""Texts about patterns: definition, why it is waste, what to do about it.

Read from `pattern_texts.toml`. The worker decides whether something is a pattern; this module
explains it.
"""

from __future__ import annotations

import string
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from torchyard.core.records import decode
from torchyard.values.model import ValueFinding

__all__ = [
    "Advice",
    "PatternText",
    "PatternTexts",
    "load_pattern_texts",
    "pattern_names",
    "pattern_text",
    "suggestion_for",
]

FIELDS = ("operator", "inside", "dtype", "shape", "detail", "fits", "first")
"""What a suggestion may take from a finding."""
_ANY = "*"


@dataclass(frozen=True, kw_only=True)
class PatternText:
    """All there is to say of one pattern."""

    short: str
    definition: str
    """The exact rule, with its thresholds."""
    why: str
    suggestion: str
    """Template; see FIELDS."""
    doubts: str
    """When not to believe it."""

    @property
    def whole(self) -> str:
        """As one paragraph."""
        parts = (self.definition, self.why, self.doubts)
        return " ".join(" ".join(part.split()) for part in parts)


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What to do about a known cause; a condition that is empty holds always."""

    pattern: str
    text: str
    operators: tuple[str, ...] = ()
    """Without `aten::`."""
    inside: str = ""
    """An operator that it runs inside of; `*` is any."""
    detail: str = ""
    """Words in the finding's detail."""
    dtype: str = ""
    fits: str = ""
    backward: bool = False

    def fits_to(self, finding: ValueFinding) -> bool:
        """Whether this is the finding's cause."""
        around = tuple(_bare(name) for name in finding.path)
        return (
            finding.pattern == self.pattern
            and (not self.operators or _bare(finding.operator) in self.operators)
            and (not self.inside or self.inside in around or bool(self.inside == _ANY and around))
            and self.detail in finding.detail
            and self.dtype in {"", finding.dtype}
            and self.fits in {"", finding.evidence.get("fits", "")}
            and (not self.backward or finding.place.backward)
        )


@dataclass(frozen=True, kw_only=True)
class PatternTexts:
    """The file."""

    patterns: dict[str, PatternText]
    advice: tuple[Advice, ...] = ()


@cache
def load_pattern_texts() -> PatternTexts:
    """All texts, in the file's order."""
    path = files("torchyard.values").joinpath("pattern_texts.toml")
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return decode(PatternTexts, table, where="pattern_texts.toml")


def pattern_names() -> tuple[str, ...]:
    """Every pattern, in the order in which they are explained."""
    return tuple(load_pattern_texts().patterns)


def pattern_text(name: str) -> PatternText | None:
    """What there is to say of a pattern; None for one that only a newer worker knows."""
    return load_pattern_texts().patterns.get(name)


def suggestion_for(finding: ValueFinding) -> str:
    """What to do about a finding: for its known cause, else for its pattern."""
    texts = load_pattern_texts()
    known = next((advice.text for advice in texts.advice if advice.fits_to(finding)), None)
    text = texts.patterns.get(finding.pattern)
    if known is None and text is None:
        return ""
    template = known if known is not None else text.suggestion if text is not None else ""
    return " ".join(template.split()).format_map(_fields(finding))


def placeholders(template: str) -> Iterable[str]:
    """The fields that a template takes."""
    return [name for _, name, _, _ in string.Formatter().parse(template) if name]


def _fields(finding: ValueFinding) -> dict[str, str]:
    first = finding.evidence.get("first")
    where = "another operator"
    if isinstance(first, dict):
        where = f"{_bare(str(first.get('operator')))} in line {first.get('line')}"
        if first.get("file") not in {None, finding.place.file}:
            where += f" of {first.get('file')}"
    return {
        "operator": f"`{_bare(finding.operator)}`",
        "inside": f"`{_bare(finding.path[0])}`" if finding.path else "",
        "dtype": finding.dtype,
        "shape": "x".join(map(str, finding.shape)),
        "detail": finding.detail,
        "fits": str(finding.evidence.get("fits", "a narrower dtype")),
        "first": where,
    }


def _bare(name: str) -> str:
    """An operator without its namespace."""
    return name.removeprefix("aten::")

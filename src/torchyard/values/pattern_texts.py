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
from torchyard.worker.values.exchange import KERNEL_PREFIX

FIELDS = ("operator", "inside", "dtype", "shape", "detail", "fits", "first", "caller")
"""Fields of a finding that a suggestion may use."""
_ANY = "*"


@dataclass(frozen=True, kw_only=True)
class PatternText:
    """Texts about one pattern."""

    short: str
    definition: str
    """The exact rule, with its thresholds."""
    why: str
    suggestion: str
    """Template; see FIELDS."""
    doubts: str
    """When to doubt a finding."""

    @property
    def whole(self) -> str:
        """Definition, reason and doubts as one paragraph."""
        parts = (self.definition, self.why, self.doubts)
        return " ".join(" ".join(part.split()) for part in parts)


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Suggestion for a known cause; empty conditions always hold."""

    pattern: str
    text: str
    operators: tuple[str, ...] = ()
    """Without `aten::`."""
    inside: str = ""
    """Operator that encloses it; `*` is any."""
    detail: str = ""
    """Text contained in the finding's detail."""
    dtype: str = ""
    fits: str = ""
    backward: bool = False
    kernel: bool = False
    """A generated kernel of compiled code."""

    def matches(self, finding: ValueFinding) -> bool:
        """Return whether the conditions match a finding."""
        around = tuple(_bare(name) for name in finding.path)
        return (
            finding.pattern == self.pattern
            and (not self.operators or _bare(finding.operator) in self.operators)
            and (not self.inside or self.inside in around or bool(self.inside == _ANY and around))
            and self.detail in finding.detail
            and self.dtype in {"", finding.dtype}
            and self.fits in {"", finding.evidence.get("fits", "")}
            and (not self.backward or finding.place.backward)
            and (not self.kernel or finding.operator.startswith(KERNEL_PREFIX))
        )


@dataclass(frozen=True, kw_only=True)
class PatternTexts:
    """Contents of pattern_texts.toml."""

    patterns: dict[str, PatternText]
    advice: tuple[Advice, ...] = ()


@cache
def load_pattern_texts() -> PatternTexts:
    """Return all texts, in file order."""
    path = files("torchyard.values").joinpath("pattern_texts.toml")
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return decode(PatternTexts, table, where="pattern_texts.toml")


def pattern_names() -> tuple[str, ...]:
    """Return the names of all patterns, in file order."""
    return tuple(load_pattern_texts().patterns)


def pattern_text(name: str) -> PatternText | None:
    """Return the texts about a pattern; None for a pattern of a newer version."""
    return load_pattern_texts().patterns.get(name)


def suggestion_for(finding: ValueFinding) -> str:
    """Return the suggestion for a finding: for its known cause, else for its pattern."""
    texts = load_pattern_texts()
    advice = next((one.text for one in texts.advice if one.matches(finding)), None)
    text = texts.patterns.get(finding.pattern)
    if advice is None and text is None:
        return ""
    template = advice if advice is not None else text.suggestion if text is not None else ""
    return " ".join(template.split()).format_map(_fields(finding))


def placeholders(template: str) -> Iterable[str]:
    """Return the field names of a template."""
    return [name for _, name, _, _ in string.Formatter().parse(template) if name]


def _fields(finding: ValueFinding) -> dict[str, str]:
    first = finding.evidence.get("first")
    where = "another operator"
    if isinstance(first, dict):
        where = f"{_bare(str(first.get('operator')))} in line {first.get('line')}"
        if first.get("file") not in {None, finding.place.file}:
            where += f" of {first.get('file')}"
    caller = finding.evidence.get("caller")
    called = ""
    if isinstance(caller, dict):
        of = f" of {caller.get('file')}" if caller.get("file") != finding.place.file else ""
        called = f" (from line {caller.get('line')}{of})"
    return {
        "caller": called,
        "operator": f"`{_bare(finding.operator)}`",
        "inside": f"`{_bare(finding.path[0])}`" if finding.path else "",
        "dtype": finding.dtype,
        "shape": "x".join(map(str, finding.shape)),
        "detail": finding.detail,
        "fits": str(finding.evidence.get("fits", "a narrower dtype")),
        "first": where,
    }


def _bare(name: str) -> str:
    """Return an operator name without its namespace."""
    return name.removeprefix("aten::").removeprefix(KERNEL_PREFIX)

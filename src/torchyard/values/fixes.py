"""Fixes that can be applied to a running program, and whether two runs show the same results.

Pure: a finding in, the plan for the worker (`worker/values/pricing/applied_fix.py`) out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from torchyard.values.model import Certainty, ValueFinding

NO_FIX: Final[dict[str, Any]] = {"kind": "none", "lines": []}
"""Run the program with its results observed and nothing changed."""
ROUNDING: Final = 1e-5
"""Largest difference of two results, relative to their magnitude, that counts as rounding."""
PRINTED_ROUNDING: Final = 1e-3
"""The same for numbers in printed text, which have few digits."""
_DEAD: Final = "dead initialisation"
_REDUNDANT: Final = "redundant write"
_GUARD: Final = "guard that never fires"
_DUPLICATE: Final = "duplicate"
_UNCHANGED: Final = "unchanged across steps"
_ADDED: Final = "zeroed only to be added to"
_COPY: Final = "a copy, and neither"
_OWN_INPUT: Final = "the same bits as its own input"
_FRESH: Final = frozenset(
    {"zeros", "ones", "full", "zeros_like", "ones_like", "full_like"}
    | {"new_zeros", "new_ones", "new_full"}
)
_WRITES: Final = {
    "fill_": ("__setitem__",),
    "copy_": ("__setitem__",),
    "index_put_": ("__setitem__",),
    "masked_fill_": ("__setitem__",),
}
_COPIES: Final = ("clone", "contiguous", "to", "reshape", "detach_copy")
_GUARD_POSITIONS: Final = {"where": [1, 2], "minimum": [0, 1], "maximum": [0, 1]}

Results = Mapping[str, Mapping[str, Any]]
"""What a run has shown, by kind (`worker/values/pricing/observed_results.py`)."""


@dataclass(frozen=True, kw_only=True)
class Fix:
    """How to fix a finding mechanically."""

    plan: dict[str, Any]
    text: str
    rounds: bool = False
    """Whether it may change the order of additions in a backward pass."""


def fix_of(finding: ValueFinding) -> Fix | None:
    """Return the fix of a finding; None where no mechanism can apply one."""
    if finding.path or finding.place.backward:
        return None
    if finding.proof.certainty is Certainty.INPUT_DEPENDENT and finding.pattern != _GUARD:
        return None
    calls = [
        call
        for call in finding.recipe.get("calls", ())
        if not call["backward"] and call["role"] not in {"shrinks", "reads", "inside"}
    ]
    name = finding.operator.removeprefix("aten::")
    lines = {(call["file"], call["line"]) for call in calls if call["role"] == "wasted"}
    lines.add((finding.place.file, finding.place.line))
    if finding.pattern == _DEAD:
        return _of_dead_fill(finding, name, sorted(lines))
    if finding.pattern == _REDUNDANT:
        if finding.evidence.get("unchanged_share", 1.0) < 1.0:
            return None
        return _skip(finding, name, sorted(lines))
    if finding.pattern == _GUARD or finding.detail.startswith((_COPY, _OWN_INPUT)):
        return _argument(finding, name, sorted(lines))
    if finding.pattern in {_DUPLICATE, _UNCHANGED}:
        lines |= {(call["file"], call["line"]) for call in calls}
        within = finding.pattern == _DUPLICATE
        plan: dict[str, Any] = {"kind": "reuse", "lines": sorted(lines), "per_step": within}
        where = "within a step" if within else "across steps"
        return Fix(plan=plan, text=f"earlier results reused {where}", rounds=within)
    return None


def same_results(one: Results, other: Results, *, rounds: bool = False) -> dict[str, str]:
    """Compare kinds of results: empty for equal bits, else how they differ.

    With `rounds`, a difference up to rounding counts as equal and is stated as such.
    """
    differences = {}
    for kind in sorted({*one, *other}):
        mine, others = one.get(kind), other.get(kind)
        if mine is None or others is None:
            differences[kind] = "differs: only one run has it"
        elif mine["digest"] == others["digest"]:
            differences[kind] = ""
        else:
            apart = _apart(mine, others)
            close = rounds and apart <= (PRINTED_ROUNDING if "form" in mine else ROUNDING)
            differences[kind] = f"equal up to rounding ({apart:.1g})" if close else "differs"
    return differences


def _skip(finding: ValueFinding, name: str, lines: list[tuple[str, int]]) -> Fix | None:
    if not name.endswith("_"):
        return None
    names = [name, *_WRITES.get(name, ()), f"__i{name.rstrip('_')}__"]
    return Fix(
        plan={"kind": "skip", "lines": lines, "names": names, "shapes": _shapes(finding)},
        text="the write left out",
    )


def _of_dead_fill(finding: ValueFinding, name: str, lines: list[tuple[str, int]]) -> Fix | None:
    if finding.detail.startswith("gradient "):
        return None  # compared by `zero_grad(set_to_none=True)`
    if finding.detail.startswith(_ADDED):
        added = finding.evidence.get("added_by")
        if not isinstance(added, dict):
            return None
        names = [name] if name in _FRESH else [name, *_WRITES.get(name, ())]
        plan = {"kind": "copy", "lines": lines, "names": names}
        plan["added_lines"] = [(added.get("file"), added.get("line"))]
        return Fix(plan=plan, text="the zeros left out, and copied instead of added")
    if name in _FRESH:
        return Fix(
            plan={"kind": "empty", "lines": lines, "names": [name]},
            text="memory allocated without filling it",
        )
    return _skip(finding, name, lines)


def _argument(finding: ValueFinding, name: str, lines: list[tuple[str, int]]) -> Fix | None:
    bare = name.rstrip("_")
    if finding.pattern == _GUARD:
        names = [name, bare, f"{bare}_", {"clamp": "clip", "hardtanh": "relu6"}.get(bare, bare)]
    elif finding.detail.startswith(_OWN_INPUT):
        names = [name, f"__{bare}__", f"__r{bare}__"]
    else:
        names = list(_COPIES)
    plan = {
        "kind": "argument",
        "lines": lines,
        "names": sorted(set(names)),
        "positions": _GUARD_POSITIONS.get(bare, [0]),
        "shape": list(finding.shape),
        "dtype": finding.dtype,
    }
    return Fix(plan=plan, text="the argument used instead of the equal result")


def _shapes(finding: ValueFinding) -> list[str]:
    calls = finding.recipe.get("calls", ())
    return sorted({call["shapes"] for call in calls if call["operator"] == finding.operator})


def _apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Return the largest relative difference of two results; infinite if they have another form."""
    if one.get("form") != other.get("form") or one.get("count") != other.get("count"):
        return math.inf
    return _largest(one.get("numbers", ()), other.get("numbers", ()), one.get("scales"))


def _largest(one: Any, other: Any, scales: Any) -> float:
    if not one or len(one) != len(other):
        return math.inf
    apart = 0.0
    for number, (first, second) in enumerate(zip(one, other, strict=True)):
        scale = scales[number] if scales else max(abs(first), abs(second))
        difference = abs(first - second)
        if not math.isfinite(difference):
            return math.inf
        apart = max(apart, difference / scale if scale else difference)
    return apart

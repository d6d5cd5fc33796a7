"""Which two things a user wants compared: runs, variants of runs, saved baselines, files.

A side is one run, or the runs of a baseline, and perhaps one variant of theirs. Only reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchyard.core.cross_comparison import CrossSide
from torchyard.core.records import nearest_hint
from torchyard.errors import UsageError
from torchyard.results.baseline_file import read_baseline_file
from torchyard.results.baselines import read_baseline, runs_of
from torchyard.results.machine_identity import machine_name, machine_text
from torchyard.results.revision import revision_of_variant, target_facts
from torchyard.results.run_reader import Run, read_run

__all__ = ["BASELINE_PREFIX", "FindRun", "Side", "choose_side", "describe", "match_variants"]

BASELINE_PREFIX: Final = "baseline:"
VARIANT_MARK: Final = "#"

FindRun = Callable[[str], Path]
"""From what a user calls a run to its folder."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side of the comparison."""

    text: str
    runs: tuple[Run, ...]
    """Oldest first."""
    variant: str | None = None

    @property
    def newest(self) -> Run:
        """The run whose facts stand for the side."""
        return self.runs[-1]

    @property
    def candidates(self) -> list[str]:
        """Names of variants that were judged, each once."""
        names = [row.candidate for run in self.runs for row in run.comparisons]
        planned = [variant.name for run in self.runs for variant in run.study.candidates]
        return list(dict.fromkeys([*names, *planned]))


def choose_side(text: str, *, find: FindRun, beside: Side | None = None) -> Side:
    """The side that the text names; `#VARIANT` alone is of the same run as `beside`."""
    place, mark, variant = _split(text)
    if mark and not variant:
        raise UsageError(f"{text!r} names no variant", hint="write RUN#VARIANT, such as latest#amp")
    if not place:
        if beside is None:
            raise UsageError(f"{text!r} names no run", hint="write RUN#VARIANT, or `latest`")
        runs = beside.runs
    else:
        runs = _runs(place, find)
    ordered = tuple(sorted(runs, key=lambda run: str(run.info.get("started") or "")))
    side = Side(text=text, runs=ordered, variant=variant or None)
    if side.variant is not None:
        _check_variant(side)
    return side


def match_variants(one: Side, other: Side) -> list[tuple[str, str]]:
    """Which variant of one side goes with which of the other; names that both have, else the only ones."""
    if one.variant is not None and other.variant is not None:
        return [(one.variant, other.variant)]
    names_one = [one.variant] if one.variant is not None else one.candidates
    names_other = [other.variant] if other.variant is not None else other.candidates
    common = [(name, name) for name in names_one if name in names_other]
    if common:
        return common
    if len(names_one) == len(names_other) == 1:
        return [(names_one[0], names_other[0])]
    raise UsageError(
        f"{one.text} and {other.text} have no variant in common",
        why=f"one has {', '.join(names_one) or 'none'}; the other {', '.join(names_other) or 'none'}",
        hint="name the variants: RUN#VARIANT",
    )


def describe(side: Side, variants: tuple[str, ...]) -> CrossSide:
    """What reports say of the side."""
    run = side.newest
    known = {variant.name: variant for variant in run.study.variants}
    chosen = [known[name] for name in variants if name in known]
    torch = [str(target_facts(run.info, variant).get("torch") or "") for variant in chosen]
    revisions = [revision_of_variant(run.info, variant) for variant in chosen]
    return CrossSide(
        text=side.text,
        runs=tuple(one.id for one in side.runs),
        variants=variants,
        started=str(run.info.get("started") or ""),
        machine=machine_name(run.info),
        machine_text=machine_text(run.info),
        torch=", ".join(dict.fromkeys(filter(None, torch))),
        revision=", ".join(dict.fromkeys(filter(None, revisions))),
    )


def _split(text: str) -> tuple[str, str, str]:
    if VARIANT_MARK in text and Path(text).expanduser().exists():
        return text, "", ""
    return text.partition(VARIANT_MARK)


def _runs(place: str, find: FindRun) -> tuple[Run, ...]:
    if place.startswith(BASELINE_PREFIX):
        return runs_of(read_baseline(place.removeprefix(BASELINE_PREFIX)))
    path = Path(place).expanduser()
    if path.is_file():
        return read_baseline_file(path)
    return (read_run(find(place)),)


def _check_variant(side: Side) -> None:
    names = [variant.name for run in side.runs for variant in run.study.variants]
    if side.variant not in names:
        raise UsageError(
            f"{side.text}: there is no variant {side.variant!r}",
            hint=nearest_hint(str(side.variant), list(dict.fromkeys(names)), what="variant"),
        )

"""Two runs beside each other: what the page and its data show. Renders nothing.

Runs are given as entries of the index. What a request says is never taken for a folder or a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchyard.core.cross_comparison import CrossComparison
from torchyard.core.records import encode
from torchyard.core.stored import RunEntry
from torchyard.errors import NothingToDo, ResultsDamaged, TorchyardError, UsageError
from torchyard.results.run_reader import Run, read_run
from torchyard.workflow.compare_rules import Rules
from torchyard.workflow.compare_runs import compare_sides
from torchyard.workflow.compare_sides import Side

__all__ = ["Chosen", "Compared", "compare_chosen", "compared_data"]


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """One side as it was chosen."""

    run: RunEntry
    variant: str = ""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What came out, or why nothing could."""

    comparison: CrossComparison | None = None
    problem: TorchyardError | None = None
    variants: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """Of both runs, to choose from."""


def compare_chosen(before: Chosen, after: Chosen) -> Compared:
    """The comparison of two runs of the store."""
    try:
        one, other = _read(before), _read(after)
    except ResultsDamaged as error:
        return Compared(problem=error)
    variants = (_variants(one), _variants(other))
    try:
        made = compare_sides(_side(before, one), _side(after, other), Rules())
    except (UsageError, NothingToDo, ResultsDamaged) as error:
        return Compared(problem=error, variants=variants)
    return Compared(comparison=made, variants=variants)


def compared_data(compared: Compared) -> dict[str, Any]:
    """The same as plain values."""
    if compared.problem is not None:
        problem = compared.problem
        return {"comparison": None, "problem": {"what": problem.what, "why": problem.why}}
    return {"comparison": encode(compared.comparison), "problem": None}


def _read(chosen: Chosen) -> Run:
    return read_run(Path(chosen.run.folder))


def _side(chosen: Chosen, run: Run) -> Side:
    if chosen.variant and chosen.variant not in _variants(run):
        raise UsageError(
            f"{chosen.run.id} has no variant {chosen.variant!r}",
            hint=f"it has {', '.join(_variants(run))}",
        )
    text = f"{chosen.run.id}#{chosen.variant}" if chosen.variant else chosen.run.id
    return Side(text=text, runs=(run,), variant=chosen.variant or None)


def _variants(run: Run) -> tuple[str, ...]:
    return tuple(variant.name for variant in run.study.variants)

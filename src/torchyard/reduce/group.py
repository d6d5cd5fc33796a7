"""The part of an attribution that a search starts from, and its operators in the captured graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchyard.errors import Untrustworthy, UsageError
from torchyard.presentation.safe_text import one_line
from torchyard.reduce.model import Group
from torchyard.results.run_reader import Run
from torchyard.why.model import FOLDER, Source, load

_Place = tuple[str, str, int, str]
"""Module, file name, line and its text."""


def load_group(run: Run, row: int, number: int) -> Group:
    """Return a part of the stored attribution of a row; raise if it has no loss that operators cause."""
    path = run.folder / FOLDER / f"row-{row}.json"
    command = f"torchyard why {run.id} --row {row}"
    if not path.exists():
        raise UsageError(
            f"row {row} has no attribution",
            why="--part is a part of one",
            hint=f"run `{command}` first",
        )
    result = load(path)
    if number > len(result.parts):
        raise UsageError(
            f"there is no part {number}",
            why=f"parts of the attribution: {len(result.parts)}",
            hint=f"`{command}` numbers them",
        )
    part = result.parts[number - 1]
    name = one_line(part.name)
    if not part.sources:
        raise Untrustworthy(
            f"part {number} has no operators: {name}",
            hint="choose a part with operators, or reduce without --part",
        )
    if part.difference_ns <= 0.0:
        raise Untrustworthy(
            f"part {number} has no loss: {name}",
            why=f"it takes {part.baseline_ns / 1e6:.4g} ms with {result.baseline} and "
            f"{part.candidate_ns / 1e6:.4g} ms with {result.candidate}",
            hint="choose a part that takes more time",
        )
    return Group(
        number=number,
        name=part.name,
        sources=part.sources,
        loss_ns=part.difference_ns,
        share=part.difference_ns / result.baseline_ns,
    )


def units_of_part(group: Group, places: Sequence[Sequence[Any]]) -> tuple[int, ...]:
    """Return the units whose module, line and operators are those of a part.

    `places` has module, file, line, its text and the dispatched operators of each unit. A unit of the
    same line counts if it dispatches to an operator of the part. Backward operators are those of the
    forward operator of that name. If no unit of a line does, because the compiler has replaced them, all
    units of the line count.
    """
    operators: dict[_Place, set[str]] = {}
    for source in group.sources:
        operators.setdefault(_place(source), set()).add(source.operator.removesuffix("_backward"))
    by_place: dict[_Place, list[int]] = {}
    for unit, (module, file, line, text, _) in enumerate(places):
        by_place.setdefault((module, Path(file).name, line, text), []).append(unit)
    chosen: list[int] = []
    for place, names in operators.items():
        units = by_place.get(place, [])
        chosen += [unit for unit in units if names.intersection(places[unit][4])] or units
    if not chosen:
        raise Untrustworthy(
            f"the captured graph has no operator of part {group.number}: {one_line(group.name)}",
            why="no operator has its module and source line",
            hint="if the program has changed, run `torchyard bench` and `torchyard why` again; "
            "else reduce without --part",
        )
    return tuple(sorted(chosen))


def _place(source: Source) -> _Place:
    return (source.module, Path(source.file).name, source.line, source.text)

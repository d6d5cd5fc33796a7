"""Sweeps that belong together, such as shards from several machines, read as one.

A cell that several of them hold is taken from the last one that finished it. Changes nothing on disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchyard.core.records import encode
from torchyard.core.sweep import CellStatus, SweepPlan
from torchyard.errors import TorchyardError, UsageError
from torchyard.results.run_reader import Run, read_run
from torchyard.results.sweep_folder import SweepFolder
from torchyard.workflow.sweep_rows import names_of

__all__ = ["SweepParts", "read_sweeps"]


@dataclass(frozen=True, kw_only=True)
class SweepParts:
    """What a summary is made of, from one sweep or from several."""

    plan: SweepPlan
    statuses: list[CellStatus]
    runs: list[Run]
    folders: list[Path]
    """Of the sweep that each status is from."""
    doubts: tuple[str, ...] = ()
    """Doubts about reading them as one."""


def read_sweeps(folders: Sequence[Path]) -> SweepParts:
    """One sweep as it is, or several as one."""
    sweeps = [SweepFolder.open(folder) for folder in folders]
    first = sweeps[0]
    if len(sweeps) == 1:
        statuses = first.statuses()
        return SweepParts(
            plan=first.plan,
            statuses=statuses,
            runs=_runs(first, statuses),
            folders=[first.folder] * len(statuses),
        )
    for other in sweeps[1:]:
        _check_alike(first, other)
    kept = _of_all(sweeps)
    plan = replace(
        first.plan,
        name=" and ".join(dict.fromkeys(sweep.plan.name for sweep in sweeps)),
        cells=tuple(status.cell for status, _ in kept),
        shard=(1, 1),
    )
    return SweepParts(
        plan=plan,
        statuses=[status for status, _ in kept],
        runs=[read_run(folder / status.run) for status, folder in kept if status.state == "done"],
        folders=[folder for _, folder in kept],
        doubts=tuple(_missing([sweep.plan.shard for sweep in sweeps])),
    )


def _runs(sweep: SweepFolder, statuses: Sequence[CellStatus]) -> list[Run]:
    """The joined runs, or while the sweep goes on those of the cells that have one."""
    joined = [Path(path) for path in sweep.runs().values()]
    places = [sweep.folder / status.run for status in statuses if status.state == "done"]
    for chosen in (joined, places):
        try:
            found = [read_run(place) for place in chosen]
        except TorchyardError:
            continue  # a joined run was removed: the cells still have everything
        if found:
            return found
    return []


def _check_alike(first: SweepFolder, other: SweepFolder) -> None:
    """Verdicts are corrected over all cells, which must ask the same question."""
    for what, one, another in (
        ("--null", first.plan.null, other.plan.null),
        ("--alpha", _asked(first)[0], _asked(other)[0]),
        ("--margin", _asked(first)[1], _asked(other)[1]),
    ):
        if one != another:
            raise UsageError(
                f"{first.folder} and {other.folder} cannot be read as one sweep",
                why=f"they differ in {what}: {one} and {another}",
                hint="report them one by one",
            )
    known, others = _definitions(first), _definitions(other)
    for name in known.keys() & others.keys():
        fields = [key for key in known[name] if known[name][key] != others[name].get(key)]
        if fields:
            raise UsageError(
                f"{first.folder} and {other.folder} cannot be read as one sweep",
                why=f"{name} differs in {', '.join(fields)}: the same name would stand for both",
                hint="report them one by one, or give the variants different names",
            )


def _definitions(sweep: SweepFolder) -> dict[str, dict[str, Any]]:
    """What each name stands for: variants of a precision, and the settings; not where targets lie."""
    found: dict[str, dict[str, Any]] = {}
    for cell in sweep.plan.cells:
        found["the measurement"] = encode(cell.study.settings)
        for variant in cell.study.variants:
            record = encode(variant)
            record["target"] = record["target"]["variables"]
            found[f"{variant.name} ({cell.precision})"] = record
    return found


def _asked(sweep: SweepFolder) -> tuple[float | None, float | None]:
    cells = sweep.plan.cells
    return (cells[0].study.budget.alpha, cells[0].study.budget.margin) if cells else (None, None)


def _of_all(sweeps: Sequence[SweepFolder]) -> list[tuple[CellStatus, Path]]:
    """Every cell once, with the folder of its sweep."""
    kept: dict[object, tuple[CellStatus, Path]] = {}
    for sweep in sweeps:
        for status in sweep.statuses():
            key = tuple(names_of(status))
            if key not in kept or kept[key][0].state != "done" or status.state == "done":
                kept[key] = (status, sweep.folder)
    return list(kept.values())


def _missing(shards: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Which shards are not among them."""
    for parts in sorted({of for _, of in shards}):
        here = {part for part, of in shards if of == parts}
        gone = [str(part) for part in range(1, parts + 1) if part not in here]
        if gone:
            yield (
                f"of {parts} parts, {', '.join(gone)} not among these: "
                "corrections and means are those of the others"
            )

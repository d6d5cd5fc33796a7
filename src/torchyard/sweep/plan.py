"""From a request to a SweepPlan: every cell in full, with an id that is safe as a file name.

Queries no machine and starts nothing. Cells have one order whatever the order of the request, so
that the parts of `--shard` fit together on machines that know nothing of each other.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from torchyard import __version__
from torchyard.bench.request import Request
from torchyard.bench.study_assembly import assemble
from torchyard.core.records import encode, nearest_hint
from torchyard.core.study import PRECISIONS, Precision, Study, Workload
from torchyard.errors import NothingToDo, UsageError
from torchyard.files.safe_writing import to_json_text
from torchyard.sweep.executors.interface import check_choice
from torchyard.sweep.model import Cell, ExecutorChoice, SweepLimits, SweepPlan
from torchyard.sweep.sweep_file import SweepRequest

__all__ = ["all_cells", "idle_patterns", "plan_sweep"]

_NAME_LETTERS: Final = 48
_DIGEST_LETTERS: Final = 6
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._]+")


def plan_sweep(
    request: SweepRequest,
    *,
    here: str,
    command: Sequence[str] = (),
    revision: str = "",
    notes: Sequence[str] = (),
) -> SweepPlan:
    """The plan of the request's shard; `here` is the interpreter that Torchyard runs in."""
    cells = all_cells(request, here=here)
    part, parts = request.shard or (1, 1)
    mine = cells[part - 1 :: parts]
    if not mine:
        raise NothingToDo(
            f"part {part} of {parts} is empty",
            why=f"the sweep has only {len(cells)} cell{'' if len(cells) == 1 else 's'}",
            hint=f"cut it into at most {len(cells)} parts",
        )
    return SweepPlan(
        name=request.study.name or "sweep",
        cells=mine,
        shard=(part, parts),
        limits=_limits(request),
        executor=_executor(request),
        null=bool(request.null),
        largest_batches=_searches(request),
        command=tuple(command),
        revision=revision,
        notes=tuple(notes),
        created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        torchyard=__version__,
    )


def all_cells(request: SweepRequest, *, here: str) -> tuple[Cell, ...]:
    """The cells of all shards, in the order of the plan.

    Sorted by precision and mode first: taking each k-th then gives every part its share of the
    dear ones, and neighbours by name, which are often alike, to different parts.
    """
    study = _with_modes(request)
    if not study.workloads:
        raise NothingToDo(
            "no suite is named",
            hint="say --suites models,kernels, or name a study file; `torchyard workloads` lists them",
        )
    asked = request.precisions or (study.precision or "float32",)
    precisions = [precision for precision in PRECISIONS if precision in asked]
    _check_specs_name_no_precision(study, precisions, here)
    pairs = [
        (precision, _null(whole) if request.null else whole)
        for precision in precisions
        for whole in [_whole_study(study, precision, here)]
    ]
    found: list[tuple[Precision, Study]] = [
        (precision, replace(whole, workloads=(workload,)))
        for precision, whole in pairs
        for workload in whole.workloads
        if request.patterns.keep(workload)
    ]
    if not found:
        raise _nothing_fits(request, pairs[0][1].workloads)
    found.sort(key=lambda item: _order(item[0], item[1]))
    width = max(4, len(str(len(found))))
    return tuple(
        Cell(id=f"{number:0{width}d}-{_id_of(one.workloads[0], precision)}", study=one)
        for number, (precision, one) in enumerate(found, start=1)
    )


def idle_patterns(request: SweepRequest, *, here: str) -> list[str]:
    """Patterns of --only and --exclude that fit nothing that was asked for."""
    patterns = request.patterns
    if not patterns.only and not patterns.exclude:
        return []
    precision = (*request.precisions, request.study.precision or "float32")[0]
    return patterns.idle(_whole_study(_with_modes(request), precision, here).workloads)


def _with_modes(request: SweepRequest) -> Request:
    """The study in which every workload that names no mode has those of the sweep."""
    workloads = tuple(
        replace(choice, modes=choice.modes or request.modes) for choice in request.study.workloads
    )
    return replace(request.study, workloads=workloads)


def _whole_study(study: Request, precision: Precision, here: str) -> Study:
    return assemble(replace(study, precision=precision, name=study.name or "sweep"), here=here)


def _order(precision: Precision, study: Study) -> tuple[str, ...]:
    workload = study.workloads[0]
    return (
        f"{PRECISIONS.index(precision):02d}",
        workload.mode,
        workload.suite,
        workload.name,
        to_json_text(encode(workload)),
    )


def _null(study: Study) -> Study:
    """As many candidates, each the baseline again."""
    name = f"{study.baseline.name}-again"
    return replace(
        study,
        candidates=tuple(
            replace(study.baseline, name=name if number == 1 else f"{name}-{number}")
            for number in range(1, len(study.candidates) + 1)
        ),
    )


def _check_specs_name_no_precision(
    study: Request, precisions: Sequence[Precision], here: str
) -> None:
    """With several precisions each cell has its own: a variant with a fixed one would be in all."""
    if len(precisions) < 2:  # noqa: PLR2004
        return
    first, second = (_whole_study(study, precision, here).variants for precision in precisions[:2])
    for one, other in zip(first, second, strict=True):
        if one.precision == other.precision:
            raise UsageError(
                f"the variant {one.name!r} names a precision, and the sweep has several",
                why=f"it would be the same in the cells of {' and '.join(precisions)}",
                hint="leave the precision out of --baseline and --backends, or sweep only one",
            )


def _nothing_fits(request: SweepRequest, workloads: Sequence[Workload]) -> NothingToDo:
    names = [f"{workload.suite}/{workload.name}" for workload in workloads]
    only = request.patterns.only
    hint = "loosen --only or --exclude"
    if only and not any(letter in only[0] for letter in "*?["):
        near = nearest_hint(only[0], names, what="workload")
        hint = near if near.startswith("did") else hint
    return NothingToDo(
        "no workload is left", why=f"the patterns leave none of {len(set(names))}", hint=hint
    )


def _id_of(workload: Workload, precision: Precision) -> str:
    """`timm-resnet50-training-float32`; a digest tells apart what the letters cannot.

    Names come from files and users: only letters, digits, dots and dashes get into the id.
    """
    name = Path(workload.name).name if workload.suite == "file" else workload.name
    plain = _UNSAFE.sub("-", name).strip(".-")[:_NAME_LETTERS].strip(".-")
    digest = ""
    if plain != workload.name or workload.parameters:
        text = to_json_text([workload.name, workload.parameters]).encode("ascii")
        digest = hashlib.sha256(text).hexdigest()[:_DIGEST_LETTERS]
    suite = _UNSAFE.sub("-", workload.suite)
    return "-".join(part for part in (suite, plain, digest, workload.mode, precision) if part)


def _searches(request: SweepRequest) -> bool:
    """Whether cells search for their batch sizes; one at a time, or they take each other's memory."""
    if not request.largest_batches:
        return False
    choice = _executor(request)
    at_most = int(dict(choice.options).get("at-most", 1))
    if choice.name == "local" and at_most > 1:
        raise UsageError(
            f"the largest batch cannot be searched for with {at_most} cells under way at once",
            why="each would find what the others leave of the memory",
            hint="leave --at-most out, or name a batch size",
        )
    return True


def _limits(request: SweepRequest) -> SweepLimits:
    usual = SweepLimits()
    return SweepLimits(
        cell_s=request.cell_s, tries=usual.tries if request.tries is None else request.tries
    )


def _executor(request: SweepRequest) -> ExecutorChoice:
    name = request.executor or "local"
    said = sorted(request.executor_options.items())
    if name == "local":  # options of a cluster may stand in a file that is tried here
        said = [(key, value) for key, value in said if key == "at-most"]
    choice = ExecutorChoice(name=name, options=tuple(said))
    check_choice(choice)
    return choice

"""Expand a request into a SweepPlan: all cells, each with an id that is safe as a file name.

Queries no machine and starts nothing. The order of cells does not depend on the order of the
request, so that the shards of one sweep fit together when they are planned on different machines.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from torchyard import __version__
from torchyard.bench.request import Request
from torchyard.bench.study_assembly import assemble
from torchyard.core.records import encode, nearest_hint
from torchyard.core.study import PRECISIONS, Precision, Study, Workload
from torchyard.errors import NothingToDo, UsageError
from torchyard.files.safe_writing import to_json_text
from torchyard.results.directory import utc_timestamp
from torchyard.sweep.executors.interface import check_choice
from torchyard.sweep.model import LOCAL_OPTIONS, Cell, ExecutorChoice, SweepLimits, SweepPlan
from torchyard.sweep.sweep_file import SweepRequest

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
    """Return the plan of the request's shard; `here` is the interpreter that runs Torchyard."""
    cells = all_cells(request, here=here)
    part, parts = request.shard or (1, 1)
    shard_cells = cells[part - 1 :: parts]
    if not shard_cells:
        raise NothingToDo(
            f"shard {part} of {parts} is empty",
            why=f"the sweep has only {len(cells)} cell{'' if len(cells) == 1 else 's'}",
            hint=f"use at most {len(cells)} shards",
        )
    return SweepPlan(
        name=request.study.name or "sweep",
        cells=shard_cells,
        shard=(part, parts),
        limits=_limits(request),
        executor=_executor(request),
        null=bool(request.null),
        largest_batches=_searches(request),
        command=tuple(command),
        revision=revision,
        notes=tuple(notes),
        created=utc_timestamp(),
        torchyard=__version__,
    )


def all_cells(request: SweepRequest, *, here: str) -> tuple[Cell, ...]:
    """Return the cells of all shards, in plan order.

    Sorted by precision and mode first, so that taking every k-th cell distributes the expensive
    cells, and workloads with similar names, evenly over the shards.
    """
    study = _with_modes(request)
    if not study.workloads:
        raise NothingToDo(
            "no suite or workload given",
            hint="use --suites models,kernels or a study file; `torchyard workloads` lists the suites",
        )
    requested = request.precisions or (study.precision or "float32",)
    precisions = [precision for precision in PRECISIONS if precision in requested]
    _check_specs_name_no_precision(study, precisions, here)
    pairs = [
        (precision, _null(whole) if request.null else whole)
        for precision in precisions
        for whole in [_whole_study(study, precision, here)]
    ]
    studies: list[tuple[Precision, Study]] = [
        (precision, replace(whole, workloads=(workload,)))
        for precision, whole in pairs
        for workload in whole.workloads
        if request.patterns.keep(workload)
    ]
    if not studies:
        raise _no_match_error(request, pairs[0][1].workloads)
    studies.sort(key=lambda item: _order(item[0], item[1]))
    width = max(4, len(str(len(studies))))
    return tuple(
        Cell(id=f"{number:0{width}d}-{_id_of(one.workloads[0], precision)}", study=one)
        for number, (precision, one) in enumerate(studies, start=1)
    )


def unmatched_patterns(request: SweepRequest, *, here: str) -> list[str]:
    """Return the patterns of --only and --exclude that match no requested workload."""
    patterns = request.patterns
    if not patterns.only and not patterns.exclude:
        return []
    precision = (*request.precisions, request.study.precision or "float32")[0]
    return patterns.unmatched(_whole_study(_with_modes(request), precision, here).workloads)


def _with_modes(request: SweepRequest) -> Request:
    """Return the study with the modes of the sweep for every workload that names none."""
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
    """Replace each candidate by the baseline."""
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
    """Raise UsageError if a variant fixes its precision while the sweep has several."""
    if len(precisions) < 2:  # noqa: PLR2004
        return
    first, second = (_whole_study(study, precision, here).variants for precision in precisions[:2])
    for one, other in zip(first, second, strict=True):
        if one.precision == other.precision:
            raise UsageError(
                f"the variant {one.name!r} fixes a precision, but the sweep has several",
                why=f"it would be the same in the cells of {' and '.join(precisions)}",
                hint="remove the precision from --baseline and --backends, or use one precision",
            )


def _no_match_error(request: SweepRequest, workloads: Sequence[Workload]) -> NothingToDo:
    names = [f"{workload.suite}/{workload.name}" for workload in workloads]
    only = request.patterns.only
    hint = "relax --only or --exclude"
    if only and not any(letter in only[0] for letter in "*?["):
        near = nearest_hint(only[0], names, what="workload")
        hint = near if near.startswith("did") else hint
    return NothingToDo(
        "no workload selected",
        why=f"--only and --exclude remove all {len(set(names))} workloads",
        hint=hint,
    )


def _id_of(workload: Workload, precision: Precision) -> str:
    """Return an id such as `timm-resnet50-training-float32`, with a digest if it would be ambiguous.

    Names come from files and users: the id contains only letters, digits, dots and dashes.
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
    """Return whether cells search for their batch sizes; raise UsageError if they run concurrently."""
    if not request.largest_batches:
        return False
    choice = _executor(request)
    at_most = int(dict(choice.options).get("at-most", 1))
    if choice.name == "local" and at_most > 1:
        raise UsageError(
            f"the largest batch size cannot be searched for with {at_most} concurrent cells",
            why="each cell would only see the memory that the others leave free",
            hint="remove --at-most, or set a batch size",
        )
    return True


def _limits(request: SweepRequest) -> SweepLimits:
    default = SweepLimits()
    if request.budget_s is not None and (request.executor or "local") != "local":
        raise UsageError(
            "--budget needs --executor local",
            why="the queue of a cluster decides when cells run",
            hint="remove --budget; --time and --job-time limit the cells",
        )
    return SweepLimits(
        cell_s=request.cell_s,
        tries=default.tries if request.tries is None else request.tries,
        budget_s=request.budget_s,
    )


def _executor(request: SweepRequest) -> ExecutorChoice:
    name = request.executor or "local"
    options = sorted(request.executor_options.items())
    if name == "local":  # a study file may have options of a cluster
        options = [(key, value) for key, value in options if key in LOCAL_OPTIONS]
    else:
        options = [(key, value) for key, value in options if key != "reserve-cores"]
    choice = ExecutorChoice(name=name, options=tuple(options))
    check_choice(choice)
    return choice

"""A baseline as one file that travels: facts and comparisons of runs, without their samples.

A repository or a CI job can keep it without the run folders. Paths, commands, host names and logs are
left out of it. Also reads the small files of named baselines, because both begin alike. Knows nothing
of what is compared with a baseline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any, Final, TypeVar

from torchyard.core.comparison import Comparison
from torchyard.core.records import encode
from torchyard.core.study import Study
from torchyard.errors import ResultsDamaged
from torchyard.results.bounded_read import read_json
from torchyard.results.durable import replace_file, to_json_text, write_failed
from torchyard.results.plausible import decode_possible
from torchyard.results.record_lines import LARGEST_ROWS_BYTES
from torchyard.results.run_reader import Run

__all__ = [
    "BASELINE_FORMAT",
    "decoded",
    "moment",
    "read_baseline_file",
    "read_document",
    "write_baseline_file",
]

T = TypeVar("T")

BASELINE_FORMAT: Final = 1
"""Raised when an older Torchyard could no longer read the file; added keys do not raise it."""
_KEPT_FACTS: Final = (
    "format",
    "id",
    "state",
    "torchyard",
    "method",
    "started",
    "finished",
    "revision",
)
_LEFT_OUT_OF_TARGETS: Final = ("executable", "pid")


def write_baseline_file(path: Path, name: str, runs: Sequence[Run], *, note: str = "") -> None:
    """The runs' facts and comparisons in one file, without what tells of the machine's owner."""
    document = {
        "format": BASELINE_FORMAT,
        "kind": "torchyard.baseline",
        "name": name,
        "saved": moment(),
        "note": note,
        "runs": [
            {"info": _shared_facts(run), "comparisons": [_shared(row) for row in run.comparisons]}
            for run in runs
        ],
    }
    try:
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_failed(path, error, kept="what is there") from error
    replace_file(path.absolute(), to_json_text(document, indent=1) + "\n")


def read_baseline_file(path: Path) -> tuple[Run, ...]:
    """The runs inside a baseline file; their samples are not in it."""
    document = read_document(path)
    entries = document.get("runs")
    if document.get("kind") != "torchyard.baseline" or not isinstance(entries, list) or not entries:
        raise ResultsDamaged(
            f"{path} is not a baseline file",
            why="it holds no runs of Torchyard",
            hint="write one with `torchyard baseline save NAME --file FILE`",
        )
    return tuple(_run_inside(entry, path, number) for number, entry in enumerate(entries))


def _run_inside(entry: object, path: Path, number: int) -> Run:
    info = entry.get("info") if isinstance(entry, Mapping) else None
    rows = entry.get("comparisons") if isinstance(entry, Mapping) else None
    if not isinstance(info, Mapping) or not isinstance(rows, list):
        raise ResultsDamaged(f"{path}: runs[{number}] is not a run", hint="save the baseline again")
    return Run(
        folder=path,
        id=str(info.get("id", "")),
        state=str(info.get("state", "")),
        info=info,
        study=decoded(Study, info.get("study"), path),
        comparisons=tuple(decoded(Comparison, row, path).with_times_of_estimate() for row in rows),
    )


def _shared_facts(run: Run) -> dict[str, Any]:
    facts = {key: run.info[key] for key in _KEPT_FACTS if key in run.info}
    machine = run.info.get("machine")
    targets = run.info.get("targets")
    study = run.study
    bare = [
        replace(one, target=replace(one.target, python=PurePath(one.target.python).name))
        for one in study.variants
    ]
    return {
        **facts,
        "machine": machine if isinstance(machine, Mapping) else {},
        "targets": {
            name: {key: value for key, value in target.items() if key not in _LEFT_OUT_OF_TARGETS}
            for name, target in (targets.items() if isinstance(targets, Mapping) else ())
            if isinstance(target, Mapping)
        },
        "study": encode(replace(study, baseline=bare[0], candidates=tuple(bare[1:]))),
    }


def _shared(row: Comparison) -> Any:
    failure = row.failure and replace(row.failure, log="", log_tail="")
    return encode(replace(row, failure=failure))


def read_document(path: Path) -> dict[str, Any]:
    """The JSON object in that file, of a format that this version knows."""
    try:
        document = read_json(path, largest_bytes=LARGEST_ROWS_BYTES)
    except OSError as error:
        raise ResultsDamaged(f"{path} cannot be read", why=error.strerror or str(error)) from error
    except ValueError as error:
        raise ResultsDamaged(
            f"{path} is not JSON", why=str(error), hint="save the baseline again"
        ) from error
    version = document.get("format") if isinstance(document, dict) else None
    if not isinstance(document, dict) or type(version) is not int or version < 1:
        raise ResultsDamaged(f"{path} is not a baseline", hint="save the baseline again")
    if version > BASELINE_FORMAT:
        raise ResultsDamaged(
            f"{path} was written by a newer Torchyard",
            why=f"its format is {version}; this Torchyard reads up to {BASELINE_FORMAT}",
            hint="update Torchyard to read it",
        )
    return document


def decoded(kind: type[T], value: object, path: Path) -> T:
    """The record; what cannot be one is damage that names the file."""
    try:
        return decode_possible(kind, value)
    except ValueError as error:
        raise ResultsDamaged(
            f"{path}: not a {kind.__name__.lower()}", why=str(error), hint="save the baseline again"
        ) from error


def moment() -> str:
    """Now, as it is written down."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

"""Baselines: runs to compare with later, saved under a name or as one portable file.

A named baseline is a file in the results directory that refers to runs. A baseline file contains the facts and
comparisons of runs without their samples; paths, commands, host names and logs are redacted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Final, TypeVar

from torchyard.core.comparison import Comparison
from torchyard.core.records import encode, nearest_hint
from torchyard.core.study import Study
from torchyard.errors import ResultsDamaged, UsageError
from torchyard.files.safe_writing import replace_json, write_errors
from torchyard.machine.identity import table_of
from torchyard.results.directory import RUN_FILE, home_folder, read_stored, runs_home, utc_timestamp
from torchyard.results.plausibility import decode_stored
from torchyard.results.run_reader import Run, read_run

T = TypeVar("T")

BASELINE_FORMAT: Final = 1
"""Incremented when an older Torchyard can no longer read the file, not when keys are added."""
_SAVE_AGAIN: Final = "save the baseline again"
_KEPT_FACTS: Final = (
    *("format", "id", "state", "torchyard", "method", "started", "finished", "revision"),
)
_REDACTED_TARGET_FACTS: Final = ("executable", "pid")


def write_baseline_file(path: Path, name: str, runs: Sequence[Run], *, note: str = "") -> None:
    """Write facts and comparisons of the runs to one file, without private data."""
    document = {
        "format": BASELINE_FORMAT,
        "kind": "torchyard.baseline",
        "name": name,
        "saved": utc_timestamp(),
        "note": note,
        "runs": [
            {
                "info": _shared_facts(run),
                "comparisons": encode([*map(_without_log, run.comparisons)]),
            }
            for run in runs
        ],
    }
    replace_json(path.absolute(), document)


def read_baseline_file(path: Path) -> tuple[Run, ...]:
    """Read the runs of a baseline file, which have no samples."""
    document = _read(path)
    entries = document.get("runs")
    if document.get("kind") != "torchyard.baseline" or not isinstance(entries, list) or not entries:
        raise ResultsDamaged(
            f"{path} is not a baseline file",
            why="it contains no runs",
            hint="write one with `torchyard baseline save NAME --file FILE`",
        )
    return tuple(_run_inside(entry, path, number) for number, entry in enumerate(entries))


def _run_inside(entry: object, path: Path, number: int) -> Run:
    info = entry.get("info") if isinstance(entry, Mapping) else None
    rows = entry.get("comparisons") if isinstance(entry, Mapping) else None
    if not isinstance(info, Mapping) or not isinstance(rows, list):
        raise ResultsDamaged(f"{path}: runs[{number}] is not a run", hint=_SAVE_AGAIN)
    return Run(
        folder=path,
        id=str(info.get("id", "")),
        state=str(info.get("state", "")),
        info=info,
        study=_decoded(Study, info.get("study"), path),
        comparisons=tuple(_decoded(Comparison, row, path).with_times_of_estimate() for row in rows),
    )


def _shared_facts(run: Run) -> dict[str, Any]:
    facts = {key: run.info[key] for key in _KEPT_FACTS if key in run.info}
    study = run.study
    bare = [
        replace(one, target=replace(one.target, python=PurePath(one.target.python).name))
        for one in study.variants
    ]
    return {
        **facts,
        "machine": table_of(run.info, "machine"),
        "targets": {
            name: {key: value for key, value in target.items() if key not in _REDACTED_TARGET_FACTS}
            for name, target in table_of(run.info, "targets").items()
            if isinstance(target, Mapping)
        },
        "study": encode(replace(study, baseline=bare[0], candidates=tuple(bare[1:]))),
    }


def _without_log(row: Comparison) -> Comparison:
    return replace(row, failure=row.failure and replace(row.failure, log="", log_tail=""))


def _read(path: Path) -> dict[str, Any]:
    return read_stored(path, what="a baseline", newest=BASELINE_FORMAT, hint=_SAVE_AGAIN)


def _decoded(kind: type[T], value: object, path: Path) -> T:
    return decode_stored(kind, value, place=path, hint=_SAVE_AGAIN)


_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A named set of runs."""

    name: str
    runs: tuple[str, ...]
    saved: str
    """ISO 8601, UTC, ends in Z."""
    note: str = ""
    folders: tuple[tuple[str, str], ...] = ()
    """Run id and folder of runs outside the results directory."""
    format: int = BASELINE_FORMAT


def baselines_home() -> Path:
    """Return the folder of named baselines."""
    return home_folder() / "baselines"


def check_baseline_name(name: str) -> str:
    """Return the name; raise UsageError unless it is a plain file name."""
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"{name!r} is not a valid name of a baseline",
            why="a name may contain letters, digits, dots, dashes and underscores",
            hint="use a name such as main or release-2.9",
        )
    return name


def save_baseline(
    name: str, runs: Sequence[Run], *, note: str = "", replace_existing: bool = False
) -> Baseline:
    """Save the runs as a named baseline."""
    path = _path_of(name)
    if path.exists() and not replace_existing:
        raise UsageError(
            f"the baseline {name!r} already exists",
            why=f"it was saved {_saved_time(path)}",
            hint="use --replace to overwrite it, or choose another name",
        )
    home = runs_home().resolve()
    baseline = Baseline(
        name=name,
        runs=tuple(run.id for run in runs),
        saved=utc_timestamp(),
        note=note,
        folders=tuple(
            (run.id, str(run.folder.resolve()))
            for run in runs
            if run.folder.resolve() != home / run.id
        ),
    )
    replace_json(path, encode(baseline))
    return baseline


def read_baseline(name: str) -> Baseline:
    """Read the baseline of that name."""
    path = _path_of(name)
    if not path.is_file():
        names = _names()
        raise UsageError(
            f"there is no baseline {name!r}",
            why=f"{path.parent} contains no such baseline",
            hint=nearest_hint(name, names, what="baseline")
            if names
            else "save one with `torchyard baseline save NAME`",
        )
    return _decoded(Baseline, _read(path), path)


def baseline_exists(name: str) -> bool:
    """Return whether there is a baseline of that name; False for any other text."""
    return _NAME.fullmatch(name) is not None and _path_of(name).is_file()


def list_baselines() -> tuple[list[Baseline], list[ResultsDamaged]]:
    """Return all baselines sorted by name, and the errors of unreadable files."""
    baselines: list[Baseline] = []
    damaged: list[ResultsDamaged] = []
    for name in _names():
        try:
            baselines.append(read_baseline(name))
        except ResultsDamaged as error:
            damaged.append(error)
    return baselines, damaged


def delete_baseline(name: str) -> None:
    """Delete the baseline; its runs are kept."""
    path = _path_of(name)
    if not path.is_file():
        read_baseline(name)  # raises with the nearest name
    with write_errors(path, kept="the baseline"):
        path.unlink()


def runs_of(baseline: Baseline) -> tuple[Run, ...]:
    """Read the runs of a baseline; raise ResultsDamaged if one is missing."""
    elsewhere = dict(baseline.folders)
    return tuple(read_run(_folder_of(baseline, run, elsewhere)) for run in baseline.runs)


def _folder_of(baseline: Baseline, run: str, elsewhere: Mapping[str, str]) -> Path:
    folder = Path(elsewhere[run]) if run in elsewhere else runs_home() / run
    plain = run and run == PurePath(run).name and run not in {".", ".."}
    if not plain or not (folder / RUN_FILE).is_file():
        raise ResultsDamaged(
            f"the run {run!r} of baseline {baseline.name!r} is missing",
            why=f"there is no run in {folder}",
            hint=f"restore the folder, or save another run: "
            f"`torchyard baseline save {baseline.name} RUN --replace`",
        )
    return folder


def _path_of(name: str) -> Path:
    return baselines_home() / f"{check_baseline_name(name)}.json"


def _names() -> list[str]:
    try:
        names = sorted(path.stem for path in baselines_home().glob("*.json") if path.is_file())
    except OSError:
        return []
    return [name for name in names if _NAME.fullmatch(name)]


def _saved_time(path: Path) -> str:
    try:
        return str(_read(path).get("saved", "earlier"))
    except ResultsDamaged:
        return "earlier, but the file is damaged"

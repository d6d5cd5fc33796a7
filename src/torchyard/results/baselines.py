"""Named baselines: runs to compare with later.

A named baseline is a small file in Torchyard's home that names runs; the runs stay where they are.
Names are plain file names and nothing else. Knows nothing of what is compared with a baseline.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

from torchyard.core.records import encode, nearest_hint
from torchyard.errors import ResultsDamaged, UsageError
from torchyard.results.baseline_file import BASELINE_FORMAT, decoded, moment, read_document
from torchyard.results.durable import replace_file, to_json_text, write_failed
from torchyard.results.layout import RUN_FILE
from torchyard.results.run_home import home_folder, runs_home
from torchyard.results.run_reader import Run, read_run

__all__ = [
    "Baseline",
    "baseline_exists",
    "baselines_home",
    "check_baseline_name",
    "delete_baseline",
    "list_baselines",
    "read_baseline",
    "runs_of",
    "save_baseline",
]

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A name for runs."""

    name: str
    runs: tuple[str, ...]
    saved: str
    """ISO 8601, UTC, ends in Z."""
    note: str = ""
    folders: tuple[tuple[str, str], ...] = ()
    """Run id and folder of runs that do not lie in the runs' home."""
    format: int = BASELINE_FORMAT


def baselines_home() -> Path:
    """Where named baselines are."""
    return home_folder() / "baselines"


def check_baseline_name(name: str) -> str:
    """The name itself; raises when it could be anything but a plain file name."""
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"{name!r} is no name for a baseline",
            why="a name is made of letters, digits, dots, dashes and underscores",
            hint="choose one like main or release-2.9",
        )
    return name


def save_baseline(
    name: str, runs: Sequence[Run], *, note: str = "", replace_existing: bool = False
) -> Baseline:
    """Give the runs that name."""
    path = _path_of(name)
    if path.exists() and not replace_existing:
        raise UsageError(
            f"there is a baseline {name!r} already",
            why=f"it was saved {_saved_moment(path)}",
            hint="give --replace to save over it, or choose another name",
        )
    home = runs_home().resolve()
    baseline = Baseline(
        name=name,
        runs=tuple(run.id for run in runs),
        saved=moment(),
        note=note,
        folders=tuple(
            (run.id, str(run.folder.resolve()))
            for run in runs
            if run.folder.resolve() != home / run.id
        ),
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_failed(path.parent, error, kept="what is there") from error
    replace_file(path, to_json_text(encode(baseline), indent=1) + "\n")
    return baseline


def read_baseline(name: str) -> Baseline:
    """The baseline of that name."""
    path = _path_of(name)
    if not path.is_file():
        known = _names()
        raise UsageError(
            f"there is no baseline {name!r}",
            why=f"looked in {path.parent}",
            hint=nearest_hint(name, known, what="baseline")
            if known
            else "save one with `torchyard baseline save NAME`",
        )
    return decoded(Baseline, read_document(path), path)


def baseline_exists(name: str) -> bool:
    """Whether that is the name of a baseline; any other text is not."""
    return _NAME.fullmatch(name) is not None and _path_of(name).is_file()


def list_baselines() -> tuple[list[Baseline], list[ResultsDamaged]]:
    """Every baseline by name, and what is wrong with the files that cannot be read."""
    found: list[Baseline] = []
    damaged: list[ResultsDamaged] = []
    for name in _names():
        try:
            found.append(read_baseline(name))
        except ResultsDamaged as error:
            damaged.append(error)
    return found, damaged


def delete_baseline(name: str) -> None:
    """Forget the name; its runs stay."""
    path = _path_of(name)
    if not path.is_file():
        read_baseline(name)  # raises with the nearest name
    try:
        path.unlink()
    except OSError as error:
        raise write_failed(path, error, kept="the baseline") from error


def runs_of(baseline: Baseline) -> tuple[Run, ...]:
    """The runs themselves; one that is gone is an error that says which."""
    elsewhere = dict(baseline.folders)
    return tuple(read_run(_folder_of(baseline, run, elsewhere)) for run in baseline.runs)


def _folder_of(baseline: Baseline, run: str, elsewhere: Mapping[str, str]) -> Path:
    folder = Path(elsewhere[run]) if run in elsewhere else runs_home() / run
    plain = run and run == PurePath(run).name and run not in {".", ".."}
    if not plain or not (folder / RUN_FILE).is_file():
        raise ResultsDamaged(
            f"the baseline {baseline.name!r} names the run {run!r}, which is gone",
            why=f"there is no run in {folder}",
            hint=f"put the folder back, or save another run: "
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


def _saved_moment(path: Path) -> str:
    try:
        return str(read_document(path).get("saved", "earlier"))
    except ResultsDamaged:
        return "earlier, and cannot be read"

"""Read a run folder, complete or interrupted, of this format version or an older one; changes nothing.

Unknown keys are skipped, so that a folder of a newer Torchyard with the same format version stays readable. Also names
the revision that a run measured: given by the user, by the CI job, or by torch itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from torchyard.core.block import Block
from torchyard.core.comparison import Comparison
from torchyard.core.study import Study, Variant, Workload
from torchyard.errors import ResultsDamaged
from torchyard.files.safe_reading import (
    LARGEST_DOCUMENT_BYTES,
    LARGEST_ROWS_BYTES,
    has_incomplete_last_line,
    read_records,
)
from torchyard.machine.identity import table_of
from torchyard.process.owner import is_gone
from torchyard.results.directory import (
    COMPARISONS_FILE,
    FORMAT_VERSION,
    LAUNCHES_FILE,
    RECORD_FILES,
    RUN_FILE,
    SAMPLES_FILE,
    STATES,
    read_stored,
)
from torchyard.results.plausibility import decode_stored

CI_VARIABLES: Final = (
    "GITHUB_SHA",
    "CI_COMMIT_SHA",
    "BUILDKITE_COMMIT",
    "CIRCLE_SHA1",
    "GIT_COMMIT",
    "BUILD_SOURCEVERSION",
    "DRONE_COMMIT_SHA",
    "TRAVIS_COMMIT",
    "BITBUCKET_COMMIT",
)
"""Variables in which GitHub, GitLab, Buildkite, CircleCI, Jenkins, Azure, Drone, Travis and Bitbucket
set the commit of a job, in order of priority."""


def revision_from_ci(variables: Mapping[str, str]) -> str:
    """Return the commit of a CI job; empty outside of one."""
    return next((variables[name] for name in CI_VARIABLES if variables.get(name)), "")


def target_facts(info: Mapping[str, Any], variant: Variant) -> Mapping[str, Any]:
    """Return the facts that the variant's target reported at startup; empty if it did not."""
    targets = table_of(info, "targets")
    # Recorded by target and environment; early versions recorded the target only.
    return table_of(targets, "+".join(variant.process_key)) or table_of(
        targets, variant.target.name
    )


def revision_of_run(info: Mapping[str, Any], study: Study) -> str:
    """Return the recorded revision, else the commits of the candidates' torch."""
    revisions = dict.fromkeys(revision_of_variant(info, variant) for variant in study.candidates)
    return ", ".join(filter(None, revisions)) or str(info.get("revision") or "")


def revision_of_variant(info: Mapping[str, Any], variant: Variant) -> str:
    """Return the recorded revision, else the commit of the variant's torch; empty if unknown."""
    return str(info.get("revision") or target_facts(info, variant).get("torch_git") or "")


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run, as read from its folder."""

    folder: Path
    id: str
    state: str
    """As recorded, except that a running run whose process has ended is interrupted."""
    info: Mapping[str, Any]
    """The contents of `run.json`."""
    study: Study
    comparisons: tuple[Comparison, ...]
    torn_lines: int = 0
    """Incomplete last lines, left by a killed process; they are skipped."""

    def blocks(self, workload: Workload | None = None) -> Iterator[tuple[str, Block]]:
        """Yield workload label and block, in the order they were written."""
        path = self.folder / SAMPLES_FILE
        for number, record in read_records(path):
            label = str(record.get("workload"))
            if workload is None or label == workload.label:
                yield label, _decode(Block, record.get("block"), path, number)

    def blocks_by_workload(self) -> dict[str, list[Block]]:
        """Return all blocks with a positive duration by label of the workload, in one pass."""
        blocks: dict[str, list[Block]] = defaultdict(list)
        for label, block in self.blocks():
            if block.samples_ns and block.median_ns > 0:
                blocks[label].append(block)
        return blocks

    def launches(self) -> list[dict[str, Any]]:
        """Return the records of all launches."""
        path = self.folder / LAUNCHES_FILE
        return [record for _, record in read_records(path, largest_bytes=LARGEST_ROWS_BYTES)]


def read_run(folder: Path) -> Run:
    """Read a run folder; samples and launches are read on demand."""
    folder = folder.absolute()
    info = read_info(folder)
    state, study = read_facts_of_run(folder, info)
    return Run(
        folder=folder,
        id=str(info.get("id", folder.name)),
        state=state,
        info=info,
        study=study,
        comparisons=_read_comparisons(folder / COMPARISONS_FILE),
        torn_lines=sum(has_incomplete_last_line(folder / name) for name in RECORD_FILES),
    )


def read_facts_of_run(folder: Path, info: Mapping[str, Any]) -> tuple[str, Study]:
    """Return state and study from the result of `read_info`."""
    state = info.get("state")
    if state not in STATES:
        raise ResultsDamaged(
            f"{folder / RUN_FILE}: unknown state {state!r}",
            hint=f"valid states: {', '.join(STATES)}",
        )
    if state == "running" and is_gone(info.get("owner")):
        state = "interrupted"
    return state, _decode(Study, info.get("study"), folder / RUN_FILE, None)


def read_info(folder: Path) -> dict[str, Any]:
    """Read `run.json`; raise ResultsDamaged if it is damaged or of a newer format."""
    path = folder / RUN_FILE
    absent = ResultsDamaged(
        f"{folder} is not a run folder",
        why=f"{path} is missing",
        hint="give the folder that a run printed as its results",
    )
    return read_stored(
        path,
        what="the facts of a run",
        newest=FORMAT_VERSION,
        absent=absent,
        largest_bytes=LARGEST_DOCUMENT_BYTES,
    )


def _read_comparisons(path: Path) -> tuple[Comparison, ...]:
    """Return the last record of each comparison, in the order of the first records.

    The file is append-only: a comparison is written again when a later one changes it, because
    adjusted p-values depend on all comparisons.
    """
    last: dict[str, tuple[int, dict[str, Any]]] = {}
    for number, record in read_records(path, largest_bytes=LARGEST_ROWS_BYTES):
        # Only the last record is decoded, which takes fifteen times as long as reading a line.
        names = (record.get("workload"), record.get("baseline"), record.get("candidate"))
        last[repr(names)] = (number, record)
    comparisons: dict[tuple[str, str, str], Comparison] = {}
    for number, record in last.values():
        comparison = _decode(Comparison, record, path, number).with_times_of_estimate()
        key = (comparison.workload.label, comparison.baseline, comparison.candidate)
        comparisons[key] = comparison
    return tuple(comparisons.values())


def _decode(kind: type[T], value: object, path: Path, number: int | None) -> T:
    place = f"{path}, line {number}" if number is not None else path
    return decode_stored(kind, value, place=place)

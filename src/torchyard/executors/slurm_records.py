"""Which cells were handed to Slurm as which jobs, kept in the sweep's folder before anything else.

    {"event": "intent", "name": N, "cells": [...]}   before sbatch is called
    {"event": "submitted", "name": N, "job": "12"}   when Slurm has said the job's number
    {"event": "void", "name": N}                     it never reached Slurm; a job of it must not run
    {"event": "told", "name": N, "index": 3, ...}    the driver has heard how this one ended

A name is unique, so that a job whose number was never written is found again by it. Jobs on the nodes
read this file, too. Knows nothing of Slurm's programs.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from torchyard.errors import ResultsDamaged
from torchyard.results.durable import replace_file, to_json_text
from torchyard.results.record_lines import read_records

__all__ = ["JOBS_FILE", "JobArray", "JobRecords", "is_void", "new_name"]

JOBS_FILE: Final = "jobs.jsonl"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9]+")
_LONGEST_TITLE: Final = 24


@dataclass(kw_only=True)
class JobArray:
    """Cells that were handed in together: element `i` of the array runs `cells[i]`."""

    name: str
    cells: tuple[str, ...]
    at: str = ""
    job: str = ""
    """Slurm's number; empty until it is known."""
    void: bool = False
    told: dict[int, str] = field(default_factory=dict)
    """Outcome by index, of those whose end the driver has heard of."""

    @property
    def open_indexes(self) -> list[int]:
        """Those whose end nobody has heard of."""
        if self.void:
            return []
        return [index for index in range(len(self.cells)) if index not in self.told]

    def job_of(self, index: int) -> str:
        """As Slurm's own tables name it."""
        return f"{self.job}_{index}" if len(self.cells) > 1 else self.job


def new_name(folder: Path) -> str:
    """A name for a job that no other job has: people see it in squeue."""
    title = _UNSAFE.sub("-", folder.name).strip("-")[:_LONGEST_TITLE].strip("-")
    return f"torchyard-{title or 'sweep'}-{secrets.token_hex(6)}"


class JobRecords:
    """The file, read once and written as a whole with each addition."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOBS_FILE
        self.arrays: dict[str, JobArray] = {}
        self._lines: list[str] = []
        if self.path.exists():
            for number, record in read_records(self.path):
                try:
                    self._apply(record)
                except (KeyError, TypeError, ValueError) as error:
                    raise ResultsDamaged(
                        f"{self.path}, line {number}: not a record of a job",
                        why=f"{type(error).__name__}: {error}",
                        hint="put the file back from a copy; without it, jobs that still run in "
                        "Slurm are not known",
                    ) from error
                self._lines.append(to_json_text(record))

    def open_arrays(self) -> list[JobArray]:
        """Those of which anything is still to be heard, oldest first."""
        return [array for array in self.arrays.values() if array.open_indexes]

    def intend(self, name: str, cells: Sequence[str]) -> JobArray:
        """Say what will be handed in, before it is."""
        self._add({"event": "intent", "name": name, "cells": list(cells), "at": _now()})
        return self.arrays[name]

    def submitted(self, name: str, job: str) -> None:
        """Slurm has taken it, under this number."""
        self._add({"event": "submitted", "name": name, "job": job, "at": _now()})

    def void(self, name: str, why: str) -> None:
        """It never reached Slurm. Should it do so after all, its jobs end without running."""
        self._add({"event": "void", "name": name, "why": why, "at": _now()})

    def told(self, ends: Sequence[tuple[str, int, str]]) -> None:
        """The driver has heard how these ended: name, index, outcome."""
        self._add(
            *(
                {"event": "told", "name": name, "index": index, "outcome": outcome}
                for name, index, outcome in ends
            )
        )

    def _add(self, *records: Mapping[str, Any]) -> None:
        if not records:
            return
        lines = [*self._lines, *(to_json_text(record) for record in records)]
        replace_file(self.path, "".join(line + "\n" for line in lines))
        self._lines = lines
        for record in records:
            self._apply(record)

    def _apply(self, record: Mapping[str, Any]) -> None:
        name = str(record["name"])
        event = record["event"]
        if event == "intent":
            cells = tuple(str(cell) for cell in record["cells"])
            self.arrays[name] = JobArray(name=name, cells=cells, at=str(record.get("at", "")))
        elif event == "submitted":
            self.arrays[name].job = str(record["job"])
        elif event == "void":
            self.arrays[name].void = True
        elif event == "told":
            self.arrays[name].told[int(record["index"])] = str(record["outcome"])


def is_void(folder: Path, name: str) -> bool:
    """Whether a job of this name must not run; asked on the node, where the file is only read."""
    path = folder / JOBS_FILE
    if not path.exists():
        return False
    return any(
        record.get("event") == "void" and record.get("name") == name
        for _, record in read_records(path)
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

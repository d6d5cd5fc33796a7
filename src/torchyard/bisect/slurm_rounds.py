"""Measure each round in a job of Slurm: all revisions of a round run on one node, interleaved.

rounds/NAME.request.json   the revisions of a round
rounds/NAME.json           its result: a round, or the revision that cannot be measured
slurm/, jobs.jsonl         jobs, as for a sweep
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from torchyard.bisect.ends import Measure
from torchyard.bisect.model import Revision, RevisionFailed, Round, SearchFolder, Skipped
from torchyard.core.records import decode, encode
from torchyard.core.study import Scalar
from torchyard.errors import StepFailed
from torchyard.files.safe_reading import read_json
from torchyard.files.safe_writing import replace_json
from torchyard.sweep.executors.interface import open_executor
from torchyard.sweep.model import ExecutorChoice

_PAUSE_S: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class RoundRequest:
    """The revisions of a round, its number, and the time limit of one run."""

    names: tuple[str, ...]
    number: int
    limit_s: float


@dataclass(frozen=True, kw_only=True)
class RoundResult:
    """A round, or the revision that cannot be measured."""

    round: Round | None = None
    failed: Skipped | None = None


class SlurmRounds:
    """Submits a job for each round, and waits for it; a context manager."""

    def __init__(
        self, folder: SearchFolder, options: Sequence[tuple[str, Scalar]], *, limit_s: float
    ) -> None:
        """`options` are those of Slurm; `limit_s` is the time limit of one run."""
        self._folder = folder.folder
        self._limit_s = limit_s
        (self._folder / "rounds").mkdir(exist_ok=True)
        self._executor = open_executor(
            ExecutorChoice(name="slurm", options=tuple(options)),
            self._folder,
            self._command,
            lambda name: self._folder / "logs" / f"{name}.log",
        )

    def __enter__(self) -> Self:
        self._executor.cancel()  # jobs of a process that was killed
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.cancel()

    def measure(self, revisions: Sequence[Revision], number: int) -> Round:
        """Run a round in a job."""
        count = len(list((self._folder / "rounds").glob("*.request.json")))
        name = f"round-{count + 1:04d}"
        request = RoundRequest(
            names=tuple(one.commit for one in revisions), number=number, limit_s=self._limit_s
        )
        replace_json(_path(self._folder, name, ".request"), encode(request))
        self._executor.submit([name])
        while True:
            jobs, ended = self._executor.poll()
            why = next((one.why or one.outcome for one in ended if one.cell == name), None)
            if why is not None or not any(job.cell == name for job in jobs):
                return self._result(name, why or "the job is unknown to Slurm")
            self._executor.wait(_PAUSE_S)

    def _result(self, name: str, why: str) -> Round:
        path = _path(self._folder, name)
        log = self._folder / "logs" / f"{name}.log"
        if not path.exists():
            raise StepFailed("a round was not measured by Slurm", why=why, log=str(log))
        result = decode(RoundResult, read_json(path), where=str(path), strict=False)
        if result.failed is not None:
            raise RevisionFailed(result.failed.commit, result.failed.why)
        if result.round is None:
            raise StepFailed("a round has no result", why=str(path), log=str(log))
        return result.round

    def _command(self, name: str) -> list[str]:
        return [sys.executable, "-m", "torchyard", "bisect-round", str(self._folder), name]


def request_of_round(folder: Path, name: str) -> RoundRequest:
    """Read the request of a round."""
    path = _path(folder, name, ".request")
    return decode(RoundRequest, read_json(path), where=str(path), strict=False)


def run_round(folder: Path, name: str, request: RoundRequest, measure: Measure) -> None:
    """Measure a round on a node, and store its result."""
    revisions = [Revision(commit=one, subject="") for one in request.names]
    try:
        result = RoundResult(round=measure(revisions, request.number))
    except RevisionFailed as failure:
        result = RoundResult(failed=Skipped(commit=failure.commit, why=failure.why))
    replace_json(_path(folder, name), encode(result))


def _path(folder: Path, name: str, kind: str = "") -> Path:
    return folder / "rounds" / f"{name}{kind}.json"

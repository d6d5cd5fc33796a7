"""Results of the child processes of a program (`worker/values/child_processes.py`), and which of them are missing.

A process that was started and left no complete result is listed with that state: nothing is missing silently.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from torchyard.core.records import decode
from torchyard.errors import TorchyardError
from torchyard.process.owner import start_ticks
from torchyard.values.model import ProfiledProcess, ValueProfile, read_profile
from torchyard.values.target_run import NativeRun, read_native_run
from torchyard.worker.values.child_processes import MAIN, PROCESS, STARTED

END_LIMIT_S: Final = 15.0
"""How long to wait for child processes that outlive the program: DataLoader workers notice its end within 5 s."""
_POLL_S: Final = 0.1
_KINDS: Final = ("main", "rank", "loader", "child", "fork")


@dataclass(frozen=True, kw_only=True)
class Part:
    """A child process and what it observed."""

    process: ProfiledProcess
    profile: ValueProfile


@dataclass(frozen=True, kw_only=True)
class Parts:
    """All processes of a program."""

    main: ProfiledProcess
    children: tuple[Part, ...] = ()


def read_parts(folder: Path, main: ValueProfile, *, limit_s: float = END_LIMIT_S) -> Parts:
    """Return the parts of all processes that were started, after waiting for those that still run."""
    _wait(folder, limit_s)
    records = _records(folder)
    own = records.pop(MAIN, {})
    parents = {token: record.get("parent", "") for token, record in records.items()}
    ranks = {MAIN: own.get("rank"), **{one: data.get("rank") for one, data in records.items()}}
    children = []
    for token, record in records.items():
        if record.get("rank") is None:
            record["rank"] = ranks.get(
                parents[token]
            )  # a worker belongs to the rank that started it
        children.append(_part(folder / f"{token}.json", record))
    children.sort(key=lambda part: _order(part.process))
    process = _process(own, kind=own.get("kind", "main"), state=main.state, profile=main)
    return Parts(main=process, children=tuple(children))


def read_native_parts(folder: Path) -> list[tuple[ProfiledProcess, NativeRun]]:
    """Return what child processes recorded in the run without the profiler; those without a result are left out."""
    if not folder.is_dir():
        return []
    _wait(folder, END_LIMIT_S)
    runs = []
    records = _records(folder)
    ranks = {token: record.get("rank") for token, record in records.items()}
    for token, record in records.items():
        if record.get("rank") is None:
            record["rank"] = ranks.get(record.get("parent", ""))
        try:
            run = read_native_run(folder / f"{token}.json")
        except TorchyardError:
            continue
        runs.append((_process(record, kind=record.get("kind", "child"), state="finished"), run))
    return runs


def _part(path: Path, record: dict[str, Any]) -> Part:
    state = record.get("state", "missing")
    if state == "running":
        state = "running" if _is_running(record) else "killed"
    profile = None
    if record.get("torch", False):
        try:
            profile = read_profile(path)
        except TorchyardError:
            state = state if state == "running" else "killed"
    if state in ("killed", "missing") and _is_running(record):
        state = "running"
    process = _process(record, kind=record.get("kind", "child"), state=state, profile=profile)
    empty = ValueProfile(format=1, state="crashed", torch="")
    return Part(process=process, profile=profile or empty)


def _process(
    record: dict[str, Any], *, kind: str, state: str, profile: ValueProfile | None = None
) -> ProfiledProcess:
    names = ("name", "pid", "exit_code", "rank", "worker")
    data = {name: record[name] for name in names if record.get(name) is not None}
    process: ProfiledProcess = decode(
        ProfiledProcess,
        {**data, "kind": kind, "state": state, "torch": record.get("torch", state != "missing")},
        where="the record of a process",
        strict=False,
    )
    if profile is None:
        return replace(process, profiled=False)
    counts = profile.counts
    return replace(
        process,
        steps=profile.steps,
        operators=counts.get("operators", 0),
        written_bytes=counts.get("written_bytes", 0),
    )


def _order(process: ProfiledProcess) -> tuple[int, int, int, int]:
    rank = -1 if process.rank is None else process.rank
    worker = -1 if process.worker is None else process.worker
    return _KINDS.index(process.kind), rank, worker, process.pid


def _records(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what parents and children wrote about each process, by token."""
    records: dict[str, dict[str, Any]] = {}
    for suffix in (STARTED, PROCESS):  # the child knows better
        for path in sorted(folder.glob(f"*{suffix}")):
            try:
                data = json.loads(path.read_bytes())
            except (OSError, ValueError):
                data = {}
            record = records.setdefault(path.name.removesuffix(suffix), {})
            present_values = {key: value for key, value in data.items() if value is not None}
            record.update(present_values if isinstance(data, dict) else {})
    return records


def _wait(folder: Path, limit_s: float) -> None:
    """Wait until every child process has ended, up to a limit."""
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s and any(
        record.get("state", "running") == "running" and _is_running(record)
        for token, record in _records(folder).items()
        if token != MAIN
    ):
        time.sleep(_POLL_S)


def _is_running(record: dict[str, Any]) -> bool:
    pid = record.get("pid")
    return isinstance(pid, int) and pid != os.getpid() and start_ticks(pid) is not None

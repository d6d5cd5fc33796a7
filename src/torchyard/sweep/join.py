"""Join the cells of a sweep into ordinary runs: one for each precision and machine type.

A joined run contains all data of the cells' runs, with verdicts corrected for the number of
comparisons in it. A failed cell becomes a row with the reason. The cells are not changed.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from torchyard.bench.bench_run import adjusted_for_suite
from torchyard.core.comparison import Comparison, Failure, Verdict
from torchyard.core.study import Study
from torchyard.errors import NothingToDo
from torchyard.files.safe_reading import read_records, read_tail_text
from torchyard.machine.identity import machine_name
from torchyard.results.directory import FIRST_METHOD, LOGS_FOLDER, SAMPLES_FILE, new_run_folder
from torchyard.results.run_reader import Run, read_run
from torchyard.results.run_writer import RunWriter
from torchyard.sweep.folder import SweepFolder
from torchyard.sweep.model import Attempt, CellStatus, Outcome

FAILURE_KINDS: Final[dict[Outcome, str]] = {
    "died": "crashed",
    "time-limit": "timeout",
    "memory-limit": "out-of-memory",
    "node-failed": "killed",
    "refused": "refused",
}
"""Failure kind of a failed row, by the outcome of the last attempt."""
TAIL_BYTES: Final = 4000


@dataclass
class _Part:
    """The cells that are joined into one run."""

    statuses: list[CellStatus] = field(default_factory=list)
    runs: dict[str, Run] = field(default_factory=dict)
    """By cell id."""


def join_sweep(folder: SweepFolder, home: Path) -> dict[str, Path]:
    """Join the finished and failed cells into new runs in `home`; return run folders by name."""
    parts = _parts(folder)
    if not parts:
        raise NothingToDo(
            f"no cell of {folder.folder} has finished",
            hint=f"resume with `torchyard sweep --resume {folder.folder}`",
        )
    precisions = [precision for precision, _ in parts]
    joined = {}
    for (precision, machine), part in parts.items():
        name = precision if precisions.count(precision) == 1 else f"{precision} on {machine}"
        several = f" {precision}" if len(set(precisions)) > 1 else ""
        joined[name] = _join_part(folder, part, home, study_name=folder.plan.name + several)
    return joined


def _parts(folder: SweepFolder) -> dict[tuple[str, str], _Part]:
    """Group finished cells by precision and machine; failed cells go to the first machine."""
    parts: dict[tuple[str, str], _Part] = {}
    failed = []
    for status in folder.statuses():
        if status.state == "failed":
            failed.append(status)
        elif status.state == "done":
            run = read_run(folder.folder / status.run)
            part = parts.setdefault((status.cell.precision, machine_name(run.info)), _Part())
            part.statuses.append(status)
            part.runs[status.cell.id] = run
    for status in failed:
        precision = status.cell.precision
        key = next((key for key in parts if key[0] == precision), (precision, "unknown"))
        parts.setdefault(key, _Part()).statuses.append(status)
    for part in parts.values():
        part.statuses.sort(key=lambda status: status.cell.id)
    return parts


def _join_part(folder: SweepFolder, part: _Part, home: Path, *, study_name: str) -> Path:
    """Build one run in a temporary folder and rename it, so that no partial run is left behind."""
    plan = folder.plan
    place = new_run_folder(home)
    place.rmdir()
    hidden = home / f".joining-{secrets.token_hex(4)}"
    infos = [run.info for run in part.runs.values()]
    machine: Mapping[str, Any] = infos[0].get("machine", {}) if infos else {}
    try:
        writer = RunWriter.create(
            hidden / place.name,
            study=_study(part.statuses, study_name),
            command=plan.command,
            machine=machine,
            revision=plan.revision,
            notes=plan.notes,
        )
        writer.add_facts(
            sweep={
                "name": plan.name,
                "folder": str(folder.folder),
                "shard": list(plan.shard),
                "null": plan.null,
            },
            **_origin(infos),
        )
        rows = []
        for number, status in enumerate(part.statuses):
            run = part.runs.get(status.cell.id)
            logs = writer.logs / f"workload-{number:03d}"
            if run is None:
                rows.extend(_failed_rows(folder, status, logs))
            else:
                _copy(run, writer, logs)
                rows.extend(_with_logs(row, run, logs, place, hidden) for row in run.comparisons)
        for row in adjusted_for_suite(rows, part.statuses[0].cell.study.budget.alpha):
            writer.add_comparison(row)
        writer.finish("finished")
        (hidden / place.name).rename(place)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    return place


def _study(statuses: Sequence[CellStatus], name: str) -> Study:
    first = statuses[0].cell.study
    workloads = tuple(status.cell.study.workloads[0] for status in statuses)
    return replace(first, name=name, workloads=workloads)


def _origin(infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the start time and process of the first cell, and the method of all cells."""
    started = sorted(str(info["started"]) for info in infos if info.get("started"))
    if not started:
        return {}
    owner = next((info.get("owner") for info in infos if info.get("started") == started[0]), None)
    methods = {info.get("method", FIRST_METHOD) for info in infos}
    method = methods.pop() if len(methods) == 1 else "several"
    return {"started": started[0], "measured_by": owner, "method": method}


def _copy(run: Run, writer: RunWriter, logs: Path) -> None:
    """Copy everything except the comparisons from a cell's run."""
    targets = run.info.get("targets")
    for name, facts in targets.items() if isinstance(targets, Mapping) else ():
        writer.add_target(name, facts)
    for launch in run.launches():
        writer.add_launch(launch)
    samples = read_records(run.folder / SAMPLES_FILE)
    writer.add_sample_records(record for _, record in samples)
    for source in sorted((run.folder / LOGS_FOLDER).glob("workload-*")):
        shutil.copytree(source, logs, dirs_exist_ok=True)


def _with_logs(row: Comparison, run: Run, logs: Path, place: Path, hidden: Path) -> Comparison:
    """Return the row with the path of the copied log."""
    if row.failure is None or not row.failure.log:
        return row
    try:
        inside = Path(row.failure.log).relative_to(run.folder / LOGS_FOLDER / "workload-000")
    except ValueError:
        return row
    copied = place / (logs / inside).relative_to(hidden / place.name)
    return replace(row, failure=replace(row.failure, log=str(copied)))


def _failed_rows(folder: SweepFolder, status: CellStatus, logs: Path) -> list[Comparison]:
    """Return a failed row for each candidate of a failed cell."""
    study = status.cell.study
    last = status.attempts[-1] if status.attempts else Attempt(number=0)
    log = folder.log_path(status.cell.id)
    tail = read_tail_text(log, TAIL_BYTES)
    if tail:
        logs.mkdir(parents=True, exist_ok=True)
        shutil.copy(log, logs / "cell.log")
    tries = len(status.attempts)
    reason = last.why or "the cell did not finish"
    return [
        Comparison(
            workload=study.workloads[0],
            baseline=study.baseline.name,
            candidate=candidate.name,
            verdict=Verdict.FAILED,
            failure=Failure(
                kind=FAILURE_KINDS.get(last.outcome or "died", "crashed"),
                phase="cell",
                variant=candidate.name,
                message=reason if tries < 2 else f"{reason} (attempt {tries})",  # noqa: PLR2004
                hint=f"see the log: {log}",
                log=str(log),
                log_tail=tail,
            ),
        )
        for candidate in study.candidates
    ]

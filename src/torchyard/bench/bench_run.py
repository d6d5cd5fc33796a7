"""A bench run: measure every workload of a study in turn, and record the results as they arrive.

Results that are finished when the run is interrupted or killed stay in the run folder; the
comparison in progress is written with what it has. Progress events are recorded as well, so that a
dashboard in another process can show the run.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from torchyard.bench.launch import LaunchProcesses
from torchyard.bench.launch_gate import LaunchGate, RecordedGate
from torchyard.bench.program_session import ProgramSession
from torchyard.bench.session import WorkloadSession
from torchyard.bench.time_estimate import TimeEstimate
from torchyard.core.comparison import Comparison, Estimate, Verdict
from torchyard.core.events import Event, EventKind, Listener
from torchyard.core.study import COMMAND_SUITE, Study, Workload
from torchyard.errors import NothingToDo
from torchyard.machine.facts import read_facts
from torchyard.machine.model import AppliedSettings
from torchyard.machine.quieting.quiet_run import quieting_facts
from torchyard.process.templates import TemplatePool, cache_of_environment, pool_of_environment
from torchyard.process.timing_turn import TimingTurn
from torchyard.process.tree import sweep_orphans
from torchyard.results.run_writer import ProgressFile, RunWriter

_TRANSIENT: Final[frozenset[EventKind]] = frozenset({"phase", "launch", "look"})
MIN_SHARING: Final = 3
"""Number of workloads from which on all launches are forked; sweeps share their templates."""
_MAX_TEXT_LENGTH: Final = 400
"""Failure messages can contain whole logs."""


class RecordedProgress:
    """A listener that records events and forwards them."""

    def __init__(self, folder: Path, listener: Listener) -> None:
        self._file = ProgressFile(folder)
        self._listener = listener

    def listen(self, event: Event) -> None:
        """Record the event, then forward it."""
        self._file.add(_record(event), passing=event.kind in _TRANSIENT)
        self._listener(event)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _record(event: Event) -> dict[str, object]:
    timestamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    record: dict[str, Any] = {
        "at": timestamp,
        "kind": event.kind,
        "workload": event.workload[:_MAX_TEXT_LENGTH],
        "text": event.text[:_MAX_TEXT_LENGTH],
        "fraction": None if event.fraction is None else round(event.fraction, 4),
    }
    comparison = event.comparison
    if comparison is not None:
        record["candidate"] = comparison.candidate[:_MAX_TEXT_LENGTH]
        record["verdict"] = comparison.state.value
        record["trusted"] = comparison.trusted
        speedup = comparison.estimate.speedup if comparison.estimate is not None else math.nan
        record["speedup"] = speedup if math.isfinite(speedup) else None
    return record


def run_bench(
    study: Study,
    *,
    folder: Path,
    command: Sequence[str],
    listener: Listener,
    tuned: AppliedSettings | None = None,
    revision: str = "",
    notes: Sequence[str] = (),
    turn: TimingTurn | None = None,
    cache: Path | None = None,
    gate: LaunchGate | None = None,
    estimate: TimeEstimate | None = None,
    processes_of: Callable[..., LaunchProcesses] = LaunchProcesses,
) -> list[Comparison]:
    """Measure the study into the folder; return the comparisons in the order of the workloads.

    First kills orphaned processes of earlier runs, which would disturb this one. `tuned` describes how
    the machine was quieted; it is recorded with the machine facts, as are the revision and the notes.
    `turn` serializes timing with other runs on the machine, and `cache` is a folder of compiled
    artifacts that runs share. With a `gate`, each launch waits for its permission, and provisional
    comparisons are recorded before. The `estimate` of the wall time is recorded. `processes_of` creates
    the processes of a launch.
    """
    if not study.workloads or not study.candidates:
        raise NothingToDo(
            "nothing to compare",
            why="the study has no workload"
            if not study.workloads
            else "the study has no candidate",
            hint="name workloads with --only or --suite, and candidates with --candidate",
        )
    sweep_orphans()
    facts = {**read_facts(), **({"tune": quieting_facts(tuned)} if tuned is not None else {})}
    writer = RunWriter.create(
        folder, study=study, command=command, machine=facts, revision=revision, notes=notes
    )
    if estimate is not None:
        writer.add_facts(time_estimate=estimate)
    progress = RecordedProgress(folder, listener)
    listener = progress.listen
    rows: list[Comparison] = []
    own_templates = TemplatePool()
    templates, fork_at_once = None, False
    if study.settings.start != "fresh" and sys.platform == "linux":
        shared = pool_of_environment()
        fork_at_once = (
            shared is not None
            or study.settings.start == "fork"
            or len(study.workloads) >= MIN_SHARING
        )
        templates = shared or own_templates
        cache = cache or cache_of_environment()
    try:
        for number, workload in enumerate(study.workloads):
            _begin(listener, study, number)
            log_folder = writer.logs / f"workload-{number:03d}"
            scaled = _scaled(listener, number, len(study.workloads))
            chance = random.Random(f"{study.settings.seed}/{number}")
            session: WorkloadSession | ProgramSession
            if workload.suite == COMMAND_SUITE:
                session = ProgramSession(
                    study,
                    workload,
                    recorder=writer,
                    log_folder=log_folder,
                    listener=scaled,
                    chance=chance,
                )
            else:
                session = WorkloadSession(
                    study,
                    workload,
                    recorder=writer,
                    log_folder=log_folder,
                    scratch=folder / "scratch" / f"{number:03d}",
                    listener=scaled,
                    chance=chance,
                    turn=turn,
                    cache=cache,
                    templates=templates,
                    fork_at_once=fork_at_once,
                    gate=None if gate is None else _recorded_gate(gate, writer, listener, workload),
                    processes_of=processes_of,
                )
            try:
                comparisons = session.run()
            except KeyboardInterrupt:
                rows.extend(session.comparisons())
                raise
            rows.extend(comparisons)
            for comparison in comparisons:
                listener(
                    Event(
                        kind="comparison",
                        text=f"{comparison.candidate}: {comparison.state}",
                        workload=workload.label,
                        fraction=(number + 1) / len(study.workloads),
                        comparison=comparison,
                    )
                )
                writer.add_comparison(comparison)
    except KeyboardInterrupt:
        for comparison in rows:
            writer.add_comparison(comparison)
        writer.finish("interrupted")
        raise
    except BaseException:
        writer.finish("failed")
        raise
    finally:
        own_templates.close()
        progress.close()
        _remove_if_empty(folder / "scratch")
    rows = adjusted_for_suite(rows, study.budget.alpha)
    for comparison in rows:
        writer.add_comparison(comparison)
    writer.finish("finished")
    return rows


def adjusted_for_suite(rows: list[Comparison], alpha: float) -> list[Comparison]:
    """Correct verdicts for the number of trusted comparisons in the run."""
    from torchyard.stats.suite import adjust_for_suite

    tested = [row for row in rows if row.estimate is not None and row.trusted]
    estimates: list[Estimate] = adjust_for_suite(
        [row.estimate for row in tested if row.estimate is not None], alpha
    )
    adjusted = dict(zip(map(id, tested), estimates, strict=True))
    result = []
    for row in rows:
        corrected = adjusted.get(id(row))
        if corrected is None:
            result.append(row)
            continue
        decided = row.verdict in {Verdict.FASTER, Verdict.SLOWER}
        verdict = corrected.verdict if decided else row.verdict
        result.append(replace(row, estimate=corrected, verdict=verdict))
    return result


def _begin(listener: Listener, study: Study, number: int) -> None:
    workload = study.workloads[number]
    listener(
        Event(
            kind="workload",
            text=f"{number + 1} of {len(study.workloads)}",
            workload=workload.label,
            fraction=number / len(study.workloads),
        )
    )


def _recorded_gate(
    gate: LaunchGate, writer: RunWriter, listener: Listener, workload: Workload
) -> LaunchGate:
    def on_wait(waiting: bool) -> None:
        text = "waiting for the next launch" if waiting else "starting the next launch"
        kind: EventKind = "paused" if waiting else "resumed"
        listener(Event(kind=kind, text=text, workload=workload.label))

    return RecordedGate(gate, record=writer.add_comparison, on_wait=on_wait)


def _scaled(listener: Listener, number: int, total: int) -> Listener:
    """Return a listener that scales the progress of a session to the whole run."""
    began_s = time.monotonic()

    def scaled(event: Event) -> None:
        inside = 0.0 if event.fraction is None else event.fraction
        remaining_s = event.remaining_s
        if remaining_s is not None and total - number > 1:
            # Later workloads take as long as this one so far, plus what remains of it.
            one_s = time.monotonic() - began_s + remaining_s
            remaining_s += (total - number - 1) * one_s
        listener(replace(event, fraction=(number + inside) / total, remaining_s=remaining_s))

    return scaled


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return

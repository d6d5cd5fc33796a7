"""A bench run: measure every workload of a study in turn, and record the results as they arrive.

Results that are finished when the run is interrupted or killed stay in the run folder; the
comparison in progress is written with what it has. Progress events are recorded as well, so that a
dashboard in another process can show the run.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from torchyard.bench.session import WorkloadSession
from torchyard.core.comparison import Comparison, Estimate, Verdict
from torchyard.core.events import Event, EventKind, Listener
from torchyard.core.study import Study
from torchyard.errors import NothingToDo
from torchyard.machine.facts.run_facts import read_facts
from torchyard.machine.model import Tuned
from torchyard.machine.quieting.quiet_run import tune_facts
from torchyard.process.timing_turn import TimingTurn
from torchyard.process.tree import sweep_orphans
from torchyard.results.run_writer import ProgressFile, RunWriter

_PASSING: Final[frozenset[EventKind]] = frozenset({"phase", "launch", "look"})
_LONGEST_TEXT: Final = 400
"""Messages of failures can hold whole logs."""


class KeptProgress:
    """A listener that keeps an event and hands it on."""

    def __init__(self, folder: Path, listener: Listener) -> None:
        self._file = ProgressFile(folder)
        self._listener = listener

    def listen(self, event: Event) -> None:
        """Keep, then tell."""
        self._file.add(_record(event), passing=event.kind in _PASSING)
        self._listener(event)

    def close(self) -> None:
        """No more events."""
        self._file.close()


def _record(event: Event) -> dict[str, object]:
    moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    record: dict[str, Any] = {
        "at": moment,
        "kind": event.kind,
        "workload": event.workload[:_LONGEST_TEXT],
        "text": event.text[:_LONGEST_TEXT],
        "fraction": None if event.fraction is None else round(event.fraction, 4),
    }
    made = event.comparison
    if made is not None:
        record["candidate"] = made.candidate[:_LONGEST_TEXT]
        record["verdict"] = made.state.value
        record["trusted"] = made.trusted
        speedup = made.estimate.speedup if made.estimate is not None else math.nan
        record["speedup"] = speedup if math.isfinite(speedup) else None
    return record


def run_bench(
    study: Study,
    *,
    folder: Path,
    command: Sequence[str],
    listener: Listener,
    tuned: Tuned | None = None,
    revision: str = "",
    notes: Sequence[str] = (),
    turn: TimingTurn | None = None,
    cache: Path | None = None,
) -> list[Comparison]:
    """Measure the study into the folder; the rows in the order of the workloads.

    Begins by ending what a run that was killed may have left: it would disturb this one. `tuned`
    is what was done to the machine for this run; it is kept beside the facts, as are what was
    measured and notes about it. `turn` is for machines where other runs are under way, and
    `cache` a folder of compiled programs that runs share.
    """
    if not study.workloads or not study.candidates:
        raise NothingToDo(
            "the study compares nothing",
            why="it has no workload" if not study.workloads else "it has no candidate",
            hint="name workloads with --only or --suite, and candidates with --candidate",
        )
    sweep_orphans()
    facts = {**read_facts(), **({"tune": tune_facts(tuned)} if tuned is not None else {})}
    writer = RunWriter.create(
        folder, study=study, command=command, machine=facts, revision=revision, notes=notes
    )
    progress = KeptProgress(folder, listener)
    listener = progress.listen
    rows: list[Comparison] = []
    try:
        for number, workload in enumerate(study.workloads):
            _begin(listener, study, number)
            session = WorkloadSession(
                study,
                workload,
                recorder=writer,
                log_folder=writer.logs / f"workload-{number:03d}",
                scratch=folder / "scratch" / f"{number:03d}",
                listener=_scaled(listener, number, len(study.workloads)),
                chance=random.Random(f"{study.settings.seed}/{number}"),
                turn=turn,
                cache=cache,
            )
            try:
                found = session.run()
            except KeyboardInterrupt:
                rows.extend(session.comparisons())
                raise
            rows.extend(found)
            for comparison in found:
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
        progress.close()
        _remove_if_empty(folder / "scratch")
    rows = adjusted_for_suite(rows, study.budget.alpha)
    for comparison in rows:
        writer.add_comparison(comparison)
    writer.finish("finished")
    return rows


def adjusted_for_suite(rows: list[Comparison], alpha: float) -> list[Comparison]:
    """Verdicts after correction for the number of trusted comparisons in the run."""
    from torchyard.stats.suite import adjust_for_suite

    tested = [row for row in rows if row.estimate is not None and row.trusted]
    estimates: list[Estimate] = adjust_for_suite(
        [row.estimate for row in tested if row.estimate is not None], alpha
    )
    changed = dict(zip(map(id, tested), estimates, strict=True))
    result = []
    for row in rows:
        found = changed.get(id(row))
        if found is None:
            result.append(row)
            continue
        decided = row.verdict in {Verdict.FASTER, Verdict.SLOWER}
        verdict = found.verdict if decided else row.verdict
        result.append(replace(row, estimate=found, verdict=verdict))
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


def _scaled(listener: Listener, number: int, total: int) -> Listener:
    """A session's own fraction as a part of the whole run's."""

    def scaled(event: Event) -> None:
        inside = 0.0 if event.fraction is None else event.fraction
        listener(replace(event, fraction=(number + inside) / total))

    return scaled


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return

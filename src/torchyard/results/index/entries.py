"""From a run folder to its entries. A folder that cannot be read becomes an entry that says why."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from torchyard.core.comparison import Comparison, Verdict
from torchyard.core.stored import ComparisonEntry, RunEntry
from torchyard.core.variant import Variant
from torchyard.errors import ResultsDamaged
from torchyard.results.machine_identity import machine_name, machine_text
from torchyard.results.revision import revision_of_run, revision_of_variant, target_facts
from torchyard.results.run_reader import Run, read_info, read_run

__all__ = ["Entries", "entries_of", "milliseconds"]

_NAME_TIME: Final = re.compile(r"^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)\.(\d{3})Z")


@dataclass(frozen=True, kw_only=True)
class Entries:
    """One folder as rows."""

    run: RunEntry
    comparisons: tuple[ComparisonEntry, ...] = ()


def entries_of(folder: Path) -> Entries:
    """The rows of a folder. Its name is the run's id: no other folder of the home has it."""
    try:
        run = read_run(folder)
    except ResultsDamaged as error:
        return Entries(run=_damaged(folder, error))
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        unread = ResultsDamaged(f"{folder} cannot be read", why=str(error))
        return Entries(run=_damaged(folder, unread))
    entry = _run(run)
    return Entries(
        run=entry, comparisons=tuple(_comparison(run, entry, row) for row in run.comparisons)
    )


def milliseconds(moment: str) -> int:
    """Milliseconds since 1970 of a moment in ISO 8601; UTC where it says nothing else.

    Raises ValueError for anything else.
    """
    parsed = datetime.fromisoformat(moment)
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    return round(parsed.timestamp() * 1000)


def _run(run: Run) -> RunEntry:
    counts = Counter(row.state for row in run.comparisons)
    return RunEntry(
        id=_clean(run.folder.name),
        folder=str(run.folder),
        state=run.state,
        study=_clean(run.study.name),
        verdicts=tuple((verdict, counts[verdict]) for verdict in Verdict if counts[verdict]),
        revision=_clean(revision_of_run(run.info, run.study)),
        **_facts(run.folder, run.info),
    )


def _comparison(run: Run, entry: RunEntry, row: Comparison) -> ComparisonEntry:
    candidate = _variant(run, row.candidate)
    estimate, interval = row.estimate, row.estimate.interval if row.estimate else None
    torch = row.candidate_metrics.torch_version
    if not torch and candidate is not None:
        torch = str(target_facts(run.info, candidate).get("torch") or "")
    return ComparisonEntry(
        run=entry.id,
        started=entry.started,
        machine=entry.machine,
        revision=_clean(revision_of_variant(run.info, candidate) if candidate else ""),
        workload=_clean(row.workload.label),
        suite=_clean(row.workload.suite),
        mode=row.workload.mode,
        device=_clean(row.workload.device),
        baseline=_clean(row.baseline),
        candidate=_clean(row.candidate),
        verdict=row.state,
        speedup=estimate.speedup if estimate else None,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        launches=estimate.launches if estimate else 0,
        baseline_ns=row.baseline_metrics.time_ns,
        candidate_ns=row.candidate_metrics.time_ns,
        compile_s=row.candidate_metrics.compile_cold_s,
        memory_bytes=row.candidate_metrics.peak_memory_bytes,
        torch=_clean(torch),
        untrusted=_clean("; ".join(row.untrusted)),
    )


def _variant(run: Run, name: str) -> Variant | None:
    return next((variant for variant in run.study.variants if variant.name == name), None)


def _damaged(folder: Path, error: ResultsDamaged) -> RunEntry:
    """What can still be said: the facts, when only the records behind them are damaged."""
    why = f"{error.what}: {error.why}" if error.why else error.what
    try:
        info: Mapping[str, Any] = read_info(folder)
    except (ResultsDamaged, OSError):
        info = {}
    study = info.get("study")
    return RunEntry(
        id=_clean(folder.name),
        folder=str(folder),
        study=_clean(study.get("name", "")) if isinstance(study, Mapping) else "",
        state=_clean(info.get("state", "")),
        revision=_clean(info.get("revision") or ""),
        # The folder is said beside it; a report that is shared must not hold its path.
        damage=_clean(why.replace(f"{folder}/", "").replace(str(folder), "it")),
        **_facts(folder, info),
    )


def _facts(folder: Path, info: Mapping[str, Any]) -> dict[str, Any]:
    targets = info.get("targets")
    facts = targets.values() if isinstance(targets, Mapping) else ()
    torches = [str(fact.get("torch") or "") for fact in facts if isinstance(fact, Mapping)]
    notes = info.get("notes")
    finished = info.get("finished")
    return {
        "started": _started(folder, info),
        "finished": _clean(finished) if finished else None,
        "machine": machine_name(info) if info else "",
        "machine_text": _clean(machine_text(info)),
        "torch": _clean(", ".join(dict.fromkeys(filter(None, torches)))),
        "torchyard": _clean(info.get("torchyard", "")),
        "notes": tuple(_clean(note) for note in notes) if isinstance(notes, list) else (),
    }


def _started(folder: Path, info: Mapping[str, Any]) -> str:
    """As recorded; else what the folder's name says; else empty."""
    recorded = _clean(info.get("started") or "")
    try:
        milliseconds(recorded)
    except (ValueError, OverflowError):
        named = _NAME_TIME.match(folder.name)
        if named is None:
            return ""
        year, month, day, hour, minute, second, rest = named.groups()
        return f"{year}-{month}-{day}T{hour}:{minute}:{second}.{rest}Z"
    return recorded


def _clean(value: object) -> str:
    """Text that a database takes: a record may hold halves of characters, which UTF-8 has not."""
    return str(value).encode("utf-8", "replace").decode("utf-8")

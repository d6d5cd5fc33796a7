"""Queries use the database indexes and are correct for any combination of filters."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from torchyard.core.comparison import Verdict
from torchyard.results.index.entries import Entries, FullMark
from torchyard.results.index.store import Store
from torchyard.results.model import METRICS, ComparisonEntry, RunEntry, RunFilter, Series

WORKLOADS = [f"{suite}/{name} inference" for suite in ("kernels", "models") for name in "abcdef"]


def synthetic(number: int, chance: random.Random) -> Entries:
    started = f"2025-01-{1 + number // 24:02d}T{number % 24:02d}:00:00.000Z"
    run = f"run-{number:04d}"
    machine, revision = chance.choice(["small", "large"]), f"{number // 3:040x}"
    rows = [
        ComparisonEntry(
            run=run,
            started=started,
            machine=machine,
            revision=revision,
            workload=workload,
            suite=workload.split("/")[0],
            mode="inference",
            device="cpu",
            baseline="eager",
            candidate=chance.choice(["inductor", "bfloat16"]),
            verdict=chance.choice(list(Verdict)),
            speedup=chance.choice([None, chance.gauss(1.0, 0.1)]),
            candidate_ns=1e6,
            torch="2.9.0",
        )
        for workload in chance.sample(WORKLOADS, chance.randint(0, 8))
    ]
    counts = {verdict: sum(row.verdict is verdict for row in rows) for verdict in Verdict}
    entry = RunEntry(
        id=run,
        folder=f"/home/{run}",
        study=chance.choice(["nightly", "release"]),
        state="finished",
        started=started,
        machine=machine,
        revision=revision,
        verdicts=tuple((verdict, count) for verdict, count in counts.items() if count),
    )
    return Entries(run=entry, comparisons=tuple(rows))


@pytest.fixture(scope="module")
def everything() -> list[Entries]:
    chance = random.Random(11)
    return [synthetic(number, chance) for number in range(300)]


@pytest.fixture(scope="module")
def store(everything: list[Entries], tmp_path_factory: pytest.TempPathFactory) -> Store:
    home = tmp_path_factory.mktemp("home")
    store = Store.open(home)
    store.home = Path("/home")
    store.insert([(FullMark("mark"), entries) for entries in everything])
    return store


def fits(text: str, pattern: str) -> bool:
    return not pattern or fnmatchcase(text, pattern)


def run_fits(run: RunEntry, wanted: RunFilter) -> bool:
    return (
        run.id.startswith(wanted.run)
        and fits(run.study, wanted.study)
        and fits(run.machine, wanted.machine)
        and (not wanted.revision or run.revision.startswith(wanted.revision))
        and (not wanted.since or run.started >= wanted.since)
        and (not wanted.until or run.started < wanted.until)
    )


def row_fits(row: ComparisonEntry, wanted: RunFilter) -> bool:
    workload = wanted.workload
    return (
        (
            fits(row.workload, workload)
            or (bool(workload) and row.workload.startswith(f"{workload} "))
        )
        and fits(row.suite, wanted.suite)
        and fits(row.candidate, wanted.candidate)
        and (not wanted.verdicts or row.verdict in wanted.verdicts)
    )


def drawn(chance: random.Random) -> RunFilter:
    """A mixture of filters."""
    choices: dict[str, Callable[[], Any]] = {
        "run": lambda: f"run-{chance.randint(0, 30):03d}"[:-1],
        "study": lambda: chance.choice(["nightly", "rel*", "none"]),
        "workload": lambda: chance.choice(
            ["kernels/a", "*/b *", "models/?*", "models/f inference"]
        ),
        "suite": lambda: chance.choice(["kernels", "m*"]),
        "candidate": lambda: chance.choice(["inductor", "*16"]),
        "verdicts": lambda: tuple(chance.sample(list(Verdict), chance.randint(1, 3))),
        "machine": lambda: chance.choice(["small", "l*"]),
        "revision": lambda: f"{chance.randint(0, 99):040x}",
        "since": lambda: f"2025-01-{chance.randint(1, 13):02d}T00:00:00.000Z",
        "until": lambda: f"2025-01-{chance.randint(1, 13):02d}T12:00:00.000Z",
        "limit": lambda: chance.randint(0, 40),
    }
    names = chance.sample(list(choices), chance.choice([1, 1, 2, 2, 3, 4]))
    return RunFilter(**{name: choices[name]() for name in names})


def test_any_mixture_of_filters(store: Store, everything: list[Entries]) -> None:
    """The same as looking at each entry one by one."""
    chance = random.Random(5)
    some = 0
    for _ in range(150):
        filters = drawn(chance)
        of_rows = bool(filters.workload or filters.suite or filters.candidate or filters.verdicts)
        kept = [one for one in reversed(everything) if run_fits(one.run, filters)]
        rows = [
            row
            for one in kept
            for row in sorted(one.comparisons, key=lambda row: (row.workload, row.candidate))
            if row_fits(row, filters)
        ]
        runs = [
            one.run
            for one in kept
            if not of_rows or any(row_fits(row, filters) for row in one.comparisons)
        ]
        assert store.comparisons(filters) == rows[: filters.limit], filters
        assert store.runs(filters) == runs[: filters.limit], filters
        unlimited = replace(filters, limit=None)
        lines = {
            (row.workload, row.candidate, row.baseline, row.machine)
            for row in rows
            if row.speedup is not None and row.verdict is not Verdict.WRONG
        }
        series = store.series(unlimited)
        assert [(s.workload, s.candidate, s.baseline, s.machine) for s in series] == sorted(lines)
        some += bool(rows)
    assert some > 60


def test_every_point_of_a_history(store: Store, everything: list[Entries]) -> None:
    for series in store.series(RunFilter()):
        filters = [
            (row.run, row.speedup)
            for one in everything
            for row in one.comparisons
            if (row.workload, row.candidate, row.machine)
            == (series.workload, series.candidate, series.machine)
            and row.speedup is not None
            and row.verdict is not Verdict.WRONG
        ]
        assert [(point.run, point.value) for point in store.points(series)] == filters


@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.runs(RunFilter(limit=50)),
        lambda store: store.runs(RunFilter(verdicts=(Verdict.SLOWER,), limit=50)),
        lambda store: store.runs(RunFilter(workload="kernels/a", limit=50)),
        lambda store: store.runs(RunFilter(workload="*", verdicts=(Verdict.SLOWER,), limit=5)),
        lambda store: store.comparisons(RunFilter(limit=50)),
        lambda store: store.comparisons(RunFilter(verdicts=(Verdict.SLOWER,), limit=50)),
        lambda store: store.comparisons(RunFilter(workload="kernels/a", limit=50)),
        lambda store: store.comparisons(RunFilter(workload="*", limit=50)),
        lambda store: store.comparisons(RunFilter(since="2025-01-05")),
        lambda store: store.comparisons(RunFilter(revision=f"{7:040x}")),
        *(lambda store, metric=metric: store.series(RunFilter(), metric) for metric in METRICS),
        lambda store: store.points(store.series(RunFilter())[0]),
        lambda store: store.points(
            Series(workload="kernels/a", baseline="eager", candidate="x", machine="small")
        ),
    ],
)
def test_no_query_scans_the_whole_table(store: Store, ask: Callable[[Store], object]) -> None:
    """A million comparisons may be there: each must be reached through an index."""
    statements: list[str] = []
    store._connection.set_trace_callback(statements.append)
    ask(store)
    store._connection.set_trace_callback(None)
    questions = [text for text in statements if text.startswith("SELECT")]
    assert questions
    for text in questions:
        plan = [row[3] for row in store._connection.execute(f"EXPLAIN QUERY PLAN {text}")]
        whole = [step for step in plan if step.startswith(("SCAN c", "SCAN h"))]
        assert not whole, plan

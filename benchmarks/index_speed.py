"""How fast the index answers with a million comparisons, and how fast folders are read into it.

    python benchmarks/index_speed.py [--runs 20000] [--comparisons 50] [--folders 2000] [--at FOLDER]

The million is put in through the store's own way of inserting, under the marks of as many real
folders, whose files hold nothing. Every question is asked nine times the way a command does: the
index is opened, the folders are looked at, and then comes the question. The table shows the
processor time of the question alone and of the whole, and the time of the whole on the clock, in
milliseconds. The folders that are read in at the end hold records of that many comparisons.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from torchyard.core.comparison import Comparison, Estimate, Interval, VariantMetrics, Verdict
from torchyard.core.study import Study, Target, Variant, Workload
from torchyard.results.index.entries import Entries, FullMark, full_mark
from torchyard.results.index.store import Store
from torchyard.results.model import METRICS, ComparisonEntry, Metric, RunEntry, RunFilter, Series
from torchyard.results.run_writer import RunWriter

MACHINES = ("epyc-64c-1111", "neoverse-v2-96c-2222", "xeon-32c-3333")
VERDICTS = (
    *(Verdict.SAME,) * 60,
    *(Verdict.FASTER,) * 15,
    *(Verdict.SLOWER,) * 15,
    *(Verdict.UNDECIDED,) * 8,
    Verdict.FAILED,
)
START = datetime(2020, 1, 1, tzinfo=UTC)


def workloads(count: int) -> list[Workload]:
    return [Workload(suite=f"suite{n % 4}", name=f"model{n:03d}") for n in range(count)]


def synthetic(number: int, chance: random.Random, what: list[Workload]) -> Entries:
    """A run of half an hour ago, and so on into the past."""
    moment = START + timedelta(minutes=30 * number)
    started = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    run = f"{moment:%Y%m%dT%H%M%S}.000Z-{number % 65536:04x}"
    machine = MACHINES[0] if number % 10 else MACHINES[number // 10 % 3]
    revision = f"{number // 2:040x}"
    rows = []
    for workload in what:
        verdict = Verdict.WRONG if chance.random() < 1e-5 else chance.choice(VERDICTS)
        speedup = None if verdict is Verdict.FAILED else chance.gauss(1.0, 0.02)
        rows.append(
            ComparisonEntry(
                run=run,
                started=started,
                machine=machine,
                revision=revision,
                workload=workload.label,
                suite=workload.suite,
                mode=workload.mode,
                device=workload.device,
                baseline="eager",
                candidate="inductor",
                verdict=verdict,
                speedup=speedup,
                low=speedup and speedup * 0.99,
                high=speedup and speedup * 1.01,
                launches=8,
                baseline_ns=1e6,
                candidate_ns=speedup and 1e6 / speedup,
                compile_s=12.0,
                memory_bytes=None,
                torch="2.9.0",
                untrusted="noisy machine" if chance.random() < 0.02 else "",
            )
        )
    counts = {verdict: sum(row.verdict is verdict for row in rows) for verdict in Verdict}
    entry = RunEntry(
        id=run,
        folder="",
        study="nightly" if number % 20 else "release",
        state="finished",
        started=started,
        finished=started,
        machine=machine,
        machine_text=f"host-{number % 7}: {machine}",
        torch="2.9.0",
        revision=revision,
        torchyard="0.1.0",
        verdicts=tuple((verdict, count) for verdict, count in counts.items() if count),
    )
    return Entries(run=entry, comparisons=tuple(rows))


def fill(home: Path, runs: int, what: list[Workload]) -> None:
    chance = random.Random(1)
    began, cpu = time.monotonic(), time.process_time()
    with Store.open(home) as store:
        for first in range(0, runs, 200):
            last = min(first + 200, runs)
            found = [synthetic(n, chance, what) for n in range(first, last)]
            store.insert([(empty_folder(home / one.run.id), one) for one in found])
        size = store.place.stat().st_size if store.place is not None else 0
    print(
        f"{runs} runs with {runs * len(what)} comparisons put in: "
        f"{time.process_time() - cpu:.1f} s of processor time, {time.monotonic() - began:.1f} s; "
        f"{size / 2**20:.0f} MiB"
    )


def empty_folder(folder: Path) -> FullMark:
    """The mark of a folder as if it had been left alone for long."""
    folder.mkdir()
    for name in ("run.json", "comparisons.jsonl"):
        (folder / name).touch()
    return (full_mark(folder) or FullMark(""))._replace(aged=True)


def questions(what: list[Workload], runs: int) -> dict[str, Callable[[Store], list[Any]]]:
    label, late = what[7].label, START + timedelta(minutes=30 * (runs - 48))
    since, middle = f"{late:%Y-%m-%dT%H:%M:%SZ}", runs // 2
    slower, wrong = (Verdict.SLOWER,), (Verdict.WRONG,)
    line = Series(workload=label, baseline="eager", candidate="inductor", machine=MACHINES[0])
    return {
        "runs, newest 50": lambda s: s.runs(RunFilter(limit=50)),
        "runs of a study, 50": lambda s: s.runs(RunFilter(study="release", limit=50)),
        "runs on a machine, 50": lambda s: s.runs(RunFilter(machine=MACHINES[2], limit=50)),
        "runs of a revision": lambda s: s.runs(RunFilter(revision=f"{middle // 2:040x}")),
        "runs with a workload, 50": lambda s: s.runs(RunFilter(workload=label, limit=50)),
        "runs with a wrong result": lambda s: s.runs(RunFilter(verdicts=wrong)),
        "runs with a pattern and a verdict, 50": lambda s: s.runs(
            RunFilter(workload="suite1/*", verdicts=slower, limit=50)
        ),
        "comparisons, newest 50": lambda s: s.comparisons(RunFilter(limit=50)),
        "comparisons, slower, 50": lambda s: s.comparisons(RunFilter(verdicts=slower, limit=50)),
        "comparisons, wrong": lambda s: s.comparisons(RunFilter(verdicts=wrong)),
        "comparisons of a workload, 50": lambda s: s.comparisons(
            RunFilter(workload=label, limit=50)
        ),
        "comparisons by a pattern, 50": lambda s: s.comparisons(
            RunFilter(workload="*model01*", limit=50)
        ),
        "comparisons of a suite on a machine, 50": lambda s: s.comparisons(
            RunFilter(suite="suite2", machine=MACHINES[1], limit=50)
        ),
        "comparisons of a study, slower, 50": lambda s: s.comparisons(
            RunFilter(study="release", verdicts=slower, limit=50)
        ),
        "comparisons of a revision": lambda s: s.comparisons(
            RunFilter(revision=f"{middle // 2:040x}")
        ),
        "comparisons of the last day": lambda s: s.comparisons(RunFilter(since=since)),
        "comparisons that do not exist": lambda s: s.comparisons(RunFilter(candidate="none")),
        **{f"series of {metric}": _series_of(metric) for metric in METRICS},
        "series of a study": lambda s: s.series(RunFilter(study="release")),
        "one workload's history": lambda s: s.points(line),
        "a run by the beginning of its id": lambda s: [s.run("20200101T0030")],
    }


def whole_tables(what: list[Workload]) -> dict[str, Callable[[Store], list[Any]]]:
    """Twenty thousand rows at once, as an export asks for them; the limit is not for these."""
    return {
        "all runs": lambda s: s.runs(RunFilter()),
        "all comparisons of a workload": lambda s: s.comparisons(RunFilter(workload=what[7].label)),
    }


def _series_of(metric: Metric) -> Callable[[Store], list[Any]]:
    return lambda store: store.series(RunFilter(), metric)


def measure(home: Path, questions: dict[str, Callable[[Store], list[Any]]]) -> float:
    print(
        f"\n{'question':<42}{'rows':>8}{'question':>10}{'whole':>8}{'clock':>8}{'longest':>9}   ms"
    )
    worst = 0.0
    for name, ask in questions.items():
        alone, whole, clock, rows = [], [], [], 0
        for _ in range(9):
            began, used = time.monotonic(), time.process_time()
            with Store.open(home) as store:
                refreshed = store.refresh()
                if refreshed.added or refreshed.changed or refreshed.gone:
                    raise SystemExit("the folders have changed meanwhile")
                asked = time.process_time()
                rows = len(ask(store))
            alone.append((time.process_time() - asked) * 1e3)
            whole.append((time.process_time() - used) * 1e3)
            clock.append((time.monotonic() - began) * 1e3)
        middle = statistics.median(whole)
        worst = max(worst, middle)
        print(
            f"{name:<42}{rows:>8}{statistics.median(alone):>10.1f}{middle:>8.1f}"
            f"{statistics.median(clock):>8.1f}{max(clock):>9.1f}"
        )
    return worst


def write_folder(home: Path, number: int, what: list[Workload]) -> None:
    target = Target(name="here", python="/usr/bin/python3")
    study = Study(
        name="nightly",
        baseline=Variant(name="eager", target=target),
        candidates=(Variant(name="inductor", target=target, backend="inductor"),),
        workloads=tuple(what),
    )
    estimate = Estimate(
        verdict=Verdict.SAME,
        speedup=1.0,
        interval=Interval(low=0.99, high=1.01),
        p_value=0.5,
        launches=8,
        pairs=80,
        pairs_dropped=0,
        launch_sd=0.01,
        pair_sd=0.02,
        minimum_detectable=0.02,
        time_needed_s=None,
    )
    metrics = VariantMetrics(time_ns=1e6, compile_cold_s=12.0, torch_version="2.9.0")
    rows = [
        Comparison(
            workload=workload,
            baseline="eager",
            candidate="inductor",
            verdict=Verdict.SAME,
            estimate=estimate,
            baseline_metrics=metrics,
            candidate_metrics=metrics,
        )
        for workload in what
    ]
    folder = home / f"20250101T{number:09d}Z-0000"
    writer = RunWriter.create(folder, study=study, command=["torchyard"], machine={})
    for row in rows * 2:  # once when it is made, once with its adjusted p-value
        writer.add_comparison(row)
    writer.finish("finished")


def measure_folders(home: Path, count: int, what: list[Workload]) -> None:
    print(f"\n{count} run folders with {len(what)} comparisons each")
    for number in range(count):
        write_folder(home, number, what)
    for name in ("the first refresh", "a refresh that finds nothing new"):
        with Store.open(home) as store:
            began, used = time.monotonic(), time.process_time()
            store.refresh()
            cpu = time.process_time() - used
            print(f"{name:<42}{cpu:>8.2f} s cpu{time.monotonic() - began:>8.2f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--comparisons", type=int, default=50)
    parser.add_argument("--folders", type=int, default=2_000)
    parser.add_argument("--at", type=Path, help="where to put both; a temporary folder otherwise")
    parser.add_argument("--limit-ms", type=float, default=200.0)
    arguments = parser.parse_args()
    what = workloads(arguments.comparisons)
    with tempfile.TemporaryDirectory(dir=arguments.at) as folder:
        home = Path(folder) / "million"
        home.mkdir()
        fill(home, arguments.runs, what)
        with Store.open(home) as store:
            store.refresh()  # from here on the look finds what it found before
        worst = measure(home, {"the look alone": lambda _: [], **questions(what, arguments.runs)})
        measure(home, whole_tables(what))
        if arguments.folders:
            measure_folders(Path(folder) / "folders", arguments.folders, what)
    print(
        f"\nslowest, with the look: {worst:.0f} ms of processor time; "
        f"limit {arguments.limit_ms:.0f} ms"
    )
    return 0 if worst <= arguments.limit_ms else 1


if __name__ == "__main__":
    sys.exit(main())

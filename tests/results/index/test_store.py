"""Queries of the store on real folders."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.results.run_directories import MACHINE, change_facts, compared, day, write_run
from tests.results.run_samples import FAILED, GPT, MATMUL, STUDY
from torchyard.core.comparison import BUSY_NOTE_PREFIX, Comparison, Verdict
from torchyard.core.study import Workload
from torchyard.errors import NothingToDo, UsageError
from torchyard.results.index.entries import INDEX_FILE, file_system_of, is_local, places_for
from torchyard.results.index.store import Store
from torchyard.results.model import METRICS, Metric, RunFilter, Series

CONV = Workload(suite="kernels", name="conv[3x3]", device="cuda")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four days of runs: two machines, a failure, a wrong and an untrusted result. Not to be changed."""
    home = tmp_path_factory.mktemp("kept") / "runs"
    write_run(home, day(1), [compared(speedup=1.1), FAILED], revision="first")
    write_run(home, day(2), [compared(speedup=1.2), compared(GPT, speedup=0.9)], notes=["hot"])
    wrong = compared(speedup=9.0, verdict=Verdict.WRONG)
    write_run(home, day(3), [wrong], study=replace(STUDY, name="release"))
    busy = compared(speedup=1.4, notes=(f"{BUSY_NOTE_PREFIX}: 9 of 10 pairs were disturbed",))
    other = {**MACHINE, "cpu": "Example 9100"}
    write_run(home, day(4), [busy, compared(CONV, verdict=Verdict.SAME)], machine=other)
    return home


@pytest.fixture
def home(kept: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    return Path(shutil.copytree(kept, tmp_path / "runs"))


def opened(home: Path) -> Store:
    store = Store.open(home)
    store.refresh()
    return store


def ids(store: Store, **wanted: object) -> list[str]:
    return [run.id for run in store.runs(RunFilter(**wanted))]  # type: ignore[arg-type]


def test_a_run_is_known_without_its_folder(home: Path) -> None:
    with opened(home) as store:
        shutil.rmtree(home / day(2))
        run = store.runs(RunFilter(run=day(2)))[0]
    assert run.folder == str(home / day(2))
    assert run.study == "eager against inductor"
    assert run.state == "finished"
    assert run.started == "2025-01-02T12:00:00.000Z"
    assert run.finished is not None
    assert run.machine.startswith("example-9000-4c-")
    assert "Example 9000, 4 cores, 15.5 GiB" in run.machine_text
    assert run.torch == "2.9.0"
    assert run.revision == "ab" * 20
    assert run.verdicts == ((Verdict.FASTER, 2),)
    assert run.comparisons == 2
    assert run.notes == ("hot",)
    assert run.damage == ""


def test_a_comparison_is_known_in_full(kept: Path) -> None:
    with opened(kept) as store:
        (entry,) = store.comparisons(RunFilter(run=day(1), verdicts=(Verdict.FASTER,)))
        (failed,) = store.comparisons(RunFilter(verdicts=(Verdict.FAILED,)))
    assert (entry.run, entry.started) == (day(1), "2025-01-01T12:00:00.000Z")
    assert entry.revision == "first"
    assert entry.workload == MATMUL.label
    assert (entry.suite, entry.mode, entry.device) == ("kernels", "inference", "cpu")
    assert (entry.baseline, entry.candidate) == ("eager", "inductor")
    assert entry.speedup == 1.1
    assert (entry.low, entry.high) == (1.1 * 0.99, 1.1 * 1.01)
    assert entry.launches == 5
    assert (entry.baseline_ns, entry.candidate_ns) == (1.0e6, 1e6 / 1.1)
    assert (entry.compile_s, entry.memory_bytes) == (3.5, 2**20)
    assert (entry.launch_sd, entry.pair_sd, entry.pairs) == (0.01, 0.02, 50)
    assert entry.torch == "2.9.0"
    assert entry.trusted
    assert (failed.speedup, failed.low, failed.candidate_ns) == (None, None, None)


def spread(
    workload: Workload = MATMUL,
    *,
    launches: int,
    launch_sd: float | None,
    pair_sd: float | None = None,
    pairs: int = 0,
    verdict: Verdict = Verdict.FASTER,
) -> Comparison:
    one = compared(workload, verdict=verdict)
    assert one.estimate is not None
    estimate = replace(
        one.estimate, launches=launches, launch_sd=launch_sd, pair_sd=pair_sd, pairs=pairs
    )
    return replace(one, estimate=estimate)


def test_variances_between_launches_are_pooled_by_device_and_suite(tmp_path: Path) -> None:
    write_run(tmp_path, day(1), [spread(launches=3, launch_sd=0.01, pair_sd=0.02, pairs=30)])
    write_run(
        tmp_path,
        day(2),
        [
            spread(launches=11, launch_sd=0.04, pair_sd=0.03, pairs=110),
            spread(GPT, launches=5, launch_sd=0.02),
            spread(CONV, launches=4, launch_sd=0.5, pair_sd=0.1, pairs=0),
        ],
    )
    with opened(tmp_path) as store:
        variances = {(one.device, one.suite): one for one in store.launch_variances()}
    assert set(variances) == {("cpu", "kernels"), ("cpu", "models"), ("cuda", "kernels")}
    kernels = variances["cpu", "kernels"]
    assert (kernels.comparisons, kernels.launches) == (2, 14)
    assert kernels.observed == pytest.approx((2 * 0.01**2 + 10 * 0.04**2) / 12)
    assert kernels.pair_mean == pytest.approx((2 * 0.02**2 / 10 + 10 * 0.03**2 / 10) / 12)
    assert variances["cpu", "models"].observed == pytest.approx(0.02**2)
    assert variances["cpu", "models"].pair_mean == 0.0
    # A number of pairs that contradicts the launches does not divide by zero.
    assert variances["cuda", "kernels"].pair_mean == 0.0


def test_comparisons_that_say_nothing_about_launches_are_not_pooled(tmp_path: Path) -> None:
    unusable = [
        spread(launches=2, launch_sd=0.01),
        spread(launches=9, launch_sd=None),
        spread(launches=9, launch_sd=1e300),
        spread(launches=9, launch_sd=0.01, pair_sd=1e300, pairs=9),
        spread(launches=9, launch_sd=0.01, verdict=Verdict.WRONG),
        replace(spread(launches=9, launch_sd=0.01), untrusted=("busy machine",)),
        FAILED,
    ]
    for number, one in enumerate(unusable, start=1):
        write_run(tmp_path, day(number), [one])
    with opened(tmp_path) as store:
        assert len(store.comparisons(RunFilter())) == len(unusable)
        assert store.launch_variances() == []
        write_run(tmp_path, day(20), [spread(launches=2**62, launch_sd=0.01)])
        write_run(tmp_path, day(21), [spread(launches=2**62, launch_sd=0.01)])
        store.refresh()
        (pooled,) = store.launch_variances()
    assert pooled.launches == 2**63
    assert pooled.observed == pytest.approx(0.01**2)


def test_newest_first_with_a_limit(kept: Path) -> None:
    with opened(kept) as store:
        assert ids(store) == [day(4), day(3), day(2), day(1)]
        assert ids(store, limit=2) == [day(4), day(3)]
        rows = store.comparisons(RunFilter())
        assert [row.run for row in rows] == [day(4)] * 2 + [day(3)] + [day(2)] * 2 + [day(1)] * 2
        assert store.comparisons(RunFilter(limit=3)) == rows[:3]


@pytest.mark.parametrize(
    ("wanted", "days"),
    [
        ({"run": "20250102"}, [2]),
        ({"run": "*T12*-0000"}, [4, 3, 2, 1]),
        ({"study": "release"}, [3]),
        ({"study": "rel*"}, [3]),
        ({"study": "rel"}, []),
        ({"workload": "kernels/matmul"}, [4, 3, 2, 1]),
        ({"workload": "models/gpt"}, [2, 1]),
        ({"workload": "models/gp"}, []),
        ({"workload": GPT.label}, [2, 1]),
        ({"workload": "*conv*"}, [4]),
        ({"workload": "kernels/conv[3x3]"}, [4]),
        ({"workload": "kernels/conv[3x?]*"}, [4]),
        ({"suite": "models"}, [2, 1]),
        ({"mode": "training"}, [2, 1]),
        ({"device": "cuda*"}, [4]),
        ({"baseline": "eager"}, [4, 3, 2, 1]),
        ({"candidate": "other"}, []),
        ({"verdicts": (Verdict.WRONG,)}, [3]),
        ({"verdicts": (Verdict.FAILED, Verdict.SAME)}, [4, 1]),
        ({"workload": "models/gpt", "verdicts": (Verdict.FAILED,)}, [1]),
        ({"workload": "kernels/matmul", "verdicts": (Verdict.FAILED,)}, []),
        ({"machine": "example-9100*"}, [4]),
        ({"machine": "example-9100*", "workload": "kernels/matmul"}, [4]),
        ({"revision": "first"}, [1]),
        ({"revision": "ababababab"}, [4, 3, 2]),
        ({"revision": "ababa"}, []),
        ({"revision": "ab*"}, [4, 3, 2]),
        ({"since": "2025-01-03"}, [4, 3]),
        ({"since": "2025-01-03T12:00:00.000Z"}, [4, 3]),
        ({"until": "2025-01-03T12:00:00.000Z"}, [2, 1]),
        ({"since": "2025-01-02T13:00:00+01:00", "until": "2025-01-03"}, [2]),
    ],
)
def test_filters(kept: Path, wanted: dict[str, object], days: list[int]) -> None:
    with opened(kept) as store:
        assert ids(store, **wanted) == [day(number) for number in days]
        rows = store.comparisons(RunFilter(**wanted))  # type: ignore[arg-type]
        assert list(dict.fromkeys(row.run for row in rows)) == [day(number) for number in days]
        limited = store.comparisons(RunFilter(**wanted, limit=1))  # type: ignore[arg-type]
        assert limited == rows[:1]


def test_an_invalid_time(kept: Path) -> None:
    with (
        opened(kept) as store,
        pytest.raises(UsageError, match="'yesterday' is not a date or time"),
    ):
        store.runs(RunFilter(since="yesterday"))


def test_histories(kept: Path) -> None:
    with opened(kept) as store:
        series = store.series(RunFilter())
        assert [(one.workload, one.machine[:12]) for one in series] == [
            (CONV.label, "example-9100"),
            (MATMUL.label, "example-9000"),
            (MATMUL.label, "example-9100"),
            (GPT.label, "example-9000"),
        ]
        matmul = series[1]
        points = store.points(matmul)
        # The third day's results were wrong: how fast they came says nothing.
        assert [(point.run, point.value) for point in points] == [(day(1), 1.1), (day(2), 1.2)]
        assert [point.revision for point in points] == ["first", "ab" * 20]
        assert (points[0].low, points[0].high) == (1.1 * 0.99, 1.1 * 1.01)
        assert [point.untrusted for point in store.points(series[2])] == [True]
        assert store.points(replace(matmul, machine="none")) == []


@pytest.mark.parametrize(
    ("metric", "value"),
    [("speedup", 0.9), ("time", 1e6 / 0.9), ("compile", 3.5), ("memory", 2.0**20)],
)
def test_what_a_history_can_be_of(kept: Path, metric: Metric, value: float) -> None:
    assert metric in METRICS
    with opened(kept) as store:
        (series,) = store.series(RunFilter(workload="models/gpt"), metric)
        assert series.metric == metric
        (point,) = store.points(series)
    assert (point.run, point.value) == (day(2), value)
    assert (point.low is None) == (metric != "speedup")


def test_series_by_filters_of_runs(kept: Path) -> None:
    with opened(kept) as store:
        assert {s.workload for s in store.series(RunFilter(study="release"))} == set()
        assert {s.workload for s in store.series(RunFilter(revision="first"))} == {MATMUL.label}
        assert {s.workload for s in store.series(RunFilter(since="2025-01-04"))} == {
            MATMUL.label,
            CONV.label,
        }
        assert len(store.series(RunFilter(limit=1))) == 1


def test_a_metric_that_no_run_has(tmp_path: Path) -> None:
    from tests.results.run_samples import FASTER

    write_run(tmp_path, day(1), [FASTER])
    with opened(tmp_path) as store:
        assert store.series(RunFilter(), "memory") == []
        assert len(store.series(RunFilter(), "time")) == 1


def test_one_run_by_name(home: Path, tmp_path: Path) -> None:
    elsewhere = write_run(tmp_path, "mine", [compared()])
    with opened(home) as store:
        assert store.run("latest").id == day(4)
        assert store.run(day(2)).id == day(2)
        assert store.run("20250103").id == day(3)
        assert store.run(str(elsewhere)).id == "mine"
        assert store.run(str(home / day(1))).id == day(1)
        with pytest.raises(UsageError, match="is ambiguous: it matches 4 runs") as caught:
            store.run("2025")
        assert "more letters" in caught.value.hint
        with pytest.raises(UsageError, match="there is no run") as caught:
            store.run("20250104T120000.000Z-000f")
        assert day(4) in caught.value.hint
        with pytest.raises(UsageError, match="there is no run") as caught:
            store.run("xyzzy")
        assert "torchyard results list" in caught.value.hint
        for text in ("", "*", "2025*", "../runs"):
            with pytest.raises(UsageError):
                store.run(text)


def test_an_id_that_begins_another(tmp_path: Path) -> None:
    write_run(tmp_path, "base", [compared()])
    write_run(tmp_path, "base-2", [compared()])
    with opened(tmp_path) as store:
        assert store.run("base").id == "base"
        assert store.run("base-").id == "base-2"


def test_no_runs_at_all(tmp_path: Path) -> None:
    with opened(tmp_path / "none") as store:
        assert store.runs(RunFilter()) == []
        assert store.comparisons(RunFilter()) == []
        assert store.series(RunFilter()) == []
        with pytest.raises(NothingToDo):
            store.run("latest")
    assert not (tmp_path / "none").exists()


def test_new_changed_and_gone_folders(home: Path) -> None:
    with opened(home) as store:
        again = store.refresh()
        assert (again.added, again.changed, again.gone, again.runs) == (0, 0, 0, 4)
        write_run(home, day(5), [compared()])
        shutil.rmtree(home / day(1))
        change_facts(home / day(2), notes=["hot", "really"])
        refreshed = store.refresh()
        assert (refreshed.added, refreshed.changed, refreshed.gone, refreshed.runs) == (1, 1, 1, 4)
        assert ids(store) == [day(5), day(4), day(3), day(2)]
        assert store.run(day(2)).notes == ("hot", "really")
        assert store.comparisons(RunFilter(revision="first")) == []
    # What one process wrote another one finds.
    with Store.open(home) as store:
        assert ids(store) == [day(5), day(4), day(3), day(2)]


def test_a_run_that_grows(tmp_path: Path) -> None:
    from torchyard.results.run_writer import RunWriter

    writer = RunWriter.create(tmp_path / day(1), study=STUDY, command=[], machine={})
    with opened(tmp_path) as store:
        assert store.run("latest").state == "running"
        assert ids(store, state="running") == [day(1)]
        assert ids(store, state="finished") == []
        assert store.run("latest").comparisons == 0
        writer.add_comparison(compared())
        store.refresh()
        assert store.run("latest").verdicts == ((Verdict.FASTER, 1),)
        writer.add_comparison(compared(verdict=Verdict.SAME))
        writer.finish("finished")
        store.refresh()
        run = store.run("latest")
        assert (run.state, run.verdicts) == ("finished", ((Verdict.SAME, 1),))


def test_a_running_run_whose_process_is_gone(tmp_path: Path) -> None:
    folder = write_run(tmp_path, day(1), finish=False)
    with opened(tmp_path) as store:
        assert store.run("latest").state == "running"
        before = (folder / "run.json").stat()
        facts = json.loads((folder / "run.json").read_bytes())
        facts["owner"]["started_ticks"] = 1
        (folder / "run.json").write_text(json.dumps(facts))
        assert (folder / "run.json").stat().st_size <= before.st_size
        store.refresh()
        assert store.run("latest").state == "interrupted"
        assert store.refresh().changed == 0


def test_a_run_measured_again_in_the_same_folder(tmp_path: Path) -> None:
    write_run(tmp_path, day(1), [compared(), compared(GPT)])
    with opened(tmp_path) as store:
        shutil.rmtree(tmp_path / day(1))
        write_run(tmp_path, day(1), [compared(GPT, speedup=2.0)], started="2025-02-01T00:00:00Z")
        refreshed = store.refresh()
        assert (refreshed.added, refreshed.changed, refreshed.gone) == (0, 1, 0)
        (entry,) = store.comparisons(RunFilter())
        assert (entry.speedup, entry.started) == (2.0, "2025-02-01T00:00:00Z")
        series = Series(
            workload=MATMUL.label, baseline="eager", candidate="inductor", machine=entry.machine
        )
        assert store.points(series) == []
        assert store.series(RunFilter(workload="kernels/matmul")) == []


def test_several_candidates_have_their_own_torch(tmp_path: Path) -> None:
    first = STUDY.candidates[0]
    second = replace(first, name="newer", target=replace(first.target, name="new"))
    study = replace(STUDY, candidates=(first, second))
    targets = {
        "this+tcmalloc": {"torch": "2.9.0", "torch_git": "a" * 40},
        "new+tcmalloc": {"torch": "2.10.0", "torch_git": "b" * 40},
    }
    rows = [compared(), compared(candidate="newer")]
    write_run(tmp_path, day(1), rows, study=study, targets=targets)
    with opened(tmp_path) as store:
        run = store.run("latest")
        assert run.torch == "2.9.0, 2.10.0"
        assert run.revision == f"{'a' * 40}, {'b' * 40}"
        (entry,) = store.comparisons(RunFilter(revision="b" * 7))
        assert (entry.candidate, entry.torch, entry.revision) == ("newer", "2.10.0", "b" * 40)
        assert [run.id for run in store.runs(RunFilter(revision="b" * 7))] == [day(1)]


def test_text_that_is_no_text(tmp_path: Path) -> None:
    study = replace(STUDY, name="half \udcff and zero \x00 <b>")
    odd = Workload(suite="kernels", name="'; DROP TABLE runs; --\udcff")
    write_run(tmp_path, day(1), [compared(odd)], study=study, notes=["\ud800"])
    with opened(tmp_path) as store:
        assert store.run("latest").damage == ""
        assert store.run("latest").study == "half ? and zero \x00 <b>"
        (entry,) = store.comparisons(RunFilter(workload="*DROP TABLE*"))
        assert store.points(store.series(RunFilter())[0])[0].run == entry.run


def test_numbers_that_are_not_finite(tmp_path: Path) -> None:
    row = compared()
    assert row.estimate is not None
    endless = replace(row.estimate, minimum_detectable=float("inf"))
    write_run(tmp_path, day(1), [replace(row, estimate=endless)])
    write_run(tmp_path, day(2), [compared(speedup=float("nan"))])
    with opened(tmp_path) as store:
        (entry,) = store.comparisons(RunFilter())
        assert entry.run == day(1)
        assert "estimate.speedup = nan is impossible" in store.run(day(2)).damage


def test_which_file_systems_are_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert file_system_of(Path("/proc")) == "proc"
    assert not is_local(Path("/proc"))
    assert not is_local(tmp_path / "missing")
    (place,) = places_for(Path("/proc"))
    assert place.parent == tmp_path / "cache" / "torchyard"
    assert is_local(tmp_path)
    assert places_for(tmp_path)[0] == tmp_path / INDEX_FILE

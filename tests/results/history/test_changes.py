"""Histories: commit ranges, untrusted points, many series, time ranges, and the cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import torchyard.stats.change_points.detection
from tests.results.history.sample_history import MemoryStore, points_of, series_of
from torchyard.errors import NothingToDo
from torchyard.results.history.changes import (
    FALSE_DISCOVERY_RATE,
    ChangeCache,
    digest_of,
    histories,
    history_of,
    ranked,
)
from torchyard.results.model import RunFilter, SeriesHistory, SeriesPoint
from torchyard.stats.change_points.detection import Rules


def test_a_step_names_the_revisions_around_it() -> None:
    history = history_of(series_of(), points_of(40, step_at=25, ratio=0.9))
    (change,) = history.changes
    assert (change.kind, change.position, change.last) == ("step", 25, 25)
    assert (change.before.revision, change.after.revision) == ("0000018", "0000019")
    assert change.ratio == pytest.approx(0.9, abs=0.01)
    assert change.interval is not None
    assert change.interval.covers(0.9)
    assert change.p_value < 1e-4
    assert change.towards("speedup") == "worse"
    assert change.towards("time") == "better"


def test_untrusted_points_are_kept_and_not_evaluated() -> None:
    untrusted = (10, 11, 12, 13, 14, 24, 25, 26)
    history = history_of(series_of(), points_of(40, step_at=25, untrusted=untrusted))
    assert len(history.points) == 40
    assert history.left_out == 8
    (change,) = history.changes
    assert (change.before.run, change.after.run) == ("run-0023", "run-0027")
    assert change.position == 27


def test_values_that_are_none_are_left_out() -> None:
    points = points_of(40, step_at=25)
    points[5] = points[5]._replace(value=0.0)
    points[6] = points[6]._replace(value=float("nan"))
    assert [change.position for change in history_of(series_of(), points).changes] == [25]


def test_a_drift_has_a_beginning_and_an_end() -> None:
    points = [
        point._replace(value=point.value * (1.0 + 0.1 * place / 120))
        for place, point in enumerate(points_of(120, noise=0.01))
    ]
    (change,) = history_of(series_of(), points).changes
    assert change.kind == "drift"
    assert change.position < 40
    assert change.last > 80
    assert change.before.run == points[change.position].run
    assert change.after.run == points[change.last].run


def test_changes_that_are_not_significant_among_all_are_weak() -> None:
    """A short series alone, and the same among 200 quiet ones."""
    lonely = {series_of("kernels/a inference"): points_of(10, step_at=5, ratio=0.8)}
    (alone,) = histories(MemoryStore(lonely), RunFilter())
    assert len(alone.changes) == 1
    crowd = {
        series_of(f"kernels/q{number} inference"): points_of(10, noise=0.0001, seed=number)
        for number in range(200)
    }
    series = histories(MemoryStore({**lonely, **crowd}), RunFilter(), rules=Rules(least=0.05))
    assert series[0].changes == ()
    assert len(series[0].weak) == 1
    assert (series[0].weak[0].p_adjusted or 0.0) > FALSE_DISCOVERY_RATE


def test_strong_changes_are_significant_among_many_and_rank_by_size() -> None:
    table = {
        series_of(f"kernels/q{number} inference"): points_of(60, seed=number)
        for number in range(30)
    }
    table[series_of("kernels/q7 inference")] = points_of(60, step_at=30, ratio=1.05)
    table[series_of("kernels/q9 inference")] = points_of(60, step_at=30, ratio=0.7)
    changed = ranked(histories(MemoryStore(table), RunFilter()))
    assert [one.series.workload for one in changed][:2] == [
        "kernels/q9 inference",
        "kernels/q7 inference",
    ]
    assert all((change.p_adjusted or 1.0) <= FALSE_DISCOVERY_RATE for change in changed[0].changes)


def test_time_chooses_changes_and_not_points() -> None:
    table = {series_of(): points_of(40, step_at=25)}
    moment = table[series_of()][25].started
    for wanted, reported in (
        (RunFilter(since=moment), True),
        (RunFilter(since="2025-02-01T00:00:00.000Z"), False),
        (RunFilter(until=moment), True),
        (RunFilter(until="2025-01-10T00:00:00.000Z"), False),
    ):
        (history,) = histories(MemoryStore(table), wanted)
        assert bool(history.changes) is reported
        assert len(history.points) == 40


def test_a_name_without_its_mode_means_all_modes() -> None:
    store = MemoryStore({series_of(): points_of(5), series_of("kernels/conv"): points_of(5)})
    series = histories(store, RunFilter(workload="kernels/matmul"))
    assert [one.series.workload for one in series] == ["kernels/matmul inference"]


def test_nothing_that_fits_is_reported() -> None:
    with pytest.raises(NothingToDo, match="no history of 'kernels/none'"):
        histories(MemoryStore({}), RunFilter(workload="kernels/none"))


def test_untrusted_points_can_be_evaluated_on_request() -> None:
    points = [one._replace(untrusted=True) for one in points_of(40, step_at=25)]
    store = MemoryStore({series_of(): points})
    assert histories(store, RunFilter())[0].changes == ()
    (history,) = histories(store, RunFilter(), with_untrusted=True)
    assert [change.position for change in history.changes] == [25]


def test_progress_is_reported() -> None:
    progress: list[tuple[int, int]] = []
    table = {series_of(name): points_of(5) for name in ("a", "b", "c")}
    histories(MemoryStore(table), RunFilter(), progress=lambda n, m: progress.append((n, m)))
    assert progress == [(1, 3), (2, 3), (3, 3)]


def grown(memory: ChangeCache, points: list[SeriesPoint], *sizes: int) -> list[SeriesHistory]:
    return [history_of(series_of(), points[:size], cache=memory) for size in sizes]


def test_the_cache_gives_the_same_result_at_every_length(tmp_path: Path) -> None:
    points = points_of(460, step_at=150, ratio=1.04, untrusted=range(0, 460, 9), seed=4)
    memory = ChangeCache(tmp_path / "changes.json")
    for size in (30, 200, 201, 330, 331, 400, 460):
        assert grown(memory, points, size) == grown(ChangeCache(), points, size)
        memory.save()
        memory = ChangeCache(tmp_path / "changes.json")


def test_known_points_are_not_evaluated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = points_of(300, step_at=150)
    memory = ChangeCache(tmp_path / "changes.json")
    (before,) = grown(memory, points, 300)
    memory.save()

    def never(*_: object, **__: object) -> None:
        pytest.fail("judged again")

    monkeypatch.setattr(torchyard.stats.change_points.detection, "find_moves", never)
    assert grown(ChangeCache(tmp_path / "changes.json"), points, 300) == [before]


def test_a_rewritten_history_is_evaluated_again(tmp_path: Path) -> None:
    points = points_of(300, step_at=150)
    memory = ChangeCache(tmp_path / "changes.json")
    grown(memory, points, 300)
    other = points_of(300, step_at=80)
    assert grown(memory, other, 300) == grown(ChangeCache(), other, 300)


def test_a_late_run_is_evaluated_at_its_position(tmp_path: Path) -> None:
    points = points_of(300, step_at=150)
    memory = ChangeCache(tmp_path / "changes.json")
    history_of(series_of(), [*points[:50], *points[51:]], cache=memory)
    assert grown(memory, points, 300) == grown(ChangeCache(), points, 300)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 0}', '{"format": 1, "series": 3}', "\x00"]
)
def test_a_damaged_cache_is_ignored(tmp_path: Path, text: str) -> None:
    place = tmp_path / "changes.json"
    place.write_text(text)
    memory = ChangeCache(place)
    points = points_of(40, step_at=25)
    assert grown(memory, points, 40) == grown(ChangeCache(), points, 40)
    memory.save()
    assert json.loads(place.read_text())["format"] == 1


def test_damaged_entries_are_ignored(tmp_path: Path) -> None:
    points = points_of(300, step_at=150)
    memory = ChangeCache(tmp_path / "changes.json")
    grown(memory, points, 250)
    memory.save()
    document = json.loads((tmp_path / "changes.json").read_text())
    (key,) = document["series"]
    for entry in (
        {"digest": 1},
        "text",
        {"nonsense": 1},
        {**document["series"][key], "settled": {"upto": "x"}},
        {**document["series"][key], "settled_points": "x"},
        {**document["series"][key], "digest": digest_of(points), "found": [{"kind": "jump"}]},
    ):
        (tmp_path / "changes.json").write_text(json.dumps({"format": 1, "series": {key: entry}}))
        memory = ChangeCache(tmp_path / "changes.json")
        assert grown(memory, points, 300) == grown(ChangeCache(), points, 300)


def test_an_unwritable_cache_only_costs_time(tmp_path: Path) -> None:
    points = points_of(40, step_at=25)
    memory = ChangeCache(tmp_path / "none" / "changes.json")
    before = grown(memory, points, 40)
    memory.save()
    assert grown(memory, points, 40) == before
    assert not (tmp_path / "none").exists()


def test_digests_tell_points_apart() -> None:
    points = points_of(5)
    assert digest_of(points) == digest_of(list(points))
    for changed in (
        points[2]._replace(value=1.0),
        points[2]._replace(low=None),
        points[2]._replace(run="other"),
    ):
        assert digest_of([*points[:2], changed, *points[3:]]) != digest_of(points)

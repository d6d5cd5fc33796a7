"""Shards and repeated sweeps, read as one sweep."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.results.run_directories import write_run
from tests.sweep.sample_sweeps import BUDGET, cell, comparison, plan, study, workload
from torchyard.core.study import Environment
from torchyard.errors import UsageError
from torchyard.sweep.folder import SweepFolder
from torchyard.sweep.model import SweepPlan, SweepSummary
from torchyard.sweep.rows import read_sweeps
from torchyard.sweep.summary import sweep_summary


def sweep_of(folder: Path, part: SweepPlan, speedups: dict[str, float]) -> Path:
    """A sweep whose cells have these results; a cell without one died."""
    made = SweepFolder.create(folder, part)
    for one in part.cells:
        name = one.study.workloads[0].name
        if name not in speedups:
            for _ in range(2):
                made.end(one.id, made.begin(one.id, place="here").number, "died")
            made.log_path(one.id).write_text(f"last words of {name}\n")
            continue
        attempt = made.begin(one.id, place="here")
        run = made.run_folder(one.id, attempt.number)
        row = comparison(one.study.workloads[0], speedup=speedups[name])
        write_run(run.parent, run.name, [row], study=one.study)
        made.end(one.id, attempt.number, "finished")
    return folder


def shards(tmp_path: Path, *names: str) -> list[SweepPlan]:
    """Every second cell each."""
    cells = [cell(number, study(workload(name))) for number, name in enumerate(names, start=1)]
    return [replace(plan(cells[part::2]), shard=(part + 1, 2)) for part in range(2)]


def summary_of(*folders: Path) -> SweepSummary:
    sweeps = read_sweeps(folders)
    return sweep_summary(sweeps.plan, sweeps.statuses, sweeps.runs, folders=sweeps.folders)


def test_shards_are_one_sweep(tmp_path: Path) -> None:
    one, two = shards(tmp_path, "a", "b", "c", "d")
    first = sweep_of(tmp_path / "1", one, {"a": 1.2, "c": 1.3})
    second = sweep_of(tmp_path / "2", two, {"b": 0.8})
    # WHEN both are read
    summary = summary_of(first, second)
    # THEN there is one family of four cells, and the one that died has its log
    assert (summary.cells, summary.shard) == (4, (1, 1))
    assert [row.workload for row in summary.rows] == [
        f"kernels/{name} inference" for name in ("a", "c", "b", "d")
    ]
    (group,) = summary.groups
    assert group.own is not None
    assert group.own.workloads == 3
    assert group.own.speedup == pytest.approx((1.2 * 1.3 * 0.8) ** (1 / 3), rel=1e-3)
    assert summary.rows[3].log_tail == "last words of d\n"
    assert not any("part" in doubt for doubt in summary.doubts)


def test_missing_shards_are_reported(tmp_path: Path) -> None:
    cells = [cell(number, study(workload(name))) for number, name in enumerate("abcd", start=1)]
    parts = [replace(plan(cells[part : part + 1]), shard=(part + 1, 4)) for part in range(4)]
    folders = [
        sweep_of(tmp_path / str(number), part, {name: 1.2})
        for number, (part, name) in enumerate(zip(parts, "abcd", strict=True))
    ]
    assert read_sweeps(folders).doubts == ()
    (doubt,) = read_sweeps([folders[0], folders[2]]).doubts
    assert doubt.startswith("missing shards of 4: 2, 4; corrections and means")


def test_a_comparison_that_two_cells_hold_is_one_row(tmp_path: Path) -> None:
    """One sweep had two candidates, the other only one of them."""
    both = study(workload("a"), candidates=("inductor", "aot_eager"))
    first = sweep_of(tmp_path / "1", plan([cell(1, both)]), {"a": 1.2})
    second = sweep_of(tmp_path / "2", plan([cell(1, study(workload("a")))]), {"a": 1.3})
    rows = summary_of(first, second).rows
    assert [row.candidate for row in rows] == ["inductor", "aot_eager"]


def test_the_last_finished_result_of_a_cell_counts(tmp_path: Path) -> None:
    cells = [cell(number, study(workload(name))) for number, name in enumerate("ab", start=1)]
    first = sweep_of(tmp_path / "1", plan(cells), {"a": 1.2, "b": 1.3})
    second = sweep_of(tmp_path / "2", plan(cells), {"a": 1.5})
    speedups = {row.workload: row.speedup for row in summary_of(first, second).rows}
    assert speedups["kernels/a inference"] == pytest.approx(1.5, rel=1e-3)
    assert speedups["kernels/b inference"] == pytest.approx(1.3, rel=1e-3)


@pytest.mark.parametrize("what", ["null", "margin"])
def test_sweeps_with_other_settings_are_not_mixed(tmp_path: Path, what: str) -> None:
    requested = study(workload("a"))
    first = sweep_of(tmp_path / "1", plan([cell(1, requested)]), {"a": 1.2})
    if what == "margin":
        requested = replace(requested, budget=replace(BUDGET, margin=0.07))
    other = sweep_of(tmp_path / "2", plan([cell(1, requested)], null=what == "null"), {"a": 1.2})
    with pytest.raises(UsageError, match="cannot be read as one sweep") as caught:
        read_sweeps([first, other])
    assert f"--{what}" in caught.value.why


@pytest.mark.parametrize("what", ["options", "environment", "backend", "settings"])
def test_one_name_for_two_variants_is_refused(tmp_path: Path, what: str) -> None:
    one, two = shards(tmp_path, "a", "b")

    def altered(part: SweepPlan) -> SweepPlan:
        (only,) = part.cells
        requested = only.study
        changes: dict[str, dict[str, object]] = {
            "options": {"options": (("inductor.freezing", True),)},
            "environment": {"environment": Environment(name="default", cores="0")},
            "backend": {"backend": "aot_eager"},
        }
        if what == "settings":
            requested = replace(requested, settings=replace(requested.settings, flush_l2=True))
        else:
            changed = replace(requested.candidates[0], **changes[what])  # type: ignore[arg-type]
            requested = replace(requested, candidates=(changed, *requested.candidates[1:]))
        return replace(part, cells=(replace(only, study=requested),))

    first = sweep_of(tmp_path / "1", one, {"a": 1.2})
    second = sweep_of(tmp_path / "2", altered(two), {"b": 1.2})
    with pytest.raises(UsageError, match="cannot be read as one sweep") as caught:
        read_sweeps([first, second])
    assert ("flush_l2" if what == "settings" else what) in caught.value.why

"""The folder of an operator sweep is readable after a kill."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from torchyard.errors import ResultsDamaged, UsageError
from torchyard.values.model import Certainty
from torchyard.values.operator_sweep.model import CaseState, SweepFolder, SweepSettings

SETTINGS = SweepSettings(
    python="/usr/bin/python3", target="here", only="conv*", variables=(("A", "1"),)
)
HEADER = {
    "kind": "header",
    "format": 1,
    "torch": "2.13.0",
    "device": "cpu",
    "threads": 1,
    "cases": ["a", "b", "c"],
}
FINDING = {
    "direction": "backward",
    "pattern": "dead initialisation",
    "operator": "aten::zero_",
    "path": ["aten::mse_loss_backward"],
    "shape": [4, 5],
    "bytes_wasted": 80,
    "native": 1,
    "proof": {
        "certainty": "proven",
        "why": "tested",
        "tests": [{"test": "poison", "passed": True}],
    },
    "worth": {"operator_ns": 200.0, "wasted_ns": 50.0, "gain": None, "fix": "unknown to us"},
}


def folder_with(folder: Path, *rows: Mapping[str, object], tail: str = "") -> SweepFolder:
    kept = SweepFolder(folder)
    kept.begin(SETTINGS)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    kept.rows.write_text(text + tail)
    return kept


def row(name: str, state: str = "done", **more: object) -> dict[str, object]:
    return {"kind": "row", "case": name, "state": state, "why": "", "findings": [], **more}


def test_settings_come_back_as_they_were(tmp_path: Path) -> None:
    assert folder_with(tmp_path).settings() == SETTINGS


def test_rows_are_read_in_the_order_of_the_list(tmp_path: Path) -> None:
    sweep = folder_with(tmp_path, HEADER, row("c"), row("a", findings=[FINDING])).read()

    assert (sweep.torch, sweep.device, sweep.names) == ("2.13.0", "cpu", ("a", "b", "c"))
    assert [case.case for case in sweep.cases] == ["a", "c"]
    assert not sweep.finished
    (found,) = sweep.cases[0].findings
    assert found.proof.certainty is Certainty.TESTED, "no proof by the current rules"
    assert (found.worth.share, found.worth.gain) == (0.25, None)


def test_the_case_that_was_under_way_is_known(tmp_path: Path) -> None:
    began = {"kind": "began", "case": "b"}

    assert folder_with(tmp_path, HEADER, row("a"), began).under_way() == "b"
    assert folder_with(tmp_path, HEADER, began, row("b")).under_way() == ""


def test_half_a_line_is_passed_over_and_the_next_row_is_not_lost(tmp_path: Path) -> None:
    kept = folder_with(tmp_path, HEADER, row("a"), tail='{"kind": "row", "case": "b", "sta')
    kept.add("c", CaseState.CRASHED, "the process was ended by signal 11")

    sweep = kept.read()

    assert [(case.case, case.state) for case in sweep.cases] == [
        ("a", CaseState.DONE),
        ("c", CaseState.CRASHED),
    ]
    assert kept.done() == ["a", "c"]
    assert sweep.count(CaseState.CRASHED) == 1


def test_a_later_row_of_a_case_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    sweep = folder_with(tmp_path, HEADER, row("a", "crashed"), row("a"), row("b"), row("c")).read()

    assert sweep.finished
    assert sweep.cases[0].state is CaseState.DONE


def test_a_folder_without_a_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not the folder of a sweep"):
        SweepFolder(tmp_path).settings()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 1, "python": 3}', '{"format": 99}'])
def test_settings_that_are_damaged_or_newer_are_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "sweep.json").write_text(text)

    with pytest.raises(ResultsDamaged):
        SweepFolder(tmp_path).settings()


def test_a_row_that_is_no_row_is_damage(tmp_path: Path) -> None:
    kept = folder_with(tmp_path, HEADER, row("a", "sideways"))

    with pytest.raises(ResultsDamaged):
        kept.read()

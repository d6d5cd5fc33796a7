"""Named baselines and baseline files: names, overwriting, removed runs, content."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.results.run_samples import FAILED, FASTER, STUDY
from torchyard.errors import NotAllowed, ResultsDamaged, TorchyardError, UsageError
from torchyard.results.baselines import (
    baseline_exists,
    baselines_home,
    delete_baseline,
    list_baselines,
    read_baseline,
    read_baseline_file,
    runs_of,
    save_baseline,
    write_baseline_file,
)
from torchyard.results.run_reader import Run, read_run
from torchyard.results.run_writer import RunWriter


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def write_run(folder: Path) -> Run:
    writer = RunWriter.create(
        folder, study=STUDY, command=["torchyard", "--token", "abc"], machine={"cpu": "Example"}
    )
    writer.add_target("this+default", {"torch": "2.9.0", "executable": "/opt/me/python", "pid": 3})
    writer.add_comparison(FASTER)
    writer.add_comparison(FAILED)
    writer.finish("finished")
    return read_run(folder)


@pytest.fixture
def run(home: Path) -> Run:
    return write_run(home / "runs" / "first")


def test_a_name_leads_back_to_its_runs(run: Run, home: Path, tmp_path: Path) -> None:
    outside = write_run(tmp_path / "elsewhere" / "second")
    saved = save_baseline("main", [run, outside], note="two nights")

    assert read_baseline("main") == saved
    assert [found.id for found in runs_of(saved)] == ["first", "second"]
    document = json.loads((home / "baselines" / "main.json").read_text())
    assert document["format"] == 1
    assert {"name", "runs", "saved", "note"} <= set(document)
    assert document["runs"] == ["first", "second"]
    assert [name for name, _ in document["folders"]] == ["second"]
    assert baseline_exists("main")


def test_overwriting_must_be_requested(run: Run) -> None:
    save_baseline("main", [run])
    with pytest.raises(UsageError, match="already") as raised:
        save_baseline("main", [run])
    assert "--replace" in raised.value.hint
    assert save_baseline("main", [run], note="again", replace_existing=True).note == "again"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/etc/x", ".hidden", "a\nb", "a b", "a" * 101, "-x", "ä"]
)
def test_names_are_plain_file_names(name: str, run: Run, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    for action in (
        lambda: save_baseline(name, [run]),
        lambda: read_baseline(name),
        lambda: delete_baseline(name),
    ):
        with pytest.raises(UsageError, match="not a valid name of a baseline"):
            action()
    assert not baseline_exists(name)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_that_is_gone_is_reported(run: Run, home: Path) -> None:
    saved = save_baseline("main", [run])
    (home / "runs" / "first").rename(home / "runs" / "moved")
    with pytest.raises(
        ResultsDamaged, match="the run 'first' of baseline 'main' is missing"
    ) as raised:
        runs_of(saved)
    assert "baseline save main RUN --replace" in raised.value.hint


def test_an_edited_run_name_cannot_leave_the_results_directory(run: Run) -> None:
    saved = replace(save_baseline("main", [run]), runs=("../runs/first",))
    with pytest.raises(ResultsDamaged, match="is missing"):
        runs_of(saved)


def test_an_unknown_name_gets_the_nearest(run: Run) -> None:
    with pytest.raises(UsageError) as raised:
        read_baseline("main")
    assert "torchyard baseline save" in raised.value.hint
    save_baseline("main", [run])
    with pytest.raises(UsageError) as raised:
        read_baseline("mian")
    assert raised.value.hint == "did you mean 'main'?"
    with pytest.raises(UsageError):
        delete_baseline("mian")
    delete_baseline("main")
    assert not baseline_exists("main")
    assert run.folder.is_dir()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "not a baseline"),
        ('{"format": true}', "not a baseline"),
        ('{"format": 99}', "newer Torchyard"),
        ('{"format": 1, "name": 5}', "not a baseline"),
    ],
)
def test_damage_is_damage_and_the_rest_is_listed(run: Run, text: str, said: str) -> None:
    save_baseline("good", [run])
    (baselines_home() / "bad.json").write_text(text)
    with pytest.raises(ResultsDamaged, match=said):
        read_baseline("bad")
    baselines, damaged = list_baselines()
    assert [one.name for one in baselines] == ["good"]
    assert len(damaged) == 1


def test_no_baselines_at_all() -> None:
    assert list_baselines() == ([], [])


def test_an_unwritable_results_directory_is_reported(run: Run, home: Path) -> None:
    (home / "baselines").write_text("a file")
    with pytest.raises(TorchyardError, match="cannot write"):
        save_baseline("main", [run])


def test_a_file_holds_numbers_and_facts_and_no_traces_of_the_owner(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "ci" / "base.json"
    write_baseline_file(path, "main", [run], note="kept")

    (baseline,) = read_baseline_file(path)

    assert baseline.id == run.id
    assert baseline.comparisons[0] == run.comparisons[0]
    assert baseline.comparisons[1].failure is not None
    assert baseline.comparisons[1].failure.message == "signal 11"
    assert baseline.info["machine"] == {"cpu": "Example"}
    assert baseline.info["targets"] == {"this+default": {"torch": "2.9.0"}}
    assert [variant.name for variant in baseline.study.variants] == ["eager", "inductor"]
    text = path.read_text()
    for secret in ("--token", "/opt/me", "bytes that were no text", "owner", "/opt/python"):
        assert secret not in text


@pytest.mark.parametrize(
    "document",
    [
        {"format": 1, "runs": []},
        {"format": 1, "kind": "torchyard.baseline", "runs": []},
        {"format": 1, "kind": "torchyard.baseline", "runs": [5]},
        {"format": 1, "kind": "torchyard.baseline", "runs": [{"info": {}, "comparisons": []}]},
        {"format": 2, "kind": "torchyard.baseline", "runs": []},
    ],
)
def test_a_file_that_is_no_baseline_is_damage(document: Any, tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ResultsDamaged) as raised:
        read_baseline_file(path)
    assert str(path) in raised.value.what


def test_a_file_in_a_place_that_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((NotAllowed, TorchyardError), match="cannot write"):
        write_baseline_file(tmp_path / "file" / "base.json", "main", [run])

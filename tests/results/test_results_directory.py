from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.results.run_samples import STUDY
from torchyard.errors import UsageError
from torchyard.results.directory import latest_run, new_run_folder, replace_run, runs_home
from torchyard.results.run_writer import RunWriter


def create(folder: Path) -> RunWriter:
    return RunWriter.create(folder, study=STUDY, command=["torchyard"], machine={})


def test_location_of_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.delenv("TORCHYARD_HOME", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert runs_home() == tmp_path / "me/.local/share/torchyard/runs"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert runs_home() == tmp_path / "me/.local/share/torchyard/runs"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert runs_home() == tmp_path / "data/torchyard/runs"
    monkeypatch.setenv("TORCHYARD_HOME", "~/yard")
    assert runs_home() == tmp_path / "me/yard/runs"


def test_new_folders_are_unique_and_sort_by_time(tmp_path: Path) -> None:
    folders = [new_run_folder(tmp_path / "runs") for _ in range(50)]
    assert len({folder.name for folder in folders}) == 50
    assert all(re.fullmatch(r"\d{8}T\d{6}\.\d{3}Z-[0-9a-f]{4}", f.name) for f in folders)
    times = [folder.name[:19] for folder in folders]
    assert times == sorted(times)


def test_a_results_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(UsageError, match="not a folder"):
        new_run_folder(tmp_path / "runs")


def test_the_latest_run(tmp_path: Path) -> None:
    assert latest_run(tmp_path / "none") is None
    assert latest_run(tmp_path) is None
    first = create(tmp_path / "20250101T000000.000Z-ffff").folder
    second = create(tmp_path / "20250102T000000.000Z-0000").folder
    (tmp_path / "20250103T000000.000Z-0000").mkdir()
    (tmp_path / "notes.txt").write_text("")
    assert latest_run(tmp_path) == second
    shutil.rmtree(second)
    assert latest_run(tmp_path) == first


def test_an_earlier_run_is_removed(tmp_path: Path) -> None:
    writer = create(tmp_path / "run")
    (writer.logs / "worker.txt").write_text("log")
    writer.finish("finished")
    replace_run(writer.folder)
    assert list(tmp_path.iterdir()) == []
    create(tmp_path / "run")


def test_nothing_and_an_empty_folder_are_fine(tmp_path: Path) -> None:
    replace_run(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    replace_run(tmp_path / "empty")
    assert (tmp_path / "empty").is_dir()


@pytest.mark.parametrize("content", [None, "{}", "not json", '{"format": 1, "id": "x"}'])
def test_other_folders_are_never_removed(tmp_path: Path, content: str | None) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter.tex").write_text("years of work")
    if content is not None:
        (folder / "run.json").write_text(content)
    with pytest.raises(UsageError, match="not deleted"):
        replace_run(folder)
    assert (folder / "chapter.tex").read_text() == "years of work"


def test_links_files_and_places_we_stand_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = create(tmp_path / "run")
    writer.finish("finished")
    link = tmp_path / "link"
    link.symlink_to(writer.folder)
    with pytest.raises(UsageError, match="not deleted"):
        replace_run(link)
    with pytest.raises(UsageError, match="not deleted"):
        replace_run(writer.folder / "run.json")
    monkeypatch.chdir(writer.logs)
    with pytest.raises(UsageError, match="not deleted") as caught:
        replace_run(writer.folder)
    assert "inside it" in caught.value.why
    assert (writer.folder / "run.json").exists()


def test_a_run_that_is_still_going_stays(tmp_path: Path) -> None:
    writer = create(tmp_path / "run")
    with pytest.raises(UsageError, match="still running"):
        replace_run(writer.folder)
    facts = json.loads((writer.folder / "run.json").read_text())
    facts["owner"]["started_ticks"] = 1
    (writer.folder / "run.json").write_text(json.dumps(facts))
    replace_run(writer.folder)
    assert not writer.folder.exists()

"""Deletion of runs and notes on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.results.run_directories import change_facts, compared, day, write_run
from tests.results.run_samples import STUDY
from torchyard.errors import ResultsDamaged, UsageError
from torchyard.results.baselines import baselines_home, save_baseline
from torchyard.results.run_changes import add_note, check_may_delete, delete_run, sweep_leftovers
from torchyard.results.run_reader import read_run
from torchyard.results.run_writer import RunWriter


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "yard"))
    home = tmp_path / "yard" / "runs"
    write_run(home, day(1), [compared()])
    return home


def test_a_run_is_removed(home: Path) -> None:
    (home / day(1) / "logs" / "worker.txt").write_text("log")
    delete_run(home / day(1))
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("content", ["{", '{"format": 99}', "[]"])
def test_a_damaged_run_can_be_removed(home: Path, content: str) -> None:
    (home / day(1) / "run.json").write_text(content)
    delete_run(home / day(1))
    assert list(home.iterdir()) == []


def test_what_is_no_run_stays(home: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    (home / "link").symlink_to(home / day(1))
    for folder in (tmp_path / "thesis", home / "link", home / day(1) / "run.json", home / "none"):
        with pytest.raises(UsageError, match="not a run folder"):
            delete_run(folder)
    assert (tmp_path / "thesis" / "chapter.tex").exists()
    assert (home / day(1) / "run.json").exists()


def test_a_run_that_is_going_on_stays(home: Path) -> None:
    writer = RunWriter.create(home / day(2), study=STUDY, command=[], machine={})
    with pytest.raises(UsageError, match="still running") as caught:
        delete_run(writer.folder)
    assert str(os.getpid()) in caught.value.why
    with pytest.raises(UsageError, match="still running"):
        add_note(writer.folder, "not yet")
    writer.finish("finished")
    assert add_note(writer.folder, "now") == ("now",)
    delete_run(writer.folder)


def test_a_run_that_was_killed_can_be_removed(home: Path) -> None:
    facts = json.loads((home / day(1) / "run.json").read_bytes())
    change_facts(home / day(1), state="running", owner={**facts["owner"], "started_ticks": 1})
    check_may_delete(home / day(1))


def test_a_run_of_a_baseline_stays(home: Path) -> None:
    save_baseline("main", [read_run(home / day(1))])
    with pytest.raises(UsageError, match="not deleted") as caught:
        delete_run(home / day(1))
    assert "main" in caught.value.why
    assert "baseline delete main" in caught.value.hint
    (baselines_home() / "main.json").unlink()
    delete_run(home / day(1))


def test_a_baseline_of_a_run_elsewhere(home: Path, tmp_path: Path) -> None:
    """Another folder may have the name of a run that a baseline names."""
    elsewhere = write_run(tmp_path, day(1), [compared()])
    save_baseline("mine", [read_run(elsewhere)])
    check_may_delete(home / day(1))
    with pytest.raises(UsageError, match="not deleted"):
        delete_run(elsewhere)


def test_a_baseline_that_cannot_be_read(home: Path) -> None:
    baselines_home().mkdir(parents=True)
    (baselines_home() / "main.json").write_text("{")
    with pytest.raises(ResultsDamaged, match="not deleted"):
        delete_run(home / day(1))
    assert (home / day(1)).exists()


def test_the_working_directory_is_not_removed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home / day(1) / "logs")
    with pytest.raises(UsageError, match="not deleted"):
        delete_run(home / day(1))


def test_notes_add_up(home: Path) -> None:
    before = json.loads((home / day(1) / "run.json").read_bytes())
    assert add_note(home / day(1), "  first \n") == ("first",)
    assert add_note(home / day(1), "<b>second</b>") == ("first", "<b>second</b>")
    after = json.loads((home / day(1) / "run.json").read_bytes())
    assert after == {**before, "notes": ["first", "<b>second</b>"]}
    assert read_run(home / day(1)).comparisons == (compared(),)


def test_folders_of_earlier_releases_accept_notes(tmp_path: Path) -> None:
    import shutil

    folder = shutil.copytree(Path(__file__).parent / "data" / "format-1", tmp_path / "old")
    assert add_note(Path(folder), "found in the attic") == ("found in the attic",)


@pytest.mark.parametrize("text", ["", " \n", "x" * 10_001])
def test_invalid_notes(home: Path, text: str) -> None:
    with pytest.raises(UsageError):
        add_note(home / day(1), text)


def test_runs_that_take_no_note(home: Path) -> None:
    change_facts(home / day(1), notes="a text")
    with pytest.raises(ResultsDamaged, match="not a list"):
        add_note(home / day(1), "x")
    change_facts(home / day(1), format=99)
    with pytest.raises(ResultsDamaged, match="newer"):
        add_note(home / day(1), "x")
    with pytest.raises(ResultsDamaged):
        add_note(home / "none", "x")


def test_two_that_note_at_once(home: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from torchyard.results.run_changes import add_note\n"
        "for number in range(15): add_note(Path(sys.argv[1]), f'{sys.argv[2]}{number}')\n"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", code, str(home / day(1)), name]) for name in "ab"
    ]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    notes = read_run(home / day(1)).info["notes"]
    assert sorted(notes) == sorted(f"{name}{number}" for name in "ab" for number in range(15))


def test_leftovers_of_killed_processes(home: Path) -> None:
    old, young = home / ".import-0000", home / ".import-1111"
    removed, other = home / f".{day(2)}.removed-0000", home / ".cache"
    for folder in (old, young, removed, other):
        folder.mkdir()
    assert sweep_leftovers(home) == 0
    # The time of the last change of a folder's entry cannot be set, so the clock is put forward.
    later = time.time() + 48 * 3600
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: later)
        assert sweep_leftovers(home) == 3
    assert sorted(path.name for path in home.iterdir()) == [".cache", day(1)]
    assert sweep_leftovers(home / "none") == 0

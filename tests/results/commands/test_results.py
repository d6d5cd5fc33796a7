"""`torchyard results`: list, note, delete, export, import and verify runs."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command_line import call, program
from tests.results.run_directories import MACHINE, change_facts, compared, day, write_run
from tests.results.run_samples import FAILED, GPT
from torchyard import __version__
from torchyard.core.comparison import Verdict
from torchyard.results.baselines import save_baseline
from torchyard.results.commands.options import VERDICTS
from torchyard.results.integrity import replace_facts
from torchyard.results.run_reader import read_run

Capture = pytest.CaptureFixture[str]
GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "yard"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "yard" / "runs"
    write_run(home, day(1), [compared(), FAILED], revision="first")
    slower = compared(GPT, speedup=0.9, verdict=Verdict.SLOWER)
    write_run(home, day(2), [compared(speedup=1.2), slower], notes=["hot"])
    write_run(home, day(3), [], machine={**MACHINE, "cpu": "Example 9100"})
    for number in (1, 2, 3):
        facts = json.loads((home / day(number) / "run.json").read_bytes())
        owner = {**facts["owner"], "host": "example"}
        finished = facts["started"].replace("12:00", "12:30")
        changed = json.dumps({**facts, "owner": owner, "finished": finished})
        replace_facts(home / day(number), changed)
    return home


def golden(name: str, text: str) -> None:
    """To accept a new text, delete the file and run the test twice."""
    path = GOLDEN / name
    if not path.exists():
        path.write_text(text)
        pytest.fail(f"{name} was missing and is written now; look at it and run again")
    assert text == path.read_text()


def listed(capsys: Capture, *arguments: str) -> list[str]:
    completed = call(capsys, "results", "list", "--json", *arguments)
    assert completed.code == 0, completed.err
    document = json.loads(completed.out)
    assert document["schema"] == 1
    return [
        entry.get("id") or entry["run"] for entry in next(v for v in document.values() if v != 1)
    ]


def test_the_tables(capsys: Capture, home: Path) -> None:
    golden("results-list.txt", call(capsys, "results", "list").out)
    golden("results-comparisons.txt", call(capsys, "results", "list", "--comparisons").out)
    shown = call(capsys, "results", "show", "20250102").out
    golden("results-show.txt", shown.replace(str(home), "HOME").replace(__version__, "VERSION"))


def test_every_verdict_can_be_filtered() -> None:
    assert tuple(verdict.value for verdict in Verdict) == VERDICTS


@pytest.mark.parametrize(
    ("arguments", "days"),
    [
        ([], [3, 2, 1]),
        (["--limit", "2"], [3, 2]),
        (["--limit", "0"], [3, 2, 1]),
        (["--run", "20250102"], [2]),
        (["--study", "eager*"], [3, 2, 1]),
        (["--state", "finished"], [3, 2, 1]),
        (["--state", "running"], []),
        (["--workload", "models/gpt"], [2, 1]),
        (["--suite", "models", "--mode", "training", "--device", "cpu"], [2, 1]),
        (["--baseline", "eager", "--candidate", "inductor"], [2, 1]),
        (["--verdict", "slower"], [2]),
        (["--verdict", "slower", "--verdict", "failed"], [2, 1]),
        (["--machine", "example-9100*"], [3]),
        (["--revision", "first"], [1]),
        (["--since", "2025-01-02", "--until", "2025-01-03"], [2]),
        (["--since", "1h"], []),
        (["--until", "2w"], [3, 2, 1]),
    ],
)
def test_filters(capsys: Capture, home: Path, arguments: list[str], days: list[int]) -> None:
    assert listed(capsys, *arguments) == [day(number) for number in days]


def test_comparisons(capsys: Capture, home: Path) -> None:
    assert listed(capsys, "--comparisons") == [day(2), day(2), day(1), day(1)]
    assert listed(capsys, "--comparisons", "--verdict", "faster") == [day(2), day(1)]
    assert listed(capsys, "--comparisons", "--limit", "1") == [day(2)]


@pytest.mark.parametrize("when", ["yesterday", "7y", "2025-13-01", "99999999999w"])
def test_invalid_times(capsys: Capture, home: Path, when: str) -> None:
    completed = call(capsys, "results", "list", "--since", when)
    assert completed.code == 2
    assert "is not a date or time" in completed.err
    assert "7d" in completed.err


def test_nothing_fits(capsys: Capture, home: Path) -> None:
    completed = call(capsys, "results", "list", "--study", "none")
    assert (completed.code, completed.out) == (0, "")
    assert "no matching runs" in completed.err


def test_a_truncated_list_is_marked(capsys: Capture, home: Path) -> None:
    assert "--limit 0" in call(capsys, "results", "list", "--limit", "2").err
    assert call(capsys, "results", "list").err == ""


def test_names_cannot_steer_the_terminal(capsys: Capture, home: Path) -> None:
    from torchyard.results.run_changes import add_note

    change_facts(home / day(1), revision="\x1b[31mred\x1b]0;title\x07\nnew line")
    add_note(home / day(1), "\x1b[2J")
    for arguments in (["list"], ["list", "--comparisons"], ["show", day(1)]):
        completed = call(capsys, "results", *arguments)
        assert "\x1b" not in completed.out
        assert "\x07" not in completed.out
        assert "\nnew line" not in completed.out


def test_show(capsys: Capture, home: Path) -> None:
    shown = json.loads(call(capsys, "results", "show", "latest", "--json").out)
    assert shown["run"]["id"] == day(3)
    shown = json.loads(call(capsys, "results", "show", day(2), "--json").out)
    assert [row["verdict"] for row in shown["comparisons"]] == ["faster", "slower"]
    assert shown["run"]["notes"] == ["hot"]
    elsewhere = shutil.copytree(home / day(2), home.parent / "mine")
    shown = json.loads(call(capsys, "results", "show", str(elsewhere), "--json").out)
    assert shown["run"]["id"] == "mine"
    completed = call(capsys, "results", "show", "20260102")
    assert completed.code == 2
    assert "there is no run" in completed.err


def test_a_damaged_run_ends_with_8_and_the_rest_is_usable(capsys: Capture, home: Path) -> None:
    change_facts(home / day(2), format=99, torchyard="9.9")
    completed = call(capsys, "results", "show", day(2))
    assert completed.code == 8
    assert "newer Torchyard (9.9)" in completed.out
    assert listed(capsys) == [day(3), day(2), day(1)]
    assert "unreadable: run.json was written by a newer" in call(capsys, "results", "list").out


def test_note(capsys: Capture, home: Path) -> None:
    completed = call(capsys, "results", "note", "20250102", "and late", "--json")
    assert json.loads(completed.out)["notes"] == ["hot", "and late"]
    assert call(capsys, "results", "note", "latest", "text").code == 0
    assert json.loads((home / day(3) / "run.json").read_bytes())["notes"] == ["text"]
    assert call(capsys, "results", "note", "latest", " ").code == 2


def test_delete(capsys: Capture, home: Path) -> None:
    completed = call(capsys, "results", "delete", "20250101")
    assert completed.code == 2
    assert "--yes" in completed.err
    completed = call(capsys, "results", "delete", "20250101", "20250103", day(1), "--yes", "--json")
    assert completed.code == 0, completed.err
    assert json.loads(completed.out)["deleted"] == [day(1), day(3)]
    assert listed(capsys) == [day(2)]
    assert [path.name for path in home.iterdir() if path.is_dir()] == [day(2)]


def test_all_or_none_is_deleted(capsys: Capture, home: Path) -> None:
    save_baseline("main", [read_run(home / day(2))])
    completed = call(capsys, "results", "delete", day(1), day(2), "--yes")
    assert completed.code == 2
    assert "baseline main refers to it" in completed.err
    assert listed(capsys) == [day(3), day(2), day(1)]


@pytest.mark.parametrize(("answer", "left"), [("n", [3, 2, 1]), ("y", [3, 2])])
def test_delete_asks(capsys: Capture, home: Path, answer: str, left: list[int]) -> None:
    primary, secondary = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "torchyard", "results", "delete", day(1)],
        stdin=secondary,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.write(primary, f"{answer}\n".encode())
    _, err = process.communicate(timeout=60)
    os.close(primary)
    os.close(secondary)
    assert "Permanently delete this run?" in err
    assert day(1) in err
    assert process.returncode == (130 if answer == "n" else 0)
    assert listed(capsys) == [day(number) for number in left]


def test_export_tables(capsys: Capture, home: Path, tmp_path: Path) -> None:
    completed = program("results", "export", "--workload", "kernels/matmul")
    assert completed.code == 0
    rows = list(csv.DictReader(io.StringIO(completed.out)))
    assert [row["run"] for row in rows] == [day(2), day(1)]
    completed = call(capsys, "results", "export", "--output", "out/a.jsonl", "--json")
    assert json.loads(completed.out) == {
        "schema": 1,
        "output": "out/a.jsonl",
        "format": "jsonl",
        "rows": 4,
    }
    lines = (tmp_path / "out" / "a.jsonl").read_text().splitlines()
    assert [json.loads(line)["run"] for line in lines] == [day(2), day(2), day(1), day(1)]
    assert call(capsys, "results", "export", day(1), "--output", "b.csv", "--limit", "1").code == 0
    assert len((tmp_path / "b.csv").read_text().splitlines()) == 2
    pytest.importorskip("pyarrow")
    assert call(capsys, "results", "export", "--output", "c.parquet").code == 0
    assert (tmp_path / "c.parquet").read_bytes()[:4] == b"PAR1"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--archive", "a.tar.gz", "--format", "csv"], 2),
        (["--json"], 2),
        (["--study", "none"], 3),
        (["--output", "/proc/none/a.csv"], 2),
        (["20260101"], 2),
    ],
)
def test_exports_that_cannot_be(
    capsys: Capture, home: Path, arguments: list[str], code: int
) -> None:
    assert call(capsys, "results", "export", *arguments).code == code


def test_an_exported_run_is_imported_unchanged(
    capsys: Capture, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(home, day(4), finish=False)
    completed = call(capsys, "results", "export", "--archive", "all.tar.gz", "--json")
    assert completed.code == 0
    assert json.loads(completed.out)["runs"] == [day(3), day(2), day(1)]
    assert f"{day(4)} is still running" in completed.err
    monkeypatch.setenv("TORCHYARD_HOME", str(home.parent.parent / "other"))
    completed = call(capsys, "results", "import", "all.tar.gz")
    assert completed.code == 0
    assert completed.out.splitlines() == [f"imported {day(number)}" for number in (3, 2, 1)]
    assert listed(capsys) == [day(3), day(2), day(1)]
    completed = call(capsys, "results", "import", "all.tar.gz", "--json")
    assert json.loads(completed.out)["imported"]["same"] == [day(3), day(2), day(1)]
    assert call(capsys, "results", "note", day(1), "changed here").code == 0
    completed = call(capsys, "results", "import", "all.tar.gz")
    assert completed.code == 2
    assert f"rejected: {day(1)}: a different run" in completed.err


def test_archives_that_are_refused(capsys: Capture, home: Path, tmp_path: Path) -> None:
    call(capsys, "results", "export", "--archive", "all.tar.gz")
    assert call(capsys, "results", "import", "all.tar.gz", "--max-size", "1KiB").code == 2
    assert call(capsys, "results", "import", "none.tar.gz").code == 2
    (tmp_path / "bad.tar.gz").write_bytes(b"x")
    completed = call(capsys, "results", "import", "bad.tar.gz")
    assert completed.code == 8
    assert "not a complete archive" in completed.err


def test_verify(capsys: Capture, home: Path) -> None:
    completed = call(capsys, "results", "verify")
    assert (completed.code, completed.out) == (0, "")
    assert re.search(r"3 runs, 4 records, .*: no damage", completed.err)
    (home / day(1) / "launches.jsonl").write_text("x\n{}\n")
    (home / day(2) / "samples.jsonl").unlink()
    completed = call(capsys, "results", "verify")
    assert completed.code == 8
    assert completed.out.splitlines() == [
        f"{day(2)}/samples.jsonl: the file is missing",
        f"{day(1)}/launches.jsonl, line 1: not a complete record",
    ]
    assert call(capsys, "results", "verify", day(3)).code == 0
    document = json.loads(call(capsys, "results", "verify", day(1), day(3), "--json").out)
    assert [len(one["damage"]) for one in document["verified"]] == [1, 0]
    # Only the records that the index needs count for a list.
    assert listed(capsys) == [day(3), day(2), day(1)]


def test_reindex(capsys: Capture, home: Path) -> None:
    listed(capsys)
    (home / ".index.sqlite").write_bytes(b"garbage" * 1000)
    completed = call(capsys, "results", "reindex", "--json")
    assert completed.code == 0
    document = json.loads(completed.out)
    assert document["index"] == str(home / ".index.sqlite")
    assert document["refreshed"]["added"] == 3
    assert call(capsys, "results", "reindex").out.startswith("3 runs: ")


def test_an_index_that_cannot_be_kept_is_reported(
    capsys: Capture, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / ".index.sqlite").mkdir()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    completed = call(capsys, "results", "list")
    assert completed.code == 0
    assert "warning: the index of runs cannot be stored" in completed.err
    assert day(3) in completed.out


def test_a_results_directory_without_runs(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert listed(capsys) == []
    assert call(capsys, "results", "show").code == 3
    assert call(capsys, "results", "verify").code == 0
    assert call(capsys, "results", "export").code == 3
    assert not (tmp_path / "none").exists()


def test_bench_keeps_revision_and_notes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Options reach the run folder: a target that cannot start is enough to see it."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setenv("GITHUB_SHA", "c" * 40)
    monkeypatch.chdir(tmp_path)
    base = ["bench", "--only", "kernels/matmul", "--target", f"no={python}", "--quiet"]
    call(
        capsys,
        *base,
        "--run-dir",
        "a",
        "--revision",
        "v1",
        "--note",
        "one ",
        "--note",
        " ",
        "--note",
        "two",
    )
    call(capsys, *base, "--run-dir", "b")
    call(capsys, *base, "--run-dir", "c", "--revision", "")
    kept = [json.loads(Path(name, "run.json").read_bytes()) for name in "abc"]
    assert [(facts["revision"], facts["notes"]) for facts in kept] == [
        ("v1", ["one", "two"]),
        ("c" * 40, []),
        ("", []),
    ]

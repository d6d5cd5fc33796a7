"""Everything in a run is read, and damage is named by file and line."""

from __future__ import annotations

from pathlib import Path

import pytest
from kept_runs import change_facts, compared, day
from run_samples import GPT, MATMUL, STUDY, block

from torchyard.results.run_folder import RunWriter
from torchyard.results.verification import Damage, verify_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    writer = RunWriter.create(tmp_path / day(1), study=STUDY, command=[], machine={})
    for launch in range(3):
        writer.add_launch({"launch": launch})
        writer.add_blocks(MATMUL, [block(launch, number, "eager") for number in range(4)])
    writer.add_comparison(compared())
    writer.add_comparison(compared(GPT))
    writer.finish("finished")
    return writer.folder


def change_line(path: Path, number: int, text: str) -> None:
    lines = path.read_text().splitlines(keepends=True)
    lines[number - 1] = text
    path.write_text("".join(lines))


def test_a_sound_run(folder: Path) -> None:
    found = verify_run(folder)
    assert found.damage == ()
    assert (found.launches, found.blocks, found.comparisons) == (3, 12, 2)
    assert (found.run, found.folder, found.torn_lines) == (day(1), str(folder), 0)
    names = ("launches.jsonl", "samples.jsonl", "comparisons.jsonl")
    assert found.size_bytes == sum((folder / name).stat().st_size for name in names)


def test_a_folder_of_before() -> None:
    assert verify_run(Path(__file__).parent / "data" / "format-1").damage == ()


def test_every_damaged_line_is_named(folder: Path) -> None:
    change_line(folder / "samples.jsonl", 2, "x\n")
    change_line(folder / "samples.jsonl", 5, "[1, 2]\n")
    change_line(folder / "samples.jsonl", 7, '{"workload": 3, "block": {}}\n')
    change_line(folder / "launches.jsonl", 1, "{\n")
    change_line(folder / "comparisons.jsonl", 1, "{}\n")
    found = verify_run(folder)
    assert [(item.file, item.line) for item in found.damage] == [
        ("launches.jsonl", 1),
        ("samples.jsonl", 2),
        ("samples.jsonl", 5),
        ("samples.jsonl", 7),
        ("comparisons.jsonl", 1),
    ]
    assert found.damage[1].what == "not a whole record"
    assert "is missing" in found.damage[3].what
    assert "workload" in found.damage[4].what
    assert (found.launches, found.blocks, found.comparisons) == (2, 9, 1)


@pytest.mark.parametrize("name", ["launches.jsonl", "samples.jsonl", "comparisons.jsonl"])
def test_a_last_line_that_a_kill_cut_off_is_no_damage(folder: Path, name: str) -> None:
    text = (folder / name).read_bytes()
    (folder / name).write_bytes(text[:-20])
    found = verify_run(folder)
    assert (found.damage, found.torn_lines) == ((), 1)


def test_a_last_line_of_wrong_content_is_damage(folder: Path) -> None:
    with (folder / "comparisons.jsonl").open("a") as file:
        file.write('{"verdict": "splendid"}\n')
    (damage,) = verify_run(folder).damage
    assert (damage.file, damage.line) == ("comparisons.jsonl", 3)


@pytest.mark.parametrize("name", ["launches.jsonl", "samples.jsonl", "comparisons.jsonl"])
def test_a_missing_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert verify_run(folder).damage == (Damage(file=name, line=None, what="the file is missing"),)


def test_damaged_facts_do_not_hide_the_rest(folder: Path) -> None:
    change_facts(folder, format=99, torchyard="9.9")
    change_line(folder / "samples.jsonl", 2, "x\n")
    first, second = verify_run(folder).damage
    assert first.file == "run.json"
    assert "newer Torchyard (9.9)" in first.what
    assert str(folder) not in first.what
    assert (second.file, second.line) == ("samples.jsonl", 2)
    (folder / "run.json").unlink()
    assert "missing" in verify_run(folder).damage[0].what

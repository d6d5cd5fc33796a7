"""Every file of a run is verified, and damage is reported by file and line."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.results.run_directories import change_facts, compared, day
from tests.results.run_samples import GPT, MATMUL, STUDY, block
from torchyard.process.owner import owner_of
from torchyard.results.integrity import Damage, verify_run, write_sums
from torchyard.results.run_changes import add_note
from torchyard.results.run_writer import RunWriter


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


def kill_run(folder: Path) -> None:
    """The run as its process leaves it when it is killed just before the end."""
    change_facts(folder, state="running", finished=None, checksums=None, owner=owner_of(2**22))
    (folder / "SHA256SUMS").unlink()


def test_a_sound_run(folder: Path) -> None:
    verification = verify_run(folder)
    assert verification.damage == ()
    assert (verification.launches, verification.blocks, verification.comparisons) == (3, 12, 2)
    assert (verification.run, verification.folder, verification.torn_lines) == (
        day(1),
        str(folder),
        0,
    )
    names = ("launches.jsonl", "samples.jsonl", "comparisons.jsonl")
    assert verification.size_bytes == sum((folder / name).stat().st_size for name in names)


def test_a_folder_of_an_earlier_release() -> None:
    verification = verify_run(Path(__file__).parent / "data" / "format-1")
    assert (verification.damage, verification.checksummed) == ((), False)


def test_every_damaged_line_is_named(folder: Path) -> None:
    change_line(folder / "samples.jsonl", 2, "x\n")
    change_line(folder / "samples.jsonl", 5, "[1, 2]\n")
    change_line(folder / "samples.jsonl", 7, '{"workload": 3, "block": {}}\n')
    change_line(folder / "launches.jsonl", 1, "{\n")
    change_line(folder / "comparisons.jsonl", 1, "{}\n")
    verification = verify_run(folder)
    assert [(item.file, item.line) for item in verification.damage] == [
        ("launches.jsonl", 1),
        ("samples.jsonl", 2),
        ("samples.jsonl", 5),
        ("samples.jsonl", 7),
        ("comparisons.jsonl", 1),
    ]
    assert verification.damage[1].what == "not a complete record"
    assert "is missing" in verification.damage[3].what
    assert "workload" in verification.damage[4].what
    assert (verification.launches, verification.blocks, verification.comparisons) == (2, 9, 1)


@pytest.mark.parametrize("name", ["launches.jsonl", "samples.jsonl", "comparisons.jsonl"])
def test_a_last_line_truncated_by_a_kill_is_no_damage(folder: Path, name: str) -> None:
    kill_run(folder)
    text = (folder / name).read_bytes()
    (folder / name).write_bytes(text[:-20])
    verification = verify_run(folder)
    assert (verification.damage, verification.torn_lines, verification.checksummed) == (
        (),
        1,
        False,
    )


@pytest.mark.parametrize("name", ["launches.jsonl", "samples.jsonl", "comparisons.jsonl"])
def test_a_finished_run_has_no_torn_line(folder: Path, name: str) -> None:
    """Also in runs of earlier releases, which have no checksums."""
    text = (folder / name).read_bytes()
    (folder / name).write_bytes(text[:-20])
    (folder / "SHA256SUMS").unlink()
    change_facts(folder, checksums=None)
    verification = verify_run(folder)
    (damage,) = verification.damage
    assert (damage.file, damage.what, verification.checksummed) == (
        name,
        "not a complete record",
        False,
    )


def test_every_changed_byte_of_an_ended_run_is_found(folder: Path) -> None:
    """Also one that leaves a valid record, in whichever file, at whichever place."""
    assert verify_run(folder).checksummed
    draw = random.Random(7)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        text = path.read_bytes()
        for place in {0, len(text) - 1, *(draw.randrange(len(text)) for _ in range(12))}:
            changed = bytearray(text)
            changed[place] ^= 1 << draw.randrange(7)
            path.write_bytes(changed)
            damage = verify_run(folder).damage
            assert damage, f"{path.name}, byte {place}: {text[place]} to {changed[place]}"
        path.write_bytes(text)
        assert verify_run(folder).damage == ()


def test_a_digit_of_the_last_line_is_found(folder: Path) -> None:
    path = folder / "comparisons.jsonl"
    path.write_text(path.read_text().replace('"speedup": 1.25', '"speedup": 1.35'))
    (damage,) = verify_run(folder).damage
    assert (damage.file, damage.what) == (
        "comparisons.jsonl",
        "changed since the run ended: its checksum differs",
    )


def test_removed_checksums_are_damage(folder: Path) -> None:
    (folder / "SHA256SUMS").unlink()
    assert verify_run(folder).damage == (
        Damage(file="SHA256SUMS", line=None, what="the file is missing"),
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x\n",
        f"{'0' * 64}  /etc/passwd\n",
        f"{'0' * 64}  ../../secret\n",
        f"{'0' * 64}  run.json\n",
    ],
)
def test_invalid_checksums(folder: Path, text: str) -> None:
    (folder / "SHA256SUMS").write_text(text)
    assert verify_run(folder).damage


def test_logs_are_checked_too(folder: Path) -> None:
    (folder / "SHA256SUMS").unlink()
    (folder / "logs" / "worker.log").write_text("line")
    facts = (folder / "run.json").read_text()
    write_sums(folder, facts)
    assert verify_run(folder).damage == ()
    (folder / "logs" / "worker.log").write_text("lime")
    (damage,) = verify_run(folder).damage
    assert damage.file == "logs/worker.log"


def test_a_note_keeps_the_checksums_right_and_hides_no_change(folder: Path) -> None:
    add_note(folder, "warm room")
    assert verify_run(folder).damage == ()
    facts = (folder / "run.json").read_text()
    (folder / "run.json").write_text(facts.replace("warm", "cold"))
    add_note(folder, "windows open")
    assert [item.file for item in verify_run(folder).damage] == ["run.json"]


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs sha256sum")
def test_sha256sum_reads_the_checksums(folder: Path) -> None:
    command = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
    assert subprocess.run(command, cwd=folder, check=False).returncode == 0


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

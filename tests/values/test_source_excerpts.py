"""Source excerpts of a profile: lines around findings, from source files only."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from torchyard.values import model
from torchyard.values.source_excerpts import read_excerpts, with_excerpts

BARE = model.ValueProfile(format=1, state="finished", torch="2.13.0")


def profile_of(file: object, *lines: int, nodes: tuple[int, ...] = ()) -> model.ValueProfile:
    findings = tuple(
        model.ValueFinding(pattern="x", operator="mm", place=model.Place(file=str(file), line=line))
        for line in lines
    )
    flow = model.FlowGraph(
        nodes=tuple(
            model.FlowNode(id=line, operator="mm", place=model.Place(file=str(file), line=line))
            for line in nodes
        )
    )
    return replace(BARE, findings=findings, flow=flow)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("".join(f"line {number}\n" for number in range(1, 41)))
    return path


def test_lines_around_a_finding(source: Path) -> None:
    (found,) = read_excerpts(profile_of(source, 10))
    assert found == model.SourceExcerpt(
        file=str(source), first_line=7, lines=tuple(f"line {n}" for n in range(7, 14))
    )


def test_runs_are_joined_and_kept_apart(source: Path) -> None:
    found = read_excerpts(profile_of(source, 2, 5, 30, nodes=(20, 9)))
    assert [(one.first_line, len(one.lines)) for one in found] == [(1, 9), (20, 1), (27, 7)]


def test_the_ends_of_the_file(source: Path) -> None:
    found = read_excerpts(profile_of(source, 1, 40))
    assert [(one.first_line, len(one.lines)) for one in found] == [(1, 4), (37, 5)]
    assert read_excerpts(profile_of(source, 400)) == ()
    assert read_excerpts(profile_of(source, 0, -3)) == ()


@pytest.mark.parametrize("name", ["<stdin>", "", "gone.py", "a\0b.py", "/etc/hostname", "/"])
def test_what_is_not_there_or_not_source_is_not_read(name: str) -> None:
    assert read_excerpts(profile_of(name, 1)) == ()


def test_only_regular_files_below_the_size_limit(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.py"
    os.mkfifo(pipe)
    assert read_excerpts(profile_of(pipe, 1)) == ()
    folder = tmp_path / "folder.py"
    folder.mkdir()
    assert read_excerpts(profile_of(folder, 1)) == ()
    huge = tmp_path / "huge.py"
    with huge.open("wb") as file:
        file.truncate(5 << 20)
    assert read_excerpts(profile_of(huge, 1)) == ()


def test_undecodable_bytes_and_lines_without_end(tmp_path: Path) -> None:
    path = tmp_path / "odd.py"
    path.write_bytes(b"a = 1\x0c still the first\r\n\xff\xfe = 2\rthird\n" + b"x" * 9000)
    (found,) = read_excerpts(profile_of(path, 2))
    assert found.lines[:3] == ("a = 1\x0c still the first", "\ufffd\ufffd = 2", "third")
    assert len(found.lines[3]) == 240


def test_what_is_kept_is_bounded(tmp_path: Path) -> None:
    files = []
    for number in range(450):
        path = tmp_path / f"file_{number}.py"
        path.write_text("x\n" * 200)
        files.append(path)
    findings = tuple(
        finding for path in files for finding in profile_of(path, *range(5, 150, 10)).findings
    )
    found = read_excerpts(replace(BARE, findings=findings))
    assert sum(len(one.lines) for one in found) == 6000
    assert len({one.file for one in found}) <= 400


def test_what_a_profile_has_stays_as_it_was(source: Path) -> None:
    profile = with_excerpts(profile_of(source, 10))
    source.write_text("something else\n" * 40)
    assert with_excerpts(profile).excerpts[0].lines[3] == "line 10"


def test_they_are_kept_with_the_profile(source: Path, tmp_path: Path) -> None:
    profile = with_excerpts(profile_of(source, 10))
    assert model.read_profile(model.write_profile(tmp_path, profile)) == profile

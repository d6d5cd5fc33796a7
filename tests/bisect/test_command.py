"""`torchyard bisect` on real repositories, with programs that print a fixed time."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import pytest

from tests.bisect.git_project import git, make_project, printing
from tests.cli.command_line import CompletedCommand, call

Capture = pytest.CaptureFixture[str]
CULPRIT = 4
TIMES = [0.5] * CULPRIT + [0.6] * 4


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))


@pytest.fixture
def project(tmp_path: Path) -> tuple[Path, list[str]]:
    folder = tmp_path / "a project; with 'odd' name"
    return folder, make_project(folder, [printing(seconds) for seconds in TIMES])


def bisect(capsys: Capture, folder: Path, good: str, *options: str) -> CompletedCommand:
    arguments = ["--repo", str(folder), "--good", good, "--metric", "printed"]
    if "--command" not in options:
        arguments += ["--command", "sh bench.sh"]
    return call(capsys, "bisect", *arguments, "--time", "60s", *options)


def found(ended: CompletedCommand) -> dict[str, Any]:
    assert ended.document["result"] == "culprit"
    return ended.document


def test_the_culprit_with_its_effect(capsys: Capture, project: tuple[Path, list[str]]) -> None:
    folder, commits = project
    document = found(bisect(capsys, folder, commits[0], "--json", "-q"))
    assert [one["commit"] for one in document["candidates"]] == [commits[CULPRIT]]
    assert document["posterior"]["single"][commits[CULPRIT]] >= 0.95
    assert document["effect"]["low"] <= 1.2 + 1e-6
    assert document["effect"]["high"] >= 1.2 - 1e-6
    ended = bisect(capsys, folder, commits[0])
    assert f"{commits[CULPRIT][:10]} change {CULPRIT}" in ended.out
    assert "+20.0% time" in ended.out
    assert max(len(line) for line in ended.out.splitlines()) <= 80


def test_progress_fits_80_columns(capsys: Capture, project: tuple[Path, list[str]]) -> None:
    folder, commits = project
    lines = bisect(capsys, folder, commits[0]).err.splitlines()
    assert any(line.startswith("good [") for line in lines)
    assert max(len(line) for line in lines if not line.startswith("8 revisions")) <= 80


def test_the_working_tree_is_not_touched(capsys: Capture, project: tuple[Path, list[str]]) -> None:
    folder, commits = project
    hook = folder / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch '{folder.parent}/hook-ran'\n", encoding="utf-8")
    hook.chmod(0o755)
    (folder / "bench.sh").write_text("exit 1\n", encoding="utf-8")
    (folder / "new file").write_text("mine\n", encoding="utf-8")
    before = git(folder, "status", "--porcelain", "--branch"), git(folder, "rev-parse", "HEAD")
    found(bisect(capsys, folder, commits[0], "--json"))
    after = git(folder, "status", "--porcelain", "--branch"), git(folder, "rev-parse", "HEAD")
    assert before == after
    assert (folder / "bench.sh").read_text("utf-8") == "exit 1\n"
    assert not (folder.parent / "hook-ran").exists()
    assert len(git(folder, "worktree", "list").splitlines()) == 1


def test_a_finished_search_measures_nothing(
    capsys: Capture, project: tuple[Path, list[str]], tmp_path: Path
) -> None:
    folder, commits = project
    state = tmp_path / "state"
    options = ["--folder", str(state), "--json"]
    first = found(bisect(capsys, folder, commits[0], *options))
    files = sorted(state.glob("records-*"))
    assert found(bisect(capsys, folder, commits[0], *options)) == first
    assert sorted(state.glob("records-*")) == files
    # A kill in the middle of a write truncates the last line.
    with files[0].open("a", encoding="utf-8") as file:
        file.write('{"kind": "round", "blo')
    assert found(bisect(capsys, folder, commits[0], *options)) == first


def test_a_search_has_its_own_folder(
    capsys: Capture, project: tuple[Path, list[str]], tmp_path: Path
) -> None:
    folder, commits = project
    state = tmp_path / "state"
    found(bisect(capsys, folder, commits[0], "--folder", str(state), "--json"))
    ended = bisect(capsys, folder, commits[1], "--folder", str(state))
    assert ended.code == 2
    assert "belongs to another search" in ended.err
    with (state / "lock").open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ended = bisect(capsys, folder, commits[0], "--folder", str(state))
    assert ended.code == 2
    assert "another process" in ended.err


def test_revisions_whose_setup_fails_are_skipped(capsys: Capture, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    setups = ["exit 3" if number == CULPRIT else "cp number built" for number in range(8)]
    revisions = [
        {**printing(seconds), "setup.sh": f"echo broken >&2\n{text}\n"}
        for seconds, text in zip(TIMES, setups, strict=True)
    ]
    commits = make_project(folder, revisions)
    command = "sh -c 'test -e built && sh bench.sh'"
    options = ["--setup", "sh setup.sh", "--command", command, "--json"]
    document = found(bisect(capsys, folder, commits[0], *options))
    names = [one["commit"] for one in document["candidates"]]
    assert names == [commits[CULPRIT], commits[CULPRIT + 1]]
    assert [one["commit"] for one in document["skipped"]] == [commits[CULPRIT]]
    assert "exited with code 3" in document["skipped"][0]["why"]
    issue = tmp_path / "issue.md"
    ended = bisect(capsys, folder, commits[0], *options[:-1], "--issue", str(issue))
    assert "only the last one could be measured" in ended.out
    text = issue.read_text("utf-8")
    assert "or the revision before it, which cannot be measured" in text
    assert f"| {commits[CULPRIT]} | change {CULPRIT} | cannot be measured |" in text


def test_programs_start_in_the_folder_of_the_repository(capsys: Capture, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    text = 'test "$PWD" = "$(pwd)" && cat seconds\n'
    revisions = [
        {"part/bench.sh": text, "part/seconds": f"torchyard: {seconds}\n"} for seconds in TIMES
    ]
    commits = make_project(folder, revisions)
    document = found(bisect(capsys, folder / "part", commits[0], "--json"))
    assert [one["commit"] for one in document["candidates"]] == [commits[CULPRIT]]


def test_equal_ends(capsys: Capture, tmp_path: Path) -> None:
    commits = make_project(tmp_path / "project", [printing(0.5)] * 4)
    ended = bisect(capsys, tmp_path / "project", commits[0])
    assert ended.code == 3
    assert "no difference between good and bad" in ended.err


def test_a_bad_revision_that_fails(capsys: Capture, tmp_path: Path) -> None:
    revisions = [printing(0.5), printing(0.5), {"bench.sh": "echo reason >&2; exit 7\n"}]
    commits = make_project(tmp_path / "project", revisions)
    ended = bisect(capsys, tmp_path / "project", commits[0])
    assert ended.code == 5
    assert "the bad revision" in ended.err
    assert "exited with code 7" in ended.err
    assert "reason" in ended.err


@pytest.mark.parametrize("text", ["nothing", "torchyard: x", "torchyard: 0", "torchyard: 1.2.3"])
def test_a_program_that_prints_no_time(capsys: Capture, tmp_path: Path, text: str) -> None:
    commits = make_project(tmp_path / "project", [{"bench.sh": f"echo {text}\n"}] * 2)
    ended = bisect(capsys, tmp_path / "project", commits[0])
    assert ended.code == 5
    assert "no line `torchyard: SECONDS`" in ended.err


@pytest.mark.parametrize("name", ["missing", "--output=/tmp/x", "$(touch x)", "", "a b", "HEAD~99"])
def test_names_that_are_not_revisions(
    capsys: Capture, project: tuple[Path, list[str]], name: str
) -> None:
    ended = bisect(capsys, project[0], name)
    assert ended.code == 2
    assert "--good" in ended.err
    assert not (project[0] / "x").exists()


def test_ranges_that_cannot_be_searched(capsys: Capture, project: tuple[Path, list[str]]) -> None:
    folder, commits = project
    assert bisect(capsys, folder, "HEAD").code == 3
    ended = bisect(capsys, folder, commits[5], "--bad", commits[2])
    assert ended.code == 2
    assert "exchange --good and --bad" in ended.err
    ended = bisect(capsys, folder.parent, "HEAD")
    assert ended.code == 2
    assert "not in a git repository" in ended.err


def test_revisions_that_a_shallow_clone_lacks(
    capsys: Capture, project: tuple[Path, list[str]], tmp_path: Path
) -> None:
    folder, commits = project
    git(tmp_path, "clone", "-q", "--depth", "4", folder.as_uri(), "shallow")
    ended = bisect(capsys, tmp_path / "shallow", commits[0])
    assert ended.code == 2
    assert "git fetch --unshallow" in ended.err


def test_control_characters_of_subjects_are_replaced(capsys: Capture, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    subjects = [f"\x1b[31m {'long ' * 40}{number}" for number in range(2)]
    commits = make_project(folder, [printing(0.5), printing(0.7)], subjects)
    ended = bisect(capsys, folder, commits[0])
    assert ended.code == 0
    assert "\x1b" not in ended.out + ended.err
    assert max(len(line) for line in ended.out.splitlines()) <= 80

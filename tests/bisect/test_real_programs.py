"""`torchyard bisect` on programs that compute: found, resumed after a kill, equal ends.

The machine may be noisy: candidates may remain, but no wrong revision may be named.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.bisect.git_project import git, make_project
from tests.cli.command_line import CompletedCommand

CULPRIT = 8
WAIT_S = 120.0
WORK = """
import time
total = 0
for number in range({steps}):
    total += number * number % 7
print("torchyard:", time.process_time())
"""


def work(thousand_steps: int) -> dict[str, str]:
    return {"bench.py": WORK.format(steps=thousand_steps * 1000)}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("programs") / "project"
    revisions = [work(1500 if number >= CULPRIT else 1000) for number in range(12)]
    return folder, make_project(folder, revisions)


def arguments(folder: Path, good: str, bad: str, state: Path, *options: str) -> list[str]:
    command = f"{sys.executable} -S bench.py"
    return [
        *(sys.executable, "-m", "torchyard", "bisect", "--repo", str(folder)),
        *("--good", good, "--bad", bad, "--command", command, "--folder", str(state)),
        *("--time", "60s", "--json", *options),
    ]


def run(argv: list[str]) -> CompletedCommand:
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, timeout=280, stdin=subprocess.DEVNULL
    )
    return CompletedCommand(code=done.returncode, out=done.stdout, err=done.stderr)


def check_result(ended: CompletedCommand, culprit: str) -> dict[str, Any]:
    """Check that the culprit is named, or is among the candidates if the machine is noisy."""
    document: dict[str, Any] = json.loads(ended.out)
    if ended.code == 6:
        if "error" in document:
            assert "not shown to differ" in document["error"]["what"]
            return document
        assert document["result"] == "remaining"
    else:
        assert ended.code == 0, ended.err
        assert document["result"] == "culprit"
        assert len(document["candidates"]) == 1
    assert culprit in [one["commit"] for one in document["candidates"]]
    return document


@pytest.mark.parametrize("metric", ["time", "printed"])
def test_more_work_is_found(project: tuple[Path, list[str]], tmp_path: Path, metric: str) -> None:
    folder, commits = project
    argv = arguments(folder, commits[0], commits[-1], tmp_path / "state", "--metric", metric)
    document = check_result(run(argv), commits[CULPRIT])
    if document.get("result") == "culprit":
        assert 1.1 < document["effect"]["ratio"] < 2.0
    assert git(folder, "status", "--porcelain") == ""


def recorded_rounds(state: Path) -> list[str]:
    """Return the complete lines of rounds, in order."""
    lines = [
        line
        for path in sorted(state.glob("records-*.jsonl"))
        for line in path.read_text("ascii").splitlines(keepends=True)
    ]
    return [line for line in lines if '"round"' in line and line.endswith("\n")]


@pytest.mark.parametrize("killed_after", [2, 7])
def test_a_killed_search_resumes(
    project: tuple[Path, list[str]], tmp_path: Path, killed_after: int
) -> None:
    folder, commits = project
    state = tmp_path / "state"
    argv = arguments(folder, commits[0], commits[-1], state, "--metric", "printed")
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline_s = time.monotonic() + WAIT_S
    while len(recorded_rounds(state)) < killed_after and process.poll() is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    before = recorded_rounds(state)
    assert len(before) >= killed_after
    ended = run(argv)
    assert f"resumed after {len(before)} rounds" in ended.err
    document = check_result(ended, commits[CULPRIT])
    after = recorded_rounds(state)
    assert after[: len(before)] == before
    assert len(after) > len(before)
    if "rounds" in document:
        assert document["rounds"] == len(after)


def test_equal_ends_name_nobody(project: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder, commits = project
    argv = arguments(folder, commits[0], commits[CULPRIT - 1], tmp_path / "state", "--time", "10s")
    ended = run(argv)
    assert ended.code in {3, 6}, ended.out
    document = json.loads(ended.out)
    assert document.get("result", "no-change") in {"no-change", "remaining"}

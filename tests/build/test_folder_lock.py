"""One run at a time in a folder, whoever asks and however the first one ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from torchyard.build.folder_lock import only_run
from torchyard.errors import NotAllowed, TorchyardError

HOLDER = """
import sys
from pathlib import Path
from torchyard.build.folder_lock import only_run
with only_run(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(path: Path) -> subprocess.Popen[str]:
    """Another process that holds the folder until its stdin ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_the_folder_is_made_and_names_who_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "builds" / "x" / "running"
    with only_run(path):
        assert path.read_text() == f"{os.getpid()}\n"


def test_another_process_is_refused_and_told_the_number(tmp_path: Path) -> None:
    path = tmp_path / "running"
    with holder(path) as process:
        with pytest.raises(NotAllowed) as raised, only_run(path):
            pass
        assert raised.value.what == f"another build runs in {tmp_path} (process {process.pid})"
        assert "--name" in raised.value.hint
        assert raised.value.exit_code == 4
        process.communicate("")
    with only_run(path):
        pass


def test_a_shorter_number_leaves_nothing_of_a_longer_one(tmp_path: Path) -> None:
    path = tmp_path / "running"
    path.write_text("123456789012345678\n")
    with only_run(path):
        assert path.read_text() == f"{os.getpid()}\n"


def test_a_kill_gives_the_folder_back(tmp_path: Path) -> None:
    path = tmp_path / "running"
    with holder(path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        with only_run(path):
            assert path.read_text() == f"{os.getpid()}\n"


def test_twice_in_one_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "running"
    with only_run(path), pytest.raises(NotAllowed, match=f"process {os.getpid()}"), only_run(path):
        pass


def test_an_error_inside_gives_it_back(tmp_path: Path) -> None:
    path = tmp_path / "running"
    with pytest.raises(KeyboardInterrupt), only_run(path):
        raise KeyboardInterrupt
    with only_run(path):
        pass


def test_children_do_not_hold_it(tmp_path: Path) -> None:
    path = tmp_path / "running"
    with only_run(path):
        child = subprocess.Popen(["sleep", "60"])
    try:
        with only_run(path):
            pass
    finally:
        child.kill()
        child.wait()


def test_a_place_that_cannot_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TorchyardError, match="cannot write"), only_run(tmp_path / "file" / "x"):
        pass

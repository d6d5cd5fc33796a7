"""One run at a time in a folder, however the first one ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from torchyard.builds.build_folders import base_build_locks, exclusive_run_lock
from torchyard.errors import NotAllowed, TorchyardError

HOLDER = """
import sys
from pathlib import Path
from torchyard.builds.build_folders import exclusive_run_lock
with exclusive_run_lock(Path(sys.argv[1])):
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
    with exclusive_run_lock(path):
        assert path.read_text() == f"{os.getpid()}\n"


def test_another_process_is_refused_with_the_pid_of_the_owner(tmp_path: Path) -> None:
    path = tmp_path / "running"
    with holder(path) as process:
        with pytest.raises(NotAllowed) as raised, exclusive_run_lock(path):
            pass
        assert (
            raised.value.what == f"another build is running in {tmp_path} (process {process.pid})"
        )
        assert "--name" in raised.value.hint
        assert raised.value.exit_code == 4
        process.communicate("")
    with exclusive_run_lock(path):
        pass


def test_a_shorter_number_leaves_nothing_of_a_longer_one(tmp_path: Path) -> None:
    path = tmp_path / "running"
    path.write_text("123456789012345678\n")
    with exclusive_run_lock(path):
        assert path.read_text() == f"{os.getpid()}\n"


def test_a_kill_releases_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "running"
    with holder(path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        with exclusive_run_lock(path):
            assert path.read_text() == f"{os.getpid()}\n"


def test_twice_in_one_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "running"
    with (
        exclusive_run_lock(path),
        pytest.raises(NotAllowed, match=f"process {os.getpid()}"),
        exclusive_run_lock(path),
    ):
        pass


def test_an_error_releases_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "running"
    with pytest.raises(KeyboardInterrupt), exclusive_run_lock(path):
        raise KeyboardInterrupt
    with exclusive_run_lock(path):
        pass


def test_children_do_not_hold_it(tmp_path: Path) -> None:
    path = tmp_path / "running"
    with exclusive_run_lock(path):
        child = subprocess.Popen(["sleep", "60"])
    try:
        with exclusive_run_lock(path):
            pass
    finally:
        child.kill()
        child.wait()


def test_a_place_that_cannot_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(TorchyardError, match="cannot write"),
        exclusive_run_lock(tmp_path / "file" / "x"),
    ):
        pass


def test_many_builds_share_a_base_and_block_its_rebuild(tmp_path: Path) -> None:
    path = tmp_path / "running"
    with exclusive_run_lock(path):
        pass
    with base_build_locks([path]), base_build_locks([path]):
        with pytest.raises(
            NotAllowed, match=f"a build that uses {tmp_path} as its base is running"
        ):
            exclusive_run_lock(path).__enter__()
        # Asking does not take it away from those who stand there.
        with pytest.raises(NotAllowed, match="as its base"):
            exclusive_run_lock(path).__enter__()
        with base_build_locks([path]):
            pass
    with exclusive_run_lock(path):
        pass


def test_a_base_that_is_being_built_is_refused(tmp_path: Path) -> None:
    other, path = tmp_path / "other", tmp_path / "running"
    with holder(path) as process:
        with pytest.raises(NotAllowed) as raised, base_build_locks([other, path]):
            pass
        assert raised.value.what == (
            f"{tmp_path}, the base of this build, is being built (process {process.pid})"
        )
        assert raised.value.hint.startswith("wait until it has finished")
        with exclusive_run_lock(other):  # the first one was given back
            pass
        process.communicate("")
    with base_build_locks([other, path]):
        pass


def test_a_missing_base_folder_is_not_locked(tmp_path: Path) -> None:
    with base_build_locks([tmp_path / "gone" / "running"]):
        assert list(tmp_path.iterdir()) == []

"""SIGKILL at every stage of quieting, with real processes on a fake machine: everything is restored."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.machine.fake_kernel import NO_LATENCY_LIMIT
from tests.machine.owner_process import (
    FOUND,
    QUIETED,
    REQUEST,
    folder_of,
    gone,
    kill,
    line_of,
    owner,
    until,
    values,
)
from tests.machine.trees import make_tree
from torchyard.machine.knob import Machine
from torchyard.machine.model import QuietRequest
from torchyard.machine.quieting.apply_settings import QuietSession, apply_until_restore
from torchyard.machine.quieting.journal import (
    JOURNAL_FILE,
    JournalLock,
    read_journal,
)
from torchyard.machine.quieting.restoring import recover, restore
from torchyard.machine.system.file_tree import FileTree
from torchyard.process.owner import is_gone


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield make_tree("cloud-vm", tmp_path)
    if read_journal(folder_of(tmp_path)) is not None:  # a test failed: no holder stays behind
        restore(Machine(files=FileTree(tmp_path)))


def test_the_restore_process_restores_at_once_when_the_owner_is_killed(root: Path) -> None:
    with owner(root) as process:
        restore_process = int(line_of(process))
        assert values(root) == QUIETED
        kill(process)
    until(lambda: gone(restore_process))
    assert values(root) == FOUND
    assert read_journal(folder_of(root)) is None
    lock = JournalLock.take(folder_of(root))
    assert lock is not None
    lock.release()


def test_the_restore_process_is_out_of_reach_of_the_terminal(root: Path) -> None:
    with owner(root) as process:
        restore_process = int(line_of(process))
        assert os.getsid(restore_process) == restore_process
        assert Path(f"/proc/{restore_process}/cwd").resolve() == Path("/")
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
            os.kill(restore_process, number)
        kill(process)
    until(lambda: gone(restore_process))
    assert values(root) == FOUND


def test_when_both_are_killed_the_next_start_restores(root: Path) -> None:
    with owner(root) as process:
        restore_process = int(line_of(process))
        os.kill(restore_process, signal.SIGKILL)
        kill(process)
    until(lambda: gone(restore_process))
    assert values(root) == QUIETED
    machine = Machine(files=FileTree(root))
    recovered = recover(machine)
    assert recovered is not None
    assert recovered.restored is not None
    assert recovered.restored.complete
    assert f"process {process.pid}" in recovered.who
    assert values(root) == FOUND
    assert recover(machine) is None


@pytest.mark.slow
def test_when_both_are_killed_the_restore_command_restores(root: Path) -> None:
    with owner(root) as process:
        restore_process = int(line_of(process))
        os.kill(restore_process, signal.SIGKILL)
        kill(process)
    until(lambda: gone(restore_process))
    assert restore(Machine(files=FileTree(root))).complete
    assert values(root) == FOUND


def test_when_both_are_killed_the_next_quieting_restores_first(root: Path) -> None:
    with owner(root) as process:
        restore_process = int(line_of(process))
        os.kill(restore_process, signal.SIGKILL)
        kill(process)
    until(lambda: gone(restore_process))
    with QuietSession(Machine(files=FileTree(root)), REQUEST) as session:
        assert session.before is not None
        assert values(root) == QUIETED
        assert {c.setting.found for c in session.applied.written} == {"2", "25", "100000"}
    assert values(root) == FOUND


@pytest.mark.slow
def test_an_owner_whose_restore_process_is_killed_restores_itself(root: Path) -> None:
    with owner(root) as process:
        os.kill(int(line_of(process)), signal.SIGKILL)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert line_of(process) == "restored"
        process.wait()
    assert process.returncode == 0
    assert values(root) == FOUND


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)]
)
def test_an_owner_that_is_asked_to_end_restores_first(root: Path, number: signal.Signals) -> None:
    with owner(root) as process:
        restore_process = int(line_of(process))
        process.send_signal(number)
        process.wait(timeout=30)
        until(lambda: gone(restore_process))
    assert process.returncode != 0
    assert values(root) == FOUND
    assert read_journal(folder_of(root)) is None


# Settings that last as long as a process.


def test_persistent_quieting_has_a_holder_process_that_restore_ends(root: Path) -> None:
    device = root / "dev/cpu_dma_latency"
    machine = Machine(files=FileTree(root))
    before = device.read_bytes()
    assert before in (b"", NO_LATENCY_LIMIT)
    tuned = apply_until_restore(machine, QuietRequest(only=("idle-latency",)))
    assert [change.state for change in tuned.changes] == ["written"]
    text = read_journal(folder_of(root))
    assert text is not None
    assert text.holder is not None
    pid = int(text.holder["pid"])
    holder: dict[str, Any] = dict(text.holder)
    assert device in [link.readlink() for link in Path(f"/proc/{pid}/fd").iterdir()]
    # It holds no lock: another process can restore.
    assert restore(machine).complete
    until(lambda: is_gone(holder))
    assert read_journal(folder_of(root)) is None


def test_a_holder_that_was_killed_is_no_obstacle(root: Path) -> None:
    machine = Machine(files=FileTree(root))
    apply_until_restore(machine, QuietRequest(only=("idle-latency",)))
    text = read_journal(folder_of(root))
    assert text is not None
    assert text.holder is not None
    os.kill(int(text.holder["pid"]), signal.SIGKILL)
    assert restore(machine).complete


@pytest.mark.slow
def test_a_number_that_passed_to_another_process_is_not_ended(root: Path) -> None:
    machine = Machine(files=FileTree(root))
    apply_until_restore(machine, QuietRequest(only=("idle-latency",)))
    path = folder_of(root) / JOURNAL_FILE
    text = read_journal(folder_of(root))
    assert text is not None
    assert text.holder is not None
    os.kill(int(text.holder["pid"]), signal.SIGKILL)
    bystander = subprocess.Popen(["sleep", "60"])
    old = f'"pid": {text.holder["pid"]}'
    path.write_text(path.read_text().replace(old, f'"pid": {bystander.pid}'))
    assert restore(machine).complete
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()

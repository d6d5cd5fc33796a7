"""Quieting that is killed half-way, blocked by a named pipe in place of a file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.machine.owner_process import (
    ASLR,
    FOUND,
    OWNER,
    QUIETED,
    RATE,
    REQUEST,
    SHARE,
    BlockedFile,
    folder_of,
    gone,
    kill,
    line_of,
    owner,
    until,
    values,
    waits,
)
from tests.machine.trees import make_tree
from torchyard.errors import NotAllowed, StepFailed
from torchyard.machine.knob import Machine
from torchyard.machine.quieting.apply_settings import QuietSession, apply_until_restore
from torchyard.machine.quieting.journal import (
    JOURNAL_FILE,
    RESTORED_FILE,
    read_journal,
)
from torchyard.machine.quieting.restoring import recover
from torchyard.machine.system.file_tree import FileTree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_tree("cloud-vm", tmp_path)


@pytest.mark.parametrize(
    ("mode", "place"),
    [
        ("session", RATE),
        ("standing", RATE),
        *(pytest.param("session", place, marks=pytest.mark.slow) for place in (ASLR, SHARE)),
    ],
)
def test_killed_between_the_journal_and_the_write(root: Path, place: str, mode: str) -> None:
    """`writing` is on disk, the value is not written; what came before it is."""
    stopper = BlockedFile(root / place)
    stopper.stop_here()
    with owner(root, mode) as process:
        stopper.answer()  # the survey
        journal = folder_of(root) / JOURNAL_FILE
        mark = json.dumps({"kind": "writing"})[1:-1]
        until(lambda: journal.exists() and f'"{place}"' in journal.read_text().rpartition(mark)[2])
        until(lambda: waits(process.pid))
        stopper.restore_file()
        kill(process)
    until(lambda: read_journal(folder_of(root)) is None)
    assert values(root) == FOUND
    assert (folder_of(root) / RESTORED_FILE).exists()


def test_killed_in_the_middle_of_its_own_restore(root: Path) -> None:
    with owner(root) as process:
        restore_process = int(line_of(process))
        stopper = BlockedFile(root / RATE)
        stopper.stop_here()
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        until(lambda: waits(process.pid))
        stopper.restore_file(QUIETED[RATE])
        kill(process)
    until(lambda: gone(restore_process))
    assert values(root) == FOUND


@pytest.mark.slow
def test_killed_after_the_journal_and_before_any_write(root: Path) -> None:
    """Nothing of ours was written, so a value that somebody else writes then is left alone."""
    code = OWNER.partition("with QuietSession")[0] + (
        "import os, signal\n"
        "from torchyard.machine.quieting.journal import Journal, boot_of, journal_folder\n"
        "from torchyard.machine.quieting.journal import JournalLock\n"
        "from torchyard.machine.quieting.apply_settings import RestoreProcess\n"
        "from torchyard.machine.quieting.apply_settings import survey\n"
        "folder = journal_folder(machine.files)\n"
        "lock = JournalLock.take(folder)\n"
        "restore_process = RestoreProcess(root=machine.files.root, folder=folder, lock=lock)\n"
        "found = [item for state in survey(machine, request) for item in state.settings]\n"
        "Journal.create(folder, mode='session', request=request, boot=boot_of(machine.files),\n"
        "               settings=found)\n"
        "(machine.files.root / 'proc/sys/kernel/randomize_va_space').write_text('1')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    completed = subprocess.run([sys.executable, "-c", code, str(root), "session"], check=False)
    assert completed.returncode == -signal.SIGKILL
    until(lambda: read_journal(folder_of(root)) is None)
    assert values(root) == {**FOUND, ASLR: "1"}


def test_ctrl_c_in_the_middle_of_a_write_restores_and_runs_no_command(root: Path) -> None:
    stopper = BlockedFile(root / ASLR)
    stopper.stop_here()
    words = ["-m", "torchyard", "machine", "quiet", "--root", str(root), "--only", "aslr"]
    words += ["--only", "perf-rate", "--aslr", "off", "--", "touch", str(root / "ran")]
    process = subprocess.Popen(
        [sys.executable, *words], stderr=subprocess.PIPE, start_new_session=True
    )
    stopper.answer()
    journal = folder_of(root) / JOURNAL_FILE
    until(lambda: journal.exists() and '"writing", "knob": "aslr"' in journal.read_text())
    until(lambda: waits(process.pid))
    stopper.restore_file()
    # The signal ends the wait for the pipe; Python opens again, now the plain file.
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=30) == 130
    process.communicate()
    assert not (root / "ran").exists()
    assert values(root) == FOUND
    assert read_journal(folder_of(root)) is None
    # The write that was under way was finished first.
    assert '"written", "knob": "aslr"' in (folder_of(root) / RESTORED_FILE).read_text()


def test_without_a_restore_process_nothing_is_written(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(files=FileTree(root))
    for python in ("/nowhere/python", "/bin/true"):
        monkeypatch.setattr(sys, "executable", python)
        with pytest.raises(StepFailed, match="restores settings after a kill") as caught:
            QuietSession(machine, REQUEST).apply()
        assert "nothing was changed" in caught.value.hint
        assert values(root) == FOUND
        assert read_journal(folder_of(root)) is None


def test_two_processes_cannot_quiet_the_machine_at_once(root: Path) -> None:
    with owner(root) as process:
        line_of(process)
        with pytest.raises(NotAllowed, match=f"process {process.pid}"):
            apply_until_restore(Machine(files=FileTree(root)), REQUEST)
        assert values(root) == QUIETED
    until(lambda: read_journal(folder_of(root)) is None)


@pytest.mark.slow
def test_restore_waits_for_a_running_restore_process(root: Path) -> None:
    with owner(root) as process:
        restore_process = int(line_of(process))
        os.kill(restore_process, signal.SIGSTOP)
        kill(process)
    resume = subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -CONT {restore_process}"])
    recovered = recover(Machine(files=FileTree(root)))
    resume.wait()
    assert recovered is None, "the keeper did it"
    assert values(root) == FOUND

"""Kill -9 at every stage of a tune, with real processes on a fake machine: everything comes back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_kernel import NO_LATENCY_LIMIT
from trees import make_tree

from torchyard.core.machine import Wish
from torchyard.errors import NotAllowed, StepFailed
from torchyard.machine.file_tree import FileTree
from torchyard.machine.journal import JOURNAL_FILE, RESTORED_FILE, read_journal
from torchyard.machine.journal_lock import JOURNAL_VARIABLE, JournalLock
from torchyard.machine.knob import Machine
from torchyard.machine.restoring import recover, restore
from torchyard.machine.tuning import Tuning, tune_standing
from torchyard.results.owner import is_gone

ASLR = "proc/sys/kernel/randomize_va_space"
SHARE = "proc/sys/kernel/perf_cpu_time_max_percent"
RATE = "proc/sys/kernel/perf_event_max_sample_rate"
PLACES = (ASLR, SHARE, RATE)
WISH = Wish(only=("aslr", "perf-rate"), randomize="off")

OWNER = """
import sys, time
from pathlib import Path
from torchyard.core.machine import Wish
from torchyard.machine.file_tree import FileTree
from torchyard.machine.knob import Machine
from torchyard.machine.tuning import Tuning, tune_standing
machine = Machine(files=FileTree(Path(sys.argv[1])))
wish = Wish(only=("aslr", "perf-rate"), randomize="off")
if sys.argv[2] == "standing":
    tune_standing(machine, wish)
    sys.exit()
with Tuning(machine, wish) as tuning:
    print(tuning._keeper.pid, flush=True)
    sys.stdin.readline()
print("restored", flush=True)
"""


@pytest.fixture(autouse=True)
def own_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(JOURNAL_VARIABLE, raising=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_tree("cloud-vm", tmp_path)


def values(root: Path) -> dict[str, str]:
    return {place: (root / place).read_text().strip() for place in PLACES}


FOUND = {ASLR: "2", SHARE: "25", RATE: "100000"}
TUNED = {ASLR: "0", SHARE: "1", RATE: "1"}


def until(done: Callable[[], bool], *, limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)


@contextmanager
def owner(root: Path, mode: str = "session") -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(root), mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def gone(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


def folder_of(root: Path) -> Path:
    return root / "var/lib/torchyard/machine"


def test_the_keeper_restores_at_once_when_the_owner_is_killed(root: Path) -> None:
    with owner(root) as process:
        keeper = int(line_of(process))
        assert values(root) == TUNED
        kill(process)
    until(lambda: gone(keeper))
    assert values(root) == FOUND
    assert read_journal(folder_of(root)) is None
    lock = JournalLock.take(folder_of(root))
    assert lock is not None
    lock.release()


def test_the_keeper_is_out_of_reach_of_the_terminal(root: Path) -> None:
    with owner(root) as process:
        keeper = int(line_of(process))
        assert os.getsid(keeper) == keeper
        assert Path(f"/proc/{keeper}/cwd").resolve() == Path("/")
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
            os.kill(keeper, number)
        kill(process)
    until(lambda: gone(keeper))
    assert values(root) == FOUND


def test_when_both_are_killed_the_next_start_restores(root: Path) -> None:
    with owner(root) as process:
        keeper = int(line_of(process))
        os.kill(keeper, signal.SIGKILL)
        kill(process)
    until(lambda: gone(keeper))
    assert values(root) == TUNED
    machine = Machine(files=FileTree(root))
    found = recover(machine)
    assert found is not None
    assert found.restored is not None
    assert found.restored.complete
    assert f"process {process.pid}" in found.who
    assert values(root) == FOUND
    assert recover(machine) is None


@pytest.mark.slow
def test_when_both_are_killed_restore_restores(root: Path) -> None:
    with owner(root) as process:
        os.kill(int(line_of(process)), signal.SIGKILL)
        kill(process)
    assert restore(Machine(files=FileTree(root))).complete
    assert values(root) == FOUND


def test_when_both_are_killed_the_next_tune_restores_first(root: Path) -> None:
    with owner(root) as process:
        os.kill(int(line_of(process)), signal.SIGKILL)
        kill(process)
    with Tuning(Machine(files=FileTree(root)), WISH) as tuning:
        assert tuning.before is not None
        assert values(root) == TUNED
        assert {c.setting.found for c in tuning.tuned.written} == {"2", "25", "100000"}
    assert values(root) == FOUND


@pytest.mark.slow
def test_an_owner_whose_keeper_is_killed_restores_itself(root: Path) -> None:
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
        keeper = int(line_of(process))
        process.send_signal(number)
        process.wait(timeout=30)
        until(lambda: gone(keeper))
    assert process.returncode != 0
    assert values(root) == FOUND
    assert read_journal(folder_of(root)) is None


# Killed in the middle. A named pipe in place of a file stops the owner where it is opened.


class Stopper:
    """A named pipe in place of one file, and the file put back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text = path.read_text()
        self._pipe = path.with_name(path.name + ".pipe")
        os.mkfifo(self._pipe)

    def stop_here(self) -> None:
        self._pipe.replace(self._path)

    def answer(self) -> None:
        """What one reader gets."""
        with self._path.open("w") as pipe:
            pipe.write(self._text)

    def put_back(self, text: str | None = None) -> None:
        """The plain file again; whoever waits for the pipe goes on waiting."""
        plain = self._path.with_name(self._path.name + ".plain")
        plain.write_text(self._text if text is None else text)
        plain.replace(self._path)


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
    stopper = Stopper(root / place)
    stopper.stop_here()
    with owner(root, mode) as process:
        stopper.answer()  # the survey
        journal = folder_of(root) / JOURNAL_FILE
        mark = json.dumps({"kind": "writing"})[1:-1]
        until(lambda: journal.exists() and f'"{place}"' in journal.read_text().rpartition(mark)[2])
        until(lambda: _waits(process.pid))
        stopper.put_back()
        kill(process)
    until(lambda: read_journal(folder_of(root)) is None)
    assert values(root) == FOUND
    assert (folder_of(root) / RESTORED_FILE).exists()


def _waits(pid: int) -> bool:
    """In the kernel and going nowhere: asleep, with no processor time between two looks."""

    def look() -> tuple[str, str]:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], fields[11] + fields[12]

    before = look()
    time.sleep(0.1)
    return before[0] == "S" and look() == before


def test_killed_in_the_middle_of_its_own_restore(root: Path) -> None:
    with owner(root) as process:
        keeper = int(line_of(process))
        stopper = Stopper(root / RATE)
        stopper.stop_here()
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        until(lambda: _waits(process.pid))
        stopper.put_back(TUNED[RATE])
        kill(process)
    until(lambda: gone(keeper))
    assert values(root) == FOUND


@pytest.mark.slow
def test_killed_after_the_journal_and_before_any_write(root: Path) -> None:
    """Nothing of ours was written, so a value that somebody else writes then is left alone."""
    code = OWNER.partition("with Tuning")[0] + (
        "import os, signal\n"
        "from torchyard.machine.journal import Journal, boot_of, journal_folder\n"
        "from torchyard.machine.journal_lock import JournalLock\n"
        "from torchyard.machine.keeper_link import KeeperLink\n"
        "from torchyard.machine.tuning import survey\n"
        "folder = journal_folder(machine.files)\n"
        "lock = JournalLock.take(folder)\n"
        "keeper = KeeperLink(root=machine.files.root, folder=folder, lock=lock)\n"
        "found = [item for state in survey(machine, wish) for item in state.settings]\n"
        "Journal.create(folder, mode='session', wish=wish, boot=boot_of(machine.files),\n"
        "               settings=found)\n"
        "(machine.files.root / 'proc/sys/kernel/randomize_va_space').write_text('1')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(root), "session"], check=False)
    assert done.returncode == -signal.SIGKILL
    until(lambda: read_journal(folder_of(root)) is None)
    assert values(root) == {**FOUND, ASLR: "1"}


def test_ctrl_c_in_the_middle_of_a_write_restores_and_runs_no_command(root: Path) -> None:
    stopper = Stopper(root / ASLR)
    stopper.stop_here()
    words = ["-m", "torchyard", "machine", "tune", "--root", str(root), "--only", "aslr"]
    words += ["--only", "perf-rate", "--aslr", "off", "--", "touch", str(root / "ran")]
    process = subprocess.Popen(
        [sys.executable, *words], stderr=subprocess.PIPE, start_new_session=True
    )
    stopper.answer()
    journal = folder_of(root) / JOURNAL_FILE
    until(lambda: journal.exists() and '"writing", "knob": "aslr"' in journal.read_text())
    until(lambda: _waits(process.pid))
    stopper.put_back()
    # The signal ends the wait for the pipe; Python opens again, now the plain file.
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=30) == 130
    process.communicate()
    assert not (root / "ran").exists()
    assert values(root) == FOUND
    assert read_journal(folder_of(root)) is None
    # The write that was under way was finished first.
    assert '"written", "knob": "aslr"' in (folder_of(root) / RESTORED_FILE).read_text()


def test_without_a_keeper_nothing_is_written(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(files=FileTree(root))
    for python in ("/nowhere/python", "/bin/true"):
        monkeypatch.setattr(sys, "executable", python)
        with pytest.raises(StepFailed, match="restores after a kill") as caught:
            Tuning(machine, WISH).apply()
        assert "nothing was changed" in caught.value.hint
        assert values(root) == FOUND
        assert read_journal(folder_of(root)) is None


def test_two_processes_cannot_tune_at_once(root: Path) -> None:
    with owner(root) as process:
        line_of(process)
        with pytest.raises(NotAllowed, match=f"process {process.pid}"):
            tune_standing(Machine(files=FileTree(root)), WISH)
        assert values(root) == TUNED
    until(lambda: read_journal(folder_of(root)) is None)


@pytest.mark.slow
def test_restore_waits_for_a_keeper_that_is_at_work(root: Path) -> None:
    with owner(root) as process:
        keeper = int(line_of(process))
        os.kill(keeper, signal.SIGSTOP)
        kill(process)
    resume = subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -CONT {keeper}"])
    found = recover(Machine(files=FileTree(root)))
    resume.wait()
    assert found is None, "the keeper did it"
    assert values(root) == FOUND


# Settings that last as long as a process.


def test_a_standing_tune_has_a_holder_that_restore_ends(root: Path) -> None:
    device = root / "dev/cpu_dma_latency"
    machine = Machine(files=FileTree(root))
    before = device.read_bytes()
    assert before in (b"", NO_LATENCY_LIMIT)
    tuned = tune_standing(machine, Wish(only=("idle-latency",)))
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
    tune_standing(machine, Wish(only=("idle-latency",)))
    text = read_journal(folder_of(root))
    assert text is not None
    assert text.holder is not None
    os.kill(int(text.holder["pid"]), signal.SIGKILL)
    assert restore(machine).complete


@pytest.mark.slow
def test_a_number_that_passed_to_another_process_is_not_ended(root: Path) -> None:
    machine = Machine(files=FileTree(root))
    tune_standing(machine, Wish(only=("idle-latency",)))
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

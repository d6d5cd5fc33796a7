"""Quieting of this machine, as root: killed at many moments, and every value is restored.

Only values that disturb nobody: address randomisation, huge pages, the rate of the profiler.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from torchyard.machine.quieting.journal import JOURNAL_FILE, JOURNAL_VARIABLE, JournalLock

PLACES = (
    Path("/proc/sys/kernel/randomize_va_space"),
    Path("/sys/kernel/mm/transparent_hugepage/enabled"),
    Path("/sys/kernel/mm/transparent_hugepage/defrag"),
    Path("/proc/sys/kernel/perf_event_max_sample_rate"),
    Path("/proc/sys/kernel/perf_cpu_time_max_percent"),
)
MORE_DELAYS_S = (0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 1.5)
KNOBS = ("--only", "aslr", "--only", "huge-pages", "--only", "perf-rate")


def values() -> dict[str, str]:
    return {str(path): path.read_text() for path in PLACES}


def _may_write() -> bool:
    return all(path.exists() and os.access(path, os.W_OK) for path in PLACES)


pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not _may_write(), reason="needs root on a machine of its own"
)


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The values before; whatever a test does, they are the values after."""
    monkeypatch.setenv(JOURNAL_VARIABLE, str(tmp_path / "journal"))
    with Path("/tmp/torchyard-real-machine.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # one test of this machine at a time
        before = values()
        try:
            yield before
        finally:
            for path in PLACES:
                text = before[str(path)]
                chosen = next((w[1:-1] for w in text.split() if w.startswith("[")), text.strip())
                if path.read_text() != text:
                    path.write_text(chosen)


def request() -> list[str]:
    """Values that differ from those found."""
    aslr = "off" if PLACES[0].read_text().strip() != "0" else "on"
    pages = "never" if "[never]" not in PLACES[1].read_text() else "madvise"
    return [*KNOBS, "--aslr", aslr, "--thp", pages]


def machine(*words: str) -> list[str]:
    return [sys.executable, "-m", "torchyard", "machine", *words]


def settled(folder: Path) -> None:
    """Wait until no restore process runs."""
    lock = JournalLock.take(folder, wait_s=30)
    assert lock is not None
    lock.release()


def test_quieting_for_a_command_is_restored(found: dict[str, str]) -> None:
    script = "cat " + " ".join(map(str, PLACES)) + "; exit 7"
    completed = subprocess.run(
        machine("quiet", *request(), "--", "sh", "-c", script),
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 7, completed.stderr
    assert completed.stdout != "".join(found.values())
    assert completed.stdout.splitlines()[-2:] == ["1", "1"]
    assert values() == found


def test_persistent_quieting_is_restored(found: dict[str, str], tmp_path: Path) -> None:
    first = subprocess.run(
        machine("quiet", *request()), capture_output=True, text=True, check=False
    )
    assert first.returncode == 0, first.stderr
    changed = [path for path, text in values().items() if text != found[path]]
    assert len(changed) >= 4
    again = subprocess.run(
        machine("quiet", *request()), capture_output=True, text=True, check=False
    )
    assert again.returncode == 4
    assert "torchyard machine restore" in again.stderr
    back = subprocess.run(machine("restore"), capture_output=True, text=True, check=False)
    assert back.returncode == 0, back.stderr
    assert values() == found
    nothing = subprocess.run(machine("restore"), capture_output=True, check=False)
    assert nothing.returncode == 3
    assert not (tmp_path / "journal" / JOURNAL_FILE).exists()


# From before the first import is done to long after the command runs.
@pytest.mark.parametrize(
    "delay_s",
    [0.5, 1.0, *(pytest.param(delay_s, marks=pytest.mark.slow) for delay_s in MORE_DELAYS_S)],
)
def test_kill_9_at_any_moment(found: dict[str, str], tmp_path: Path, delay_s: float) -> None:
    folder = tmp_path / "journal"
    process = subprocess.Popen(
        machine("quiet", *request(), "--", "sleep", "60"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        time.sleep(delay_s)
    finally:
        process.kill()
        process.wait()
    settled(folder)
    # The command goes on, as it would without us.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    assert values() == found
    assert not (folder / JOURNAL_FILE).exists()


def test_kill_9_of_owner_and_restore_process(found: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    process = subprocess.Popen(
        machine("quiet", *request(), "--", "sh", "-c", "echo up; exec sleep 60"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in children:  # the restore process and the command
        os.kill(int(pid), signal.SIGKILL)
    process.kill()
    process.communicate()
    settled(folder)
    assert values() != found
    assert (folder / JOURNAL_FILE).exists()
    # The next tune puts it back first, and then its own values.
    completed = subprocess.run(
        machine("quiet", *request(), "--", "true"), capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0
    assert "interrupted" in completed.stderr
    assert values() == found


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_signals_end_the_command_and_restore(
    found: dict[str, str], number: signal.Signals, tmp_path: Path
) -> None:
    process = subprocess.Popen(
        machine("quiet", *request(), "--", "sh", "-c", "echo up; exec sleep 60"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    assert values() != found
    process.send_signal(number)
    assert process.wait(timeout=30) == 128 + number
    process.communicate()
    assert values() == found


def test_a_full_disk_for_the_journal_changes_nothing(found: dict[str, str], tmp_path: Path) -> None:
    disk = tmp_path / "journal"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "torchyard-test", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounts are not allowed here")
    try:
        (disk / "lock").touch(0o600)
        with suppress(OSError):
            (disk / "fill").write_bytes(b"x" * (1 << 20))
        completed = subprocess.run(
            machine("quiet", *request()), capture_output=True, text=True, check=False
        )
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert completed.returncode == 4, completed.stderr
    assert "No space left on device" in completed.stderr
    assert "nothing was changed" in completed.stderr
    assert values() == found


def test_a_read_only_folder_for_the_journal_changes_nothing(
    found: dict[str, str], tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "torchyard-test", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounts are not allowed here")
    try:
        completed = subprocess.run(
            machine("quiet", *request()),
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, JOURNAL_VARIABLE: str(disk / "journal")},
        )
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert completed.returncode == 4
    assert "Read-only file system" in completed.stderr
    assert JOURNAL_VARIABLE in completed.stderr
    assert values() == found


def test_without_root_it_says_what_to_do(found: dict[str, str]) -> None:
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    readable = subprocess.run(
        [*nobody, sys.executable, "-c", "import torchyard"], check=False, capture_output=True
    )
    if readable.returncode:
        pytest.skip("another user cannot run this interpreter")
    completed = subprocess.run(
        [*nobody, *machine("quiet", *request())], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 4
    assert "--user" in completed.stderr
    assert "--dry-run" in completed.stderr
    dry = subprocess.run(
        [*nobody, *machine("quiet", *request(), "--dry-run")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert dry.returncode == 0, dry.stderr
    assert "to be written" in dry.stdout
    assert values() == found

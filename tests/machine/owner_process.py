"""A process that quiets a fake machine, to be killed, and ways to block it half-way."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torchyard.machine.model import QuietRequest

ASLR = "proc/sys/kernel/randomize_va_space"
SHARE = "proc/sys/kernel/perf_cpu_time_max_percent"
RATE = "proc/sys/kernel/perf_event_max_sample_rate"
PLACES = (ASLR, SHARE, RATE)
REQUEST = QuietRequest(only=("aslr", "perf-rate"), randomize="off")

OWNER = """
import sys, time
from pathlib import Path
from torchyard.machine.model import QuietRequest
from torchyard.machine.system.file_tree import FileTree
from torchyard.machine.knob import Machine
from torchyard.machine.quieting.apply_settings import QuietSession, apply_until_restore
machine = Machine(files=FileTree(Path(sys.argv[1])))
request = QuietRequest(only=("aslr", "perf-rate"), randomize="off")
if sys.argv[2] == "standing":
    apply_until_restore(machine, request)
    sys.exit()
with QuietSession(machine, request) as session:
    print(session._restore_process.pid, flush=True)
    sys.stdin.readline()
print("restored", flush=True)
"""


def values(root: Path) -> dict[str, str]:
    return {place: (root / place).read_text().strip() for place in PLACES}


FOUND = {ASLR: "2", SHARE: "25", RATE: "100000"}
QUIETED = {ASLR: "0", SHARE: "1", RATE: "1"}


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


class BlockedFile:
    """Replaces one file by a named pipe, and restores the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text = path.read_text()
        self._pipe = path.with_name(path.name + ".pipe")
        os.mkfifo(self._pipe)

    def stop_here(self) -> None:
        self._pipe.replace(self._path)

    def answer(self) -> None:
        """Give the content to one reader."""
        with self._path.open("w") as pipe:
            pipe.write(self._text)

    def restore_file(self, text: str | None = None) -> None:
        """Restore the plain file; processes that wait for the pipe keep waiting."""
        plain = self._path.with_name(self._path.name + ".plain")
        plain.write_text(self._text if text is None else text)
        plain.replace(self._path)


def waits(pid: int) -> bool:
    """Return whether a process is blocked: asleep, with no processor time between two readings."""

    def state() -> tuple[str, str]:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], fields[11] + fields[12]

    before = state()
    time.sleep(0.1)
    return before[0] == "S" and state() == before

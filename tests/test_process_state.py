"""The check of the pytest process state detects changes."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process_state import differences, private_bytes, process_state

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("os.chdir('/')", "working folder"),
        ("os.umask(0o123)", "umask"),
        ("os.nice(1)", "nice"),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN)", "handler of SIGTERM"),
        ("signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})", "blocked signals"),
        ("resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))", "RLIMIT_NOFILE"),
    ],
)
def test_a_change_is_named(change: str, named: str, tmp_path: Path) -> None:
    program = (
        "import os, resource, signal\n"
        "from tests.process_state import differences, process_state\n"
        f"before = process_state()\n{change}\n"
        "print('\\\n'.join(differences(before, process_state())))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    (line,) = ended.stdout.splitlines()
    assert line.startswith(f"{named}:")


def test_a_lost_pid_namespace_is_named() -> None:
    """After unshare(CLONE_NEWPID), once the first child has ended, no other child can start."""
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        before = process_state()
        refused = ctypes.CDLL(None).unshare(0x20000000) != 0
        lines = differences(before, process_state())
        os.write(write_fd, b"refused" if refused else "\n".join(lines).encode())
        os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    if said == "refused":
        pytest.skip("this user may not make a pid namespace")
    # The kernel shows no namespace for children before the first child exists.
    assert said.startswith("pid_for_children namespace:")


def test_reserved_memory_counts_although_it_is_not_used() -> None:
    before = private_bytes()
    with mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS):
        assert private_bytes() - before >= 64 << 20


def test_nothing_changed_is_no_difference() -> None:
    assert differences(process_state(), process_state()) == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

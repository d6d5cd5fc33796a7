"""Parts of the process package, on real pipes, files and processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from torchyard.process import ending, trampoline
from torchyard.process.ending import WorkerFailure
from torchyard.process.owner import start_ticks
from torchyard.process.start import BOOT_FILE
from torchyard.process.tree import TreeMemory, controller_mark, kill_tree
from torchyard.process.worker_io import BadMessage, OutputLog, RequestPipes


class PipePeer:
    """A pair of pipes with the worker's ends in the test's hands."""

    def __init__(self) -> None:
        self.question_fd, write_fd = os.pipe()
        read_fd, self.answer_fd = os.pipe()
        self.pipes = RequestPipes(read_fd=read_fd, write_fd=write_fd)

    def say(self, data: bytes) -> None:
        os.write(self.answer_fd, data)

    def close(self) -> None:
        for fd in (self.question_fd, self.answer_fd):
            if fd >= 0:
                os.close(fd)
        self.question_fd = self.answer_fd = -1


@pytest.fixture
def far() -> Iterator[PipePeer]:
    far = PipePeer()
    yield far
    far.close()
    far.pipes.close()
    far.pipes.close()


def test_messages_in_pieces(far: PipePeer) -> None:
    assert far.pipes.read() is None
    far.say(b'{"ok": {"a"')
    assert far.pipes.read() is None
    far.say(b': 1}}\n{"note": "x"}\n{"no')
    assert far.pipes.read() == {"ok": {"a": 1}}
    assert far.pipes.read() == {"note": "x"}
    assert far.pipes.read() is None
    assert not far.pipes.at_end
    far.close()
    assert far.pipes.read() is None
    assert far.pipes.at_end


def test_infinity_is_accepted_in_messages(far: PipePeer) -> None:
    far.say(b'{"ok": {"ratio": NaN, "limit": Infinity}}\n')
    message = far.pipes.read()
    assert message is not None
    assert message["ok"]["limit"] == float("inf")


@pytest.mark.parametrize(
    "line", [b"", b"null", b"{}", b'{"ok": []}', b'{"note": 1}', b"\xff\xfe", b'{"ok": {}} x']
)
def test_lines_that_are_no_messages(far: PipePeer, line: bytes) -> None:
    far.say(line + b"\n")
    with pytest.raises(BadMessage):
        far.pipes.read()


def test_a_line_without_end(far: PipePeer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchyard.process.worker_io._LONGEST_LINE_BYTES", 1000)
    far.say(b"x" * 2000)
    with pytest.raises(BadMessage, match="more than 1000 bytes"):
        far.pipes.read()


def test_writing_never_blocks_and_loses_nothing(far: PipePeer) -> None:
    question = {"ask": "echo", "text": "z" * 300_000}
    far.pipes.queue(question)
    begin = time.monotonic()
    received = b""
    while not received.endswith(b"\n"):
        far.pipes.write()
        received += os.read(far.question_fd, 65536)
    assert time.monotonic() - begin < 60
    assert json.loads(received) == question


def test_write_to_a_closed_pipe(far: PipePeer) -> None:
    far.close()
    far.pipes.queue({"ask": "echo"})
    far.pipes.write()
    assert far.pipes.reader_gone


def run_trampoline(controller_pid: int, plan: bytes) -> tuple[int, bytes]:
    """Its exit code and its status, when it is started as the controller does."""
    plan_read, plan_write = os.pipe()
    status_read, status_write = os.pipe()
    command = [sys.executable, "-I", "-S", trampoline.__file__]
    process = subprocess.Popen(
        [*command, str(controller_pid), str(plan_read), str(status_write)],
        pass_fds=(plan_read, status_write),
    )
    os.close(plan_read)
    os.close(status_write)
    with os.fdopen(plan_write, "wb") as pipe:
        pipe.write(plan)
    with os.fdopen(status_read, "rb") as status:
        status_text = status.read()
    return process.wait(20), status_text


def plan_of(*command: str, folder: str = "", end: str = "end") -> bytes:
    return "\0".join(("1", folder, str(len(command)), *command, "A=1=2", end)).encode()


def test_the_trampoline_becomes_the_target() -> None:
    check = 'test "$A" = 1=2 && test "$(pwd)" = /usr && exit 9'
    plan = plan_of("/bin/sh", "-c", check, folder="/usr")
    assert run_trampoline(os.getpid(), plan) == (9, b"ready\n")


def test_the_trampoline_gives_the_target_the_usual_signals() -> None:
    """Python ignores SIGPIPE; a shell that inherited that would print an error and go on."""
    plan = plan_of("/bin/sh", "-c", "kill -PIPE $$; exit 9")
    assert run_trampoline(os.getpid(), plan)[0] == -signal.SIGPIPE


def test_the_trampoline_exits_when_the_controller_is_gone() -> None:
    assert run_trampoline(os.getpid() + 1, plan_of("/bin/true")) == (1, b"")


def test_the_trampoline_does_nothing_with_half_a_plan() -> None:
    assert run_trampoline(os.getpid(), plan_of("/bin/true", end="en")) == (1, b"")


def test_the_trampoline_reports_what_was_refused() -> None:
    assert run_trampoline(os.getpid(), plan_of("/no/such")) == (127, b"ready\n2 exec\n")
    refused = run_trampoline(os.getpid(), plan_of("/bin/true", folder="/no/such"))
    assert refused == (127, b"2 chdir\n")


def test_memory_of_a_tree_counts_children() -> None:
    code = "import os, time; b = b'1' * (64 << 20); os.write(1, b'x'); time.sleep(60)"
    shell = f'{sys.executable} -c "{code}" & wait'
    with subprocess.Popen(
        ["sh", "-c", shell], stdout=subprocess.PIPE, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        try:
            assert parent.stdout.read(1) == b"x"
            used_bytes = TreeMemory(parent.pid).resident_bytes()
            assert 64 * 2**20 < used_bytes < 300 * 2**20
        finally:
            children = psutil.Process(parent.pid).children()
            assert kill_tree(parent.pid, "no such mark") == ()
        assert len(children) == 1
        assert not children[0].is_running() or children[0].status() == psutil.STATUS_ZOMBIE
        assert parent.wait(60) == -signal.SIGKILL
    assert TreeMemory(parent.pid).resident_bytes() == 0


def test_the_kernels_counters(tmp_path: Path) -> None:
    events = tmp_path / "memory.events"
    events.write_text("low 0\noom 7\noom_kill 3\noom_group_kill 1\n")
    assert ending._oom_kills(events) == 3
    events.write_text("oom_kill_disable 0\nunder_oom 0\n")
    assert ending._oom_kills(events) is None
    assert ending._oom_kills(tmp_path / "missing") is None


def test_start_times_tell_processes_apart() -> None:
    own = start_ticks(os.getpid())
    assert own is not None
    assert controller_mark().split(":")[:2] == [str(os.getpid()), str(own)]
    # A name with brackets and blanks must not confuse the reading of /proc/PID/stat.
    code = "open('/proc/self/comm', 'w').write(') R 1 ('); import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code]) as odd:
        try:
            deadline = time.monotonic() + 60
            comm = Path(f"/proc/{odd.pid}/comm")
            while comm.read_text().strip() != ") R 1 (" and time.monotonic() < deadline:
                time.sleep(0.01)
            ticks = start_ticks(odd.pid)
            assert ticks is not None
            assert ticks >= own
        finally:
            odd.kill()
        # The zombie counts as gone.
        while start_ticks(odd.pid) is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert start_ticks(odd.pid) is None
    assert start_ticks(odd.pid) is None


def test_a_full_disk_does_not_hold_up_the_worker() -> None:
    read_fd, write_fd = os.pipe()
    log = OutputLog(read_fd, Path("/dev/full"))
    for _ in range(100):
        os.write(write_fd, b"x" * 9999 + b"\n")
    os.write(write_fd, b"the end\n")
    os.close(write_fd)
    log.finish()
    assert log.tail().endswith("\nthe end")


def test_copy_of_a_worker_failure_is_equal() -> None:
    first = WorkerFailure(
        "a", kind="crashed", traceback="b", log_tail="c", why="d", hint="e", log="f"
    )
    copy = first.copy()
    assert copy is not first
    assert vars(copy) == vars(first)
    assert str(copy) == "a"


def test_fork_of_the_controller_does_not_end_the_workers() -> None:
    script = Path(__file__).with_name("controller_script.py")
    command = [sys.executable, "-W", "ignore", str(script), "none", "fork"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.splitlines()[1:] == ["still answers"]


def test_a_process_spawned_by_the_worker_finds_the_package(tmp_path: Path) -> None:
    """The spawn method runs the main file again under another name, which must not speak."""
    code = (
        "import runpy, sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]\n"
        f"runpy.run_path({str(BOOT_FILE)!r}, run_name='__mp_main__')\n"
        "import torchyard.worker.wire\n"
        f"assert not any(p == {str(BOOT_FILE.parents[2])!r} for p in sys.path), sys.path\n"
    )
    command = [sys.executable, "-I", "-S", "-c", code]
    completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr

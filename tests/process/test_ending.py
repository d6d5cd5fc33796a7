"""Ended workers, groups and controllers leave no process, and logs are bounded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.stub_launch import STUB, WAYS, StubStarter, spec_of
from torchyard.process import tree
from torchyard.process.ending import (
    Ending,
    ExitWatch,
    WorkerFailure,
    kind_of_ending,
    oom_kill_counts,
)
from torchyard.process.tree import processes_of_launch, sweep_orphans
from torchyard.process.worker_io import HEAD_BYTES, TAIL_BYTES, OutputLog
from torchyard.process.worker_process import WorkerGroup, WorkerProcess, kill_all

CONTROLLER = Path(__file__).with_name("controller_script.py")


@pytest.fixture(params=WAYS)
def start_stub(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StubStarter]:
    with StubStarter(tmp_path, request.param) as start:
        yield start


def wait_until_gone(mark: str, limit_s: float = 20.0) -> list[int]:
    deadline = time.monotonic() + limit_s
    while (remaining := processes_of_launch(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return remaining


@pytest.mark.parametrize("graceful", [True, False])
@pytest.mark.parametrize("new_session", [False, True])
def test_close_and_kill_end_the_whole_tree(
    start_stub: StubStarter, graceful: bool, new_session: bool
) -> None:
    worker = start_stub()
    for _ in range(3):
        worker.ask("fork_sleeper", limit_s=20, new_session=new_session)
    assert len(processes_of_launch(worker.launch_mark)) == 4
    begin = time.monotonic()
    if graceful:
        worker.close()
    else:
        worker.kill()
    assert time.monotonic() - begin < 60
    assert processes_of_launch(worker.launch_mark) == []
    worker.kill()
    worker.close()
    with pytest.raises(WorkerFailure) as caught:
        worker.ask("echo", limit_s=20)
    assert caught.value.kind == "interrupted"


def test_a_worker_that_ignores_quit_is_ended(
    start_stub: StubStarter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchyard.process.worker_process._CLOSE_LIMIT_S", 0.3)
    worker = start_stub()
    worker.ask("echo", limit_s=20)
    os.kill(worker.pid, signal.SIGSTOP)
    worker.close()
    assert processes_of_launch(worker.launch_mark) == []


def test_a_group_ends_its_workers_on_an_exception(tmp_path: Path) -> None:
    workers: list[WorkerProcess] = []

    def start_and_fail() -> None:
        with WorkerGroup() as group:
            for number in range(2):
                log_path = tmp_path / f"{number}.log"
                workers.append(group.start(spec_of(), log_path=log_path, entry=STUB))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        start_and_fail()
    assert len(workers) == 2
    assert [processes_of_launch(worker.launch_mark) for worker in workers] == [[], []]


def test_group_closes_its_workers_gracefully(tmp_path: Path) -> None:
    with WorkerGroup() as group:
        worker = group.start(spec_of(), log_path=tmp_path / "log", entry=STUB)
        assert list(group.workers) == [worker]
    assert not worker.is_alive
    assert worker._exit.ending() == Ending(exit_code=0)
    assert len(group.workers) == 0


def test_all_live_workers_can_be_killed(start_stub: StubStarter) -> None:
    workers = [start_stub(), start_stub()]
    workers[0].close()
    kill_all()
    assert not workers[1].is_alive


def start_controller(
    forks: str, ending: str, way: str = "fresh"
) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, str(CONTROLLER), forks, ending, way]
    controller = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert controller.stdout is not None
    return controller, controller.stdout.readline().strip()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("forks", ["none", "hang", "child", "session"])
def test_kill_9_of_the_controller(forks: str, way: str) -> None:
    controller, mark = start_controller(forks, "stay", way)
    with controller:
        living = processes_of_launch(mark)
        assert len(living) == (1 if forks in ("none", "hang") else 2)
        assert not set(sweep_orphans()) & set(living)  # its controller runs
        controller.kill()
        # Not reaped yet: a controller that is a zombie counts as gone.
        if forks in ("none", "hang"):
            assert wait_until_gone(mark) == []
        else:
            deadline = time.monotonic() + 60
            while len(remaining := processes_of_launch(mark)) > 1:
                assert time.monotonic() < deadline, remaining
                time.sleep(0.02)
            # The worker ended with the controller, its child did not. It ends through this search
            # or through that of another Torchyard that starts on the machine at the same moment,
            # so the returned process ids are not compared. A controller with several threads is not
            # gone at once: the worker ends with the thread that started it.
            while (remaining := processes_of_launch(mark)) and time.monotonic() < deadline:
                sweep_orphans()
                time.sleep(0.02)
            assert remaining == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ending", ["exit", "raise"])
def test_controller_that_exits_or_raises(ending: str, way: str) -> None:
    controller, mark = start_controller("session", ending, way)
    with controller:
        assert controller.wait(20) == (0 if ending == "exit" else 1)
    assert len(mark) == 32
    assert wait_until_gone(mark) == []


@pytest.mark.parametrize(
    "value",
    [
        "999999999:1:0",  # another pid namespace
        "nonsense",
        "1:2",
        "",
    ],
)
def test_sweep_ignores_marks_that_it_cannot_decode(value: str) -> None:
    variables = {**os.environ, "TORCHYARD_LAUNCH": "x", "TORCHYARD_YARD": value}
    with subprocess.Popen(["sleep", "60"], env=variables) as sleeper:
        try:
            assert sleeper.pid not in sweep_orphans()
            assert sleeper.poll() is None
        finally:
            sleeper.kill()


def test_reused_pid_is_not_the_controller() -> None:
    pid, _, namespace = tree.controller_mark().split(":")
    variables = {
        **os.environ,
        "TORCHYARD_LAUNCH": "x",
        "TORCHYARD_YARD": f"{pid}:1:{namespace}",
    }
    with subprocess.Popen(["sleep", "600"], env=variables) as sleeper:
        # It ends through this search, or through that of another Torchyard on the machine.
        deadline = time.monotonic() + 60
        while sleeper.poll() is None and time.monotonic() < deadline:
            sweep_orphans()
            time.sleep(0.02)
        sleeper.kill()
    assert sleeper.returncode == -signal.SIGKILL
    assert time.monotonic() < deadline


@pytest.mark.parametrize("by_thread", [False, True])
def test_exit_is_noticed_and_not_reaped(by_thread: bool) -> None:
    command = ["sh", "-c", "read line; exit 7"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        watch = ExitWatch(child.pid, by_thread=by_thread)
        assert watch.ending() is None
        assert watch.wait(0.01) is None
        assert child.stdin is not None
        child.stdin.close()
        assert watch.wait(60) == Ending(exit_code=7)
        watch.close()
        assert child.wait(60) == 7
        assert watch.ending() == Ending(exit_code=7)


def test_failure_kind_of_an_exit_status() -> None:
    killed = Ending(signal_number=signal.SIGKILL)
    assert kind_of_ending(killed, kernel_killed_for_memory=True) == "out-of-memory"
    assert kind_of_ending(killed, kernel_killed_for_memory=False) == "killed"
    aborted = Ending(signal_number=signal.SIGABRT)
    assert kind_of_ending(aborted, kernel_killed_for_memory=True) == "crashed"
    assert Ending(signal_number=signal.SIGILL).description == "was killed by SIGILL"
    assert "instructions" in Ending(signal_number=signal.SIGILL).hint
    assert Ending(signal_number=40).description == "was killed by signal 40"


def test_the_kernels_counters_can_be_read() -> None:
    counts = oom_kill_counts()
    assert counts
    assert min(counts) >= 0


def test_a_worker_that_prints_without_end(start_stub: StubStarter) -> None:
    worker = start_stub()
    size_bytes = 300_000_000
    begin = time.monotonic()
    worker.ask("say", limit_s=60, size_bytes=size_bytes)
    worker.close()
    assert time.monotonic() - begin < 60
    text = worker.log_path.read_bytes()
    assert HEAD_BYTES + TAIL_BYTES < len(text) < HEAD_BYTES + TAIL_BYTES + 100
    assert text.startswith(b"first line\nxxx")
    assert text.endswith(b"xxx\nlast line\n")
    omitted = size_bytes + len(b"first line\nlast line\n") - HEAD_BYTES - TAIL_BYTES
    assert b"\n... %d bytes omitted ...\n" % omitted in text
    assert worker.log_tail.splitlines()[-1] == "last line"
    assert len(worker.log_tail.splitlines()) == 20


def test_a_worker_that_closes_its_output(start_stub: StubStarter) -> None:
    worker = start_stub()
    worker.ask("close_output", limit_s=20)
    assert worker.ask("echo", limit_s=20, n=1) == {"n": 1}
    worker.close()
    assert worker.log_path.read_bytes() == b""
    assert worker.log_tail == ""


def log_of(chunks: list[bytes], path: Path) -> OutputLog:
    read_fd, write_fd = os.pipe()
    log = OutputLog(read_fd, path)
    for chunk in chunks:
        view = memoryview(chunk)
        while view:
            view = view[os.write(write_fd, view) :]
    os.close(write_fd)
    log.finish()
    return log


@pytest.mark.parametrize("size_bytes", [0, 1, HEAD_BYTES, HEAD_BYTES + 1, HEAD_BYTES + TAIL_BYTES])
def test_a_log_that_fits_is_kept_whole(tmp_path: Path, size_bytes: int) -> None:
    data = bytes(index % 251 for index in range(size_bytes))
    log_of([data], tmp_path / "deep" / "log")
    assert (tmp_path / "deep" / "log").read_bytes() == data


def test_one_excess_byte_is_omitted(tmp_path: Path) -> None:
    log_of([b"a" * HEAD_BYTES, b"b", b"c" * TAIL_BYTES], tmp_path / "log")
    text = (tmp_path / "log").read_bytes()
    assert text == b"a" * HEAD_BYTES + b"\n... 1 bytes omitted ...\n" + b"c" * TAIL_BYTES


def test_log_tail_has_no_control_characters(tmp_path: Path) -> None:
    log = log_of(
        [b"\x1b[31mred\x1b[0m\r\n", b" 10%\r 99%\rdone\n", b"\xffbell\x07\x1b]0;title\x07\n\n"],
        tmp_path / "log",
    )
    assert log.tail().splitlines() == ["red", "done", "\N{REPLACEMENT CHARACTER}bell?"]


def test_log_finishes_while_another_process_holds_the_pipe(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    log = OutputLog(read_fd, tmp_path / "log")
    os.write(write_fd, b"said\n")
    begin = time.monotonic()
    log.finish()
    log.finish()
    assert time.monotonic() - begin < 60
    assert log.tail() == "said"
    os.close(write_fd)

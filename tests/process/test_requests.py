"""Requests, answers and notes, and every failure of a request."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.process.stub_launch import WAYS, StubStarter
from torchyard.errors import WorkerFailed
from torchyard.process.ending import WorkerFailure
from torchyard.process.tree import processes_of_launch
from torchyard.process.worker_process import WorkerProcess


@pytest.fixture(params=WAYS)
def start_stub(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StubStarter]:
    with StubStarter(tmp_path, request.param) as start:
        yield start


def failure_of(worker: WorkerProcess, verb: str, limit_s: float = 20.0, **f: Any) -> WorkerFailure:
    with pytest.raises(WorkerFailure) as caught:
        worker.ask(verb, limit_s=limit_s, **f)
    return caught.value


def assert_nothing_left(worker: WorkerProcess) -> None:
    assert processes_of_launch(worker.launch_mark) == []
    assert not worker.is_alive
    assert worker.survivors == ()


def test_answers_come_back(start_stub: StubStarter) -> None:
    worker = start_stub()
    assert worker.ask("echo", limit_s=20, size=3, names=["a", "ü"]) == {
        "size": 3,
        "names": ["a", "ü"],
    }
    assert worker.ask("echo", limit_s=20) == {}
    worker.close()
    assert_nothing_left(worker)


def test_notes_arrive_in_order_before_the_answer(start_stub: StubStarter) -> None:
    notes: list[str] = []
    worker = start_stub()
    assert worker.ask("notes", limit_s=20, on_note=notes.append, count=200) == {"count": 200}
    assert notes == [f"step {index}" for index in range(200)]
    assert worker.ask("notes", limit_s=20, count=3) == {"count": 3}


def test_request_and_answer_larger_than_the_pipe_buffer(start_stub: StubStarter) -> None:
    worker = start_stub()
    text = "z" * 1_000_000
    assert worker.ask("echo", limit_s=20, text=text) == {"text": text}
    assert len(worker.ask("long_answer", limit_s=20, size_bytes=3_000_000)["text"]) == 3_000_000


def test_an_exception_in_the_worker_is_an_answer(start_stub: StubStarter) -> None:
    worker = start_stub()
    failure = failure_of(worker, "no_such_verb")
    assert failure.kind == "raised"
    assert "KeyError" in failure.message
    assert failure.message == failure.what
    assert failure.traceback == "Traceback: the stub"
    assert failure.log == str(worker.log_path)
    assert isinstance(failure, WorkerFailed)
    assert worker.ask("echo", limit_s=20, still="here") == {"still": "here"}


@pytest.mark.parametrize(
    ("reported", "kind"),
    [
        ("no-torch", "no-torch"),
        ("out-of-memory", "out-of-memory"),
        ("cannot-build", "cannot-build"),
        ("odd", "raised"),
    ],
)
def test_kinds_that_the_worker_reports(start_stub: StubStarter, reported: str, kind: str) -> None:
    failure = failure_of(start_stub(), "fail", kind=reported)
    assert failure.kind == kind
    assert ("install torch" in failure.hint) == (kind == "no-torch")


def test_a_hint_of_the_worker_is_kept(start_stub: StubStarter) -> None:
    assert failure_of(start_stub(), "fail", kind="raised", hint="fix it").hint == "fix it"


@pytest.mark.parametrize("code", [0, 3])
def test_exit_during_a_request(start_stub: StubStarter, code: int) -> None:
    worker = start_stub()
    failure = failure_of(worker, "leave", code=code)
    assert failure.kind == "crashed"
    assert f"code {code} during the request 'leave'" in failure.message
    assert failure.log_tail == "about to leave"
    assert worker.log_path.read_text() == "about to leave\n"
    assert_nothing_left(worker)
    again = failure_of(worker, "echo")
    assert (again.kind, again.message) == (failure.kind, failure.message)


def test_a_segmentation_fault_shows_the_python_stack(start_stub: StubStarter) -> None:
    failure = failure_of(start_stub(), "die", number=int(signal.SIGSEGV))
    assert failure.kind == "crashed"
    assert "SIGSEGV" in failure.message
    assert "in die" in failure.log_tail
    assert failure.hint


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_signal_from_outside_is_reported_as_killed(
    start_stub: StubStarter, number: signal.Signals
) -> None:
    failure = failure_of(start_stub(), "die", number=int(number))
    assert failure.kind == "killed"
    assert number.name in failure.message


def test_worker_killed_between_requests(start_stub: StubStarter) -> None:
    worker = start_stub()
    worker.ask("echo", limit_s=20)
    os.kill(worker.pid, signal.SIGKILL)
    assert failure_of(worker, "echo").kind == "killed"


def test_timeout_kills_a_hanging_worker(start_stub: StubStarter) -> None:
    worker = start_stub()
    worker.ask("echo", limit_s=20)
    begin = time.monotonic()
    failure = failure_of(worker, "hang", limit_s=1.5, ignore=True)
    assert 1.5 <= time.monotonic() - begin < 60
    assert failure.kind == "timeout"
    assert "timed out after 1.5 s during the request 'hang'" in failure.message
    # A forked worker inherits the handler that logs its stacks.
    assert failure.log_tail.splitlines()[0] == "hanging now"
    assert_nothing_left(worker)


def test_timeout_of_a_worker_that_does_not_read(start_stub: StubStarter) -> None:
    worker = start_stub()
    worker.ask("echo", limit_s=20)
    os.kill(worker.pid, signal.SIGSTOP)
    assert failure_of(worker, "echo", limit_s=0.4, text="z" * 1_000_000).kind == "timeout"
    assert_nothing_left(worker)


@pytest.mark.parametrize("in_child", [False, True])
def test_the_memory_limit(start_stub: StubStarter, in_child: bool) -> None:
    worker = start_stub(memory_limit_bytes=150 * 2**20)
    worker.ask("echo", limit_s=20)
    failure = failure_of(worker, "hog", size_bytes=400 * 2**20, in_child=in_child)
    assert failure.kind == "out-of-memory"
    assert "memory limit of 150 MiB" in failure.message
    assert "batch size" in failure.hint
    assert_nothing_left(worker)


@pytest.mark.parametrize(
    "text", ["%PDF-1.4", '{"ok": 3}', "[1, 2]", '{"answer": {}}', "\0\0", "[" * 100_000]
)
def test_invalid_message_is_a_protocol_failure(start_stub: StubStarter, text: str) -> None:
    worker = start_stub()
    failure = failure_of(worker, "garbage", text=text)
    assert failure.kind == "protocol"
    assert len(failure.message) < 400
    assert_nothing_left(worker)


def test_second_answer_is_a_protocol_failure(start_stub: StubStarter) -> None:
    worker = start_stub()
    assert worker.ask("answer_twice", limit_s=20) == {"which": "first"}
    time.sleep(0.1)
    assert failure_of(worker, "echo").kind == "protocol"


def test_answer_sent_just_before_exit_is_received(start_stub: StubStarter) -> None:
    worker = start_stub()
    assert worker.ask("answer_late_and_leave", limit_s=20) == {"last": "words"}
    assert failure_of(worker, "echo").kind == "crashed"


def test_a_worker_that_closes_its_pipe(start_stub: StubStarter) -> None:
    worker = start_stub()
    failure = failure_of(worker, "close_pipe")
    assert failure.kind == "protocol"
    assert "closed its pipe" in failure.message
    assert_nothing_left(worker)


def test_a_forked_child_cannot_answer(start_stub: StubStarter) -> None:
    worker = start_stub()
    assert worker.ask("fork_back", limit_s=20) == {"child_exit": 86}
    assert worker.ask("echo", limit_s=20, n=1) == {"n": 1}


def test_grandchild_that_holds_the_pipe_does_not_hide_the_exit(start_stub: StubStarter) -> None:
    worker = start_stub()
    begin = time.monotonic()
    failure = failure_of(worker, "fork_sleeper", then_leave=True)
    assert failure.kind == "crashed"
    assert time.monotonic() - begin < 60
    assert_nothing_left(worker)


def test_worker_may_change_its_working_directory(start_stub: StubStarter, tmp_path: Path) -> None:
    worker = start_stub()
    assert worker.ask("change_folder", limit_s=20, path="/")["folder"] == "/"
    assert worker.ask("echo", limit_s=20, n=1) == {"n": 1}
    worker.close()
    assert worker.log_path.exists()


def test_worker_can_be_killed_after_ctrl_c(start_stub: StubStarter) -> None:
    worker = start_stub()
    worker.ask("echo", limit_s=20)
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        worker.ask("hang", limit_s=20)
    timer.join()
    assert worker.is_alive  # its own session: the interrupt was ours alone
    failure = failure_of(worker, "echo")
    assert failure.kind == "interrupted"
    assert "'hang'" in failure.message
    begin = time.monotonic()
    worker.close()
    assert time.monotonic() - begin < 60
    assert_nothing_left(worker)


def test_an_exception_in_on_note_counts_as_an_interrupt(start_stub: StubStarter) -> None:
    worker = start_stub()

    def refuse(text: str) -> None:
        raise ZeroDivisionError(text)

    with pytest.raises(ZeroDivisionError):
        worker.ask("notes", limit_s=20, on_note=refuse, count=2)
    assert failure_of(worker, "echo").kind == "interrupted"


def test_kill_from_another_thread_ends_the_request(start_stub: StubStarter) -> None:
    worker = start_stub()
    worker.ask("echo", limit_s=20)
    timer = threading.Timer(0.2, worker.kill)
    timer.start()
    failure = failure_of(worker, "hang")
    timer.join()
    assert failure.kind == "interrupted"
    assert_nothing_left(worker)


def test_waiting_uses_no_cpu_in_controller_and_worker(start_stub: StubStarter) -> None:
    worker = start_stub()
    worker.ask("echo", limit_s=20)
    before_worker, before_controller = psutil.Process(worker.pid).cpu_times(), time.process_time()
    time.sleep(0.5)  # the worker waits for a request
    after_worker = psutil.Process(worker.pid).cpu_times()
    assert (after_worker.user + after_worker.system) - (
        before_worker.user + before_worker.system
    ) <= 0.05
    assert time.process_time() - before_controller < 0.3
    before_controller = time.process_time()
    poll_only = threading.Timer(0.5, os.kill, (worker.pid, signal.SIGTERM))
    poll_only.start()
    failure_of(worker, "hang")  # the controller waits for an answer
    poll_only.join()
    assert time.process_time() - before_controller < 0.35  # ending the tree included


def test_memory_limit_check_is_cheap(start_stub: StubStarter) -> None:
    worker = start_stub(memory_limit_bytes=2**40)
    worker.ask("echo", limit_s=20)
    stop = threading.Timer(1.5, os.kill, (worker.pid, signal.SIGTERM))
    stop.start()
    before_s, began_s = time.process_time(), time.monotonic()
    failure_of(worker, "hang")
    stop.join()
    assert time.process_time() - before_s < 0.35 * (time.monotonic() - began_s)


def is_stopped_soon(pid: int) -> bool:
    """A signal takes a moment to arrive on a busy machine."""
    deadline = time.monotonic() + 20
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
        time.sleep(0.01)
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


def test_stopped_between_requests_runs_only_during_requests(
    start_stub: StubStarter,
) -> None:
    worker = start_stub(stopped_between=True)
    for _ in range(3):
        assert worker.ask("echo", limit_s=20, size=3) == {"size": 3}
        assert is_stopped_soon(worker.pid)
    assert worker.is_alive
    worker.close()
    assert_nothing_left(worker)


def test_stopped_worker_can_be_killed(start_stub: StubStarter) -> None:
    worker = start_stub(stopped_between=True)
    worker.ask("echo", limit_s=20)
    worker.kill()
    assert_nothing_left(worker)

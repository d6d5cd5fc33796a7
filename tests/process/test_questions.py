"""Questions, answers and notes, and every way in which a worker fails to answer."""

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
from stub_launch import StubStarter

from torchyard.errors import WorkerFailed
from torchyard.process.tree import processes_of_launch
from torchyard.process.worker_process import WorkerProcess, WorkerTrouble


@pytest.fixture
def start_stub(tmp_path: Path) -> Iterator[StubStarter]:
    with StubStarter(tmp_path) as start:
        yield start


def trouble_of(worker: WorkerProcess, verb: str, limit_s: float = 20.0, **f: Any) -> WorkerTrouble:
    with pytest.raises(WorkerTrouble) as caught:
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
    heard: list[str] = []
    worker = start_stub()
    assert worker.ask("notes", limit_s=20, on_note=heard.append, count=200) == {"count": 200}
    assert heard == [f"step {index}" for index in range(200)]
    assert worker.ask("notes", limit_s=20, count=3) == {"count": 3}


def test_a_question_and_an_answer_larger_than_the_pipe(start_stub: StubStarter) -> None:
    worker = start_stub()
    text = "z" * 1_000_000
    assert worker.ask("echo", limit_s=20, text=text) == {"text": text}
    assert len(worker.ask("long_answer", limit_s=20, size_bytes=3_000_000)["text"]) == 3_000_000


def test_an_exception_in_the_worker_is_an_answer(start_stub: StubStarter) -> None:
    worker = start_stub()
    trouble = trouble_of(worker, "no_such_verb")
    assert trouble.kind == "raised"
    assert "KeyError" in trouble.message
    assert trouble.message == trouble.what
    assert trouble.traceback == "Traceback: the stub"
    assert trouble.log == str(worker.log_path)
    assert isinstance(trouble, WorkerFailed)
    assert worker.ask("echo", limit_s=20, still="here") == {"still": "here"}


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("no-torch", "no-torch"),
        ("out-of-memory", "out-of-memory"),
        ("cannot-build", "cannot-build"),
        ("odd", "raised"),
    ],
)
def test_kinds_that_the_worker_reports(start_stub: StubStarter, said: str, kind: str) -> None:
    trouble = trouble_of(start_stub(), "fail", kind=said)
    assert trouble.kind == kind
    assert ("install torch" in trouble.hint) == (kind == "no-torch")


def test_a_hint_of_the_worker_is_kept(start_stub: StubStarter) -> None:
    assert trouble_of(start_stub(), "fail", kind="raised", hint="mend it").hint == "mend it"


@pytest.mark.parametrize("code", [0, 3])
def test_leaving_in_the_middle_of_work(start_stub: StubStarter, code: int) -> None:
    worker = start_stub()
    trouble = trouble_of(worker, "leave", code=code)
    assert trouble.kind == "crashed"
    assert f"exit code {code} while it worked on 'leave'" in trouble.message
    assert trouble.log_tail == "about to leave"
    assert worker.log_path.read_text() == "about to leave\n"
    assert_nothing_left(worker)
    again = trouble_of(worker, "echo")
    assert (again.kind, again.message) == (trouble.kind, trouble.message)


def test_a_segmentation_fault_shows_the_python_stack(start_stub: StubStarter) -> None:
    trouble = trouble_of(start_stub(), "die", number=int(signal.SIGSEGV))
    assert trouble.kind == "crashed"
    assert "SIGSEGV" in trouble.message
    assert "in die" in trouble.log_tail
    assert trouble.hint


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_by_somebody_else(start_stub: StubStarter, number: signal.Signals) -> None:
    trouble = trouble_of(start_stub(), "die", number=int(number))
    assert trouble.kind == "killed"
    assert number.name in trouble.message


def test_a_worker_that_was_killed_between_two_questions(start_stub: StubStarter) -> None:
    worker = start_stub()
    worker.ask("echo", limit_s=20)
    os.kill(worker.pid, signal.SIGKILL)
    assert trouble_of(worker, "echo").kind == "killed"


def test_the_time_limit_ends_a_hanging_worker(start_stub: StubStarter) -> None:
    worker = start_stub()
    worker.ask("echo", limit_s=20)
    begin = time.monotonic()
    trouble = trouble_of(worker, "hang", limit_s=0.4, ignore=True)
    assert 0.4 <= time.monotonic() - begin < 60
    assert trouble.kind == "timeout"
    assert "'hang' within 0.4 s" in trouble.message
    assert trouble.log_tail == "hanging now"
    assert_nothing_left(worker)


def test_the_time_limit_holds_for_a_worker_that_does_not_read(start_stub: StubStarter) -> None:
    worker = start_stub()
    worker.ask("echo", limit_s=20)
    os.kill(worker.pid, signal.SIGSTOP)
    assert trouble_of(worker, "echo", limit_s=0.4, text="z" * 1_000_000).kind == "timeout"
    assert_nothing_left(worker)


@pytest.mark.parametrize("in_child", [False, True])
def test_the_memory_limit(start_stub: StubStarter, in_child: bool) -> None:
    worker = start_stub(memory_limit_bytes=150 * 2**20)
    worker.ask("echo", limit_s=20)
    trouble = trouble_of(worker, "hog", size_bytes=400 * 2**20, in_child=in_child)
    assert trouble.kind == "out-of-memory"
    assert "of the 150 MiB" in trouble.message
    assert "batch size" in trouble.hint
    assert_nothing_left(worker)


@pytest.mark.parametrize(
    "text", ["%PDF-1.4", '{"ok": 3}', "[1, 2]", '{"answer": {}}', "\0\0", "[" * 100_000]
)
def test_garbage_on_the_pipe(start_stub: StubStarter, text: str) -> None:
    worker = start_stub()
    trouble = trouble_of(worker, "garbage", text=text)
    assert trouble.kind == "protocol"
    assert len(trouble.message) < 400
    assert_nothing_left(worker)


def test_two_answers_to_one_question(start_stub: StubStarter) -> None:
    worker = start_stub()
    assert worker.ask("answer_twice", limit_s=20) == {"which": "first"}
    time.sleep(0.1)
    assert trouble_of(worker, "echo").kind == "protocol"


def test_the_last_words_of_a_worker_count(start_stub: StubStarter) -> None:
    worker = start_stub()
    assert worker.ask("answer_late_and_leave", limit_s=20) == {"last": "words"}
    assert trouble_of(worker, "echo").kind == "crashed"


def test_a_worker_that_closes_its_pipe(start_stub: StubStarter) -> None:
    worker = start_stub()
    trouble = trouble_of(worker, "close_pipe")
    assert trouble.kind == "protocol"
    assert "closed its pipe" in trouble.message
    assert_nothing_left(worker)


def test_a_forked_child_cannot_answer(start_stub: StubStarter) -> None:
    worker = start_stub()
    assert worker.ask("fork_back", limit_s=20) == {"child_exit": 86}
    assert worker.ask("echo", limit_s=20, n=1) == {"n": 1}


def test_a_grandchild_that_holds_the_pipe_does_not_hide_the_end(start_stub: StubStarter) -> None:
    worker = start_stub()
    begin = time.monotonic()
    trouble = trouble_of(worker, "fork_sleeper", then_leave=True)
    assert trouble.kind == "crashed"
    assert time.monotonic() - begin < 60
    assert_nothing_left(worker)


def test_changing_the_folder_breaks_nothing(start_stub: StubStarter, tmp_path: Path) -> None:
    worker = start_stub()
    assert worker.ask("change_folder", limit_s=20, path="/")["folder"] == "/"
    assert worker.ask("echo", limit_s=20, n=1) == {"n": 1}
    worker.close()
    assert worker.log_path.exists()


def test_ctrl_c_leaves_a_worker_that_can_be_killed(start_stub: StubStarter) -> None:
    worker = start_stub()
    worker.ask("echo", limit_s=20)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        worker.ask("hang", limit_s=20)
    timer.join()
    assert worker.is_alive  # its own session: the interrupt was ours alone
    trouble = trouble_of(worker, "echo")
    assert trouble.kind == "interrupted"
    assert "'hang'" in trouble.message
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
    assert trouble_of(worker, "echo").kind == "interrupted"


def test_a_kill_from_another_thread_ends_the_question(start_stub: StubStarter) -> None:
    worker = start_stub()
    worker.ask("echo", limit_s=20)
    timer = threading.Timer(0.2, worker.kill)
    timer.start()
    trouble = trouble_of(worker, "hang")
    timer.join()
    assert trouble.kind == "interrupted"
    assert_nothing_left(worker)


def test_waiting_costs_no_cpu_on_either_side(start_stub: StubStarter) -> None:
    worker = start_stub()
    worker.ask("echo", limit_s=20)
    before_worker, before_yard = psutil.Process(worker.pid).cpu_times(), time.process_time()
    time.sleep(0.5)  # the worker waits for a question
    after_worker = psutil.Process(worker.pid).cpu_times()
    assert (after_worker.user + after_worker.system) - (
        before_worker.user + before_worker.system
    ) <= 0.05
    assert time.process_time() - before_yard < 0.1
    before_yard = time.process_time()
    poll_only = threading.Timer(0.5, os.kill, (worker.pid, signal.SIGTERM))
    poll_only.start()
    trouble_of(worker, "hang")  # the yard waits for an answer
    poll_only.join()
    assert time.process_time() - before_yard < 0.15  # ending the tree included


def test_watching_the_memory_costs_next_to_nothing(start_stub: StubStarter) -> None:
    worker = start_stub(memory_limit_bytes=2**40)
    worker.ask("echo", limit_s=20)
    stop = threading.Timer(1.5, os.kill, (worker.pid, signal.SIGTERM))
    stop.start()
    before_s = time.process_time()
    trouble_of(worker, "hang")
    stop.join()
    assert time.process_time() - before_s < 0.25


def is_stopped_soon(pid: int) -> bool:
    """A signal takes a moment to arrive on a busy machine."""
    deadline = time.monotonic() + 20
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
        time.sleep(0.01)
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


def test_a_worker_that_is_stopped_between_questions_computes_only_when_asked(
    start_stub: StubStarter,
) -> None:
    worker = start_stub(stopped_between=True)
    for _ in range(3):
        assert worker.ask("echo", limit_s=20, size=3) == {"size": 3}
        assert is_stopped_soon(worker.pid)
    assert worker.is_alive
    worker.close()
    assert_nothing_left(worker)


def test_a_stopped_worker_is_ended_like_any_other(start_stub: StubStarter) -> None:
    worker = start_stub(stopped_between=True)
    worker.ask("echo", limit_s=20)
    worker.kill()
    assert_nothing_left(worker)

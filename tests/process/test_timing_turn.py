"""Processes that prepare in parallel and are timed one at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import psutil

from tests.process.stub_launch import StubStarter
from torchyard.process.timing_turn import (
    FIRST_TURN_VARIABLE,
    TURN_VARIABLE,
    TimingTurn,
    first_turn,
    paused_s,
)
from torchyard.process.tree import processes_of_launch
from torchyard.process.worker_process import WorkerProcess, all_paused

WORK = """
import time
now = time.monotonic()
spans, worked_s = [[now, now]], 0.0
while worked_s < 0.2:
    now = time.monotonic()
    if now - spans[-1][1] > 0.01:  # it was paused
        spans.append([now, now])
    worked_s += now - spans[-1][1]
    spans[-1][1] = now
result = spans
"""
LAUNCHES = """
    import json, sys, time
    from pathlib import Path
    from tests.process.stub_launch import StubStarter
    from torchyard.process.timing_turn import TimingTurn

    turn, said = TimingTurn(Path(sys.argv[1])), Path(sys.argv[2])
    said.with_suffix(".ready").touch()
    while not (said.parent / "begin").exists():  # they begin together, however slow their start
        time.sleep(0.005)
    spans = []
    (said.parent / ("logs-" + said.name)).mkdir()
    with StubStarter(said.parent / ("logs-" + said.name)) as start:
        for _ in range(int(sys.argv[3])):
            with turn:
                answer = start().ask("run", limit_s=60, code=sys.argv[4])
                spans += [["prepare", *span] for span in answer["result"]]
                turn.alone()
                began = time.monotonic()
                time.sleep(0.05)
                spans.append(["time", began, time.monotonic()])
                turn.timed()
                answer = start().ask("run", limit_s=60, code=sys.argv[4])
                spans += [["check", *span] for span in answer["result"]]
    said.write_text(json.dumps(spans))
"""
HOLDER = """
    import sys, time
    from pathlib import Path
    from torchyard.process.timing_turn import TimingTurn
    with TimingTurn(Path(sys.argv[1])) as turn:
        turn.alone()
        print("alone", flush=True)
        time.sleep(600)
"""
SPIN = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
until = time.monotonic() + 300
while time.monotonic() < until and not os.path.exists(STOP):
    pass
child.kill()
child.wait()
"""


def started(folder: Path, name: str, launches: int = 3) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", dedent(LAUNCHES), str(folder / "turn"), str(folder / name)]
    return subprocess.Popen([*argv, str(launches), WORK])


@contextmanager
def timed_elsewhere(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that is being timed until it is killed."""
    argv = [sys.executable, "-c", dedent(HOLDER), str(folder)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"alone\n"
            yield holder
        finally:
            holder.kill()


def states(worker: WorkerProcess) -> set[str]:
    return {psutil.Process(pid).status() for pid in processes_of_launch(worker.launch_mark)}


def cpu_s(worker: WorkerProcess) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in processes_of_launch(worker.launch_mark)]
    return sum(one.user + one.system for one in times)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def overlap(one: list[float], other: list[float]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def test_nothing_else_happens_while_one_is_timed(tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    processes = [started(tmp_path, name) for name in names]
    deadline = time.monotonic() + 60
    while not all((tmp_path / f"{name}.ready").exists() for name in names):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    (tmp_path / "begin").touch()
    assert [one.wait(60) for one in processes] == [0, 0, 0]
    spans = {name: json.loads((tmp_path / name).read_text()) for name in names}
    together: set[tuple[str, str]] = set()
    for name, own in spans.items():
        for other in names:
            if other == name:
                continue
            for kind, *span in own:
                for other_kind, *other_span in spans[other]:
                    if overlap(span, other_span):
                        assert "time" not in {kind, other_kind}
                        together.add((kind, other_kind))
    assert together


def test_a_process_that_is_killed_gives_its_turn_back(tmp_path: Path) -> None:
    with timed_elsewhere(tmp_path / "turn") as holder:
        (tmp_path / "begin").touch()
        other = started(tmp_path, "other", launches=1)
        time.sleep(0.5)
        assert not (tmp_path / "other").exists()
        holder.send_signal(signal.SIGKILL)
        assert other.wait(60) == 0
    assert (tmp_path / "other").exists()


def test_others_are_timed_while_results_are_checked(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    with StubStarter(tmp_path / "logs") as start, ThreadPoolExecutor() as threads:
        turn, worker = TimingTurn(tmp_path / "turn"), start()
        with turn:
            turn.alone()
            turn.timed()
            stop = tmp_path / "stop"
            checking = threads.submit(
                worker.ask, "run", limit_s=60, code=f"STOP = {str(stop)!r}\n{SPIN}"
            )
            wait_until(lambda: cpu_s(worker) > 0.1)
            with timed_elsewhere(tmp_path / "turn"):
                # THEN the check stands still
                wait_until(lambda: states(worker) == {psutil.STATUS_STOPPED})
                assert not checking.done()
            wait_until(lambda: psutil.STATUS_STOPPED not in states(worker))
            stop.touch()
            checking.result(60)
        assert turn.waited_s > 0.0


def test_pauses_can_be_subtracted_from_the_times_of_workers(tmp_path: Path) -> None:
    work = """
import time
began = time.perf_counter()
while time.process_time() < BUSY_S:
    pass
result = [began, time.perf_counter()]
"""
    with StubStarter(tmp_path) as start, ThreadPoolExecutor() as threads:
        worker = start()
        busy_s = cpu_s(worker) + 3.0
        answer = threads.submit(
            worker.ask, "run", limit_s=60, code=work.replace("BUSY_S", str(busy_s))
        )
        wait_until(lambda: cpu_s(worker) > busy_s - 2.9)
        assert not answer.done()
        with all_paused():
            time.sleep(0.7)
        began_s, ended_s = answer.result(60)["result"]
    pause_s = paused_s(began_s, ended_s)
    assert 0.7 <= pause_s <= ended_s - began_s
    assert paused_s(ended_s, ended_s + 10.0) == 0.0


def test_waiting_is_counted(tmp_path: Path) -> None:
    (tmp_path / "begin").touch()
    other = started(tmp_path, "other", launches=2)
    deadline = time.monotonic() + 60
    while not (tmp_path / "turn" / "wanted.lock").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    turn = TimingTurn(tmp_path / "turn")
    with turn:
        turn.alone()
        waited_s = turn.waited_s
    assert other.wait(60) == 0
    with turn:
        turn.alone()
    assert turn.waited_s >= waited_s


def test_a_first_turn_is_handed_to_a_process(tmp_path: Path) -> None:
    folder = tmp_path / "turn"
    with TimingTurn(folder) as timed:
        timed.alone()
        assert first_turn(folder) is None
    number = first_turn(folder)
    assert number is not None
    code = """
        import os, sys, time
        from torchyard.process.timing_turn import TimingTurn
        turn = TimingTurn.of_environment()
        sys.stdin.readline()
        with turn:
            assert turn.waited_s == 0
            assert not os.get_inheritable(int(os.environ["TORCHYARD_FIRST_TURN"]))
        with turn:
            turn.alone()
    """
    environment = {**os.environ, TURN_VARIABLE: str(folder), FIRST_TURN_VARIABLE: str(number)}
    with subprocess.Popen(
        [sys.executable, "-c", dedent(code)],
        stdin=subprocess.PIPE,
        env=environment,
        pass_fds=[number],
    ) as process:
        os.close(number)
        (tmp_path / "begin").touch()
        other = started(tmp_path, "other", launches=1)
        time.sleep(1.0)
        assert not (tmp_path / "other").exists()  # it waits for the one that holds its first turn
        assert process.stdin is not None
        process.stdin.write(b"go on\n")
        process.stdin.close()
        assert process.wait(60) == 0
    assert other.wait(60) == 0


def test_a_single_process_never_waits(tmp_path: Path) -> None:
    turn = TimingTurn.of_environment({})
    with turn:
        turn.alone()
    assert turn.waited_s == 0.0
    shared = TimingTurn.of_environment({TURN_VARIABLE: str(tmp_path / "turn")})
    with shared:
        shared.alone()
    assert (tmp_path / "turn" / "machine.lock").exists()


def test_workers_are_paused_while_another_cell_is_timed(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    code = f"STOP = {str(stop)!r}\n{SPIN}"
    with (
        StubStarter(tmp_path) as start,
        ThreadPoolExecutor(1) as threads,
        TimingTurn(tmp_path / "turn") as turn,
    ):
        worker = start()
        answer = threads.submit(worker.ask, "run", limit_s=30, code=code)
        wait_until(lambda: len(processes_of_launch(worker.launch_mark)) == 2)
        with timed_elsewhere(tmp_path / "turn"):
            assert states(worker) == {psutil.STATUS_STOPPED}
            before_s = cpu_s(worker)
            time.sleep(0.3)
            assert cpu_s(worker) == before_s
        wait_until(lambda: psutil.STATUS_STOPPED not in states(worker))
        wait_until(lambda: cpu_s(worker) > before_s + 0.1)
        wait_until(lambda: turn.waited_s > 0.3)
        stop.touch()
        answer.result(60)


def test_a_worker_is_not_started_while_another_cell_is_timed(tmp_path: Path) -> None:
    with (
        StubStarter(tmp_path) as start,
        ThreadPoolExecutor(1) as threads,
        TimingTurn(tmp_path / "turn"),
    ):
        with timed_elsewhere(tmp_path / "turn"):
            started_later = threads.submit(start)
            time.sleep(0.3)
            assert not started_later.done()
        worker = started_later.result(60)
        assert worker.ask("echo", limit_s=60) == {}


def test_a_worker_that_is_stopped_between_requests_stays_stopped(tmp_path: Path) -> None:
    with (
        StubStarter(tmp_path) as start,
        ThreadPoolExecutor(1) as threads,
        TimingTurn(tmp_path / "turn") as turn,
    ):
        idle, asked = start(stopped_between=True), start(stopped_between=True)
        for worker in (idle, asked):
            worker.ask("echo", limit_s=60)
        with timed_elsewhere(tmp_path / "turn"):
            answer = threads.submit(asked.ask, "echo", limit_s=60)
            time.sleep(0.3)
            assert not answer.done()
            assert states(asked) == {psutil.STATUS_STOPPED}
        assert answer.result(60) == {}
        wait_until(lambda: turn.waited_s > 0)
        assert states(idle) == {psutil.STATUS_STOPPED}


def test_preparing_ends_at_once_while_another_cell_is_timed(tmp_path: Path) -> None:
    with timed_elsewhere(tmp_path / "turn"):
        number = os.open(tmp_path / "turn" / "machine.lock", os.O_RDWR)
        turn = TimingTurn(tmp_path / "turn", first=number)  # as if it had started before
        began_s = time.monotonic()
        with turn:
            time.sleep(0.1)
        assert time.monotonic() - began_s < 30

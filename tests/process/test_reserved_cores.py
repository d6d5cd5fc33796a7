"""Cells that prepare on their own cores while another one is timed on reserved ones."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from tests.process.stub_launch import WAYS, StubStarter
from tests.process.test_timing_turn import cpu_s, states, wait_until
from torchyard.process.timing_turn import (
    RESERVED_VARIABLE,
    TURN_VARIABLE,
    ReservedCoresTurn,
    TimingTurn,
    paused_s,
)
from torchyard.process.tree import confined, processes_of_launch
from torchyard.process.worker_process import WorkerProcess
from torchyard.worker.device_turn import GATE, user_file

CPUS = sorted(os.sched_getaffinity(0))
pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
PREPARING, RESERVED = CPUS[0], CPUS[-1]

HOLDER = """
    import sys, time
    from pathlib import Path
    from torchyard.process.timing_turn import ReservedCoresTurn
    with ReservedCoresTurn(Path(sys.argv[1]), [int(sys.argv[2])]) as turn:
        turn.alone()
        print("alone", turn.device_users(), flush=True)
        time.sleep(600)
"""
USE = """
from torchyard.worker.device_turn import TURN
TURN.use_device(lambda: None)
"""
SPIN = """
import os, time
until = time.monotonic() + 300
while time.monotonic() < until and not os.path.exists(STOP):
    pass
"""
THREADS = """
import os, subprocess, sys, threading, time
threads = [threading.Thread(target=time.sleep, args=(600,), daemon=True) for _ in range(3)]
[thread.start() for thread in threads]
CHILD = "import threading, time\\nthreading.Thread(target=time.sleep, args=(600,)).start()\\ntime.sleep(600)"
result = subprocess.Popen([sys.executable, "-c", CHILD]).pid
"""


@contextmanager
def timed_elsewhere(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that is being timed until it is killed; it saw no device user."""
    argv = [sys.executable, "-c", dedent(HOLDER), str(folder), str(RESERVED)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"alone 0\n"
            yield holder
        finally:
            holder.kill()


def masks(worker: WorkerProcess) -> list[frozenset[int]]:
    """The CPUs of each thread of everything that belongs to the worker."""
    return [
        frozenset(os.sched_getaffinity(int(task.name)))
        for pid in processes_of_launch(worker.launch_mark)
        for task in Path(f"/proc/{pid}/task").iterdir()
    ]


def spin(stop: Path, *before: str) -> str:
    return "\n".join([*before, f"STOP = {str(stop)!r}", SPIN])


def test_all_threads_and_children_are_timed_on_the_reserved_cores(tmp_path: Path) -> None:
    with confined([PREPARING]), StubStarter(tmp_path) as start:
        worker = start()
        child = worker.ask("run", limit_s=60, code=THREADS)["result"]
        wait_until(lambda: len(psutil.Process(child).threads()) == 2)
        with ReservedCoresTurn(tmp_path / "turn", [RESERVED]) as turn:
            assert turn.preparing == (PREPARING,)
            assert set(masks(worker)) == {frozenset([PREPARING])}
            turn.alone()
            assert len(masks(worker)) >= 6
            assert set(masks(worker)) == {frozenset([RESERVED])}
            later = worker.ask("run", limit_s=60, code=THREADS)["result"]
            assert os.sched_getaffinity(later) == {RESERVED}
            assert os.sched_getaffinity(0) == {PREPARING}, "the controller does not move"
            turn.timed()
            assert set(masks(worker)) == {frozenset([PREPARING])}
    assert sorted(os.sched_getaffinity(0)) == CPUS


@pytest.mark.parametrize("way", WAYS)
def test_workers_are_confined_also_if_others_were_started_before(tmp_path: Path, way: str) -> None:
    """All processes are started by one thread, which is older than the reservation."""
    for name in ("before", "confined", "after"):
        (tmp_path / name).mkdir()
    with StubStarter(tmp_path / "before") as start:
        assert set(masks(start())) == {frozenset(CPUS)}
        with confined([PREPARING]), StubStarter(tmp_path / "confined", way) as start_confined:
            worker = start_confined()
            worker.ask("echo", limit_s=60)  # a forked worker has its mark once it answers
            assert set(masks(worker)) == {frozenset([PREPARING])}
            assert start_confined.reasons == ([""] if way == "fork" else [])
    with StubStarter(tmp_path / "after") as start:
        assert set(masks(start())) == {frozenset(CPUS)}


def test_the_affinity_of_this_thread_is_restored_after_an_exception() -> None:
    def fail() -> None:
        with confined([RESERVED]):
            assert os.sched_getaffinity(0) == {RESERVED}
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert sorted(os.sched_getaffinity(0)) == CPUS


def test_preparation_on_the_cpu_goes_on_while_another_cell_is_timed(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    with (
        confined([PREPARING]),
        StubStarter(tmp_path) as start,
        ThreadPoolExecutor(1) as threads,
        ReservedCoresTurn(tmp_path / "turn", [RESERVED]) as turn,
    ):
        worker = start()
        answer = threads.submit(worker.ask, "run", limit_s=60, code=spin(stop))
        with timed_elsewhere(tmp_path / "turn"):
            before_s = cpu_s(worker)
            wait_until(lambda: cpu_s(worker) > before_s + 1.0)  # longer than the grace time
            assert psutil.STATUS_STOPPED not in states(worker)
            assert start().ask("echo", limit_s=60) == {}, "workers can be started, too"
            stop.touch()
            answer.result(60)
        assert turn.waited_s == 0.0


def test_a_worker_that_uses_the_device_is_paused(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    with (
        StubStarter(tmp_path) as start,
        ThreadPoolExecutor(1) as threads,
        ReservedCoresTurn(tmp_path / "turn", [RESERVED]) as turn,
    ):
        worker, other = start(), start()
        began_s = time.monotonic()
        answer = threads.submit(worker.ask, "run", limit_s=60, code=spin(stop, USE))
        own = Path(user_file(str(tmp_path / "turn"), worker.pid))
        wait_until(own.exists)
        with timed_elsewhere(tmp_path / "turn"):
            assert states(worker) == {psutil.STATUS_STOPPED}
            assert psutil.STATUS_STOPPED not in states(other)
            before_s = cpu_s(worker)
            time.sleep(0.3)
            assert cpu_s(worker) == before_s
        wait_until(lambda: cpu_s(worker) > before_s + 0.1)
        stop.touch()
        answer.result(60)
        assert paused_s(began_s, time.monotonic()) > 0.3
        assert turn.waited_s > 0.3


def test_a_short_use_of_the_device_is_not_paused(tmp_path: Path) -> None:
    code = f"{USE}\nimport time\ntime.sleep(0.1)"
    with (
        StubStarter(tmp_path) as start,
        ThreadPoolExecutor(1) as threads,
        ReservedCoresTurn(tmp_path / "turn", [RESERVED]),
    ):
        worker = start()
        answer = threads.submit(worker.ask, "run", limit_s=60, code=code)
        with timed_elsewhere(tmp_path / "turn"):
            answer.result(60)  # either it ended before, or the other one waited for it
            assert psutil.STATUS_STOPPED not in states(worker)


def test_nobody_begins_to_use_the_device_while_another_cell_is_timed(tmp_path: Path) -> None:
    code = f"{USE}\nimport time\nresult = time.monotonic()"
    with (
        StubStarter(tmp_path) as start,
        ThreadPoolExecutor(1) as threads,
        ReservedCoresTurn(tmp_path / "turn", [RESERVED]),
    ):
        worker = start()
        with timed_elsewhere(tmp_path / "turn") as holder:
            began_s = time.monotonic()
            answer = threads.submit(worker.ask, "run", limit_s=60, code=code)
            time.sleep(0.7)
            assert not answer.done()
            assert psutil.STATUS_STOPPED not in states(worker)
            released_s = time.monotonic()
            holder.send_signal(signal.SIGKILL)  # the kernel opens the gate
            assert answer.result(60)["result"] >= released_s
        assert 0.6 < paused_s(began_s, time.monotonic()) < time.monotonic() - began_s


def test_a_compilation_goes_on_until_it_needs_the_device(tmp_path: Path) -> None:
    compiles, runs = tmp_path / "compiles", tmp_path / "runs"
    code = f"""{USE}
import pathlib, time
with TURN.compiling():
    pathlib.Path({str(compiles)!r}).touch()
    while not pathlib.Path({str(tmp_path / "held")!r}).exists():
        time.sleep(0.01)
    end = time.process_time() + 1.0
    while time.process_time() < end:
        pass
    pathlib.Path({str(compiles)!r} + "-ended").touch()
    with TURN.needing_device():
        pathlib.Path({str(runs)!r}).touch()
"""
    with (
        StubStarter(tmp_path) as start,
        ThreadPoolExecutor(1) as threads,
        ReservedCoresTurn(tmp_path / "turn", [RESERVED]),
    ):
        answer = threads.submit(start().ask, "run", limit_s=60, code=code)
        wait_until(compiles.exists)
        with timed_elsewhere(tmp_path / "turn"):
            (tmp_path / "held").touch()
            wait_until(Path(f"{compiles}-ended").exists)
            time.sleep(0.3)
            assert not runs.exists()
        answer.result(60)
        assert runs.exists()


def test_a_forked_child_does_not_touch_the_locks_of_its_parent(tmp_path: Path) -> None:
    """As a compile process of Inductor that is forked in the middle of a request."""
    code = f"""{USE}
import os
with TURN.compiling():
    child = os.fork()
    if child == 0:
        with TURN.needing_device():
            os._exit(0)
    os.waitpid(child, 0)
result = child
"""
    with StubStarter(tmp_path) as start, ReservedCoresTurn(tmp_path / "turn", [RESERVED]):
        worker = start()
        child = worker.ask("run", limit_s=60, code=code)["result"]
        folder = str(tmp_path / "turn")
        assert Path(user_file(folder, worker.pid)).exists()
        assert not Path(user_file(folder, child)).exists()


def test_timing_uses_the_device_without_a_turn(tmp_path: Path) -> None:
    with StubStarter(tmp_path) as start, ReservedCoresTurn(tmp_path / "turn", [RESERVED]) as turn:
        worker = start()
        worker.ask("run", limit_s=60, code=USE)
        turn.alone()
        worker.ask("run", limit_s=60, code=USE)  # would wait for its own controller
        assert turn.device_users() == 0
        turn.timed()
        worker.ask("run", limit_s=60, code=USE)


ROGUE = """
import fcntl, os, sys, time
file = os.open(sys.argv[1] + "/%d.lock" % os.getpid(), os.O_RDWR | os.O_CREAT)
fcntl.flock(file, fcntl.LOCK_EX)
print("holds", flush=True)
time.sleep(600)
"""


def test_a_process_that_ignores_the_gate_is_seen(tmp_path: Path) -> None:
    with ReservedCoresTurn(tmp_path / "turn", [RESERVED]) as turn:
        turn.alone()
        argv = [sys.executable, "-c", ROGUE, str(tmp_path / "turn" / "device")]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as rogue:
            assert rogue.stdout is not None
            assert rogue.stdout.readline() == b"holds\n"
            assert turn.device_users() == 1
            rogue.send_signal(signal.SIGSTOP)
            wait_until(lambda: psutil.Process(rogue.pid).status() == psutil.STATUS_STOPPED)
            assert turn.device_users() == 0
            rogue.send_signal(signal.SIGCONT)
            wait_until(lambda: turn.device_users() == 1)
            rogue.kill()
        assert turn.device_users() == 0


def test_files_of_workers_that_ended_are_removed(tmp_path: Path) -> None:
    with ReservedCoresTurn(tmp_path / "turn", [RESERVED]) as turn:
        with StubStarter(tmp_path) as start:
            worker = start()
            worker.ask("run", limit_s=60, code=USE)
            assert Path(user_file(str(tmp_path / "turn"), worker.pid)).exists()
        turn.alone()
    assert list((tmp_path / "turn" / "device").iterdir()) == []


CONTROLLER = """
    import sys, threading, time
    from pathlib import Path
    from tests.process.stub_launch import StubStarter
    from torchyard.process.tree import confined
    from torchyard.process.timing_turn import ReservedCoresTurn
    folder, cpu, reserved, alone, code = Path(sys.argv[1]), *map(int, sys.argv[2:5]), sys.argv[5]
    with confined([cpu]), StubStarter(folder) as start, ReservedCoresTurn(folder / "turn", [reserved]) as turn:
        worker = start()
        worker.ask("run", limit_s=60, code="import subprocess, sys\\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])")
        if alone:
            turn.alone()
        else:
            threading.Thread(target=worker.ask, args=("run",), kwargs={"limit_s": 600, "code": code}, daemon=True).start()
        print(worker.launch_mark, flush=True)
        time.sleep(600)
"""


@pytest.mark.parametrize("ending", ["timed", "paused"])
def test_a_killed_controller_leaves_nothing_behind(tmp_path: Path, ending: str) -> None:
    from torchyard.process.tree import sweep_orphans

    code = spin(tmp_path / "never", USE)
    words = [tmp_path, PREPARING, RESERVED, int(ending == "timed"), code]
    argv = [sys.executable, "-c", dedent(CONTROLLER), *map(str, words)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as controller:
        assert controller.stdout is not None
        mark = controller.stdout.readline().decode().strip()
        wait_until(lambda: len(processes_of_launch(mark)) == 2)
        if ending == "paused":
            with timed_elsewhere(tmp_path / "turn"):
                stopped = {psutil.Process(pid).status() for pid in processes_of_launch(mark)}
                assert stopped == {psutil.STATUS_STOPPED}
                controller.kill()
        controller.kill()
    sweep_orphans()  # what the next command, or the driver of the sweep, does
    wait_until(lambda: not processes_of_launch(mark))
    with (tmp_path / "turn" / GATE).open("r+") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_environment_chooses_the_kind_of_turn(tmp_path: Path) -> None:
    variables = {TURN_VARIABLE: str(tmp_path), RESERVED_VARIABLE: str(RESERVED)}
    turn = TimingTurn.of_environment(variables)
    assert isinstance(turn, ReservedCoresTurn)
    assert turn.reserved == (RESERVED,)
    for others in ({TURN_VARIABLE: str(tmp_path)}, {RESERVED_VARIABLE: "1"}, {}):
        assert not isinstance(TimingTurn.of_environment(others), ReservedCoresTurn)

"""Processes that prepare in parallel and are timed one at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

from torchyard.process.timing_turn import FIRST_TURN_VARIABLE, TURN_VARIABLE, TimingTurn, first_turn

LAUNCHES = """
    import json, sys, time
    from pathlib import Path
    from torchyard.process.timing_turn import TimingTurn

    turn, said = TimingTurn(Path(sys.argv[1])), Path(sys.argv[2])
    said.with_suffix(".ready").touch()
    while not (said.parent / "begin").exists():  # they begin together, however slow their start
        time.sleep(0.005)
    spans = []
    for _ in range(int(sys.argv[3])):
        with turn:
            began = time.monotonic()
            time.sleep(0.2)
            spans.append(["prepare", began, time.monotonic()])
            turn.alone()
            began = time.monotonic()
            time.sleep(0.05)
            spans.append(["time", began, time.monotonic()])
    said.write_text(json.dumps(spans))
"""


def started(folder: Path, name: str, launches: int = 3) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", dedent(LAUNCHES), str(folder / "turn"), str(folder / name)]
    return subprocess.Popen([*argv, str(launches)])


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
    together = 0
    for name, own in spans.items():
        for other in names:
            if other == name:
                continue
            for kind, *span in own:
                for other_kind, *other_span in spans[other]:
                    if overlap(span, other_span):
                        assert (kind, other_kind) == ("prepare", "prepare")
                        together += 1
    assert together > 0


def test_a_process_that_is_killed_gives_its_turn_back(tmp_path: Path) -> None:
    code = """
        import sys, time
        from pathlib import Path
        from torchyard.process.timing_turn import TimingTurn
        with TimingTurn(Path(sys.argv[1])) as turn:
            turn.alone()
            print("alone", flush=True)
            time.sleep(600)
    """
    argv = [sys.executable, "-c", dedent(code), str(tmp_path / "turn")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"alone\n"
        (tmp_path / "begin").touch()
        other = started(tmp_path, "other", launches=1)
        time.sleep(0.5)
        assert not (tmp_path / "other").exists()
        holder.send_signal(signal.SIGKILL)
        assert other.wait(60) == 0
    assert (tmp_path / "other").exists()


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

"""One command: output, exit, and no leftover processes."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from torchyard.builds.running.steps import CommandRun
from torchyard.errors import MissingTool, StepFailed

VARIABLES = {"PATH": "/usr/bin:/bin"}


def run(text: str, *, folder: str = "", log: io.BytesIO | None = None) -> tuple[int, bytes, bytes]:
    """Exit code, log and what was heard of a line of shell."""
    heard: list[bytes] = []
    log = log or io.BytesIO()
    command = CommandRun(["sh", "-c", text], folder=folder, environment=VARIABLES)
    code = command.wait(log, heard.append)
    return code, log.getvalue(), b"".join(heard)


def alive(mark: str) -> list[str]:
    """Processes whose command line has the mark."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if mark.encode() in words and entry.name != str(os.getpid()):
            found.append(entry.name)
    return found


def wait_for_none(mark: str) -> None:
    deadline = time.monotonic() + 60
    while left := alive(mark):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


@pytest.fixture
def mark() -> str:
    """A number of seconds that no other process sleeps for."""
    return f"{os.getpid()}.{time.monotonic_ns()}"


def test_stdout_and_stderr_go_to_the_log_and_the_callback() -> None:
    code, log, heard = run("echo one; echo two >&2; printf 'three\\377'")
    assert code == 0
    assert log == heard == b"one\ntwo\nthree\xff"


@pytest.mark.parametrize("code", [1, 7, 127, 255])
def test_exit_codes(code: int) -> None:
    assert run(f"exit {code}")[0] == code


def test_a_signal_gives_a_negative_exit_code() -> None:
    assert run("kill -9 $$")[0] == -9


def test_much_output_is_not_lost_and_does_not_hang() -> None:
    _, log, _ = run("head -c 3000000 /dev/zero")
    assert len(log) == 3_000_000


def test_it_runs_in_its_folder_with_its_variables_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAKED", "1")
    _, log, _ = run("pwd; env", folder=str(tmp_path))
    lines = log.decode().splitlines()
    assert lines[0] == str(tmp_path)
    names = {line.partition("=")[0] for line in lines[1:]}
    assert "LEAKED" not in names
    assert {"TORCHYARD_LAUNCH", "TORCHYARD_YARD", "PATH"} <= names


def test_stdin_is_empty() -> None:
    assert run("cat; echo read")[1] == b"read\n"


def test_missing_programs_and_missing_folders_have_different_errors(tmp_path: Path) -> None:
    with pytest.raises(MissingTool, match="no-such-program does not exist"):
        CommandRun(["/no-such-program"], folder="", environment=VARIABLES)
    with pytest.raises(MissingTool, match="gone does not exist"):
        CommandRun(["true"], folder=str(tmp_path / "gone"), environment=VARIABLES)
    plain = tmp_path / "plain"
    plain.write_text("no program")
    with pytest.raises(StepFailed, match="cannot be started"):
        CommandRun([str(plain)], folder="", environment=VARIABLES)


def test_a_script_without_an_interpreter_is_an_error(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no-such-interpreter\n")
    script.chmod(0o755)
    with pytest.raises(MissingTool, match="script does not exist"):
        CommandRun([str(script)], folder="", environment=VARIABLES)


def test_background_processes_are_killed(mark: str) -> None:
    code, log, _ = run(f"setsid sleep {mark} >/dev/null 2>&1 & echo started")
    assert (code, log) == (0, b"started\n")
    wait_for_none(mark)


def test_stop_kills_the_command_and_its_descendants(mark: str) -> None:
    text = f"sleep {mark} & setsid sleep {mark} & echo ready; wait"
    command = CommandRun(["sh", "-c", text], folder="", environment=VARIABLES)
    ready = threading.Event()

    def stop() -> None:
        ready.wait(60)
        command.stop()

    thread = threading.Thread(target=stop)
    thread.start()
    code = command.wait(io.BytesIO(), lambda _: ready.set())
    thread.join(60)
    assert code != 0
    assert command.stopped
    wait_for_none(mark)


def test_stop_after_the_end_does_no_harm() -> None:
    command = CommandRun(["true"], folder="", environment=VARIABLES)
    assert command.wait(io.BytesIO(), lambda _: None) == 0
    command.stop()
    command.stop()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_under_the_log_ends_the_command(mark: str) -> None:
    command = CommandRun(["sh", "-c", f"echo x; sleep {mark}"], folder="", environment=VARIABLES)
    with Path("/dev/full").open("wb", buffering=0) as full, pytest.raises(OSError, match="space"):
        command.wait(full, lambda _: None)
    wait_for_none(mark)


def test_a_failing_callback_leaves_nothing_running(mark: str) -> None:
    command = CommandRun(
        ["sh", "-c", f"echo x; exec sleep {mark}"], folder="", environment=VARIABLES
    )

    def broken(_: bytes) -> None:
        raise LookupError("broken")

    with pytest.raises(LookupError, match="broken"):
        command.wait(io.BytesIO(), broken)
    wait_for_none(mark)


def test_a_thread_that_ends_does_not_end_the_command() -> None:
    """Commands ask the kernel to end with their starter, which must not be a thread of a step."""
    made: list[CommandRun] = []
    code = "import time; time.sleep(0.5); print('whole')"

    def start() -> None:
        made.append(CommandRun([sys.executable, "-c", code], folder="", environment=VARIABLES))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join(60)
    log = io.BytesIO()
    assert made[0].wait(log, lambda _: None) == 0
    assert log.getvalue() == b"whole\n"


@pytest.mark.parametrize("escape", ["", "env -i setsid"])
def test_a_background_process_that_holds_the_output_does_not_hang(mark: str, escape: str) -> None:
    """It inherits stdout; `env -i` removes the mark by which leftover processes are found."""
    command = CommandRun(
        ["sh", "-c", f"{escape} sleep {mark} & head -c 200000 /dev/zero; echo end"],
        folder="",
        environment=VARIABLES,
    )
    log = io.BytesIO()
    codes: list[int] = []
    thread = threading.Thread(
        target=lambda: codes.append(command.wait(log, lambda _: None)), daemon=True
    )
    thread.start()
    thread.join(60)
    leftover = alive(mark)
    for pid in leftover if escape else []:
        os.kill(int(pid), signal.SIGKILL)
    assert codes == [0]
    assert log.getvalue() == b"\0" * 200_000 + b"end\n"
    wait_for_none(mark)

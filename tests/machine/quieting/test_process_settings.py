"""A command with process settings: exit code, output and signals pass through."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchyard.errors import UsageError
from torchyard.machine.knobs.process_knobs import ProcessSetting
from torchyard.machine.quieting.quiet_run import (
    apply_here,
    check_command,
    own_priority_and_cores,
    run_command,
    shell_line,
)


def refuse() -> None:
    raise PermissionError(1, "Operation not permitted")


def in_child(*words: str, settings: tuple[tuple[str, ProcessSetting], ...] = ()) -> int:
    return run_command(words, settings).exit_code


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
def test_the_exit_code_is_the_commands(script: str, code: int) -> None:
    assert in_child("sh", "-c", script) == code


def test_output_and_input_are_the_commands(capfd: pytest.CaptureFixture[str]) -> None:
    in_child("sh", "-c", "echo out; echo err >&2")
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("out\n", "err\n")


def test_settings_are_made_in_the_child_only(capfd: pytest.CaptureFixture[str]) -> None:
    (one, *_) = sorted(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    pin = ProcessSetting(
        words=("taskset", "-c", str(one)), apply=lambda: os.sched_setaffinity(0, {one})
    )
    code = "import os; print(sorted(os.sched_getaffinity(0)))"
    in_child(sys.executable, "-c", code, settings=(("pinning", pin),))
    assert capfd.readouterr().out == f"[{one}]\n"
    assert os.sched_getaffinity(0) == before


def test_variables_do_not_replace_those_of_the_user(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "kept")
    both = ProcessSetting(variables=(("MINE", "lost"), ("NEW", "here")))
    in_child("sh", "-c", 'echo "$MINE $NEW"', settings=(("openmp", both),))
    assert capfd.readouterr().out == "kept here\n"
    assert "NEW" not in os.environ


def test_a_refused_setting_is_reported_and_the_command_runs() -> None:
    end = run_command(["sh", "-c", "exit 3"], [("bad", ProcessSetting(apply=refuse))])
    assert end.exit_code == 3
    assert end.refused == (("bad", "Operation not permitted"),)


def test_the_command_has_no_blocked_signals_and_no_pipes_of_ours(
    capfd: pytest.CaptureFixture[str],
) -> None:
    in_child("sh", "-c", "grep SigBlk /proc/self/status; ls /proc/self/fd | wc -l")
    blocked, count = capfd.readouterr().out.splitlines()
    assert int(blocked.split()[1], 16) == 0
    assert int(count) <= 5


def test_signals_are_as_before_afterwards() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    in_child("true")
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_a_program_that_is_not_there_is_refused_before_anything_else(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nosuchprogram"):
        check_command(["nosuchprogram"])
    (tmp_path / "data").write_text("")
    with pytest.raises(UsageError):
        check_command([str(tmp_path / "data")])


def test_a_program_that_cannot_be_executed(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/nowhere/interpreter\n")
    broken.chmod(0o755)
    with pytest.raises(UsageError, match="cannot run"):
        in_child(str(broken))


RUNNER = (
    "import sys\n"
    "from torchyard.machine.quieting.quiet_run import run_command\n"
    "sys.exit(run_command(sys.argv[1:], []).exit_code)\n"
)


def runner(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RUNNER, *command], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signals_for_us_go_to_the_command(number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo got; exit 9' {name}; echo up; while :; do sleep 0.05; done"
    process = runner("sh", "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(number)
    assert process.stdout.readline() == "got\n"
    assert process.wait(timeout=30) == 9
    process.stdout.close()


def test_ctrl_c_of_a_terminal_reaches_the_command_once() -> None:
    script = "trap 'echo got' INT; echo up; sleep 1; sleep 1; exit 5"
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", RUNNER, "sh", "-c", script])  # noqa: S606
    output = b""
    while b"up" not in output:
        output += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            piece = os.read(terminal, 1000)
        except OSError:  # the end of a terminal
            break
        output += piece
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 5
    assert output.count(b"got") == 1


def test_the_line_for_a_shell() -> None:
    pin = ProcessSetting(words=("taskset", "-c", "2-3"))
    threads = ProcessSetting(variables=(("OMP_NUM_THREADS", "2"), ("ODD", "a b")))
    line = shell_line([("pinning", pin), ("openmp", threads)], ["python", "my file.py"])
    assert line == "env OMP_NUM_THREADS=2 'ODD=a b' taskset -c 2-3 python 'my file.py'"
    assert shell_line([]) == "COMMAND"


def test_settings_of_this_process_are_restored() -> None:
    before = os.sched_getaffinity(0)
    one = min(before)
    pin = ProcessSetting(apply=lambda: os.sched_setaffinity(0, {one}))
    with own_priority_and_cores():
        refused = apply_here([("pinning", pin), ("bad", ProcessSetting(apply=refuse))])
        assert os.sched_getaffinity(0) == {one}
    assert refused == [("bad", "Operation not permitted")]
    assert os.sched_getaffinity(0) == before

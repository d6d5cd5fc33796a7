"""A sandbox ends with the exit code of its command, on signals, and with its parent process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builds.sandbox.sandbox_commands import (
    PYTHON,
    SEARCH_PATH,
    marked,
    needs_cut_network,
    needs_mounts,
    needs_processes,
    new_mark,
    program,
    run,
    wait_until,
)
from torchyard.builds.sandbox import Sandbox

OFFLINE = Sandbox(network=False)
_LEAVES_TWO_BEHIND = "sleep 600 & setsid sleep 600 & echo started"

both_ways = pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--own-processes",), marks=needs_processes, id="own processes"),
        pytest.param((), marks=needs_mounts, id="shared processes"),
    ],
)


@pytest.fixture
def mark() -> Iterator[str]:
    """Whatever still carries it after the test is ended, so that nothing stays behind."""
    mark = new_mark()
    yield mark
    for pid in marked(mark):
        os.kill(pid, signal.SIGKILL)


def start(
    options: tuple[str, ...], script: str, mark: str, **more: object
) -> subprocess.Popen[str]:
    process: subprocess.Popen[str] = subprocess.Popen(  # type: ignore[call-overload]
        program(*options, "--", "sh", "-c", script),
        env={"PATH": SEARCH_PATH, "MARK": mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **more,
    )
    return process


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


@needs_cut_network
@pytest.mark.parametrize("code", [0, 1, 42, 125, 255])
def test_exit_codes_are_the_commands(code: int) -> None:
    assert run(OFFLINE, "sh", "-c", f"exit {code}").returncode == code


@needs_cut_network
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_ended_the_command_is_seen(number: signal.Signals) -> None:
    """So that a compiler that the kernel killed for memory looks the same as without a sandbox."""
    assert run(OFFLINE, "sh", "-c", f"kill -{number.value} $$").returncode == -number


@needs_cut_network
def test_a_command_that_cannot_be_started(tmp_path: Path) -> None:
    done = run(OFFLINE, "no-such-program")
    assert done.returncode == 127
    assert "cannot start no-such-program: No such file" in done.stderr
    done = run(OFFLINE, "/etc/passwd")
    assert done.returncode == 126
    assert "Permission denied" in done.stderr


@needs_cut_network
def test_output_working_folder_and_environment_pass_through(tmp_path: Path) -> None:
    done = run(
        OFFLINE, "sh", "-c", 'pwd; echo "$WORD"; echo bad >&2', folder=str(tmp_path), WORD="a b"
    )
    assert (done.stdout, done.stderr) == (f"{tmp_path}\na b\n", "bad\n")


@both_ways
def test_open_files_pass_through_and_close_with_the_command(
    options: tuple[str, ...], mark: str
) -> None:
    """A pipe ends when the command closes it: no process of the sandbox holds it open."""
    read, write = os.pipe()
    process = subprocess.Popen(
        program(
            *(*options, "--", PYTHON, "-I", "-S", "-u", "-c"),
            f"import os; os.write({write}, b'through'); os.close({write}); print('closed'); "
            "import signal; signal.pause()",
        ),
        env={"MARK": mark},
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=(write,),
    )
    os.close(write)
    with os.fdopen(read) as pipe, process:
        assert first_line(process) == "closed"
        assert pipe.read() == "through"  # up to the end of the pipe
        process.terminate()
    assert process.returncode == -signal.SIGTERM


@both_ways
def test_standard_files_that_are_closed(options: tuple[str, ...]) -> None:
    """The program's own files must not come to lie in their places and be closed with them."""
    line = program(*options, "--", "sh", "-c", "echo said >&2; exit 3")
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&- >&-', "sh", *line],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("said\n", 3)


@both_ways
def test_what_the_command_leaves_behind_ends_with_it(options: tuple[str, ...], mark: str) -> None:
    with start(options, _LEAVES_TWO_BEHIND, mark) as process:
        assert process.stdout
        assert process.stdout.read() == "started\n"
    assert process.returncode == 0
    assert marked(mark) == []


@both_ways
@pytest.mark.parametrize("to_group", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_reaches_the_command_once(
    options: tuple[str, ...], mark: str, number: signal.Signals, *, to_group: bool
) -> None:
    """Whether it was sent to the process that was started, or to its whole group."""
    name = number.name.removeprefix("SIG")
    script = f'trap "echo got" {name}; echo ready; sleep 0.4 & wait; wait; wait; exit 9'
    with start(options, script, mark, start_new_session=True) as process:
        assert first_line(process) == "ready"
        if to_group:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        assert process.stdout
        assert process.stdout.read() == "got\n"
    assert process.returncode == 9


@both_ways
def test_a_signal_reaches_the_commands_children(options: tuple[str, ...], mark: str) -> None:
    child = "trap 'echo child' TERM; echo ready; sleep 0.5 & wait; wait"
    script = f'trap : TERM; sh -c "{child}" & wait; wait; exit 4'
    with start(options, script, mark) as process:
        assert first_line(process) == "ready"
        process.terminate()
        assert process.stdout
        assert process.stdout.read() == "child\n"
    assert process.returncode == 4


@both_ways
@pytest.mark.parametrize("whom", ["starter", "outer"])
def test_kill_leaves_nothing_alive(options: tuple[str, ...], mark: str, whom: str) -> None:
    """Kill -9 of the controller, or of the process it started; and what it forked must be gone."""
    starter = (
        "import os, subprocess, sys\n"
        "from torchyard.process.owner import start_ticks\n"
        "me = os.getpid()\n"
        "line = sys.argv[1:]\n"
        "line[4:4] = ['--parent', f'{me}:{start_ticks(me)}']\n"
        "child = subprocess.Popen(line)\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    line = program(*options, "--", "sh", "-c", f"{_LEAVES_TWO_BEHIND}; sleep 600")
    with subprocess.Popen(
        [sys.executable, "-c", starter, *line],
        env={**os.environ, "MARK": mark},
        stdout=subprocess.PIPE,
        text=True,
    ) as controller:
        assert controller.stdout
        said = {controller.stdout.readline().strip(), controller.stdout.readline().strip()} - {
            "started"
        }
        # The controller, the outer and the inner process, the shell and its three.
        assert wait_until(lambda: len(marked(mark)) == 7)
        os.kill(controller.pid if whom == "starter" else int(said.pop()), signal.SIGKILL)
        assert wait_until(lambda: marked(mark) == [])


@needs_cut_network
def test_the_end_of_the_starting_thread_does_not_end_the_command(mark: str) -> None:
    """PR_SET_PDEATHSIG would kill a command whose starting thread has ended."""
    command, environment = OFFLINE.command(
        ["sh", "-c", "read line; echo lived"], folder="/", variables={"PATH": SEARCH_PATH}
    )
    started: list[subprocess.Popen[bytes]] = []

    def begin() -> None:
        started.append(
            subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        )

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    threading.Event().wait(0.2)
    said, _ = started[0].communicate(b"go\n", timeout=20)
    assert (said, started[0].returncode) == (b"lived\n", 0)


@needs_mounts
@pytest.mark.parametrize("parent", ["999999999:1", "1:1"])
def test_a_parent_that_is_gone_before_the_start(parent: str) -> None:
    """Its number may have passed to another process, which the start time gives away."""
    done = subprocess.run(
        program("--parent", parent, "--", "echo", "never"),
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("", 125)
    assert "is gone" in done.stderr


@needs_cut_network
def test_a_stored_command_runs_after_the_parent_has_ended() -> None:
    """As in the script by which a failed command is started again by hand."""
    controller = (
        "import json, sys\n"
        "from torchyard.builds.sandbox import Sandbox\n"
        "line, _ = Sandbox(network=False).command(\n"
        "    ['echo', 'again'], folder='/', variables={}, ends_with_controller=sys.argv[1] == 'tied')\n"
        "print(json.dumps(line))\n"
    )
    codes = {}
    for way in ("tied", "free"):
        said = subprocess.check_output([sys.executable, "-c", controller, way], text=True)
        done = subprocess.run(
            json.loads(said), capture_output=True, text=True, timeout=60, check=False
        )
        codes[way] = (done.returncode, done.stdout)
    assert codes == {"tied": (125, ""), "free": (0, "again\n")}


@needs_processes
def test_in_a_terminal_the_command_has_the_terminal(mark: str) -> None:
    """To look around in a failed build's sandbox: input arrives, and Ctrl-C once."""
    script = 'trap "echo got" INT; read line; echo "read $line"; sleep 0.4 & wait; wait; exit 6'
    line = program("--own-processes", "--no-network", "--", "sh", "-c", script)
    spawn = "import pty, sys, os; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
    with subprocess.Popen(
        [sys.executable, "-c", spawn, *line],
        env={"PATH": SEARCH_PATH, "MARK": mark, "TERM": "dumb"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write("hello\n")
        process.stdin.flush()
        said = ""
        while "read hello" not in said:
            said = process.stdout.readline()
            assert said, "the command ended without having read"
        process.stdin.write("\x03")
        process.stdin.flush()
        rest = process.stdout.read()
        process.stdin.close()
    assert rest.count("got") == 1
    assert process.returncode == 6

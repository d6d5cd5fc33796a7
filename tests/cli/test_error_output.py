"""How errors are shown: short lines on stderr, an exit code, and an object with `--json`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from tests.cli.command_line import call, program
from tests.cli.terminal import Terminal
from torchyard import errors
from torchyard.cli.output import print_error, printable

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("arguments", "what", "hint"),
    [
        (["bnech"], "there is no command 'bnech'", "did you mean 'bench'?"),
        (["xyzzy"], "there is no command 'xyzzy'", "valid commands: baseline, batch-size"),
        (["--verson"], "there is no option '--verson'", "did you mean '--version'?"),
        (["bench", "--tim", "5s"], "there is no option '--tim'", "did you mean '--time'?"),
        (["bench", "--xyzzy"], "there is no option '--xyzzy'", "torchyard bench --help"),
        (
            ["machine", "audit", "--time", "1"],
            "no option '--time'",
            "torchyard machine audit --help",
        ),
        (["bench", "--time"], "Option '--time' requires an argument", "bench --help"),
        (["bench", "a.toml", "b.toml"], "2 study files are given", "each of them on its own"),
        (["bench", "--mode", "train"], "--mode: 'train' is not one of", "mean 'training'?"),
        (["serve", "--port", "99999999"], "--port: '99999999' is out of range", "at most 65535"),
        (["target"], "Missing argument 'PYTHON|NAME=PYTHON'", "target --help"),
        (["target", "/nowhere/python"], "was not found", "path of a Python"),
        (["explain", "undecide"], "no explanation of 'undecide'", "did you mean 'undecided'?"),
        (["explain", "xyzzy"], "no explanation of 'xyzzy'", "torchyard explain"),
        (["workloads", "--suite", "model"], "unknown suite 'model'", "mean 'models'?"),
        (["results", "list", "--xyzzy"], "no option '--xyzzy'", "`torchyard results list --help`"),
        (["results", "note"], "Missing argument", "`torchyard results note --help`"),
        (["results", "--xyzzy"], "there is no option '--xyzzy'", "`torchyard results --help`"),
        (["machine", "show", "a"], "unexpected extra", "`torchyard machine show --help`"),
        (["completion", "tcsh"], "'tcsh' is not one of", "completion --help"),
    ],
)
def test_wrong_use_ends_with_2_and_a_fix(
    capsys: Capture, arguments: list[str], what: str, hint: str
) -> None:
    ended = call(capsys, *arguments)
    assert ended.code == 2
    assert ended.out == ""
    lines = ended.err.splitlines()
    assert lines[0].startswith("error: ")
    assert what in lines[0]
    assert any(line.startswith("  hint: ") and hint in line for line in lines)
    assert len(lines) <= 4
    assert "Traceback" not in ended.err


def test_json_asks_for_the_error_on_stdout_too(capsys: Capture) -> None:
    ended = call(capsys, "bench", "--json", "--tim", "5s")
    document = json.loads(ended.out)
    assert document == {
        "schema": 1,
        "error": {
            "kind": "UsageError",
            "exit_code": 2,
            "what": "there is no option '--tim'",
            "why": "",
            "hint": "did you mean '--time'?",
            "log": "",
        },
    }
    assert "error: there is no option" in ended.err


def test_json_behind_two_dashes_is_an_argument(capsys: Capture) -> None:
    assert call(capsys, "explain", "--", "--json").out == ""


@pytest.mark.parametrize("place", ["before", "after"])
def test_debug_shows_the_traceback(capsys: Capture, place: str) -> None:
    arguments = ["workloads", "--suite", "x"]
    arguments = ["--debug", *arguments] if place == "before" else [*arguments, "--debug"]
    ended = call(capsys, *arguments)
    assert ended.code == 2
    assert "Traceback (most recent call last)" in ended.err
    assert "error: --suite: unknown suite 'x'" in ended.err


def test_all_four_lines_in_order(capsys: Capture) -> None:
    error = errors.WorkerFailed("it died", why="signal 11", hint="look there", log="/a/log")
    print_error(error, as_json=False, exit_code=5)
    assert capsys.readouterr().err == (
        "error: it died\n  why:  signal 11\n  hint: look there\n  log:  /a/log\n"
    )


def test_text_from_outside_cannot_steer_the_terminal(capsys: Capture) -> None:
    assert printable("a\x1b[31mb\x07\r\x9bc\n\td") == "a�[31mb���c\n\td"
    ended = call(capsys, "bench", "--only", "\x1b]0;owned\x07")
    assert "\x1b" not in ended.err
    assert "\x07" not in ended.err


def test_an_internal_error_ends_with_1_and_asks_for_a_report() -> None:
    # A module that is broken in a way nobody foresaw, as a bad installation is.
    code = textwrap.dedent(
        """
        import sys, types
        broken = types.ModuleType("torchyard.worker.catalog")
        sys.modules["torchyard.worker.catalog"] = broken
        from torchyard.cli.main import run
        sys.exit(run(["workloads"] + sys.argv[1:]))
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "error: internal error: ImportError" in done.stderr
    assert "report the output" in done.stderr
    assert "Traceback" not in done.stderr
    done = subprocess.run(
        [sys.executable, "-c", code, "--debug"], capture_output=True, text=True, check=False
    )
    assert "Traceback" in done.stderr


def test_a_table_raises_when_its_pipe_is_closed() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    code = "from torchyard.cli.output import data_console; data_console().print('x' * 100_000)"
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert "BrokenPipeError" in done.stderr, "not rich's exit code 1"


@pytest.mark.parametrize("arguments", [["--help"], ["explain"], ["workloads", "--json"]])
def test_a_closed_output_pipe_is_not_an_error(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "torchyard", *arguments],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert done.returncode == 141
    assert done.stderr == ""


def test_ctrl_c_ends_with_130() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "torchyard", "build", "explain", "-", "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    # More than a pipe holds: the call returns only when the command is reading its input.
    process.stdin.write("a line of a log\n" * 100_000)
    process.stdin.flush()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "error: interrupted\n"
    assert json.loads(out)["error"]["exit_code"] == 130


def shown_on_terminal(*arguments: str, **variables: str) -> str:
    terminal = Terminal()
    process = subprocess.Popen(
        [sys.executable, "-m", "torchyard", *arguments],
        stderr=terminal.side,
        env={"PATH": os.environ["PATH"], "TERM": "xterm", **variables},
    )
    process.wait(timeout=60)
    return terminal.close()


def test_color_only_on_terminals_that_support_it() -> None:
    assert "\x1b[31m" in shown_on_terminal("bnech")
    assert "\x1b" not in shown_on_terminal("bnech", NO_COLOR="1")
    assert "\x1b" not in shown_on_terminal("bnech", TERM="dumb")
    assert "\x1b" not in program("bnech", TERM="xterm").err


def test_errors_are_wrapped_on_a_terminal_only() -> None:
    arguments = ["bisect", "--metric", "speed", "train.py"]
    text = shown_on_terminal(*arguments, NO_COLOR="1", COLUMNS="60")
    lines = text.split("\r\n")
    assert max(map(len, lines)) <= 60
    assert lines[0].startswith("error: --metric: 'speed' is not one of")
    assert lines[1].startswith(8 * " ")
    assert " ".join(text.split()) == " ".join(program(*arguments).err.split())


def test_names_that_stdout_cannot_show_do_not_end_the_program() -> None:
    ended = program("explain", PYTHONIOENCODING="ascii")
    assert ended.code == 0

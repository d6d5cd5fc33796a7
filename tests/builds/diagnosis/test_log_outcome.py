"""Whether a log shows a failure, and which command failed."""

from __future__ import annotations

import io
import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.builds.diagnosis.outcome_logs import FAILED, SUCCEEDED, Failure
from torchyard.builds.commands.show import explain
from torchyard.builds.diagnosis.diagnose import diagnose
from torchyard.builds.diagnosis.first_error import is_command
from torchyard.builds.diagnosis.model import describe
from torchyard.builds.diagnosis.scan import CommandEcho


def test_the_corpus_is_large_enough() -> None:
    assert len(SUCCEEDED) >= 15
    assert len(FAILED) >= 15


@pytest.mark.parametrize("exit_code", [None, 0])
@pytest.mark.parametrize("name", SUCCEEDED)
def test_a_successful_log_is_not_a_failure(name: str, exit_code: int | None) -> None:
    found = diagnose(SUCCEEDED[name], exit_code=exit_code)
    assert not found.failed
    assert (found.root, found.first_error, found.failed_command) == (None, None, None)
    assert describe(found).startswith("No failure found")


@pytest.mark.parametrize("exit_code", [None, 1])
@pytest.mark.parametrize("name", FAILED)
def test_a_failure_has_its_cause_and_its_command(name: str, exit_code: int | None) -> None:
    expected: Failure = FAILED[name]
    found = diagnose(expected.log, exit_code=exit_code)
    assert found.failed
    assert (found.root.id if found.root else "") == expected.root
    assert expected.error in (found.first_error.text if found.first_error else "")
    assert bool(found.first_error) == bool(expected.error)
    failed = found.failed_command
    assert (failed.target if failed else "") == expected.target
    command = failed.command if failed else ""
    assert command.startswith(expected.command)
    assert bool(command) == bool(expected.command)
    assert "No failure" not in describe(found)


@pytest.mark.parametrize("name", FAILED)
def test_the_exit_code_decides_where_it_is_known(name: str) -> None:
    found = diagnose(FAILED[name].log, exit_code=0)
    assert not found.failed
    assert (found.root, found.first_error, found.failed_command) == (None, None, None)
    if FAILED[name].error:
        assert found.overcome is not None
        assert FAILED[name].error in describe(found), "the error is shown, but not as the cause"


@pytest.mark.parametrize("name", SUCCEEDED)
def test_an_exit_code_of_failure_is_never_called_a_success(name: str) -> None:
    found = diagnose(SUCCEEDED[name], exit_code=2)
    assert found.failed
    assert "No failure" not in describe(found)


@pytest.mark.parametrize("failed", FAILED)
@pytest.mark.parametrize("before", ["warnings", "an installation after a build", "ctest"])
def test_a_successful_step_before_a_failed_one_hides_nothing(before: str, failed: str) -> None:
    found = diagnose(SUCCEEDED[before] + FAILED[failed].log)
    assert found.failed
    assert FAILED[failed].error in (found.first_error.text if found.first_error else "")


def test_a_stream_is_read_to_its_end() -> None:
    log = FAILED["ninja"].log.encode()
    assert diagnose(io.BytesIO(log)) == diagnose(log.decode())


@pytest.mark.parametrize(
    "line",
    [
        "/usr/bin/c++ -c a.cpp",
        "cc -c a.c",
        ": && /usr/bin/c++ -shared a.o && :",
        "cd /build/x && /usr/bin/cmake -E touch y",
        "CCACHE_DIR=/x ccache g++ -c a.cpp",
        "python3 gen.py out.h",
        "some-generator --out x",
        "/opt/tool in out",
    ],
)
def test_what_is_a_command(line: str) -> None:
    assert is_command(line)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "   ",
        "Killed",
        "Segmentation fault (core dumped)",
        "a.cpp:1:2: error: no",
        "a.cpp:1:2: warning: no",
        "/build/a.cpp: In function 'int f()':",
        "/build/a.cu(12): warning #20012-D: no",
        "In file included from /build/a.cpp:1,",
        "                 from /build/a.h:2:",
        "/usr/bin/ld: cannot find -lx",
        "collect2: error: ld returned 1 exit status",
        "g++: fatal error: Killed signal terminated program cc1plus",
        "nvcc fatal   : Unsupported gpu architecture 'compute_30'",
        "/bin/sh: 1: nvcc: not found",
        "Traceback (most recent call last):",
        "error[E0425]: cannot find value `x`",
        "ninja: build stopped: subcommand failed.",
        "CMake Error at CMakeLists.txt:3 (message):",
        "No space left on device",
        "error writing to /tmp/x.o: No space left on device",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "   12 | int f(",
        "      |     ^",
    ],
)
def test_what_is_not_a_command(line: str) -> None:
    assert not is_command(line)


def test_the_command_is_reported_in_text_and_json(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    for text, failed in ((SUCCEEDED["warnings"], False), (FAILED["ninja"].log, True)):
        log.write_text(text)
        done = CliRunner().invoke(explain, [str(log)])
        assert done.exit_code == 0
        assert ("No failure found" in done.stdout) != failed
        done = CliRunner().invoke(explain, ["-", "--json"], input=text)
        assert json.loads(done.stdout)["diagnosis"]["failed"] is failed


def echo(*argv: str) -> str:
    return f"[05:08:06] $ {shlex.join(argv)}\n"


def test_a_script_that_searches_for_errors_is_not_an_error() -> None:
    script = "apt-get source x 2>e || true\nsed -n '/^E: Failed to fetch .* 404 /p' e\nexit 1"
    found = diagnose(echo("sh", "-c", script) + "all is well\n")
    assert found.causes == ()
    assert found.first_error is None


def test_what_comes_after_the_script_counts() -> None:
    log = echo("sh", "-c", "a 'b'\nfatal: x") + "E: Unable to locate package nonesuch\n"
    found = diagnose(log)
    assert [cause.id for cause in found.causes] == ["apt-package-missing"]
    assert found.first_error is not None
    assert found.first_error.line == 3


def test_commands_that_a_shell_traces_are_skipped() -> None:
    assert (
        diagnose("+ echo 'No space left on device'\n++ grep 'Permission denied' x\n").causes == ()
    )


def test_a_quotation_mark_that_never_closes_hides_the_rest_for_a_while_only() -> None:
    broken = "[05:08:06] $ echo 'open\n" + "text\n" * 1200
    found = diagnose(broken + "x.c:1:1: error: late\n")
    assert found.first_error is not None


def test_other_lines_with_brackets_are_no_commands() -> None:
    follow = CommandEcho()
    assert not follow.repeats(b"[12/34] $ x 'open")
    assert not follow.repeats(b"[05:08:06] apt configuration for trixie")
    assert follow.repeats(b"[05:08:06] $ ls")
    assert not follow.repeats(b"output")


@given(st.lists(st.text(max_size=20), min_size=1, max_size=4))
def test_all_lines_of_any_command_are_known(arguments: list[str]) -> None:
    follow = CommandEcho()
    lines = echo("tool", *arguments)[:-1].encode("utf-8", "replace").split(b"\n")
    assert all(follow.repeats(line) for line in lines)
    assert not follow.repeats(b"output")

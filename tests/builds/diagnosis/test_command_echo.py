"""Commands echoed in a log are not errors."""

from __future__ import annotations

import shlex

from hypothesis import given
from hypothesis import strategies as st

from torchyard.builds.diagnosis.diagnose import diagnose
from torchyard.builds.diagnosis.scan import CommandEcho


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

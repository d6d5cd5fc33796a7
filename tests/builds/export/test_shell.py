"""Quoting, checked by real shells: whatever a text holds, it arrives as it was."""

from __future__ import annotations

import shutil
import subprocess
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchyard.builds.export.shell import (
    LINE_BREAK,
    command_text,
    comment,
    heredoc,
    quoted,
    variable_name,
    wrapped,
)
from torchyard.errors import UsageError

SHELLS = [name for name in ("dash", "bash") if shutil.which(name)]
ODD = [
    "", " ", "a b", "it's", '"', "$HOME", "${x}", "`id`", "$(id)", "\\", "\\\n", "a\nb", "\n", "-n",
    "*", "~", "!", "#", "%post", "{{ JOBS }}", "{{{", "é", "a=b", "\t", "\r", "<<EOF", "nl", '"$nl"',
]  # fmt: skip
# No null character, which no command line can hold, and no lone surrogate, which no file can.
TEXTS = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30
) | st.text(alphabet="a'\"$\\\n {}%#`!", max_size=12)


def echoed(script: str, shell: str = "sh") -> list[str]:
    """The words that a shell hands to a command, told apart by null characters."""
    ended = subprocess.run([shell, "-c", script], capture_output=True, check=True)
    return ended.stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("one_line", [False, True])
def test_odd_texts_arrive_as_they_are(shell: str, one_line: bool) -> None:
    words = " ".join(quoted(text, one_line=one_line) for text in ODD)
    script = f"{LINE_BREAK}\nprintf '%s\\0' {words}"
    assert echoed(script, shell) == ODD


@settings(max_examples=60, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=20))
def test_any_texts_arrive_as_they_are(texts: list[str]) -> None:
    # Many texts for each shell that is started: starting it is what takes time.
    pairs = ((quoted(text), quoted(text, one_line=True)) for text in texts)
    words = " ".join(chain.from_iterable(pairs))
    expected = list(chain.from_iterable((text, text) for text in texts))
    assert echoed(f"{LINE_BREAK}\nprintf '%s\\0' {words}") == expected


@pytest.mark.parametrize("text", ODD)
def test_a_word_in_one_line_can_stand_in_an_image_definition(text: str) -> None:
    word = quoted(text, one_line=True)
    assert "{{" not in word, "Apptainer would take it for a placeholder"
    for line in word.split("\n")[:-1]:
        assert line.endswith("\\"), "a Dockerfile would end the instruction there"
    for line in word.split("\n"):
        assert not line.startswith(("%", "#")), "a section, or a comment that is left out"


def test_a_null_character_is_an_error() -> None:
    with pytest.raises(UsageError, match="null character"):
        quoted("a\0b")


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A=B", "A\n", "É", "A;B"])
def test_only_names_that_a_shell_knows_are_exported(name: str) -> None:
    with pytest.raises(UsageError, match="not a valid name of a shell variable"):
        variable_name(name)
    assert variable_name("_A1") == "_A1"


@pytest.mark.parametrize("program", ["exit", "cd", "if", "{", "step", "in_root", "limit_jobs"])
def test_a_program_named_as_a_word_of_the_shell_is_searched(program: str) -> None:
    assert command_text((program, "x"))[0] == "env"


def test_a_program_whose_name_looks_like_a_variable_is_not_a_variable() -> None:
    ended = subprocess.run(
        ["sh", "-c", " ".join(command_text(("A=1",)))], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 127
    assert "A=1" in ended.stderr


def test_variables_before_a_command() -> None:
    words = command_text(("sh", "-c", 'printf "%s\\0" "$ODD"'), (("ODD", "a\n'b"),))
    assert echoed(" ".join(words)) == ["a\n'b"]


@settings(max_examples=40, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=30))
def test_wrapped_lines_are_the_same_command(texts: list[str]) -> None:
    words = ["printf", "'%s\\0'", *(quoted(text) for text in texts)]
    assert echoed(wrapped(words, "    ")) == texts


def test_wrapped_lines_are_short_and_keep_options_with_their_values() -> None:
    values = [word for number in range(20) for word in ("--option", f"value-{number:010}")]
    lines = wrapped(["cmake", *values], "  ").split("\n")
    assert max(len(line) for line in lines) <= 102
    assert len(lines) > 3
    assert not any(line.rstrip(" \\").endswith("--option") for line in lines)
    assert all(line.endswith(" \\") for line in lines[:-1])


@pytest.mark.parametrize(
    "text", ["one\n", "\n", "END_OF_FILE\n", "END_OF_FILE\nEND_OF_FILE_1\n", "$x `id` \\\n'\n"]
)
def test_a_here_document_holds_any_text(text: str) -> None:
    ended = subprocess.run(
        ["sh", "-c", heredoc(text, "/dev/stdout")], capture_output=True, check=True
    )
    assert ended.stdout.decode() == text


@pytest.mark.parametrize("text", ["a\nrm -rf /", "a\\", "a\r\x1b[0m b", "{{ x }}", "\u2028x"])
def test_a_comment_stays_one_line(text: str) -> None:
    said = comment(text)
    assert said.splitlines() == [said]
    assert said.isprintable()
    assert not said.endswith("\\")
    assert "{{" not in said

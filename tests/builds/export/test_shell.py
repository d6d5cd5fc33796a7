"""Plain actions and shell statements that exports are made from."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builds.export.sample_plans import hand_component, hand_plan, small_plan, small_project
from torchyard.builds.export.shell import (
    LINE_BREAK,
    Difference,
    check_commands,
    command_text,
    comment,
    distinct_differences,
    freeze_command,
    heredoc,
    own_variables,
    plain_actions,
    quoted,
    shared_by_most,
    variable_name,
    without_own_steps,
    wrapped,
)
from torchyard.builds.plan import (
    AptSources,
    Command,
    Download,
    SdistDownload,
    Step,
    Verify,
    WriteFile,
)
from torchyard.builds.recipe import Recipe, SmokeTest, VerifyTable
from torchyard.errors import UsageError


def step(name: str, *variables: tuple[str, str], needs: tuple[str, ...] = ()) -> Step:
    return Step(
        name=name,
        component="a",
        title="",
        actions=(Command(argv=("true",)),),
        variables=variables,
        needs=needs,
    )


def test_the_meter_is_omitted_from_steps_and_dependencies(tmp_path: Path) -> None:
    plan = small_plan(small_project(tmp_path / "project"), tmp_path / "yard")
    assert "environment/meter" in {one.name for one in plan.steps}
    kept = without_own_steps(plan)
    names = {one.name for one in kept.steps}
    assert "environment/meter" not in names
    assert {"generic/fetch", "generic/build", "generic/verify"} <= names
    assert all(need in names for one in kept.steps for need in one.needs)


def test_a_check_with_nothing_to_do_by_hand_is_omitted() -> None:
    steps = (
        step("thing/build"),
        replace(
            step("thing/verify", needs=("thing/build",)),
            actions=(Verify(component="thing", report="/yard/report"),),
        ),
        step("other/build", needs=("thing/verify",)),
    )
    plan = replace(hand_plan(), steps=steps)
    kept = without_own_steps(plan)
    assert [one.name for one in kept.steps] == ["thing/build", "other/build"]
    assert kept.steps[1].needs == ("thing/build",), "what the left-out step waited for"
    table = VerifyTable(files=("lib/libthing.so",))
    component = hand_component("/yard/b", Recipe(name="thing", verify=table))
    assert len(without_own_steps(replace(plan, components=(component,))).steps) == 3


def test_dependencies_pass_through_omitted_steps() -> None:
    steps = (
        step("a"),
        replace(step("b", needs=("a",)), counts=False),
        replace(step("c", needs=("b",)), actions=()),
        step("d", needs=("c", "a")),
    )
    kept = without_own_steps(replace(hand_plan(), steps=steps))
    assert [(one.name, one.needs) for one in kept.steps] == [("a", ()), ("d", ("a",))]


def test_shared_variables_are_those_of_more_than_half() -> None:
    steps = (
        step("a", ("X", "1"), ("Y", "1")),
        step("b", ("X", "1"), ("Y", "2")),
        step("c", ("X", "1"), ("X", "2")),
    )
    assert shared_by_most(steps) == (("X", "1"),)
    difference = Difference.of(steps[2], shared_by_most(steps))
    assert difference == Difference(more=(("X", "2"),), without=())
    assert shared_by_most(()) == ()


def test_steps_with_the_same_difference_are_reported_together() -> None:
    steps = (step("a", ("X", "1")), step("b", ("X", "1"), ("Y", "1")), step("c", ("Y", "1")))
    shared = shared_by_most(steps)
    assert dict(shared) == {"X": "1", "Y": "1"}
    found = distinct_differences(steps)
    assert list(found.values()) == [("a",), ("c",)]
    assert next(iter(found)).without == ("Y",)


def test_what_a_difference_has_beyond_another() -> None:
    small = Difference(more=(("A", "1"),), without=())
    large = Difference(more=(("A", "1"), ("B", "2")), without=())
    assert large.beyond(small) == (("B", "2"),)
    assert small.beyond(large) is None
    assert large.beyond(replace(small, without=("C",))) is None


def test_a_command_says_only_what_its_step_does_not() -> None:
    command = Command(argv=("x",), variables=(("LC_ALL", "C"), ("OWN", "1"), ("PATH", "/other")))
    found = own_variables(step("a", ("LC_ALL", "C"), ("PATH", "/bin")), command)
    assert found == (("OWN", "1"), ("PATH", "/other"))


def test_every_action_becomes_commands_and_files() -> None:
    plan = hand_plan()
    actions = (
        Command(argv=("true",)),
        WriteFile(path="/x", text=""),
        Download(url="https://example.org/x", path="/yard/d/x", sha256="0" * 64),
        SdistDownload(name="x", version="1", path="/yard/d/x.sdist"),
        AptSources(folder="/yard/apt", suite=""),
        Verify(component="thing", report="/yard/r"),
    )
    for action in actions:
        for plain in plain_actions(plan, action):
            assert isinstance(plain, Command | WriteFile)


def test_a_download_appears_only_when_it_is_right() -> None:
    action = Download(url="https://example.org/a b", path="/yard/d/x", sha256="ab" * 32)
    commands = [one for one in plain_actions(hand_plan(), action) if isinstance(one, Command)]
    fetch, check, finish = (command.argv for command in commands[1:])
    assert fetch[-3:] == ("--output", "x.part", "https://example.org/a b")
    assert "--fail" in fetch
    assert "sha256sum -c" in check[2]
    assert check[-2:] == ("ab" * 32, "x.part")
    assert finish[-2:] == ("x.part", "x")


def test_checks_are_files_import_and_smoke_tests() -> None:
    smoke = (SmokeTest(name="it runs", python="\nimport x\nx.run()\n"),)
    table = VerifyTable(import_name="x", files=("lib/libx.so",), smoke=smoke)
    component = hand_component("/yard/b", Recipe(name="x", verify=table), python="/env/bin/python")
    assert check_commands(component) == (
        ("test", "-e", "/yard/b/prefix/lib/libx.so"),
        ("/env/bin/python", "-I", "-c", "import x"),
        ("/env/bin/python", "-I", "-c", "import x\nx.run()"),
    )
    without = replace(component, python="")
    assert check_commands(without) == (("test", "-e", "/yard/b/prefix/lib/libx.so"),)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("lib/libx.so", True),
        ("lib/*.so", True),
        ("lib/lib[xy].so", True),
        ("**/libx.so", True),
        ("lib/a b?.txt", True),
        ("lib/*.dll", False),
        ("lib/liby.so", False),
    ],
)
def test_files_are_found_by_name_and_by_pattern(pattern: str, found: bool, tmp_path: Path) -> None:
    component = hand_component(tmp_path / "a [b]")
    folder = Path(component.prefix, "lib")
    folder.mkdir(parents=True)
    (folder / "libx.so").touch()
    (folder / "a bc.txt").touch()
    recipe = Recipe(name="thing", verify=VerifyTable(files=(pattern,)))
    (argv,) = check_commands(replace(component, recipe=recipe))
    assert (subprocess.run(argv, check=False).returncode == 0) is found
    absolute = str(folder / pattern.rpartition("/")[2]).replace("[b]", "[[]b]")
    recipe = Recipe(name="thing", verify=VerifyTable(files=(absolute,)))
    (argv,) = check_commands(replace(component, recipe=recipe))
    assert (subprocess.run(argv, check=False).returncode == 0) is found


def test_packages_are_frozen_where_there_is_a_python() -> None:
    assert freeze_command(hand_plan(), "/x") is None
    plan = hand_plan(component=hand_component("/yard/b", python="/env/bin/python"))
    command = freeze_command(plan, "/yard/b/freeze.txt")
    assert command
    assert command.argv[-2:] == ("/env/bin/python", "/yard/b/freeze.txt")


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

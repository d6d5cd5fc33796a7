"""Which steps and variables an export is made from."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builds.export.sample_plans import hand_component, hand_plan, small_plan, small_project
from torchyard.builds.export.shell import (
    Difference,
    check_commands,
    distinct_differences,
    freeze_command,
    own_variables,
    plain_actions,
    shared_by_most,
    without_own_steps,
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

"""The plan as text for people, and as JSON for programs: nothing is left out, nothing misleads."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from tests.builds.export.sample_plans import (
    FACTS,
    hand_component,
    hand_plan,
    shipped_plan,
    small_plan,
    small_project,
)
from torchyard.builds.export import export_plan
from torchyard.builds.export.shell import ExportFacts
from torchyard.builds.plan import (
    AptSources,
    Command,
    Download,
    Plan,
    SdistDownload,
    Step,
    WriteFile,
    fingerprints,
)
from torchyard.builds.recipe import PrepareCommand, Recipe
from torchyard.core.records import encode
from torchyard.core.units import format_bytes


def text_of(plan: Plan, facts: ExportFacts = FACTS) -> str:
    (file,) = export_plan(plan, "text", facts)
    return file.text


def step_of(text: str, name: str) -> str:
    """The paragraph of one step."""
    return next(part for part in text.split("\n\n") if f". {name}: " in part.splitlines()[0])


def test_every_command_file_and_variable_is_shown(tmp_path: Path) -> None:
    project = small_project(tmp_path / "project")
    plan = small_plan(project, tmp_path / "yard")
    text = text_of(plan, ExportFacts(home=str(tmp_path / "yard")))
    for number, step in enumerate(plan.steps, start=1):
        assert f"{number:3}. {step.name}: {step.title}" in text
        for name, value in step.variables:
            assert f"{name}={value}" in text
        for action in step.actions:
            if isinstance(action, Command):
                assert all(word in text for word in action.argv)
            elif isinstance(action, WriteFile):
                assert action.path in text
    assert str(project) in text
    assert "jobs      2" in text


def test_steps_that_are_done_are_marked() -> None:
    plan = hand_plan(Command(argv=("true",)))
    assert "1, of which none are done" in text_of(plan)
    done = text_of(plan, replace(FACTS, done=frozenset({"thing/work"})))
    assert "1, of which 1 is done" in done
    assert "1. thing/work: work [done]" in done


def test_where_the_network_is_allowed_and_what_runs_in_the_root() -> None:
    steps = (
        Step(name="a/fetch", component="a", title="fetch", actions=(), network=True),
        Step(
            name="a/build",
            component="a",
            title="build",
            actions=(Command(argv=("make",)), Command(argv=("cp", "x"), inside_root=False)),
            root="/yard/root",
            compiles=True,
            needs=("a/fetch",),
        ),
    )
    plan = replace(hand_plan(), steps=steps, jobs=3, jobs_why="said so", missing=("mmdebstrap",))
    text = text_of(plan)
    assert "network   allowed in a/fetch; blocked in all others" in text
    assert "jobs      3 (said so)" in text
    assert "missing   mmdebstrap: the plan cannot run here" in text
    built = step_of(text, "a/build")
    assert "[in the root; compiles, 3 jobs]" in built
    assert "after: a/fetch" in built
    assert "root$ make" in built
    assert "\n     $ cp x" in built, "this one runs on the machine"


def test_shared_variables_are_listed_once_and_differences_at_the_step() -> None:
    def step(name: str, **variables: str) -> Step:
        pairs = tuple(variables.items())
        return Step(name=f"a/{name}", component="a", title=name, actions=(), variables=pairs)

    steps = (
        step("one", PATH="/bin", HOME="/"),
        step("two", PATH="/bin", HOME="/", EXTRA="1"),
        step("three", PATH="/bin", HOME="/", EXTRA="1", MORE="2"),
        step("four", PATH="/other"),
    )
    text = text_of(replace(hand_plan(), steps=steps))
    assert text.count("PATH=/bin") == 1
    assert text.count("EXTRA=1") == 1
    assert "variables" not in step_of(text, "a/one")
    assert "variables: as a/two, plus\n       MORE=2" in step_of(text, "a/three")
    four = step_of(text, "a/four")
    assert "variables: without HOME" in four
    assert "PATH=/other" in four


def test_long_files_are_folded_with_size_and_digest() -> None:
    long = "".join(f"line {number}\n" for number in range(500))
    text = text_of(
        hand_plan(
            WriteFile(path="/yard/long", text=long),
            WriteFile(path="/yard/short", text="all of it\n", executable=True),
        )
    )
    digest = hashlib.sha256(long.encode()).hexdigest()[:16]
    size = format_bytes(len(long))
    assert f"write /yard/long ({size}, sha256 {digest})" in text
    assert "| line 0\n" in text
    assert "line 400" not in text
    assert "| ... 494 more lines" in text
    assert "executable)\n       | all of it\n" in text


def test_fetching_is_reported_in_words() -> None:
    text = text_of(
        hand_plan(
            Download(url="https://example.org/a.tar", path="/yard/a", sha256="ab" * 32),
            SdistDownload(name="thing", version="1.0", path="/yard/b"),
            AptSources(folder="/yard/apt", suite="trixie"),
        )
    )
    assert "download https://example.org/a.tar\n       to /yard/a\n" in text
    assert "ab" * 32 in text
    assert "source distribution thing 1.0" in text
    assert "apt configuration for trixie, with source packages" in text


def test_the_reason_of_a_prepare_command_is_given() -> None:
    run = ("python", "hipify.py")
    recipe = Recipe(name="thing", prepare=(PrepareCommand(run=run, why="no build does it"),))
    component = hand_component("/yard/builds/x", recipe)
    text = text_of(hand_plan(Command(argv=run), component=component))
    assert "# no build does it\n     $ python hipify.py" in text


def test_nothing_in_a_plan_can_write_to_the_terminal() -> None:
    evil = "\x1b[2J\r\x07\u202e"
    recipe = Recipe(name="thing", version=f"1{evil}")
    plan = replace(
        hand_plan(
            Command(argv=("echo", f"a{evil}\nb"), folder=f"/{evil}", variables=(("X", evil),)),
            WriteFile(path=f"/yard/{evil}", text=f"text {evil}\n"),
            variables=(("PATH", evil),),
            component=hand_component("/yard/builds/x", recipe),
            creates=(evil,),
            inputs=(("patch", evil),),
        ),
        notes=(evil,),
        jobs_why=evil,
    )
    text = text_of(plan)
    assert all(line.isprintable() for line in text.split("\n"))
    assert "\\x1b[2J" in text


def test_json_holds_the_whole_plan(tmp_path: Path) -> None:
    plan = shipped_plan("arm-stack", tmp_path)
    (file,) = export_plan(plan, "json", replace(FACTS, done=frozenset({"openblas/fetch"})))
    document = json.loads(file.text)
    assert document["schema"] == "torchyard.build-plan"
    assert document["schema_version"] == 1
    prints = fingerprints(plan)
    for step, said in zip(plan.steps, document["plan"]["steps"], strict=True):
        assert said.pop("fingerprint") == prints[step.name]
        assert said.pop("done") is (step.name == "openblas/fetch")
        for action, fields in zip(step.actions, said["actions"], strict=True):
            assert fields.pop("kind") == type(action).__name__
    assert document["plan"] == json.loads(json.dumps(encode(plan)))

"""Compilers as inputs of steps: which are used, and what another version leads to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builds.plans import plan_of, shell, step
from torchyard.builds.build_folders import BuildFolder
from torchyard.builds.compilers import chosen_tools, discard_other_objects, with_compilers
from torchyard.builds.plan import BuildEvent, Plan, Step, accepted_fingerprints, fingerprints
from torchyard.builds.recipe import BuilderKind, Recipe
from torchyard.builds.running.runner import (
    Runner,
    StepState,
    read_state,
    unfinished_steps,
    write_state,
)
from torchyard.core.records import encode


def tool(folder: Path, name: str, version: str) -> str:
    """A program that prints its version."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{name} (Debian {version}-1) {version}'\n")
    path.chmod(0o755)
    return str(path)


def plan_with(
    folder: Path,
    tools: Path,
    more: Mapping[str, str] | None = None,
    *,
    builder: BuilderKind = "cmake",
) -> Plan:
    variables = (("PATH", f"{tools}:/usr/bin:/bin"), *(more or {}).items())
    steps = (
        replace(step("tree", shell("true")), variables=variables),
        replace(step("build", shell("true"), needs=("tree",)), variables=variables, compiles=True),
    )
    plan = plan_of(folder, *steps)
    (part,) = plan.components
    return replace(plan, components=(replace(part, recipe=Recipe(name="part", builder=builder)),))


def digests(folder: Path, version: str, **more: str) -> dict[str, str]:
    tools = folder / f"tools-{version}"
    for name in ("cc", "c++", "ld"):
        tool(tools, name, version)
    # The same search path, as after an upgrade.
    link = folder / "tools"
    link.unlink(missing_ok=True)
    link.symlink_to(tools)
    from torchyard.builds import compilers

    compilers._version.cache_clear()
    return dict(fingerprints(with_compilers(plan_with(folder, link, more), "venv")))


def test_another_compiler_version_is_another_fingerprint(tmp_path: Path) -> None:
    old, new = digests(tmp_path, "12.2.0"), digests(tmp_path, "14.1.0")
    assert old["part/tree"] == new["part/tree"], "the working copy is kept"
    assert old["part/build"] != new["part/build"]
    assert old == digests(tmp_path, "12.2.0")


def test_the_chosen_compiler_counts_and_no_other(tmp_path: Path) -> None:
    own = tool(tmp_path / "own", "my-gcc", "9.9.9")
    old = digests(tmp_path, "12.2.0", CC=own, CXX=own, LDFLAGS="-fuse-ld=none")
    assert old == digests(tmp_path, "14.1.0", CC=own, CXX=own, LDFLAGS="-fuse-ld=none")
    tool(tmp_path / "own", "my-gcc", "9.9.10")
    assert old != digests(tmp_path, "14.1.0", CC=own, CXX=own, LDFLAGS="-fuse-ld=none")


@pytest.mark.parametrize("kind", ["conda", "debian-root"])
def test_environments_with_their_own_compilers_have_no_inputs(tmp_path: Path, kind: str) -> None:
    plan = plan_with(tmp_path, tmp_path)
    assert with_compilers(plan, kind) is plan  # type: ignore[arg-type]


def test_options_choose_tools() -> None:
    recipe = Recipe(
        name="part",
        options={"CMAKE_CXX_COMPILER": "/opt/g++-14", "USE_CUDA": True, "USE_ROCM": False},
    )
    tools = chosen_tools(recipe, {"CC": "ccache gcc-14 -m64", "CXX": "g++", "CUDACXX": "/c/nvcc"})
    assert tools == {
        "cc": ("gcc-14",),
        "c++": ("/opt/g++-14",),
        "nvcc": ("/c/nvcc",),
        "ld": ("ld",),
    }
    without = chosen_tools(
        replace(recipe, options={"USE_CUDA": False}), {"LDFLAGS": "-fuse-ld=mold"}
    )
    assert "nvcc" not in without
    assert without["ld"] == ("ld.mold", "mold")


def test_a_make_project_is_copied_again(tmp_path: Path) -> None:
    tool(tmp_path / "tools", "cc", "12.2.0")
    plan = with_compilers(plan_with(tmp_path, tmp_path / "tools", builder="make"), "venv")
    assert any("12.2.0" in value for _, value in plan.steps[0].inputs)


def test_objects_of_another_compiler_are_removed(tmp_path: Path) -> None:
    plan = plan_with(tmp_path, tmp_path)
    item = tmp_path / "tree" / "build" / "a.o"
    item.parent.mkdir(parents=True)
    item.write_text("object")

    def discard(version: str) -> str:
        return discard_other_objects(
            plan, replace(plan.steps[1], inputs=(("compiler cc", version),))
        )

    assert discard("gcc 12") == "", "nothing is known about the objects"
    assert discard("gcc 12") == ""
    assert item.exists()
    assert "gcc 14" in discard("gcc 14")
    assert not item.exists()


def version_1(plan: Plan) -> dict[str, str]:
    """Fingerprints as the first version made them."""
    made: dict[str, str] = {}
    for one in plan.steps:
        content = encode(one)
        del content["title"], content["counts"]
        content["needs"] = [made[name] for name in one.needs]
        for action in content["actions"]:
            action.pop("fingerprinted", None)
        text = json.dumps(content, sort_keys=True)
        made[one.name] = hashlib.sha256(text.encode()).hexdigest()
    return made


def test_builds_of_the_first_version_stay_up_to_date(tmp_path: Path) -> None:
    tool(tmp_path / "tools", "cc", "12.2.0")
    before = plan_with(tmp_path, tmp_path / "tools")
    folder = BuildFolder(folder=tmp_path)
    for name, digest in version_1(before).items():
        state = StepState(step=name, fingerprint=digest, status="done", started_at=1.0)
        folder.state(name).parent.mkdir(parents=True, exist_ok=True)
        write_state(folder.state(name), state)
    now = with_compilers(before, "venv")
    assert now != before
    assert unfinished_steps(now, folder) == ()
    events: list[BuildEvent] = []
    runner = Runner(
        plan=now,
        folder=folder,
        performer=None,  # type: ignore[arg-type]
        explain=None,  # type: ignore[arg-type]
        watch=None,  # type: ignore[arg-type]
        listener=events.append,
    )
    assert runner.run().ran == ()
    renewed = read_state(folder.state("part/build"))
    assert renewed is not None
    assert renewed.fingerprint == fingerprints(now)["part/build"]
    assert accepted_fingerprints(now)["part/build"][0] == renewed.fingerprint


def test_defaults_are_not_part_of_a_fingerprint(tmp_path: Path) -> None:
    """A field that is added later with a default leaves all fingerprints as they are."""
    from dataclasses import dataclass, fields

    @dataclass(frozen=True, kw_only=True)
    class LaterStep(Step):
        added: str = ""

    plan = plan_of(tmp_path, step("a", shell("true")))
    values = {item.name: getattr(plan.steps[0], item.name) for item in fields(Step)}
    later = replace(plan, steps=(LaterStep(**values),))
    assert fingerprints(later) == fingerprints(plan)
    assert accepted_fingerprints(later) == accepted_fingerprints(plan)
    changed = replace(plan, steps=(LaterStep(**values, added="x"),))
    assert fingerprints(changed) != fingerprints(plan)

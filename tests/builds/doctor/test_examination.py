"""The complete examination: order, duplicates, failing checks, cached versions, and this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builds.doctor.fake_machine import FakeMachine, severities
from torchyard.builds.doctor.context import Check, DoctorContext
from torchyard.builds.doctor.examination import CHECKS, can_build, examine
from torchyard.builds.doctor.finding import SEVERITIES, DoctorFinding, findings_text
from torchyard.builds.plan import Plan
from torchyard.builds.recipe import CondaTable, EnvironmentTable, Recipe


def finding(severity: str, what: str = "w") -> DoctorFinding:
    return DoctorFinding(check="made up", severity=severity, what=what)  # type: ignore[arg-type]


def made_up(*findings: DoctorFinding) -> Check:
    return Check(name="made up", subject="nothing", run=lambda _context: findings)


def test_worst_first_and_each_once() -> None:
    first = made_up(finding("notes"), finding("warns", "a"), finding("blocks"))
    second = made_up(finding("warns", "b"), finding("notes"))
    found = examine(environ={}, checks=(first, second))
    assert severities(found) == ["blocks", "warns", "warns", "notes"]
    assert [f.what for f in found][1:3] == ["a", "b"]


def test_a_check_that_fails_does_not_end_the_others() -> None:
    def unreadable(_context: DoctorContext) -> Iterator[DoctorFinding]:
        yield finding("warns")
        raise PermissionError(13, "Permission denied", "/root/secret")

    broken = Check(name="broken", subject="a secret", run=unreadable)
    found = examine(environ={}, checks=(broken, made_up(finding("blocks"))))
    assert severities(found) == ["blocks", "warns", "notes"]
    assert found[2].what == "a secret: could not be checked"
    assert "/root/secret" in found[2].why


def test_a_machine_that_can_build() -> None:
    assert can_build(())
    assert can_build([finding("warns"), finding("notes")])
    assert not can_build([finding("notes"), finding("blocks")])


def test_names_of_checks_are_unique_and_shown() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    assert all(check.subject for check in CHECKS)


def test_every_finding_says_its_check_and_how_to_fix_it(machine: FakeMachine) -> None:
    """On a bare machine nearly everything is wrong."""
    recipe = Recipe(
        name="pytorch",
        version="2.13.0",
        builder="python",
        disk_gib=10_000_000,
        environment=EnvironmentTable(use="current"),
        options={"USE_CUDA": True, "USE_ROCM": True, "USE_MKLDNN_ACL": True, "BLAS": "MKL"},
    )
    findings = machine.examine(recipe)
    names = {check.name for check in CHECKS}
    for found in findings:
        assert found.check in names
        assert found.severity in SEVERITIES
        if found.severity == "blocks":
            assert found.why, found
            assert found.fix, found
    blocked = {found.check for found in findings if found.severity == "blocks"}
    assert blocked >= {"disk", "compilers", "nvidia", "rocm", "blas", "stack"}


def test_recipes_are_those_of_the_plan(machine: FakeMachine) -> None:
    recipe = Recipe(
        name="pytorch",
        version="2.8.0",
        environment=EnvironmentTable(use="current"),
        builder="cmake",
    )
    machine.good_tools()
    machine.says("cmake", "cmake version 3.20.0")
    findings = machine.examine(plan=machine.plan(recipe), only="versions")
    assert "cmake 3.20.0 does not fit pytorch 2.8" in [f.what for f in findings]


def test_environment_of_a_stack(machine: FakeMachine) -> None:
    """Its parts have environments of their own, which do not count."""
    machine.says("cmake", "cmake version 3.1.0")
    recipe = Recipe(name="pytorch", version="2.8.0", builder="cmake")

    def whats(plan: Plan, environment: EnvironmentTable | None = None) -> list[str]:
        found = examine(
            plan,
            root=machine.root,
            environ=machine.environ,
            environment=environment,
            architecture="x86_64",
        )
        return [f.what for f in found if f.check in {"versions", "compilers"}]

    assert "cmake 3.1.0 does not fit pytorch 2.8" in whats(machine.plan(recipe))
    # Steps in a root folder give it away; its suite's CMake is new enough.
    assert whats(machine.plan(recipe, root="/some/root")) == []
    conda = EnvironmentTable(use="conda", conda=CondaTable(packages=("cmake=3.26",)))
    assert whats(machine.plan(recipe), conda) == ["cmake 3.26 does not fit pytorch 2.8"]
    # A virtual environment over a base in a root: the root itself says which Debian it is.
    (machine.folder / "old/etc").mkdir(parents=True)
    (machine.folder / "old/etc/os-release").write_text('NAME=x\nVERSION_CODENAME="bookworm"\n')
    venv = EnvironmentTable(use="venv", base="/yard/builds/torch/bin/python")
    old = machine.plan(recipe, root=str(machine.folder / "old"))
    assert whats(old, venv) == ["cmake 3.25.1 does not fit pytorch 2.8"]
    assert whats(machine.plan(recipe, root="/some/root"), venv) == []


def test_versions_are_remembered(machine: FakeMachine, tmp_path: Path) -> None:
    machine.good_tools()
    memory = tmp_path / "tools.json"
    examine(root=machine.root, environ=machine.environ, tool_cache=memory)
    known = json.loads(memory.read_bytes())
    assert f"{machine.bin}/cmake --version" in known
    # A second look believes the file instead of asking again.
    known[f"{machine.bin}/cmake --version"]["version"] = "3.1.4"
    memory.write_text(json.dumps(known), encoding="utf-8")
    findings = examine(root=machine.root, environ=machine.environ, tool_cache=memory)
    assert any("cmake 3.1.4" in f.what for f in findings)


def test_this_machine_has_a_general_health() -> None:
    findings = examine(environ=os.environ)
    text = findings_text(findings)
    assert text.splitlines()[-1].startswith("The build can")
    assert [f for f in findings if f.check == "versions" and f.severity != "notes"] == []


def test_text_shows_details() -> None:
    with_detail = DoctorFinding(
        check="c", severity="warns", what="w", why="y", fix="m", detail=("one", "two")
    )
    assert findings_text([with_detail]) == (
        "warning  c: w\n    why: y\n    fix: m\n      one\n      two\nThe build can succeed; 1 warning.\n"
    )


_EXAMINE = """
import json, sys
from pathlib import Path
from torchyard.builds.doctor.examination import CHECKS, examine
from torchyard.builds.plan import Component, Plan
from torchyard.builds.recipe import EnvironmentTable, Recipe
folder, scratch, disk_gib, cuda = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4] == "1"
recipe = Recipe(name="x", disk_gib=disk_gib, environment=EnvironmentTable(use="current"),
                options={"USE_CUDA": cuda})
part = Component(name="x", recipe=recipe, source="", tree="", prefix="", wheels="", python="")
plan = Plan(name="x", folder=folder, components=(part,), steps=(), jobs=1, jobs_why="")
found = examine(plan, environ={"TMPDIR": scratch}, checks=[c for c in CHECKS if c.name == "disk"])
print(json.dumps([[f.severity, f.what, f.fix] for f in found]))
"""


def examine_disk(mounts: str, *arguments: str) -> list[list[str]]:
    """What the disk check says behind private mounts."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root, for mounts of its own")
    script = f'{mounts} && exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-ec", script, "sh", sys.executable, "-c", _EXAMINE, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if "permission denied" in done.stderr.lower() or "not permitted" in done.stderr.lower():
        pytest.skip("mounts are not allowed here")
    assert done.returncode == 0, done.stderr
    found: list[list[str]] = json.loads(done.stdout)
    return found


def test_programs_cannot_be_executed_from_a_noexec_mount(tmp_path: Path) -> None:
    mounts = f"mount -t tmpfs -o noexec,size=64m none '{tmp_path}'"
    found = examine_disk(mounts, f"{tmp_path}/build", str(tmp_path), "0", "0")
    assert [item[:2] for item in found if "cannot be executed" in item[1]] == [
        ["blocks", f"programs cannot be executed from {tmp_path}"]
    ]


def test_full_disk(tmp_path: Path) -> None:
    mounts = f"mount -t tmpfs -o size=64m none '{tmp_path}'"
    (item,) = examine_disk(mounts, f"{tmp_path}/build", str(tmp_path), "2", "0")
    assert item[0] == "blocks"
    assert item[1] == f"{tmp_path} has 0.1 GiB free, but the build needs 3.0 GiB"


def test_small_scratch_folder_on_a_disk_of_its_own(tmp_path: Path) -> None:
    work, scratch = tmp_path / "work", tmp_path / "scratch"
    work.mkdir()
    scratch.mkdir()
    mounts = f"mount -t tmpfs -o size=64m none '{scratch}'"
    found = examine_disk(mounts, str(work), str(scratch), "0", "1")
    assert ["warns", f"export TMPDIR={work}"] in [[item[0], item[2]] for item in found]


def test_mounts_are_gone_afterwards(tmp_path: Path) -> None:
    examine_disk(f"mount -t tmpfs none '{tmp_path}'", str(tmp_path), str(tmp_path), "0", "0")
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text(encoding="utf-8")

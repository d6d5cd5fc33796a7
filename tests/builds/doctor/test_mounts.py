"""Disks that cannot hold a build: real mounts in a mount namespace."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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

"""The exported script of a plan with a root folder, run for real in a tiny one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builds.export.sample_plans import hand_plan
from torchyard.builds.environments.model import SYSTEM_PATH
from torchyard.builds.export import export_plan
from torchyard.builds.export.shell import ExportFacts
from torchyard.builds.plan import Command, Plan

PROGRAMS = ("sh", "cat", "env", "ls")


def private_mounts() -> bool:
    argv = ["unshare", "--mount", "--propagation", "private", "mount", "--bind", "/tmp", "/mnt"]
    return (
        shutil.which("unshare") is not None
        and not subprocess.run(argv, capture_output=True, check=False).returncode
    )


NEEDS_MOUNTS = pytest.mark.skipif(
    os.geteuid() != 0 or not private_mounts(),
    reason="needs the rights of root, and a kernel that lets it mount",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root folder with a shell and three programs, and the libraries they load."""
    folder = tmp_path / "the root"
    for name in ("bin", "etc", "proc", "sys", "dev"):
        (folder / name).mkdir(parents=True)
    (folder / "etc/mark").write_text("inside\n")
    for name in PROGRAMS:
        program = shutil.which(name, path=SYSTEM_PATH)
        if program is None:
            pytest.skip(f"{name} is not here")
        shutil.copy(program, folder / "bin" / name)
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
        for library in re.findall(r"(/\S+)", listed.stdout):
            target = folder / library.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)
    return folder


def rooted_plan(root: Path, folder: Path) -> Plan:
    tell = "cat /etc/mark >seen; env >variables; ls / >tops; ls /proc/self/status >proc"
    return hand_plan(
        Command(argv=("sh", "-c", tell), variables=(("OWN", "it's\n$x"),)),
        Command(argv=("sh", "-c", "ls /etc >outside"), inside_root=False),
        folder=folder,
        variables=(("PATH", SYSTEM_PATH), ("SHARED", "a b")),
        root=str(root),
        compiles=True,
    )


def script_of(plan: Plan, home: Path, place: Path) -> Path:
    (file,) = export_plan(plan, "script", ExportFacts(home=str(home)))
    path = place / "build.sh"
    path.write_text(file.text)
    return path


@NEEDS_MOUNTS
def test_commands_run_in_the_root_and_nothing_stays_mounted(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "yard/builds/a build"
    script = script_of(rooted_plan(root, folder), tmp_path / "yard", tmp_path)
    argv = ["sh", str(script)]
    environ = {"PATH": os.environ["PATH"], "JOBS": "5", "CC": "no"}
    first = subprocess.run(argv, capture_output=True, text=True, check=False, env=environ)
    assert first.returncode == 0, first.stderr
    assert (folder / "seen").read_text() == "inside\n"
    variables = (folder / "variables").read_text()
    for line in ("OWN=it's\n$x\n", "SHARED=a b\n", "MAX_JOBS=5\n", f"PATH={SYSTEM_PATH}\n"):
        assert line in variables
    assert "CC=" not in variables
    assert "TORCHYARD_MOUNTS" not in variables
    assert "status" in (folder / "proc").read_text()
    top = tmp_path.parts[1]
    assert top in (folder / "tops").read_text().split(), "the machine's folders are seen inside"
    assert "mark" not in (folder / "outside").read_text().split()
    mounts = Path("/proc/self/mountinfo").read_text()
    assert str(root).replace(" ", "\\040") not in mounts
    assert list((root / "proc").iterdir()) == []
    second = subprocess.run(argv, capture_output=True, text=True, check=True, env=environ)
    assert "already done: thing/work" in second.stdout


def test_without_the_rights_of_root_the_script_is_reported(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "id").write_text("#!/bin/sh\necho 1000\n")
    (programs / "id").chmod(0o755)
    plan = rooted_plan(tmp_path / "root", tmp_path / "build")
    script = script_of(plan, tmp_path, tmp_path)
    text = script.read_text().replace(
        f"PATH={SYSTEM_PATH}\n", f"PATH={programs}:{SYSTEM_PATH}\n", 1
    )
    script.write_text(text)
    ended = subprocess.run(["sh", str(script)], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "run it as root" in ended.stderr
    assert not (tmp_path / "build").exists()


@pytest.mark.parametrize(
    ("home", "shown"),
    [
        ("/home/me/yard", []),
        ("/var/lib/yard", ["/var/lib/yard"]),
        ("/library/yard", ["/library/yard"]),
        ("/runs", []),
    ],
)
def test_a_results_directory_in_a_system_folder_is_visible_in_the_root(
    home: str, shown: list[str]
) -> None:
    plan = rooted_plan(Path(home, "root"), Path(home, "builds/x"))
    (file,) = export_plan(plan, "script", ExportFacts(home=home))
    assert re.findall(r"^ +show (/\S+)$", file.text, re.MULTILINE) == shown
    # `show "$top"` is left for the others; the pattern there and here must say the same.
    pattern = re.search(r"case \$top in\n(.*?)\) continue", file.text, re.DOTALL)
    assert pattern
    names = pattern[1].replace("\\\n", "").replace(" ", "").split("|")
    top = "/" + home.split("/")[1]
    fits = any(top == name or (name.endswith("*") and top.startswith(name[:-1])) for name in names)
    assert fits is bool(shown)


def test_a_plan_without_a_root_mounts_nothing(tmp_path: Path) -> None:
    plan = replace(rooted_plan(tmp_path, tmp_path / "b"))
    plain = replace(plan, steps=tuple(replace(step, root="") for step in plan.steps))
    (file,) = export_plan(plain, "script", ExportFacts(home=str(tmp_path)))
    assert "mount" not in file.text.replace("TORCHYARD_MOUNTS", "")
    assert "chroot" not in file.text

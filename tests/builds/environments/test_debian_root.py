"""Plans of Debian roots, and one slow test with a real root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from torchyard.builds.environments import plan_environment
from torchyard.builds.environments.model import SYSTEM_PATH, EnvironmentPlan, inherited_variables
from torchyard.builds.plan import Command, Plan, Step, WriteFile, fingerprints
from torchyard.builds.recipe import DebianRootTable, EnvironmentTable
from torchyard.builds.sandbox import Sandbox, abilities
from torchyard.errors import UsageError


def plan(
    folder: Path,
    table: DebianRootTable | None = None,
    *packages: str,
    environ: dict[str, str] | None = None,
    python: str = "",
    base: str = "",
) -> EnvironmentPlan:
    return plan_environment(
        EnvironmentTable(
            use="debian-root", python=python, base=base, debian_root=table or DebianRootTable()
        ),
        folder=folder,
        packages=packages,
        where="pytorch: environment",
        environ=environ or {"HOME": "/h"},
    )


def step(made: EnvironmentPlan, name: str) -> Step:
    return next(one for one in made.steps if one.name == f"environment/{name}")


def commands(one: Step, *, inside: bool = True) -> list[tuple[str, ...]]:
    return [
        action.argv
        for action in one.actions
        if isinstance(action, Command) and action.inside_root is inside
    ]


def test_steps_and_where_they_run(tmp_path: Path) -> None:
    made = plan(tmp_path, None, "six")
    root = f"{tmp_path}/root"
    assert made.root == root
    assert made.python == f"{tmp_path}/env/bin/python"
    names = ("root", "debian-packages", "python", "packages")
    assert [one.name for one in made.steps] == [f"environment/{name}" for name in names]
    assert [one.root for one in made.steps] == ["", root, root, root]
    assert all(one.network for one in made.steps)
    for before, after in zip(made.steps, made.steps[1:], strict=False):
        assert after.needs == (before.name,)
    script, command = step(made, "root").actions
    assert isinstance(script, WriteFile)
    assert script.text.startswith("#!/bin/sh\n")
    assert isinstance(command, Command)
    assert not command.inside_root
    assert command.argv == ("sh", script.path, root, "trixie", "", "ca-certificates")
    assert made.last_step == ("environment/packages",)


def test_debian_packages(tmp_path: Path) -> None:
    table = DebianRootTable(
        packages=("libopenblas-dev", "cmake", "libstdc++-14-dev"),
        build_dependencies_of=("pytorch", "openblas"),
    )
    one = step(plan(tmp_path, table), "debian-packages")
    assert ("DEBIAN_FRONTEND", "noninteractive") in one.variables
    argv = commands(one)
    install = next(
        words for words in argv if words[:1] == ("apt-get",) and "install" in words[-20:-1]
    )
    assert "--no-install-recommends" in install
    wanted = install[install.index("--") + 1 :]
    assert list(wanted) == sorted(set(wanted))
    for name in (
        "libopenblas-dev",
        "libstdc++-14-dev",
        "build-essential",
        "python3-venv",
        "ccache",
    ):
        assert name in wanted
    assert (
        "apt-get",
        "--yes",
        "--no-install-recommends",
        "build-dep",
        "--",
        "openblas",
        "pytorch",
    ) in argv
    # A run that was killed in the middle of dpkg is finished before anything else.
    assert argv[0] == ("dpkg", "--configure", "-a")
    assert commands(one, inside=False)[0][-2:] == (
        "/etc/resolv.conf",
        f"{tmp_path}/root/etc/resolv.conf",
    )
    assert one.creates == (f"{tmp_path}/root/var/lib/torchyard/debian-packages",)


def test_other_packages_do_not_make_a_new_root(tmp_path: Path) -> None:
    def prints(*packages: str) -> dict[str, str]:
        steps = plan(tmp_path, DebianRootTable(packages=packages)).steps
        whole = Plan(name="x", folder="/x", components=(), steps=steps, jobs=1, jobs_why="")
        return dict(fingerprints(whole))

    few, more = prints("zlib1g-dev"), prints("zlib1g-dev", "libfmt-dev")
    assert few["environment/root"] == more["environment/root"]
    assert few["environment/debian-packages"] != more["environment/debian-packages"]
    assert few["environment/python"] != more["environment/python"]


def test_other_archive_areas_make_a_new_root(tmp_path: Path) -> None:
    def command(*areas: str) -> tuple[str, ...]:
        made = plan(tmp_path, DebianRootTable(archive_areas=areas))
        return commands(step(made, "root"), inside=False)[0]

    assert command()[-1] == "ca-certificates", "roots without areas keep their fingerprints"
    assert command("main", "contrib") == (*command(), "main", "contrib")


def test_better_script_does_not_make_a_new_root(tmp_path: Path) -> None:
    """Compiling PyTorch again because a comment changed would be a bad joke."""
    made = plan(tmp_path).steps

    def print_of(first: Step) -> str:
        whole = Plan(name="x", folder="/x", components=(), steps=(first,), jobs=1, jobs_why="")
        return fingerprints(whole)[first.name]

    script, command = made[0].actions
    assert isinstance(script, WriteFile)
    better = replace(script, text=script.text + "# better\n")
    assert print_of(replace(made[0], actions=(better, command))) == print_of(made[0])
    counted = replace(script, fingerprinted=True)
    assert print_of(replace(made[0], actions=(counted, command))) != print_of(made[0])
    assert print_of(replace(made[0], inputs=(("root layout", "2"),))) != print_of(made[0])


def test_variables_of_later_steps(tmp_path: Path) -> None:
    variables = dict(plan(tmp_path).variables)
    assert variables["PATH"] == f"{tmp_path}/env/bin:{SYSTEM_PATH}"
    assert variables["VIRTUAL_ENV"] == f"{tmp_path}/env"
    # The environment sees Debian's Python packages, and would see the user's own as well.
    assert variables["PYTHONNOUSERSITE"] == "1"
    assert "DEBIAN_FRONTEND" not in variables


def test_interpreter(tmp_path: Path) -> None:
    (argv,) = commands(step(plan(tmp_path), "python"))
    assert argv[:3] == ("/usr/bin/python3", "-m", "venv")
    assert "--system-site-packages" in argv
    other = plan(tmp_path, python="3.12")
    assert commands(step(other, "python"))[0][0] == "/usr/bin/python3.12"
    wanted = {word for words in commands(step(other, "debian-packages")) for word in words}
    assert {"python3.12-dev", "python3.12-venv"} <= wanted
    named = plan(tmp_path, python="/opt/python/bin/python3")
    assert commands(step(named, "python"))[0][0] == "/opt/python/bin/python3"


def test_base_is_asked_inside_the_root(tmp_path: Path) -> None:
    """It may exist there only, so that the plan must not look for it here."""
    made = plan(tmp_path, base="/other/env/bin/python")
    layer = commands(step(made, "python"))[-1]
    assert layer[0] == made.python
    assert layer[2] == "/other/env/bin/python"
    assert "PIP_CONSTRAINT" in dict(made.variables)


@pytest.mark.parametrize(
    ("table", "key"),
    [
        (DebianRootTable(suite="Trixie"), "suite"),
        (DebianRootTable(suite="--help"), "suite"),
        (DebianRootTable(packages=("-o=x",)), "packages"),
        (DebianRootTable(packages=("a; id",)), "packages"),
        (DebianRootTable(packages=("Zlib",)), "packages"),
        (DebianRootTable(build_dependencies_of=("../x",)), "build-dependencies-of"),
        (DebianRootTable(archive_areas=("main contrib",)), "archive-areas"),
    ],
)
def test_wrong_names(table: DebianRootTable, key: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"pytorch: environment\.debian-root\.{key}"):
        plan(tmp_path, table)


def test_versions_and_architectures_of_packages(tmp_path: Path) -> None:
    plan(
        tmp_path, DebianRootTable(packages=("zlib1g-dev=1:1.3.1+dfsg-1", "libc6:arm64", "gcc/sid"))
    )


def test_missing_programs_are_reported(tmp_path: Path) -> None:
    made = plan(tmp_path)
    rights = [missing for missing in made.missing if "root privileges" in missing]
    assert bool(rights) is (os.geteuid() != 0)
    here = shutil.which("mmdebstrap") or shutil.which("debootstrap", path=SYSTEM_PATH)
    assert any("mmdebstrap" in missing for missing in made.missing) is not bool(here)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_real_root(tmp_path: Path, perform: Callable[..., str]) -> None:
    """A trixie on this machine, entered through the sandbox; needs the network and a few minutes."""
    made = plan(
        tmp_path / "a plan",
        DebianRootTable(suite="trixie", packages=("zlib1g-dev",), build_dependencies_of=("hello",)),
        "six",
        environ=dict(os.environ),
    )
    if made.missing or not abilities().can_mount:
        pytest.skip(f"cannot be made here: {', '.join(made.missing) or abilities().why_not}")
    folder = tmp_path / "a plan"
    added = inherited_variables(os.environ)
    for one in made.steps:
        perform(one, folder=folder, added=added)
    # Once more, as after a kill behind the last command of each.
    for one in made.steps[1:]:
        perform(one, folder=folder, added=added)

    def inside(*argv: str) -> str:
        command, variables = Sandbox(root=made.root, network=False).command(
            argv, folder=str(folder), variables=dict(made.variables)
        )
        result = subprocess.run(
            command, env=variables, capture_output=True, text=True, check=True, cwd=folder
        )
        return result.stdout.strip()

    assert inside("sh", "-c", ". /etc/os-release; echo $VERSION_CODENAME") == "trixie"
    assert inside("python", "-c", "import sys; print(sys.prefix)") == f"{folder}/env"
    assert inside("python", "-c", "import six; print(six.__file__)").startswith(f"{folder}/env/")
    assert inside("gcc", "-dumpversion") == "14"
    mounts = Path("/proc/self/mountinfo").read_text()
    assert made.root.replace(" ", "\\040") not in mounts

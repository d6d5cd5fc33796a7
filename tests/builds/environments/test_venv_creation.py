"""Creation of virtual environments, offline, in folders with spaces in their names."""

from __future__ import annotations

import ensurepip
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builds.environments.tiny_wheels import put_installed, write_wheel
from torchyard.builds import environments
from torchyard.builds.environments import plan_environment
from torchyard.builds.environments.model import EnvironmentPlan, pip_installer
from torchyard.builds.plan import Command
from torchyard.builds.recipe import EnvironmentTable

Perform = Callable[..., str]
LAYER_PROGRAM = Path(environments.__path__[0], "layer_packages.py")


@pytest.fixture
def offline(tmp_path: Path) -> dict[str, str]:
    """Settings under which pip knows a folder of wheels and nothing else."""
    return {
        "HOME": str(tmp_path / "home"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": (tmp_path / "wheels").as_uri(),
    }


def plan(folder: Path, offline: dict[str, str], *packages: str, base: str = "") -> EnvironmentPlan:
    return plan_environment(
        EnvironmentTable(base=base), folder=folder, packages=packages, where="x", environ=offline
    )


def ask(made: EnvironmentPlan, code: str) -> str:
    """What the environment's interpreter says, with the variables of later steps."""
    result = subprocess.run(
        [made.python, "-c", code],
        env=dict(made.variables),
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.strip()


def test_made_from_nothing_and_filled(
    tmp_path: Path, offline: dict[str, str], perform: Perform
) -> None:
    write_wheel(tmp_path / "wheels", "tiny", "1.5")
    folder = tmp_path / "a plan"
    made = plan(folder, offline, "tiny<2")
    # What a run leaves behind that was killed, or that had another list of packages.
    leftover = folder / "env" / "lib" / "leftover.py"
    leftover.parent.mkdir(parents=True)
    leftover.touch()
    (folder / "env" / "pyvenv.cfg").write_text("home = ")
    for step in made.steps:
        perform(step, folder=folder, added=offline)
    assert not leftover.exists()
    assert ask(made, "import sys; print(sys.prefix)") == f"{folder}/env"
    assert ask(made, "import tiny; print(tiny.version)") == "1.5"
    assert ask(made, "import pip; print(pip.__name__)") == "pip"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """An environment with a torch in it, and a package that is installed in editable mode."""
    folder = tmp_path / "the base"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site_packages,) = folder.glob("lib/python3*/site-packages")
    put_installed(site_packages, "torch", "2.6.0+mine")
    put_installed(site_packages, "shared", "1.0")
    (tmp_path / "edited").mkdir()
    (tmp_path / "edited" / "edited.py").write_text("version = 'in place'\n")
    (site_packages / "edited.pth").write_text(f"{tmp_path / 'edited'}\n")
    return folder


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if "__pycache__" not in path.parts and not path.is_dir()
    }


def test_layer_over_a_base(
    tmp_path: Path, offline: dict[str, str], perform: Perform, base: Path
) -> None:
    wheels = tmp_path / "wheels"
    write_wheel(wheels, "torch", "9.9")
    write_wheel(wheels, "shared", "2.0")
    write_wheel(wheels, "vision", "0.21", needs=["torch"])
    before = contents(base)
    folder = tmp_path / "a plan"
    made = plan(folder, offline, "vision", "shared>=2", base=str(base / "bin" / "python"))
    for step in made.steps:
        perform(step, folder=folder, added=offline)

    assert ask(made, "import torch; print(torch.version)") == "2.6.0+mine"
    assert ask(made, "import vision; print(vision.version)") == "0.21"
    assert ask(made, "import edited; print(edited.version)") == "in place"
    # Its own packages come before those of the base.
    assert ask(made, "import shared; print(shared.version)") == "2.0"
    assert not list(folder.glob("env/lib/python3*/site-packages/torch*"))[1:]
    assert contents(base) == before
    assert (folder / "base-constraints.txt").read_text() == "torch==2.6.0+mine\n"

    # Any pip of a later step is held to the base's torch.
    result = subprocess.run(
        [*pip_installer(made.python), "torch==9.9"],
        env={**dict(made.variables), **offline},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode != 0
    assert "2.6.0+mine" in result.stdout + result.stderr
    assert contents(base) == before


def test_base_of_another_version_is_refused(tmp_path: Path, base: Path) -> None:
    stand_in = tmp_path / "python"
    stand_in.write_text('#!/bin/sh\necho \'{"version": [3, 1], "paths": [], "installed": []}\'\n')
    stand_in.chmod(0o755)
    result = subprocess.run(
        [str(base / "bin" / "python"), str(LAYER_PROGRAM), str(stand_in), str(tmp_path / "unused")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "Python 3.1, but this environment is Python" in result.stderr
    assert "environment.python" in result.stderr
    assert not (tmp_path / "unused").exists()
    assert not list(base.glob("lib/python3*/site-packages/torchyard-base.pth"))


def test_base_that_does_not_run_is_refused(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(LAYER_PROGRAM), "/bin/false", str(tmp_path / "unused")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "/bin/false failed" in result.stderr
    assert not (tmp_path / "unused").exists()


@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not here")
def test_real_uv(tmp_path: Path, offline: dict[str, str], perform: Perform) -> None:
    wheels = tmp_path / "wheels"
    write_wheel(wheels, "tiny", "1.5")
    for bundled in Path(ensurepip.__file__).parent.glob("_bundled/*.whl"):
        shutil.copy(bundled, wheels)
    settings = tmp_path / "uv.toml"
    settings.write_text(f"[pip]\nno-index = true\nfind-links = ['{wheels}']\n")
    environ = {
        "HOME": str(tmp_path / "home"),
        "PATH": os.environ["PATH"],
        "UV_CONFIG_FILE": str(settings),
        "UV_CACHE_DIR": str(tmp_path / "cache"),
    }
    folder = tmp_path / "a plan"
    made = plan(folder, environ, "tiny")
    install = made.steps[-1].actions[-1]
    assert isinstance(install, Command)
    assert install.argv[0] == shutil.which("uv")
    for step in (*made.steps, *made.steps):
        perform(step, folder=folder, added=environ)
    assert ask(made, "import tiny, pip; print(tiny.version)") == "1.5"

"""For end-to-end tests of `torchyard build`: a results directory, and Python tools installed once."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builds.e2e.build_cli import LIMIT_S, Cli

_TOOLS = ("setuptools<80", "wheel", "build", "scikit-build-core", "ninja", "pytest")


@pytest.fixture(scope="session", autouse=True)
def _native_tools() -> None:
    missing = [name for name in ("cc", "c++", "cmake", "ninja", "make") if not shutil.which(name)]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(home=tmp_path / "home")


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def shared_cli(shared_folder: Path) -> Cli:
    """One home for a module, whose tests leave its builds finished."""
    return Cli(home=shared_folder / "home")


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with front ends and backends, for `--base`: pip runs once for all tests."""
    folder = tmp_path_factory.mktemp("tools") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=LIMIT_S)
    installed = subprocess.run(
        [str(folder / "bin" / "pip"), "install", "--quiet", *_TOOLS],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    if installed.returncode:
        pytest.skip(f"no package index here: {installed.stderr[-300:]}")
    return folder

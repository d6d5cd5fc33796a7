"""The GitHub action and the GitLab template: inputs, and the steps that need no torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.docs.ci_steps import (
    ACTION,
    GITLAB,
    INPUT,
    LIBRARY,
    ROOT,
    STEPS,
    WORKLOAD,
    commit,
    make_repository,
    run_steps,
)

PAGE: Final = ROOT / "docs" / "howto" / "compare-revisions-in-ci.md"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "temp").mkdir()
    return make_repository(tmp_path / "repository")


def test_a_session_without_common_workloads_passes(repository: Path, tmp_path: Path) -> None:
    commit(repository, "benchmarks/other.py", WORKLOAD)
    code, output = run_steps(repository, tmp_path / "temp", workloads="benchmarks/other.py")
    assert code == 0, output
    assert "no workload is in both revisions" in output
    assert (tmp_path / "temp" / "summary.md").read_text() == "nothing was compared\n"


def test_an_unknown_base_revision_fails(repository: Path, tmp_path: Path) -> None:
    code, output = run_steps(
        repository, tmp_path / "temp", workloads="benchmarks/net.py", base="missing"
    )
    assert code != 0
    assert "missing" in output


def test_packages_are_installed_side_by_side(repository: Path, tmp_path: Path) -> None:
    setup = """
    [build-system]
    requires = []
    build-backend = "backend"
    backend-path = ["."]
    """
    # A build backend that needs no network.
    backend = """
import zipfile

def build_wheel(folder, settings=None, metadata=None):
    name = "library-1-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.write("src/library.py", "library.py")
        wheel.writestr("library-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: library\\nVersion: 1\\n")
        wheel.writestr("library-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("library-1.dist-info/RECORD", "")
    return name
"""
    (repository / "pyproject.toml").write_text(setup)
    commit(repository, "backend.py", backend)
    commit(repository, "src/library.py", "# changed\n" + LIBRARY)
    # No workload: only the first step does something.
    code, output = run_steps(repository, tmp_path / "temp", workloads="", install="true")
    assert code == 0, output
    folder = tmp_path / "temp" / "torchyard"
    assert (folder / "packages-base" / "library.py").read_text() == LIBRARY
    assert (folder / "packages-head" / "library.py").read_text() == "# changed\n" + LIBRARY


def test_gitlab_runs_the_same_steps() -> None:
    job = GITLAB[".torchyard"]
    assert job["script"] == [step["run"] for step in STEPS[:3]]
    used = {name for text in job["script"] for name in re.findall(r"TORCHYARD_CI_[A-Z_]+", text)}
    assert used == {name for name in job["variables"] if name.startswith("TORCHYARD_CI_")}
    for name in ("LIMIT", "TIME", "PYTHON", "SOURCE", "INSTALL", "BACKEND", "OPTIONS"):
        default = ACTION["inputs"][name.lower()]["default"]
        assert job["variables"][f"TORCHYARD_CI_{name}"] == default


def test_inputs_reach_the_shell_through_variables_only() -> None:
    for step in STEPS:
        assert "${{" not in step["run"]
        used = set(re.findall(r"TORCHYARD_CI_[A-Z_]+", step["run"]))
        assert used == set(step["env"]), step["name"]
    given = {
        match["name"]
        for step in STEPS
        for text in step["env"].values()
        for match in INPUT.finditer(text)
    }
    assert given - {None} == set(ACTION["inputs"])


def test_the_page_lists_every_input() -> None:
    listed = re.findall(r"^\| `([a-z-]+)` \|", PAGE.read_text("utf-8"), re.MULTILINE)
    assert listed == list(ACTION["inputs"])

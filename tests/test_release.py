"""The wheel and the source distribution work without the checkout: built, installed, run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from torchyard import __version__

ROOT = Path(__file__).parents[1]

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(900)]


def run(*command: str | Path, cwd: Path, codes: tuple[int, ...] = (0,)) -> str:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**variables, "TORCHYARD_HOME": str(cwd / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in codes, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the wheel and the source distribution, as `python -m build` makes them."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    return folder


def test_the_distributions_hold_the_data_files(distributions: Path) -> None:
    data = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "torchyard").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(next(distributions.glob("*.whl"))) as wheel:
        assert data <= set(wheel.namelist())
        assert any(name.endswith("/share/man/man1/torchyard.1") for name in wheel.namelist())
        entry_points = next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))
        assert "torchyard = torchyard.pytest_plugin" in wheel.read(entry_points).decode()
    with tarfile.open(next(distributions.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in data} <= names
    assert {"README.md", "LICENSE", "pyproject.toml"} <= names


def test_an_installed_wheel_runs_a_bench_from_another_folder(
    distributions: Path, tmp_path: Path
) -> None:
    environment = tmp_path / "env"
    run(sys.executable, "-m", "venv", environment, cwd=tmp_path)
    wheel = next(distributions.glob("*.whl"))
    pip = (environment / "bin" / "python", "-m", "pip", "install", "--quiet")
    run(*pip, "--constraint", ROOT / "constraints-test.txt", "torch", wheel, cwd=tmp_path)
    torchyard = environment / "bin" / "torchyard"
    assert run(torchyard, "--version", cwd=tmp_path).strip().endswith(__version__)
    text = run(
        torchyard, "bench", "--only", "kernels/matmul:size=64", "--candidate", "eager", "--time", "5s",
        "--json", "--html", "report.html", cwd=tmp_path, codes=(0, 6),
    )  # fmt: skip
    document = json.loads(text)
    assert [row["workload"]["name"] for row in document["comparisons"]] == ["matmul"]
    assert "matmul" in (tmp_path / "report.html").read_text("utf-8")
    assert "openblas" in run(torchyard, "build", "recipes", cwd=tmp_path)
    assert run(torchyard, "explain", "faster", cwd=tmp_path)

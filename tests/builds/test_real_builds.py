"""Real projects built from the command line. Takes minutes and downloads sources."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.real_build, pytest.mark.timeout(3000)]


def torchyard(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TORCHYARD_HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-m", "torchyard", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def build(home: Path, *arguments: str) -> dict[str, Any]:
    ended = torchyard(home, "build", *arguments, "--json")
    assert ended.returncode == 0, ended.stderr[-4000:]
    outcome: dict[str, Any] = json.loads(ended.stdout)
    return outcome


def run_in(python: str, code: str) -> str:
    ended = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=False, cwd="/"
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stdout.strip()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("yard")


@pytest.mark.torch
def test_torchvision_against_the_torch_that_is_here(home: Path) -> None:
    words = ("torchvision", "--version", "0.21.0", "--set", "source.use=debian")
    outcome = build(home, *words, "--base", sys.executable, "--name", "vision")
    python = outcome["python"]
    times = outcome["times"]["torchvision/build"]
    assert times["compiles"] >= 26
    said = run_in(
        python,
        "import torch, torchvision; from torchvision.extension import _has_ops;"
        "print(torch.__version__, torchvision.__version__, _has_ops())",
    )
    assert said.split()[1:] == ["0.21.0", "True"]
    again = build(home, *words, "--base", sys.executable, "--name", "vision")
    assert again["ran"] == []
    # timm imports torchvision; pip must leave the base's torch alone.
    folder = Path(outcome["folder"])
    installed = subprocess.run(
        [str(folder / "env/bin/python"), "-m", "pip", "install", "--quiet", "timm"],
        env={**os.environ, "PIP_CONSTRAINT": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert installed.returncode == 0, installed.stderr[-2000:]
    assert run_in(python, "import torch; print(torch.__version__)") == said.split()[0]
    shape = run_in(
        python,
        "import timm, torch;"
        "print(tuple(timm.create_model('resnet18', pretrained=False)(torch.randn(1, 3, 64, 64)).shape))",
    )
    assert shape == "(1, 1000)"


@pytest.mark.torch
def test_deepwave_from_its_source_distribution(home: Path) -> None:
    outcome = build(
        home,
        *("generic", "--variant", "scikit-build", "--name", "deepwave", "--base", sys.executable),
        *("--set", "source.sdist.name=deepwave", "--set", "source.sdist.version=0.1.0"),
        *("--set", "verify.import-name=deepwave", "--set", "DW_SKIP_CUDA=ON"),
        # All kernels at the project's own -Ofast take more than an hour of CPU time.
        *("--set", 'compile-options."*elastic*.c"=-O0'),
        *("--set", 'compile-options."*acoustic*.c"=-O0'),
    )
    assert outcome["times"]["generic/build"]["compiles"] >= 293
    said = run_in(
        outcome["python"],
        """
import torch, deepwave
v = torch.full((20, 30), 1500.0)
source = torch.zeros(1, 1, 2, dtype=torch.long) + 5
receiver = torch.tensor([[[5, 20]]])
wavelet = deepwave.wavelets.ricker(25, 60, 0.004, 0.06).reshape(1, 1, -1)
def received(backend):
    return deepwave.scalar(v, 5.0, 0.004, source_amplitudes=wavelet, source_locations=source,
                           receiver_locations=receiver, backend=backend)[-1]
native, python = received("auto"), received("eager")
print(bool(native.abs().max() > 1), bool(torch.allclose(native, python, atol=1e-5)))
""",
    )
    assert said == "True True"


def test_openblas_from_debian_is_built_and_used(home: Path) -> None:
    outcome = build(home, "openblas", "--set", "source.use=debian", "--name", "blas")
    library = Path(outcome["folder"]) / "prefix/lib/libopenblas.so"
    assert library.exists()
    program = (
        "import ctypes, sys;"
        "blas = ctypes.CDLL(sys.argv[1]);"
        "blas.openblas_get_config.restype = ctypes.c_char_p;"
        "a = (ctypes.c_double * 4)(1, 2, 3, 4); c = (ctypes.c_double * 4)();"
        "one = ctypes.c_double(1); zero = ctypes.c_double(0);"
        "blas.cblas_dgemm(101, 111, 111, 2, 2, 2, one, a, 2, a, 2, zero, c, 2);"
        "print(list(c), b'OPENMP' in blas.openblas_get_config())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(library)], capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "[7.0, 10.0, 15.0, 22.0] True"

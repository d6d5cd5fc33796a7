"""A small accelerator for tests: its library, and programs and commands that run with it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.cpp_extension import include_paths

FOLDER = Path(__file__).parent
WORKLOAD = FOLDER / "toy_workload.py"
_LIMIT_S = 600.0


def toy_library(folder: Path) -> Path:
    """Compile the library once per folder and torch; takes half a minute."""
    source = FOLDER / "toy_device.cpp"
    key = hashlib.sha256(source.read_bytes() + torch.__version__.encode()).hexdigest()[:12]
    library = folder / f"libtoy-{key}.so"
    with (folder / "toy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            part = library.with_suffix(".part")
            lib = Path(torch.__file__).parent / "lib"
            words = [shutil.which("g++") or "c++", "-std=c++20", "-O0", "-w", "-shared", "-fPIC"]
            words += [f"-I{path}" for path in include_paths()]
            words += [str(source), f"-L{lib}", "-ltorch_cpu", "-lc10", "-o", str(part)]
            subprocess.run(words, check=True, timeout=_LIMIT_S)
            part.rename(library)
    return library


class ToyMachine:
    """Runs programs and commands in an environment with the toy device."""

    def __init__(self, library: Path, folder: Path, **variables: str) -> None:
        self._folder = folder
        paths = [str(FOLDER), os.environ.get("PYTHONPATH", "")]
        self._environment = {
            **os.environ,
            "TOY_LIBRARY": str(library),
            "TORCHYARD_HOME": str(folder / "home"),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "COLUMNS": "80",
            **variables,
        }

    def program(self, code: str) -> Any:
        """Return the JSON that a program prints last."""
        completed = self._run([sys.executable, "-c", "import toy_device\n" + code])
        assert completed.returncode == 0, completed.stderr
        return json.loads(completed.stdout.splitlines()[-1])

    def torchyard(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of Torchyard."""
        return self._run([sys.executable, "-m", "torchyard", *words])

    def _run(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            env=self._environment,
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )

"""CUDA: a complete race over settings specific to GPUs.

Never run by `make test`; run by hand on a machine with a GPU: `python -m pytest -m gpu tests/gpu`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.timeout(600)]

SPACE = """
[[choices]]
dimension = "compiler"
name = "cuda-graphs"
backend = "cudagraphs"

[[choices]]
dimension = "CUDA allocator"
name = "expandable-segments"
variables = { PYTORCH_CUDA_ALLOC_CONF = "expandable_segments:True" }

[[choices]]
dimension = "CUDA allocator"
name = "cuda-malloc-async"
variables = { PYTORCH_CUDA_ALLOC_CONF = "backend:cudaMallocAsync" }

[[choices]]
dimension = "CUDA allocator"
name = "no-such-allocator"
variables = { PYTORCH_CUDA_ALLOC_CONF = "backend:noSuchAllocator" }

[[choices]]
dimension = "matmul precision"
name = "tf32"
options = { tf32 = true }
changes-results = true
"""


def _race(tmp_path: Path, *options: str) -> dict[str, Any]:
    space = tmp_path / "space.toml"
    space.write_text(SPACE)
    command = [sys.executable, "-m", "torchyard", "tune", "models/transformer-encoder"]
    command += ["--batch-size", "1", "--device", "cuda", "--space", str(space)]
    command += ["--budget", "120s", "--run-dir", str(tmp_path / "race"), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stderr[-4000:])
    assert done.returncode == 0, done.stderr
    race: dict[str, Any] = json.loads(done.stdout)["race"]
    return race


def test_graphs_win_where_kernels_are_short(tmp_path: Path) -> None:
    """One sequence through a small encoder: the host starts kernels more slowly than they run."""
    race = _race(tmp_path)
    assert race["state"] == "finished"
    rows = [one for heat in race["heats"] for one in heat["found"]]
    seen = {one["contender"]: one for one in rows}
    assert "tf32" not in seen, "it changes results, and was not asked for"
    failed = {one["contender"]: one["why"] for one in rows if one["state"] == "failed"}
    assert set(failed) == {"no-such-allocator"}
    assert "Unknown allocator backend" in failed["no-such-allocator"]
    winner = [choice["name"] for choice in race["winner"]["choices"]]
    assert "cuda-graphs" in winner
    low = race["confirmed"]["interval"]["low"]
    assert low > 1.1

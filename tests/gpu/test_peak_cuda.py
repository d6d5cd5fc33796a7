"""The peak of a GPU, and kernels compared with it.

Never run by `make test`; run by hand on a machine with a GPU: `python -m pytest -m gpu tests/gpu`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.torch]


def torchyard(home: Path, *words: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "torchyard", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TORCHYARD_HOME": str(home)},
    )
    print(done.stderr[-3000:])
    assert done.returncode in {0, 6}, done.stderr
    return done.stdout


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_products_and_kernels_are_near_the_peak(tmp_path: Path, precision: str) -> None:
    words = ("machine", "peak", "--device", "cuda", "--precision", precision, "--json")
    peak = json.loads(torchyard(tmp_path, *words))["peak"]
    assert peak["threads"] == 0
    assert peak["flops_per_second"] > 5e12
    assert peak["bytes_per_second"] > 1e11
    # A copy cannot be faster than the arrays that are beyond every cache, but for the caches.
    largest = max(one["working_set_bytes"] for one in peak["streams"])
    assert largest >= 2**31

    torchyard(
        tmp_path,
        "bench",
        *("--only", "kernels/matmul:size=4096", "--only", "kernels/elementwise-chain:width=65536"),
        *("--device", "cuda", "--precision", precision, "--candidate", "aot_eager"),
        *("--time", "3s", "--launches", "1"),
    )
    table = torchyard(tmp_path, "report", "--format", "roofline")
    shares = [int(line.split("%")[0].split()[-1]) for line in table.splitlines() if "%" in line]
    assert shares
    assert max(shares) <= 105, table
    matmul = [line for line in table.splitlines() if line.startswith("matmul")]
    assert int(matmul[0].split("%")[0].split()[-1]) > 60, table
    pytest.importorskip("vl_convert", reason="the picture needs vl-convert; all else was right")
    torchyard(tmp_path, "report", "--output", str(tmp_path / "roofline.svg"))
    assert "cuda" in (tmp_path / "roofline.svg").read_text()

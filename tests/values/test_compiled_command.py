"""`torchyard values run` of a compiled program: terminal, JSON and HTML page show its kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.long]
PROGRAM = """
import torch


@torch.compile
def gated(x, w):
    gate = torch.sigmoid(x + 200)
    return gate, (x @ w).relu()


w = torch.randn(256, 256)
for _ in range(3):
    gate, y = gated(torch.randn(256, 256), w)
    print("sum", gate.sum().item())
"""
LINE = 7


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TORCHYARD_HOME": str(folder / "home"),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    return subprocess.run(
        [sys.executable, "-m", "torchyard", "values", "run", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_a_finding_in_compiled_code_is_shown_everywhere(tmp_path: Path) -> None:
    (tmp_path / "gated.py").write_text(PROGRAM)
    page = tmp_path / "waste.html"
    ran = _run(tmp_path, "--html", str(page), "gated.py")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("sum 65536.0") == 3
    assert "1 finding (1 likely)" in ran.stdout
    name = "(add, sigmoid) at gated.py:7"
    assert name in ran.stdout
    assert "every element is 1" in ran.stdout
    assert "does not run" not in ran.stdout, "the run without the profiler cannot see kernels"
    assert "generated kernels with" in ran.stdout
    assert "values inside kernels" in " ".join(ran.stdout.split())
    html = page.read_text()
    assert "(add, sigmoid)" in html
    assert "inductor::" not in html.split("<script")[0]

    # The compiler takes the graph from its cache now; the source line is still known.
    ran = _run(tmp_path, "--once", "--json", "gated.py")
    assert ran.returncode == 0, ran.stderr
    profile = json.loads(ran.stdout)["profile"]
    (finding,) = profile["findings"]
    assert finding["pattern"] == "single value"
    assert finding["operator"].startswith("inductor::cpp_fused_add_")
    assert (finding["place"]["file"], finding["place"]["line"]) == ("gated.py", LINE)
    assert finding["proof"]["certainty"] == "likely"
    assert (profile["counts"]["kernels"], profile["counts"]["kernel_calls"]) == (2, 6)
    assert profile["compiled"] is True


def test_the_eager_program_is_profiled_on_request(tmp_path: Path) -> None:
    (tmp_path / "gated.py").write_text(PROGRAM)
    ran = _run(tmp_path, "--once", "--eager", "--json", "gated.py")
    assert ran.returncode == 0, ran.stderr
    profile = json.loads(ran.stdout)["profile"]
    assert [one["operator"] for one in profile["findings"]] == ["aten::sigmoid"]
    assert profile["counts"]["kernels"] == 0

"""CUDA: results of timed calls are compared.

Never run by `make test`; run by hand on a machine with a GPU: `python -m pytest -m gpu tests/gpu`.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

WORKLOAD = """
    import torch
    from torch import nn

    def make():
        return nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8))), torch.randn(1024, 1024)
"""
CANDIDATES = """
    import torch

    def correct(module):
        return lambda x: module(x)

    def late(module):
        calls = [0]
        def call(x):
            calls[0] += 1
            found = module(x)
            return found if calls[0] < 60 else torch.zeros_like(found)
        return call

    def other_stream(module):
        stream = torch.cuda.Stream()
        buffer = []
        def call(x):
            if not buffer:
                buffer.append(module(x).clone())
            with torch.cuda.stream(stream):
                torch.cuda._sleep(2_000_000)
                buffer[0].copy_(module(x))
            return buffer[0]
        call.overwrites_results = True
        return call
"""


def launched(folder: Path, backend: str) -> dict[str, Any]:
    """The first failure, or what the check after the last block says."""
    from torchyard.worker.bench.service import WorkerService

    (folder / "own.py").write_text(dedent(WORKLOAD), encoding="utf-8")
    (folder / "mine.py").write_text(dedent(CANDIDATES), encoding="utf-8")
    if "inductor" not in backend:
        backend = f"{folder / 'mine.py'}:{backend}"
    service = WorkerService()
    workload: dict[str, Any] = {
        "suite": "file",
        "name": str(folder / "own.py"),
        "mode": "inference",
        "device": "cuda",
        "batch_size": None,
        "optimizer_step": False,
        "parameters": [],
    }
    names = {"base": "eager", "mine": backend}
    variants = [
        {"name": name, "backend": chosen, "precision": "float32", "options": []}
        for name, chosen in names.items()
    ]
    service.build(workload, variants, 1337)
    varied = service.reference("base", "", keep=True)["varied"]
    judged = service.judge("mine", "", last=True)
    if judged["status"] == "fail":
        return {"failure": {"text": judged["detail"]}, "notes": [], "untrusted": []}
    for number in range(4):
        for name in names:
            service.block(
                name,
                inner=2,
                samples=20,
                prime=1,
                settle=False,
                flush_l2=False,
                draw=10 + number,
                varied=varied,
            )
        found = service.verify("mine", judged["accepted"])
        if found["failure"] is not None:
            return {**found, "notes": [], "untrusted": []}
    last: dict[str, Any] = service.recheck("mine", varied, judged["accepted"], more=True)
    return last


@pytest.mark.parametrize("backend", ["correct", "inductor", "inductor:reduce-overhead"])
def test_correct_candidates_pass(tmp_path: Path, backend: str) -> None:
    found = launched(tmp_path, backend)
    assert found["failure"] is None, found
    assert found["untrusted"] == []


def test_a_candidate_that_becomes_wrong_is_found(tmp_path: Path) -> None:
    assert launched(tmp_path, "late")["failure"] is not None


def test_work_on_another_stream_is_found(tmp_path: Path) -> None:
    found = launched(tmp_path, "other_stream")
    assert any("another stream" in text for text in found["untrusted"]), found

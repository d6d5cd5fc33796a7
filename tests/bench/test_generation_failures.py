"""Broken text generation through the command: memory, a full cache, and another text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.tiny_bench import HERE, QUICK, leftover_processes, write_file
from torchyard.bench.bench_run import run_bench
from torchyard.core.comparison import Verdict
from torchyard.core.events import ignore_events
from torchyard.core.study import Budget, Mode, Study, Variant, Workload

pytestmark = [pytest.mark.long, pytest.mark.torch]

CANDIDATES = """
    import time
    import torch

    class Greedy(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module
            self.held = []

    class Refused(Greedy):
        # More than any machine has: the allocator raises.
        def forward(self, tokens, start):
            if tokens.shape[1] == 1:
                torch.empty(1 << 50, dtype=torch.uint8)
            return self.module(tokens, start)

    class Growing(Greedy):
        # A cache that is never freed: ends above the memory limit of the worker.
        def forward(self, tokens, start):
            while tokens.shape[1] == 1:
                self.held.append(torch.ones(10_000_000))
                time.sleep(0.03)
            return self.module(tokens, start)

    class PastTheCache(Greedy):
        # Writes after the last place of the cache.
        def forward(self, tokens, start):
            return self.module(tokens, start + 5 if tokens.shape[1] == 1 else start)

    class OtherText(Greedy):
        # Right at the timed position, and another text after two tokens.
        def forward(self, tokens, start):
            logits = self.module(tokens, start)
            return logits if int(start) < 9 else logits.flip(-1)
"""
SMALL = (("layers", 1), ("width", 32), ("heads", 4), ("vocabulary", 97))
LENGTHS = (("prompt", 7), ("generate", 5))


@pytest.mark.parametrize("name", ["Refused", "Growing"])
def test_out_of_memory_in_decoding_is_a_failed_row(tmp_path: Path, name: str) -> None:
    path = write_file(tmp_path, "candidates.py", CANDIDATES)
    modes: tuple[Mode, ...] = ("prefill", "decode")
    study = Study(
        name="memory",
        baseline=Variant(name="base", target=HERE),
        candidates=(Variant(name="mine", target=HERE, backend=f"{path}:{name}"),),
        workloads=tuple(
            Workload(suite="models", name="gpt", mode=mode, parameters=SMALL + LENGTHS)
            for mode in modes
        ),
        budget=Budget(time_s=2.0, min_launches=1, max_launches=1),
        settings=replace(QUICK, memory_limit_bytes=1200 << 20),
    )
    prefill, decode = run_bench(
        study, folder=tmp_path / "run", command=["tiny"], listener=ignore_events
    )
    assert prefill.verdict is not Verdict.FAILED
    assert decode.verdict is Verdict.FAILED
    assert decode.failure is not None
    assert decode.failure.kind == "out-of-memory"
    assert leftover_processes(os.getpid()) == []


def test_a_full_cache_is_a_failed_row_and_another_text_is_wrong(tmp_path: Path) -> None:
    path = write_file(tmp_path, "candidates.py", CANDIDATES)
    sizes = ",".join(f"{key}={value}" for key, value in SMALL + LENGTHS)
    command = [sys.executable, "-m", "torchyard", "bench", f"models/gpt:{sizes}", "--json"]
    command += ["--mode", "decode", "--time", "2s", "--launches", "1", "--threads", "1"]
    command += ["--run-dir", str(tmp_path / "run"), "--candidate", f"{path}:PastTheCache"]
    command += ["--candidate", f"{path}:OtherText"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert completed.returncode != 0
    rows = json.loads(completed.stdout)["comparisons"]
    past, other = rows
    assert past["verdict"] == "failed", completed.stderr
    assert past["failure"]["kind"] == "raised"
    assert other["accuracy"]["status"] == "fail"
    assert "after 2 equal generated tokens, the logits differ by" in other["accuracy"]["detail"]

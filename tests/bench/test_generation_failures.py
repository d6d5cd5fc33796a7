"""Running out of memory in decoding is a failed row, and the other phase is measured."""

from __future__ import annotations

import os
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

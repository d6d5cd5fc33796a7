"""Time of a variant by operator, measured by torch.profiler. Runs inside the target."""

from typing import Any, Dict

import torch

from torchyard.worker.bench.variant import VariantRunner
from torchyard.worker.values.profilers.torch_profile import operator_rows

MOST_ROWS = 100


def operator_table(runner: VariantRunner, iterations: int) -> Dict[str, Any]:
    """Return the operators over some iterations, with CPU and, on a GPU, device time."""
    from torch.profiler import ProfilerActivity, profile

    runner.first_call()
    activities = [ProfilerActivity.CPU]
    if torch.device(runner.device).type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    call = runner.caller()
    with runner.context(), profile(activities=activities) as profiler:
        for _ in range(iterations):
            call()
        runner.synchronize()
    runner.model.forget_gradients()
    return {"iterations": iterations, "rows": operator_rows(profiler, False)[:MOST_ROWS]}

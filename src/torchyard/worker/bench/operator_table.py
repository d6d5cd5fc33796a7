"""Which operators a side spends its time in, by torch's own profiler. Runs inside the target."""

from typing import Any, Dict

import torch

from torchyard.worker.bench.variant import Side
from torchyard.worker.values.profilers.torch_profile import operator_rows

MOST_ROWS = 100


def operator_table(side: Side, iterations: int) -> Dict[str, Any]:
    """Rows of operators over some iterations, on the CPU and on the GPU where there is one."""
    from torch.profiler import ProfilerActivity, profile

    side.first_call()
    activities = [ProfilerActivity.CPU]
    if torch.device(side.device).type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    call = side.caller()
    with side.context(), profile(activities=activities) as profiler:
        for _ in range(iterations):
            call()
        side.synchronize()
    side.model.forget_gradients()
    return {"iterations": iterations, "rows": operator_rows(profiler, False)[:MOST_ROWS]}

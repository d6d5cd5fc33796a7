"""The rule of PyTorch's dynamo harness for one workload, in a process of its own. Started by `sweep_cost.py`.

One process; five warm-up calls of each side, compiling among them; then thirty repeats, each of them
the eager call first and the compiled one second, always in that order. Written from a description of
the rule. The model, its inputs and what a backend makes of it are Torchyard's own, so that both
methods time the same call.

    python benchmarks/fixed_repeats.py REQUEST.json ANSWER.json
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

WARM_UPS = 5
SEED = 1337


def cpu_s() -> float:
    """Of this process and of the compilers it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    answer = measured(request)
    Path(sys.argv[2]).write_text(json.dumps(answer))


def measured(request: dict[str, Any]) -> dict[str, Any]:
    """Both sides' times, and when each part was over: seconds since the request was made."""
    marks: dict[str, list[float]] = {}

    def mark(name: str) -> None:
        marks[name] = [time.time() - request["began"], cpu_s()]

    import torch

    from torchyard.worker import suites
    from torchyard.worker.bench.model import Model
    from torchyard.worker.bench.variant import VariantRunner

    torch.manual_seed(SEED)
    workload = request["workload"]
    device = workload["device"]
    training = workload["mode"] == "training"
    built = suites.build(
        workload["suite"],
        workload["name"],
        workload["mode"],
        workload["batch_size"],
        dict(workload["parameters"]),
        device,
    )
    model = Model(built, training, False)
    sides = [
        VariantRunner(name, name, "float32", model, device)
        for name in ("eager", request["backend"])
    ]

    def call(side: VariantRunner) -> int:
        torch.manual_seed(SEED)
        side.synchronize()
        with side.context():
            function = side.caller()
            began = time.perf_counter_ns()
            function()
            side.synchronize()
            duration = time.perf_counter_ns() - began
        model.forget_gradients()
        return duration

    mark("start")
    for _ in range(WARM_UPS):
        call(sides[0])
    mark("eager_warm")
    call(sides[1])
    mark("compile")
    for _ in range(WARM_UPS - 1):
        call(sides[1])
    mark("warm")
    times: list[list[int]] = [[], []]
    for _ in range(request["repeats"]):
        for side, kept in zip(sides, times, strict=True):
            kept.append(call(side))
    mark("measure")
    return {"times_ns": times, "marks": marks}


if __name__ == "__main__":
    main()

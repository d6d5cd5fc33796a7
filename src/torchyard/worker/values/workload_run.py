"""A workload of a suite as the program of a profile: built first, then profiled step by step."""

from typing import Any, Callable, Dict

import torch

from torchyard.worker import suites
from torchyard.worker.bench.model import DTYPES, Model, convert
from torchyard.worker.bench.variant import VariantRunner
from torchyard.worker.workload import CannotBuild

_SEED = 1337


def body_of(plan: Dict[str, Any], profiler: Any) -> Callable[[], None]:
    """Return a function that runs `steps` iterations; building the workload is not profiled."""
    workload = plan["workload"]
    torch.manual_seed(plan.get("seed", _SEED))
    built = suites.build(
        workload["suite"],
        workload["name"],
        workload["mode"],
        workload["batch_size"],
        dict(workload["parameters"]),
        workload["device"],
    )
    training = workload["mode"] == "training"
    if training and built.loss is None:
        raise CannotBuild("this workload does not support training", hint="use --mode inference")
    precision = plan.get("precision", "float32")
    dtype = DTYPES.get(precision, torch.float32)
    step = training and built.optimizer is not None
    model = Model(built if dtype is torch.float32 else convert(built, dtype), training, step)
    runner = VariantRunner("profiled", "eager", precision, model, workload["device"])
    with runner.context():
        runner.caller()()  # warm-up: first allocations and caches
    model.forget_gradients()

    def body() -> None:
        call = runner.caller()
        with runner.context():
            for _ in range(plan["steps"]):
                profiler.output(call())
                runner.synchronize()
                model.forget_gradients()
                if not step:
                    profiler.step()

    return body

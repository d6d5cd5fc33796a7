"""The worker's desk: the workload it was asked to build, its sides, and each verb's work."""

import os
from typing import Any, Callable, Dict, List, Optional

import torch

from torchyard.worker import accuracy, metrics, suites, timing, warming
from torchyard.worker.built import Built, CannotBuild, map_tensors
from torchyard.worker.reseat import Seater
from torchyard.worker.side import DTYPES, Model, Side, convert


class Desk:
    """Answers to the verbs of `wire`, in the order of a launch."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._sides: Dict[str, Side] = {}
        self._models: Dict[Any, Model] = {}
        self._seater = Seater([])
        self._seed = 0
        self._refused: Dict[str, CannotBuild] = {}

    def build(
        self,
        workload: Dict[str, Any],
        variants: List[Dict[str, Any]],
        seed: int,
        state: Optional[str] = None,
    ) -> Dict[str, Any]:
        """Make the model once per data type and every side on it.

        `state` names a file that carries weights and inputs between targets: it is written if it
        is not there, and loaded if it is.
        """
        self._seed = seed
        torch.manual_seed(seed)
        device = workload["device"]
        _check_device(device)
        built = suites.build(
            workload["suite"],
            workload["name"],
            workload["mode"],
            workload["batch_size"],
            dict(workload["parameters"]),
            device,
        )
        if state:
            _carry_state(built, state)
        training = workload["mode"] == "training"
        if training and built.loss is None:
            raise CannotBuild("this workload offers no training", hint="use --mode inference")
        originals = {torch.float32: built}
        for variant in variants:
            dtype = DTYPES.get(variant["precision"], torch.float32)
            if dtype not in originals:
                originals[dtype] = convert(built, dtype)
            if dtype not in self._models:
                self._models[dtype] = Model(originals[dtype], training, workload["optimizer_step"])
            try:
                self._sides[variant["name"]] = Side(
                    variant["name"],
                    variant["backend"],
                    variant["precision"],
                    self._models[dtype],
                    device,
                )
            except CannotBuild as error:
                self._refused[variant["name"]] = error
        self._seater = Seater(self._models.values())
        model = next(iter(self._models.values()))
        eager = Side("eager", "eager", variants[0]["precision"], model, device)
        flops, why_not = metrics.count_flops(eager)
        return {
            "parameters": sum(p.numel() for p in built.module.parameters()),
            "flops": flops,
            "flops_why_not": why_not,
            "loss": built.loss_said if training else "",
            "versions": metrics.versions(),
        }

    def reference(self, variant: str, path: str) -> Dict[str, Any]:
        """Write what candidates are judged by."""
        return accuracy.write_reference(self._side(variant), self._seed, path)

    def judge(self, variant: str, path: str) -> Dict[str, Any]:
        """Judge a candidate against the written reference."""
        return accuracy.judge(self._side(variant), self._seed, path)

    def warm(self, variant: str, seconds: float) -> Dict[str, Any]:
        """Compile if need be, then run until the time is stable."""
        return warming.warm(self._side(variant), seconds)

    def block(
        self,
        variant: str,
        inner: int,
        samples: int,
        prime: int,
        settle: bool,
        flush_l2: bool,
    ) -> Dict[str, Any]:
        """Time one block."""
        return timing.run_block(self._side(variant), inner, samples, prime, settle, flush_l2)

    def reseat(self, seed: int, method: str) -> Dict[str, Any]:
        """Move parameters and inputs to fresh memory."""
        return self._seater.reseat(seed, method)

    def measure(self, variant: str) -> Dict[str, Any]:
        """Memory and graphs."""
        return metrics.measure(self._side(variant))

    def list_names(self, suite: str) -> Dict[str, Any]:
        """Workloads of a suite as this target knows them."""
        return {"names": suites.load(suite).names()}

    def _side(self, name: str) -> Side:
        if name in self._refused:
            raise self._refused[name]
        if name not in self._sides:
            raise CannotBuild("no variant " + repr(name) + " was built here")
        return self._sides[name]


def _check_device(device: str) -> None:
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise CannotBuild(str(error).splitlines()[0], hint="use cpu, cuda or cuda:N") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise CannotBuild(
            "this target sees no CUDA device", hint="use --device cpu, or a target built for CUDA"
        )


def _carry_state(built: Built, path: str) -> None:
    """Weights and inputs through a file, so that two targets run the very same numbers."""
    if not os.path.exists(path):
        record = {
            "state": built.module.state_dict(),
            "args": list(built.args),
            "kwargs": built.kwargs,
        }
        torch.save(record, path + ".part")
        os.replace(path + ".part", path)
        return
    record = torch.load(path, map_location="cpu")
    built.module.load_state_dict(record["state"])
    carried = iter(_tensors(record["args"]) + _tensors(record["kwargs"]))

    def put(tensor: Any) -> Any:
        other = next(carried)
        with torch.no_grad():
            tensor.copy_(other)
        return tensor

    map_tensors(built.args, put)
    map_tensors(built.kwargs, put)


def _tensors(value: Any) -> List[Any]:
    found: List[Any] = []
    map_tensors(value, found.append)
    return found

"""Requests of a reduction: capture the graph, time programs cut out of it, and write one as a file."""

import random
import time
from typing import Any, Dict, List, Optional, Tuple

import torch

from torchyard.worker.bench.service import WorkerService, warm
from torchyard.worker.bench.variant import Model, VariantRunner
from torchyard.worker.devices import cuda_device
from torchyard.worker.reduce.program import Captured
from torchyard.worker.reduce.script import script
from torchyard.worker.workload import BuiltWorkload, CannotBuild

BLOCK_S = 0.01
WARM_UP_S = 0.15
MIN_SAMPLES = 5
MOST_SAMPLES = 500


class ReductionService:
    """The handlers of the verbs of a reduction; `capture` comes first."""

    def __init__(self, service: WorkerService) -> None:
        self._service = service
        self._captured: Optional[Captured] = None
        self._key = ""
        self._warm = False
        self._runners: List[VariantRunner] = []

    def capture(self, variant: str) -> Dict[str, Any]:
        """Capture the graph of a variant's model; return the operators."""
        runner = self._service.runner(variant)
        with runner.context():
            model = runner.model
            self._captured = Captured(model.module, model.args, model.kwargs)
        return {"operators": self._captured.names(), "graphs": self._captured.graphs}

    def lengths(self, units: List[int]) -> Dict[str, Any]:
        """Return the lengths of dimensions that could be shortened."""
        return {"lengths": self._graph().lengths(units)}

    def times(
        self,
        baseline: str,
        candidate: str,
        units: List[int],
        sizes: List[Tuple[int, int]],
        rounds: int,
    ) -> Dict[str, Any]:
        """Return times of rounds in ns: model and program, each by baseline and candidate.

        The order is random. A new program is compiled first; without units it is the model itself.
        """
        whole = [self._service.runner(name) for name in (baseline, candidate)]
        key = repr((units, sizes))
        if key != self._key:
            self._key = ""
            for runner in whole if not self._warm else []:
                warm(runner, WARM_UP_S)
            self._warm = True
            self._runners = [self._compiled(own, units, sizes) for own in whole] if units else whole
            self._key = key
        sides = whole + self._runners if units else whole
        result = []
        for _ in range(rounds):
            times = [0.0] * len(sides)
            for side in random.sample(range(len(sides)), len(sides)):
                times[side] = self._block(sides[side])
            result.append(times if units else times * 2)
        return {"rounds": result}

    def _compiled(
        self, own: VariantRunner, units: List[int], sizes: List[Tuple[int, int]]
    ) -> VariantRunner:
        program = self._graph().program(units, dict(sizes))
        model = Model(BuiltWorkload(program.module, program.inputs), training=False, step=False)
        runner = VariantRunner(own.name, own.backend, own.precision, model, own.device, own.options)
        warm(runner, WARM_UP_S)
        return runner

    def source(
        self,
        candidate: str,
        units: List[int],
        sizes: List[Tuple[int, int]],
        name: str,
        title: str,
        about: str,
    ) -> Dict[str, Any]:
        """Return the program as a Python file, and its operators."""
        runner = self._service.runner(candidate)
        program = self._graph().program(units, dict(sizes))
        text = script(program, name, title, about, runner.backend, runner.options, runner.device)
        return {"script": text, "operators": program.operators}

    def _block(self, runner: VariantRunner) -> float:
        """Return the shortest time of some iterations: other programs can only add time.

        With one thread on the CPU it is CPU time, which excludes waiting for a core.
        """
        alone = torch.get_num_threads() == 1 and cuda_device(runner.device) is None
        clock_ns = time.thread_time_ns if alone else time.perf_counter_ns
        shortest = float("inf")
        with runner.context():
            call = runner.caller()
            call()
            end_s = time.perf_counter() + BLOCK_S
            samples = 0
            while samples < MIN_SAMPLES or (samples < MOST_SAMPLES and time.perf_counter() < end_s):
                runner.synchronize()
                started_ns = clock_ns()
                call()
                runner.synchronize()
                shortest = min(shortest, float(clock_ns() - started_ns))
                samples += 1
        return shortest

    def _graph(self) -> Captured:
        if self._captured is None:
            raise CannotBuild("no graph is captured")
        return self._captured


_reductions: Dict[int, ReductionService] = {}


def reduction_of(service: WorkerService) -> ReductionService:
    """Return the reduction of a worker's service."""
    return _reductions.setdefault(id(service), ReductionService(service))

"""Requests of a reduction: capture the graph, measure programs cut out of it, and write one as a file."""

import copy
import random
import time
from typing import Any, Dict, List, Optional, Tuple

import torch

from torchyard.worker.bench.accuracy.checks import Checks
from torchyard.worker.bench.metrics import peak_memory
from torchyard.worker.bench.model import Model
from torchyard.worker.bench.options import changes_module
from torchyard.worker.bench.service import WorkerService, warm
from torchyard.worker.bench.variant import VariantRunner
from torchyard.worker.reduce.program import Captured, Program
from torchyard.worker.reduce.script import script
from torchyard.worker.workload import BuiltWorkload, CannotBuild, flatten

BLOCK_S = 0.01
WARM_UP_S = 0.15
MIN_SAMPLES = 5
MOST_SAMPLES = 500
SEED = 1337
OUT_OF_RANGE = ("out of range", "out of bounds")
NOT_FINITE = 1e300
"""Stands for errors that are infinite, NaN or unknown."""


class ReductionService:
    """The handlers of the verbs of a reduction; `capture` comes first."""

    def __init__(self, service: WorkerService) -> None:
        self._service = service
        self._captured: Optional[Captured] = None
        self._key = ""
        self._warm = False
        self._runners: List[VariantRunner] = []
        self._whole: Dict[str, List[float]] = {}
        """Values of the model that do not change, by metric."""

    def capture(self, variant: str) -> Dict[str, Any]:
        """Capture the graph of a variant's model; return the operators and where they come from."""
        runner = self._service.runner(variant)
        with runner.context():
            model = runner.model
            self._captured = Captured(model.module, model.args, model.kwargs)
        return {
            "operators": self._captured.names(),
            "places": self._captured.places(),
            "graphs": self._captured.graphs,
        }

    def lengths(self, units: List[int]) -> Dict[str, Any]:
        """Return the lengths of dimensions that could be shortened."""
        return {"lengths": self._graph().lengths(units)}

    def measure(
        self,
        metric: str,
        baseline: str,
        candidate: str,
        units: List[int],
        sizes: List[Tuple[int, int]],
        rounds: int,
    ) -> Dict[str, Any]:
        """Return rounds of values: model and program, each by baseline and candidate.

        Times are in ns, in random order; memory in bytes; errors are 0 unless results are wrong. A new
        program is compiled first; without units it is the model itself.
        """
        whole = [self._service.runner(name) for name in (baseline, candidate)]
        for runner in whole:
            for name, value in runner.options.items():
                if changes_module(name, value):
                    raise CannotBuild(
                        "%s=%s changes the module, and a reduced program has none" % (name, value),
                        hint="remove the option",
                    )
        key = repr((units, sizes))
        if key != self._key:
            self._key = ""
            for runner in whole if not self._warm else []:
                warm(runner, WARM_UP_S)
            self._warm = True
            self._runners = self._programs(whole, units, sizes) if units else whole
            self._key = key
        if metric == "time":
            return {"rounds": [self._round(whole, bool(units)) for _ in range(rounds)]}
        values_of = _peaks if metric == "memory" else _errors
        if metric not in self._whole:
            self._whole[metric] = values_of(whole)
        values = values_of(self._runners) if units else self._whole[metric]
        return {"rounds": [self._whole[metric] + values] * rounds}

    def _round(self, whole: List[VariantRunner], both: bool) -> List[float]:
        """Time the model and, with `both`, the program."""
        sides = whole + self._runners if both else whole
        times = [0.0] * len(sides)
        for side in random.sample(range(len(sides)), len(sides)):
            times[side] = self._block(sides[side])
        return times if both else times * 2

    def _programs(
        self, whole: List[VariantRunner], units: List[int], sizes: List[Tuple[int, int]]
    ) -> List[VariantRunner]:
        program = self._graph().program(units, dict(sizes))
        if sizes and not all(one.hardware.is_host for one in whole):
            refuse_indices_out_of_range(program)
        training = whole[0].model.training
        built = BuiltWorkload(program.module, program.inputs, loss=total_of if training else None)
        model = Model(built, training=training, step=False)
        runners = []
        for own in whole:
            runner = VariantRunner(
                own.name, own.backend, own.precision, model, own.device, own.options
            )
            warm(runner, WARM_UP_S)
            runners.append(runner)
        return runners

    def source(
        self,
        candidate: str,
        units: List[int],
        sizes: List[Tuple[int, int]],
        name: str,
        title: str,
        about: str,
        metric: str,
    ) -> Dict[str, Any]:
        """Return the program as a Python file, and its operators."""
        runner = self._service.runner(candidate)
        program = self._graph().program(units, dict(sizes))
        text = script(
            program,
            name,
            title,
            about,
            runner.backend,
            runner.options,
            runner.device,
            metric,
            runner.model.training,
        )
        return {"script": text, "operators": program.operators}

    def _block(self, runner: VariantRunner) -> float:
        """Return the shortest time of some iterations: other programs can only add time.

        With one thread on the CPU it is CPU time, which excludes waiting for a core.
        """
        alone = torch.get_num_threads() == 1 and runner.hardware.is_host
        clock_ns = time.thread_time_ns if alone else time.perf_counter_ns
        shortest = float("inf")
        with runner.context():
            call = runner.caller()
            call()
            runner.model.forget_gradients()
            end_s = time.perf_counter() + BLOCK_S
            samples = 0
            while samples < MIN_SAMPLES or (samples < MOST_SAMPLES and time.perf_counter() < end_s):
                runner.synchronize()
                started_ns = clock_ns()
                call()
                runner.synchronize()
                shortest = min(shortest, float(clock_ns() - started_ns))
                runner.model.forget_gradients()
                samples += 1
        return shortest

    def _graph(self) -> Captured:
        if self._captured is None:
            raise CannotBuild("no graph is captured")
        return self._captured


def refuse_indices_out_of_range(program: Program) -> None:
    """Raise CannotBuild if indices exceed a shortened dimension; found on the CPU, because a GPU would end the process.

    Programs that do not run on the CPU are not checked.
    """
    inputs = [
        one.detach().cpu() if isinstance(one, torch.Tensor) else one for one in program.inputs
    ]
    try:
        copy.deepcopy(program.module).cpu()(*inputs)
    except Exception as error:
        if any(text in str(error) for text in OUT_OF_RANGE):
            raise CannotBuild("indices exceed a shortened dimension: %s" % error) from None


def total_of(output: Any) -> Any:
    """Return the sum of all outputs that have a gradient: the loss of a program in training."""
    parts = [one.float().sum() for one in flatten(output) if one.requires_grad]
    if not parts:
        raise CannotBuild("no output of the program has a gradient")
    return sum(parts[1:], parts[0])


def _peaks(runners: List[VariantRunner]) -> List[float]:
    """Return the peak memory of an iteration of each."""
    peaks = []
    for runner in runners:
        peak, _, why_not = peak_memory(runner)
        if peak is None:
            raise CannotBuild("the peak memory is unavailable: " + str(why_not))
        peaks.append(float(peak))
    return peaks


def _errors(runners: List[VariantRunner]) -> List[float]:
    """Return 0 and the largest error of the candidate, or 0 if its results are not wrong."""
    checks = Checks()
    checks.begin([runners[0].model], SEED)
    record = checks.judge(runners[1], checks.references(runners[0], None))
    if record["status"] != "fail":
        return [0.0, 0.0]
    error = record.get("max_error")
    # A missing or infinite error has no size, but JSON numbers must be finite.
    size = NOT_FINITE if error is None else float(error)
    return [0.0, size if 0.0 < size < NOT_FINITE else NOT_FINITE]


_reductions: Dict[int, ReductionService] = {}


def reduction_of(service: WorkerService) -> ReductionService:
    """Return the reduction of a worker's service."""
    return _reductions.setdefault(id(service), ReductionService(service))

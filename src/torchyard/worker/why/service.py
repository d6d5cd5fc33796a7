"""Requests of an attribution: observe compilation, record sources, time operators."""

from typing import Any, Dict, List

from torchyard.worker.bench.backend_names import uses_dynamo
from torchyard.worker.bench.service import WorkerService
from torchyard.worker.bench.variant import VariantRunner
from torchyard.worker.why.compile_phases import CompileTimer
from torchyard.worker.why.instrumented_block import reserve_memory, run_instrumented
from torchyard.worker.why.kernels import GeneratedCode
from torchyard.worker.why.memory import peak_by_site
from torchyard.worker.why.software import facts, primitives_of
from torchyard.worker.why.sources import SourceRecorder, TracedOperator, Unit


class AttributionService:
    """The handlers of the verbs of an attribution; `observe` comes before the first call."""

    def __init__(self, service: WorkerService) -> None:
        self._service = service
        self._code = GeneratedCode()
        self._timer = CompileTimer()
        self._operators: Dict[str, List[TracedOperator]] = {}

    def observe(self, reserve_bytes: int) -> Dict[str, Any]:
        """Record the kernels that Inductor generates from now on; reserve memory for the profiler."""
        reserve_memory(reserve_bytes)
        self._code.install()
        self._timer.read()
        return {}

    def compile_phases(self) -> Dict[str, Any]:
        """Return the compile time by phase since `observe` or the last call."""
        return {"phases": self._timer.read()}

    def sources(self, variant: str) -> Dict[str, Any]:
        """Record the operators of one iteration; return their FLOPs and bytes.

        Compiled code is related to the operators of the eager module.
        """
        runner = self._service.runner(variant)
        compiled = uses_dynamo(runner.backend)
        if compiled:
            runner = VariantRunner("eager", "eager", runner.precision, runner.model, runner.device)
        recorder = SourceRecorder(runner.model.module)
        with runner.context():
            call = runner.caller()
            with recorder:
                call()
        runner.model.forget_gradients()
        self._operators[variant] = recorder.operators
        totals: Dict[Unit, List[float]] = {}
        for operator in recorder.operators:
            total = totals.setdefault(operator.unit, [0.0, 0.0])
            total[0] += operator.flops
            total[1] += operator.moved_bytes
        why_not = self._code.why_not if compiled else ""
        work = [[list(unit), flops, moved] for unit, (flops, moved) in totals.items()]
        return {"work": work, "kernels_why_not": why_not}

    def memory(self, variant: str) -> Dict[str, Any]:
        """Return the memory at the peak of one iteration by allocation site."""
        operators = self._operators.get(variant, [])
        return peak_by_site(self._service.runner(variant), operators, self._code)

    def software(self, variant: str) -> Dict[str, Any]:
        """Return build settings, loaded libraries, and the primitives of oneDNN in one iteration."""
        primitives = [
            [None if unit is None else list(unit), kind, implementation]
            for unit, kind, implementation in primitives_of(self._service.runner(variant))
        ]
        return {**facts(), "primitives": primitives}

    def kernel_code(self, names: List[str]) -> Dict[str, Any]:
        """Return the generated code of these kernels."""
        return {"code": [[name, text] for name, text in self._code.sources(names)]}

    def instrumented(self, variant: str, iterations: int, trace: str = "") -> Dict[str, Any]:
        """Profile one block."""
        operators = self._operators.get(variant, [])
        runner = self._service.runner(variant)
        return run_instrumented(runner, iterations, operators, self._code, trace)


_attributions: Dict[int, AttributionService] = {}


def attribution_of(service: WorkerService) -> AttributionService:
    """Return the attribution of a worker's service."""
    return _attributions.setdefault(id(service), AttributionService(service))

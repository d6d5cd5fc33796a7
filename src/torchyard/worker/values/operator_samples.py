"""Digests of the results and gradients of operators, to compare two builds of torch bit for bit.

Samples are the cases of the operator sweep and, where torch's test packages can be imported, the sample
inputs of torch's own operator tests. They are random with fixed seeds, so that both builds get the same ones.
Uninitialized memory is filled with NaN, also in native code: reading it before writing shows in the results.
"""

import warnings
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch

from torchyard.worker.values.operator_cases import Case, Draw, all_cases, cases_of_file
from torchyard.worker.values.operator_sweep import PreparedCase, Rows
from torchyard.worker.values.pricing.applied_fix import digest_of

SEEDS = (11, 23, 37)
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.complex64)
_MOST_SAMPLES = 64
"""Per operator and type."""


class Sample(NamedTuple):
    """One call of an operator."""

    name: str
    run: Callable[[], List[torch.Tensor]]


def samples_plan(plan: Dict[str, Any]) -> int:
    """Run all samples of the operators of some cases; write one line for each."""
    settings = plan["samples"]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    fill_uninitialized_memory()
    rows = Rows(plan["output"])
    cases = all_cases() + (cases_of_file(settings["file"]) if settings.get("file") else [])
    for function, names in functions_of(cases, settings["cases"]).items():
        own = [case for case in cases if case.name in names or case.call == function]
        infos, why = operator_infos(function)
        rows.write("operator", operator=function, cases=names, infos=len(infos), why=why)
        for sample in (*_case_samples(own), *_info_samples(infos)):
            try:
                digest, error = digest_of(sample.run())["digest"], ""
            except Exception as failure:
                digest, error = "", "%s: %s" % (type(failure).__name__, failure)
            rows.write(
                "sample", operator=function, sample=sample.name, digest=digest, error=error[:200]
            )
    rows.write("end")
    return 0


def fill_uninitialized_memory() -> None:
    """Let torch fill new memory with NaN, or the largest integer."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True


def functions_of(cases: List[Case], names: List[str]) -> Dict[str, List[str]]:
    """Return the named cases by their function; one without a name is called like its case."""
    by_name = {case.name: case for case in cases}
    functions: Dict[str, List[str]] = {}
    for name in names:
        call = by_name[name].call
        functions.setdefault(call if isinstance(call, str) else name, []).append(name)
    return functions


def operator_infos(function: str) -> Tuple[List[Any], str]:
    """Return torch's descriptions of an operator with sample inputs, or why there are none."""
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except Exception as error:  # needs packages that torch does not require
        return [], "torch's sample inputs cannot be imported: %s" % error
    infos = [info for info in op_db if info.name == function]
    return infos, "" if infos else "torch has no sample inputs for it"


def _case_samples(cases: List[Case]) -> Iterator[Sample]:
    for case in cases:
        for seed in SEEDS:
            yield Sample("%s, seed %d" % (case.name, seed), _case_run(case, seed))


def _case_run(case: Case, seed: int) -> Callable[[], List[torch.Tensor]]:
    def run() -> List[torch.Tensor]:
        prepared = PreparedCase(case, Draw("cpu", seed))
        called = prepared.call()
        tensors = list(called.outputs)
        if called.results:
            tensors += _gradients(called.results, called.leaves, called.gradients)
        return tensors

    return run


def _info_samples(infos: List[Any]) -> Iterator[Sample]:
    for info in infos:
        for dtype in _DTYPES:
            if dtype not in info.supported_dtypes("cpu"):
                continue
            learns = info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
            torch.manual_seed(SEEDS[0])
            try:
                samples = list(info.sample_inputs("cpu", dtype, requires_grad=learns))
            except Exception:  # noqa: S112  # samples of this type need something that is missing
                continue
            for number, sample in enumerate(samples[:_MOST_SAMPLES]):
                name = "%s, %s, %d" % (info.formatted_name, str(dtype)[6:], number)
                yield Sample(name, _info_run(info, sample))


def _info_run(info: Any, sample: Any) -> Callable[[], List[torch.Tensor]]:
    def run() -> List[torch.Tensor]:
        torch.manual_seed(SEEDS[1])  # for operators that draw numbers
        result = info(sample.input, *sample.args, **sample.kwargs)
        outputs = _tensors(result)
        tensors = _tensors([sample.input, sample.args, sample.kwargs])
        leaves = [one for one in tensors if one.requires_grad and one.is_leaf]
        learned = [one for one in outputs if one.requires_grad]
        if not (leaves and learned):
            return outputs
        weights = [torch.randn_like(one) for one in learned]
        return outputs + _gradients(learned, leaves, weights)

    return run


def _gradients(
    results: List[torch.Tensor], leaves: List[torch.Tensor], weights: List[torch.Tensor]
) -> List[torch.Tensor]:
    gradients = torch.autograd.grad(results, leaves, weights, allow_unused=True)
    return [one for one in gradients if one is not None]


def _tensors(value: Any) -> List[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value.to_dense()] if value.layout is not torch.strided else [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def make(case: str, direction: str = "forward", file: Optional[str] = None) -> Tuple[Any, Any]:
    """Return a case of the operator sweep as a workload: a function and its inputs."""
    cases = all_cases() + (cases_of_file(file) if file else [])
    chosen = next(one for one in cases if one.name == case)
    with torch.enable_grad():
        prepared = PreparedCase(chosen, Draw("cpu", SEEDS[0]))
        if direction == "forward":
            return prepared.function, tuple(prepared.arguments)
        called = prepared.call()

    def backward(*gradients: torch.Tensor) -> List[torch.Tensor]:
        results = torch.autograd.grad(
            called.results, called.leaves, gradients, retain_graph=True, allow_unused=True
        )
        return [one for one in results if one is not None]

    return backward, tuple(called.gradients)

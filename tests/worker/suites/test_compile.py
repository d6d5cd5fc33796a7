"""Every built-in workload compiles with torch.compile and gives the same numbers."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.worker.suites.test_built_ins import CASES, SMALLER
from torchyard.worker import suites
from torchyard.worker.workload import BuiltWorkload, flatten

pytestmark = pytest.mark.torch

SIZES = {**SMALLER, "conv2d-columns": {**SMALLER["conv2d-columns"], "ones": 1}}
# A kernel of each kind: the code generator takes seconds for each, and there are many alike.
KINDS = (
    *("matmul", "mlp", "layered-mlp", "attention", "attention-grouped", "conv2d", "conv2d-columns"),
    *("embedding", "embedding-padded", "layer-norm", "batch-norm", "softmax", "cross-entropy"),
    *("reduce-sum", "replication-pad3d", "reflection-pad2d", "max-pool2d", "interpolate-bilinear"),
    *("elementwise-chain", "optimizer-step", "adamw-step"),
)
# Training compiles the forward pass of a kernel as well.
ALIKE = [
    (suite, name, mode)
    for suite, name, mode in CASES
    if suite == "kernels"
    and (name not in KINDS or (mode == "inference" and (suite, name, "training") in CASES))
]
QUICK = [
    ("kernels", "layered-mlp", "training"),
    ("kernels", "optimizer-step", "inference"),
    ("models", "gpt", "inference"),
]


@pytest.fixture(autouse=True)
def _forget_compiled_code() -> Iterator[None]:
    yield
    import torch._dynamo

    torch._dynamo.reset()


def results(built: BuiltWorkload, function: Any) -> list[Any]:
    """Outputs, and in training the gradients."""
    import torch

    if not built.module.training:
        with torch.no_grad():
            return [t.clone() for t in flatten(function(*built.args))]
    assert built.loss is not None
    output = function(*built.args)
    built.module.zero_grad()
    built.loss(output).backward()
    gradients = [p.grad.clone() for p in built.module.parameters()]
    return [t.detach().clone() for t in flatten(output)] + gradients


def check(suite: str, name: str, mode: str, backend: str) -> None:
    import torch

    def made() -> BuiltWorkload:
        torch.manual_seed(5)
        return suites.build(
            suite, name, mode, None if name.endswith("-step") else 2, SIZES.get(name)
        )

    plain, compiled = made(), made()
    expected = results(plain, plain.module)
    compiled_results = results(compiled, torch.compile(compiled.module, backend=backend))
    assert len(compiled_results) == len(expected) > 0
    for a, b in zip(compiled_results, expected, strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-4 * max(1.0, float(b.abs().max())))


@pytest.mark.parametrize(("suite", "name", "mode"), CASES)
def test_compiles_without_a_code_generator(suite: str, name: str, mode: str) -> None:
    check(suite, name, mode, "eager")


@pytest.mark.filterwarnings("default")  # the code generator warns about its own internals
@pytest.mark.parametrize(("suite", "name", "mode"), QUICK)
def test_compiles_with_inductor(suite: str, name: str, mode: str) -> None:
    check(suite, name, mode, "inductor")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("suite", "name", "mode"),
    [case for case in CASES if case not in QUICK and case not in ALIKE],
)
def test_the_others_compile_with_inductor(suite: str, name: str, mode: str) -> None:
    check(suite, name, mode, "inductor")

"""Kernels: exact operation counts, exact slowdowns, the optimizer step."""

import copy
from typing import Any

import pytest

from torchyard.worker import suites
from torchyard.worker.workload import BuiltWorkload, flatten

pytestmark = pytest.mark.torch


def counted(built: BuiltWorkload) -> float:
    """Floating-point operations of one forward pass, as torch's own counter sees them."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    # The counter does not know the fused attention of the CPU, but the products it stands for.
    plain = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
    with counter, plain, torch.no_grad():
        built.module(*built.args)
    return float(counter.get_total_flops())


@pytest.mark.parametrize(
    ("name", "batch_size", "parameters"),
    [
        ("matmul", None, {"size": 64}),
        ("matmul", 5, {"size": 32}),
        ("mlp", 3, {"size": 8, "width": 40, "hidden": 24, "classes": 7}),
        ("matmul-tall", None, {"height": 50, "width": 6}),
        ("matmul-batched", 3, {"size": 12}),
        ("matmul-vector", None, {"size": 20}),
        ("conv2d", 2, {"channels": 6, "size": 10}),
        ("conv2d-columns", 2, {"channels": 6, "size": 10}),
        ("conv2d-depthwise", 2, {"channels": 6, "size": 10}),
        ("conv2d-1x1", 2, {"channels": 6, "size": 10}),
        ("conv2d-transposed", 2, {"channels": 6, "size": 5, "stride": 3}),
        ("conv3d", 2, {"channels": 3, "size": 6}),
        ("conv2d", 1, {"channels": 3, "size": 9, "kernel": 5}),
        ("attention", 3, {"heads": 2, "length": 20, "width": 8}),
        ("attention-grouped", 3, {"heads": 4, "key_heads": 2, "length": 20, "width": 8}),
        ("attention-decode", 3, {"heads": 4, "length": 20, "width": 8}),
        ("layered-mlp", 4, {"layers": 5, "extra_layers": 2, "width": 16}),
    ],
)
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_flops_are_exact(
    name: str, batch_size: int | None, parameters: dict[str, int], mode: str
) -> None:
    built = suites.build("kernels", name, mode, batch_size, parameters)
    assert built.flops == counted(built) > 0


def test_the_matrix_product_of_the_default_size() -> None:
    built = suites.build("kernels", "matmul")
    assert [tuple(each.shape) for each in built.args] == [(1000, 1000), (1000, 1000)]
    assert built.flops == 2e9


def test_a_causal_mask_leaves_the_pairs_below_the_diagonal() -> None:
    import torch

    parameters = {"heads": 2, "length": 7, "width": 4}
    whole = suites.build("kernels", "attention", "inference", 3, parameters)
    causal = suites.build("kernels", "attention-causal", "inference", 3, parameters)
    workload = suites.build("kernels", "attention", "inference", 3, {**parameters, "causal": 1})
    needed = int(torch.ones(7, 7).tril().sum())
    assert whole.flops is not None
    assert causal.flops == workload.flops == whole.flops * needed / 49


def test_inexact_flops_are_not_reported() -> None:
    for name, parameters in (
        ("embedding", {"rows": 9}),
        ("layer-norm", {"width": 8}),
        ("max-pool2d", {"size": 8}),
    ):
        assert suites.build("kernels", name, parameters=parameters).flops is None


@pytest.mark.parametrize("layers", [10, 100])
def test_an_extra_layer_is_exactly_its_share_of_work(layers: int) -> None:
    import torch

    def built(**parameters: int) -> BuiltWorkload:
        torch.manual_seed(1)
        return suites.build("kernels", "layered-mlp", parameters={"layers": layers, **parameters})

    plain, longer, given = built(), built(extra_layers=1), built(layers=layers + 1)
    assert counted(longer) / counted(plain) == pytest.approx(1 + 1 / layers, rel=1e-12)
    # The same weights and inputs, and no more memory: only the number of uses differs.
    for a, b in zip(plain.module.parameters(), longer.module.parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(plain.args[0], longer.args[0])
    assert torch.equal(longer.module(*longer.args), given.module(*given.args))


def test_the_chain_neither_vanishes_nor_overflows() -> None:
    import torch

    built = suites.build("kernels", "layered-mlp", parameters={"layers": 400})
    with torch.no_grad():
        size = float(built.module(*built.args).abs().max())
    assert 1e-2 < size < 1e2
    assert len(list(built.module.parameters())) == 2 * 8


def test_operands_are_inputs_in_inference_and_parameters_in_training() -> None:
    inference = suites.build("kernels", "attention", "inference", 1, {"length": 4})
    training = suites.build("kernels", "attention", "training", 1, {"length": 4})
    assert (len(inference.args), len(list(inference.module.parameters()))) == (3, 0)
    assert (len(training.args), len(list(training.module.parameters()))) == (0, 3)


def test_replication_padding_repeats_the_edge() -> None:
    built = suites.build("kernels", "replication-pad3d", parameters={"size": 3, "pad": 2})
    (volume,) = built.args
    padded = built.module(volume)
    assert tuple(padded.shape[2:]) == (7, 7, 7)
    assert float(padded[0, 0, 0, 0, 0]) == float(volume[0, 0, 0, 0, 0])


def step_of_torch(start: list[Any], gradients: list[Any], steps: int) -> list[Any]:
    """The same steps by torch's optimiser class."""
    import torch

    parameters = [torch.nn.Parameter(each.clone()) for each in start]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=1e-2)
    for _ in range(steps):
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    return [each.detach() for each in parameters]


def test_the_optimiser_step_is_the_one_of_adamw() -> None:
    import torch

    built = suites.build("kernels", "optimizer-step", parameters={"layers": 2, "width": 8})
    assert built.mutates
    start = [each.clone() for each in built.module.parameters()]
    gradients = [t for key, t in built.module.named_buffers() if key.startswith("gradient")]
    expected = step_of_torch(start, gradients, 3)
    for _ in range(2):
        built.module()
    outputs = flatten(built.module())
    for a, b, c in zip(outputs, expected, start, strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-7)
        assert not torch.equal(a, c)


def test_the_state_of_the_optimiser_step_travels_with_the_module() -> None:
    import torch

    built = suites.build("kernels", "optimizer-step", parameters={"layers": 1, "width": 4})
    twin = copy.deepcopy(built.module)
    before = [each.clone() for each in built.module.state_dict().values()]
    first = [each.clone() for each in flatten(built.module())]
    assert all(torch.equal(a, b) for a, b in zip(first, flatten(twin()), strict=True))
    with torch.no_grad():
        for tensor, old in zip(built.module.state_dict().values(), before, strict=True):
            tensor.copy_(old)
    assert all(torch.equal(a, b) for a, b in zip(first, flatten(built.module()), strict=True))
    assert all(t.dtype is torch.bfloat16 for t in flatten(twin.to(torch.bfloat16)()))


def test_a_convolution_by_columns_is_a_convolution() -> None:
    import torch

    for ones in (0, 1):
        parameters = {"channels": 3, "size": 6, "ones": ones}
        built = suites.build("kernels", "conv2d-columns", "inference", 2, parameters)
        (images,) = built.args
        weight = built.module.weight.view(3, 3, 3, 3)
        expected = torch.nn.functional.conv2d(images, weight, padding=1)
        assert torch.allclose(built.module(images), expected, atol=1e-5)

"""Every built-in workload builds, runs forward and backward, and is reproducible from its seed."""

from typing import Any

import pytest

from torchyard.worker import catalog, suites
from torchyard.worker.workload import BuiltWorkload, flatten

pytestmark = pytest.mark.torch

# The perceptron at its full size holds 50 million weights; drawing them takes seconds.
SMALL_MLP: dict[str, int] = {"size": 8, "width": 32, "hidden": 48}
SMALLER: dict[str, dict[str, int]] = {
    "mlp": SMALL_MLP,
    "matmul": {"size": 50},
    "conv2d": {"size": 14, "channels": 16},
    "attention": {"length": 32},
    "embedding": {"rows": 500},
    "embedding-padded": {"rows": 500},
    "matmul-tall": {"height": 100},
    "matmul-vector": {"size": 60},
    "conv2d-columns": {"size": 14, "channels": 16},
    "conv3d": {"size": 8, "channels": 4},
    "cross-entropy": {"classes": 50},
    "reduce-sum": {"width": 50},
    "reduce-max": {"width": 50},
    "elementwise-chain": {"width": 50},
    "layered-mlp": {"layers": 10, "width": 32},
    "optimizer-step": {"layers": 2, "width": 16},
    "adam-step": {"layers": 2, "width": 16},
    "adamw-step": {"layers": 2, "width": 16, "foreach": 1},
    # Smaller images leave batch normalisation two values per channel, which it blows up.
    "resnet": {"width": 8, "size": 64, "classes": 10},
    "transformer-encoder": {"layers": 2, "width": 32, "vocabulary": 64, "length": 16},
    "unet": {"size": 32, "width": 8, "depth": 2},
    "lstm": {"width": 16, "vocabulary": 64, "length": 8},
    "gpt": {"layers": 2, "width": 32, "vocabulary": 64, "length": 16},
    "speech": {"layers": 2, "width": 32, "mels": 8, "frames": 20, "vocabulary": 64, "length": 8},
    "diffusion": {"size": 8, "width": 16, "depth": 1, "length": 7, "context": 12},
    "vision-language": {
        "layers": 2,
        "width": 32,
        "size": 32,
        "vocabulary": 64,
        "length": 8,
        "embedding": 16,
    },
}
CASES = [
    (suite, entry.name, mode)
    for suite, entries in catalog.SUITES.items()
    for entry in entries
    for mode in entry.modes
    if mode in ("inference", "training")
]
LOSSES = {
    "softmax": "mean of squares",
    "batch-norm": "mean of cubes",
    "resnet": "cross-entropy",
    "transformer-encoder": "cross-entropy",
    "unet": "mean of squares",
    "lstm": "cross-entropy",
    "gpt": "cross-entropy",
    "speech": "cross-entropy",
    "diffusion": "mean squared error",
    "vision-language": "contrastive",
}


def made(
    suite: str, name: str, mode: str, *, seed: int = 3, batch_size: int | None = None
) -> BuiltWorkload:
    import torch

    torch.manual_seed(seed)
    return suites.build(suite, name, mode, batch_size, SMALLER.get(name, {}))


def outputs(built: BuiltWorkload) -> list[Any]:
    import torch

    with torch.no_grad():
        return [each.clone() for each in flatten(built.module(*built.args, **built.kwargs))]


@pytest.mark.parametrize(("suite", "name", "mode"), CASES)
def test_runs(suite: str, name: str, mode: str) -> None:
    import torch

    # At the sizes that a user gets; the other tests are content with smaller ones.
    built = suites.build(suite, name, mode, parameters=SMALL_MLP if name == "mlp" else {})
    assert isinstance(built.module, torch.nn.Module)
    assert built.module.training == (mode == "training")
    tensors = [*built.module.parameters(), *built.module.buffers(), *flatten(built.args)]
    assert all(t.dtype is torch.float32 for t in tensors if t.is_floating_point())
    if mode == "inference":
        found = outputs(built)
        assert found
        assert all(bool(t.isfinite().all()) and float(t.abs().max()) > 0 for t in found)
        return
    assert built.loss is not None
    loss = built.loss(built.module(*built.args, **built.kwargs))
    assert loss.shape == ()
    loss.backward()
    gradients = [p.grad for p in built.module.parameters()]
    assert gradients
    assert all(g is not None and bool(g.isfinite().all()) for g in gradients)
    assert built.loss_name == LOSSES.get(name, "sum")


@pytest.mark.parametrize(("suite", "name", "mode"), [c for c in CASES if c[2] == "training"])
def test_every_gradient_is_more_than_rounding(suite: str, name: str, mode: str) -> None:
    # Backends are held against each other by their gradients. A gradient that is zero in exact
    # arithmetic would be rounding errors held against rounding errors.
    import torch

    built = made(suite, name, mode)
    assert built.loss is not None
    built.loss(built.module(*built.args)).backward()
    small = {key: p.grad.clone() for key, p in built.module.named_parameters()}
    module, args = (
        built.module.double(),
        [t.double() if t.is_floating_point() else t for t in built.args],
    )
    module.zero_grad()
    built.loss(module(*args)).backward()
    for key, parameter in module.named_parameters():
        size = float(parameter.grad.norm())
        error = float((parameter.grad - small[key].double()).norm())
        if size > 0 or error > 0:
            assert error < 0.01 * size, key
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.parametrize(("suite", "name", "mode"), [c for c in CASES if c[2] == "inference"])
def test_the_seed_decides_everything(suite: str, name: str, mode: str) -> None:
    import torch

    once, again, other = (outputs(made(suite, name, mode, seed=seed)) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(once, other, strict=True))


@pytest.mark.parametrize(
    ("suite", "name"),
    sorted({(suite, name) for suite, name, _ in CASES if not name.endswith("-step")}),
)
def test_the_batch_size_is_honoured(suite: str, name: str) -> None:
    built = made(suite, name, "inference", batch_size=3)
    assert all(tensor.shape[0] == 3 for tensor in flatten(built.args))
    assert all(tensor.shape[0] == 3 for tensor in outputs(built))
    assert all(
        tensor.shape[0] == 3 for tensor in outputs(made(suite, name, "training", batch_size=3))
    )


@pytest.mark.parametrize(("suite", "name", "mode"), [c for c in CASES if c[2] == "training"])
def test_the_optimiser_steps_on_the_parameters(suite: str, name: str, mode: str) -> None:
    import torch

    built = made(suite, name, mode)
    assert built.loss is not None
    assert built.optimizer is not None
    optimizer = built.optimizer(list(built.module.parameters()))
    assert isinstance(optimizer, torch.optim.Optimizer)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in built.module.parameters()}


def test_half_precision_losses_do_not_overflow() -> None:
    import torch

    from torchyard.worker.suites import training as losses

    large = torch.full((1000, 1000), 100.0, dtype=torch.float16)
    assert float(losses.total(large)) == 1e8
    assert losses.total(torch.ones(3, dtype=torch.float64)).dtype is torch.float64
    assert losses.mean_square(torch.full((4,), 300.0, dtype=torch.float16)).isfinite()


def test_the_meta_device_takes_everything() -> None:
    # A device that is not the CPU and is always here: shows what would be left behind.
    import torch

    for suite, name, mode in CASES:
        built = suites.build(suite, name, mode, None, SMALLER.get(name, {}), "meta")
        tensors = [*built.module.parameters(), *built.module.buffers()]
        assert all(t.device.type == "meta" for t in tensors + flatten(built.args)), name
        if built.loss is not None:
            assert built.loss(built.module(*built.args)).device == torch.device("meta"), name

"""Residual networks have the sizes of the paper."""

import pytest

from torchyard.worker import suites
from torchyard.worker.workload import CannotBuild

pytestmark = pytest.mark.torch

PARAMETERS = {
    18: 11_689_512,
    34: 21_797_672,
    50: 25_557_032,
    101: 44_549_160,
    152: 60_192_808,
}


@pytest.mark.parametrize("layers", PARAMETERS)
def test_the_number_of_weights(layers: int) -> None:
    import torch

    from torchyard.worker.suites.models import ResNet

    with torch.device("meta"):
        network = ResNet(layers, 64, 1000)
    assert sum(weight.numel() for weight in network.parameters()) == PARAMETERS[layers]
    kinds = [type(module).__name__ for module in network.modules()]
    on_shortcuts = sum("shortcut.0" in name for name, _ in network.named_modules())
    assert kinds.count("Conv2d") + kinds.count("Linear") - on_shortcuts == layers


def test_a_bottleneck_network_trains() -> None:
    built = suites.build(
        "models", "resnet", "training", 2, {"layers": 50, "width": 4, "size": 32, "classes": 5}
    )
    assert built.loss is not None
    output = built.module(*built.args)
    assert tuple(output.shape) == (2, 5)
    built.loss(output).backward()
    assert all(
        weight.grad is not None and bool(weight.grad.isfinite().all())
        for weight in built.module.parameters()
    )


def test_unsupported_depth() -> None:
    with pytest.raises(CannotBuild) as caught:
        suites.build("models", "resnet", parameters={"layers": 20})
    assert str(caught.value) == "invalid parameter layers of models/resnet: 20"
    assert caught.value.hint == "give layers one of 18, 34, 50, 101, 152"

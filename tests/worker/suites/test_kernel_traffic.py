"""Memory traffic of kernels, compared with the tensors and with manual calculations."""

from typing import Any

import pytest

from torchyard.worker import suites
from torchyard.worker.catalog import KERNELS
from torchyard.worker.suites import kernels
from torchyard.worker.suites.choices import choose
from torchyard.worker.workload import BuiltWorkload, flatten

pytestmark = pytest.mark.torch

TINY: dict[str, dict[str, int]] = {
    "matmul": {"size": 20},
    "matmul-tall": {"height": 40, "width": 8},
    "matmul-vector": {"size": 20},
    "mlp": {"size": 4, "width": 12, "hidden": 10, "classes": 3},
    "embedding": {"rows": 300, "width": 6},
    "embedding-padded": {"rows": 300, "width": 6},
    "cross-entropy": {"classes": 30},
    "reduce-sum": {"width": 30},
    "reduce-max": {"width": 30},
    "elementwise-chain": {"width": 30},
}
STEPS = [entry.name for entry in KERNELS if entry.name.endswith("-step")]


def built(
    name: str, mode: str = "inference", batch: int | None = None, **given: int
) -> BuiltWorkload:
    import torch

    torch.manual_seed(5)
    return suites.build("kernels", name, mode, batch, given or TINY.get(name, {}))


def moved(name: str, mode: str = "inference", batch: int | None = None, **given: int) -> float:
    traffic = built(name, mode, batch, **given).traffic
    assert traffic is not None
    return traffic.elements


@pytest.mark.parametrize("name", [entry.name for entry in KERNELS])
def test_the_output_has_the_stated_size(name: str) -> None:
    import torch

    chosen = choose("kernels", name, "inference", None, TINY.get(name, {}))
    kernel = kernels._BUILDERS[name](chosen)
    with torch.no_grad():
        outputs = flatten(kernel.module.eval()(*kernel.args))
    assert sum(each.numel() for each in outputs) == kernel.output


@pytest.mark.parametrize(
    "name", [e.name for e in KERNELS if e.name not in {*STEPS, "embedding", "embedding-padded"}]
)
def test_everything_crosses_once_and_gradients_come_to_it(name: str) -> None:
    import torch

    def sizes(tensors: Any) -> int:
        return sum(each.numel() for each in tensors if each.is_floating_point())

    inference, training = built(name), built(name, "training")
    with torch.no_grad():
        output = sizes(flatten(inference.module.eval()(*inference.args)))
    held = sizes(inference.module.parameters()) + sizes(inference.module.buffers())
    forward = sizes(inference.args) + held + output
    assert inference.traffic is not None
    assert inference.traffic.elements == forward
    assert training.loss is not None
    training.loss(training.module(*training.args)).backward()
    gradients = [each.grad for each in training.module.parameters() if each.grad is not None]
    written = sizes(training.module.buffers())
    assert training.traffic is not None
    assert training.traffic.elements == forward + sizes(gradients) + written


def test_numbers_by_hand() -> None:
    assert moved("matmul", size=10) == 300
    assert moved("matmul", "training", size=10) == 300 + 200
    assert moved("matmul", batch=3, size=10) == 900
    assert moved("conv2d", batch=2, channels=3, size=5, kernel=3) == 2 * 75 * 2 + 81
    assert moved("conv2d-depthwise", batch=2, channels=3, size=5, kernel=3) == 2 * 75 * 2 + 27
    assert moved("attention-decode", batch=1, heads=2, length=7, width=4) == (1 + 7 + 7 + 1) * 8
    assert moved("replication-pad3d", batch=1, channels=1, size=2, pad=1) == 8 + 64
    assert moved("max-pool2d", batch=1, channels=1, size=8, kernel=2) == 64 + 16
    # Weights, biases, and in training their gradients: 2 layers of 3 x 3 and 3.
    parameters = 2 * 12
    assert moved("sgd-step", layers=2, width=3) == 3 * parameters
    assert moved("momentum-step", layers=2, width=3) == 5 * parameters
    assert moved("adamw-step", layers=2, width=3) == 7 * parameters + 2 * 4
    assert moved("optimizer-step", layers=2, width=3) == 7 * parameters + 2 * 4


def test_lookup_reads_each_row_once_and_writes_the_whole_gradient() -> None:
    import torch

    for name in ("embedding", "embedding-padded"):
        inference, training = built(name), built(name, "training")
        (places,) = inference.args
        rows = int(torch.unique(places).numel())
        assert 1 < rows < 300
        assert inference.traffic is not None
        assert training.traffic is not None
        assert inference.traffic.elements == rows * 6 + places.numel() * 6
        assert training.traffic.elements == rows * 6 + places.numel() * 6 + 300 * 6
        assert inference.traffic.fixed_bytes == places.numel() * 8


def test_a_quarter_of_the_padded_lookup_is_padding() -> None:
    (places,) = built("embedding-padded", length=8, rows=50).args
    assert bool((places[:, -2:] == 0).all())
    assert bool((places[:, :-2] > 0).all())


def test_bytes_follow_the_precision_but_indices_do_not() -> None:
    traffic = built("cross-entropy", batch=4, classes=10).traffic
    assert traffic is not None
    assert traffic.bytes_at(4) == (40 + 4) * 4 + 4 * 8
    assert traffic.bytes_at(2) == (40 + 4) * 2 + 4 * 8


def test_memory_traffic_reaches_the_metrics_of_each_precision() -> None:
    from torchyard.worker.bench.service import WorkerService

    workload = {
        "suite": "kernels",
        "name": "matmul",
        "mode": "inference",
        "device": "cpu",
        "batch_size": None,
        "optimizer_step": False,
        "parameters": {"size": 10},
    }
    service = WorkerService()
    runners: list[dict[str, Any]] = [
        {"name": precision, "backend": "eager", "precision": precision, "options": {}}
        for precision in ("float32", "bfloat16", "amp")
    ]
    service.build(workload, runners, 1)
    assert service.measure("float32")["moved_bytes"] == 1200
    assert service.measure("bfloat16")["moved_bytes"] == 600
    amp = service.measure("amp")
    assert amp["moved_bytes"] is None
    assert "amp" in dict(amp["unavailable"])["moved_bytes"]


@pytest.mark.parametrize("name", ["sgd-step", "momentum-step", "adam-step", "adamw-step"])
def test_every_form_of_a_step_gives_the_same(name: str) -> None:
    import torch

    found = []
    for foreach, fused in ((0, 0), (1, 0), (0, 1)):
        step = built(name, layers=2, width=5, foreach=foreach, fused=fused)
        assert step.mutates
        for _ in range(3):
            step.module()
        found.append([each.clone() for each in flatten(step.module())])
    for other in found[1:]:
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_steps_stay_finite_in_half_precision(name: str, precision: str) -> None:
    import torch

    from torchyard.worker.bench.model import convert

    step = convert(built(name, layers=2, width=16), getattr(torch, precision))
    for _ in range(3):
        assert all(bool(each.isfinite().all()) for each in flatten(step.module()))


def test_steps_are_those_of_torch() -> None:
    import torch

    kinds: dict[str, tuple[Any, dict[str, float]]] = {
        "sgd-step": (torch.optim.SGD, {}),
        "momentum-step": (torch.optim.SGD, {"momentum": 0.9}),
        "adam-step": (torch.optim.Adam, {}),
        "adamw-step": (torch.optim.AdamW, {"weight_decay": 1e-2}),
    }
    for name, (kind, settings) in kinds.items():
        step = built(name, layers=1, width=4)
        parameters = [torch.nn.Parameter(p.clone()) for p in step.module.parameters()]
        gradients = [t for key, t in step.module.named_buffers() if key.startswith("gradient")]
        optimizer = kind(parameters, lr=1e-4, **settings)
        for _ in range(3):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()
            step.module()
        for ours, theirs in zip(step.module.parameters(), parameters, strict=True):
            assert torch.allclose(ours, theirs.detach(), atol=1e-6), name

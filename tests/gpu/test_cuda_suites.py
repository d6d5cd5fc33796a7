"""Suites on a GPU: listed batch sizes, large models created on the device, real image models.

Never run by `make test`; run by hand on a machine with a GPU: `python -m pytest -m gpu tests/gpu`.
"""

from __future__ import annotations

from typing import Any

import pytest

from torchyard.worker import catalog, suites
from torchyard.worker.catalog.entry import ListedWorkload

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.torch,
    pytest.mark.filterwarnings("default"),  # what the packages warn about is not ours
]

LARGE_ENOUGH_BYTES = 40e9


def listed(suite: str, name: str) -> ListedWorkload:
    return next(each for each in catalog.LISTS[suite] if each.name == name)


def run_once(suite: str, name: str, mode: str, **parameters: Any) -> Any:
    import torch

    built = suites.build(suite, name, mode, None, parameters, "cuda")
    assert {p.device.type for p in built.module.parameters()} == {"cuda"}
    if mode == "inference":
        with torch.no_grad():
            built.module(*built.args, **built.kwargs)
    else:
        assert built.loss is not None
        loss = built.loss(built.module(*built.args, **built.kwargs))
        assert bool(loss.isfinite())
        loss.backward()
    return built


def expected_batch(suite: str, name: str) -> int:
    import torch

    whole = listed(suite, name).gpu_batch_size
    assert whole is not None
    memory_bytes = torch.cuda.get_device_properties(0).total_memory
    if memory_bytes < LARGE_ENOUGH_BYTES:
        pytest.skip(f"the lists are for 40 GB, and this GPU has {memory_bytes / 1e9:.0f}")
    return whole


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize(
    ("suite", "package", "name"),
    [
        ("huggingface", "transformers", "T5Small"),
        ("huggingface", "transformers", "whisper-tiny"),
        ("timm", "timm", "mobilenetv2_100"),
        ("timm", "timm", "adv_inception_v3"),
        ("timm", "timm", "vit_base_patch16_siglip_256"),
        ("torchvision", "torchvision", "resnet50"),
        ("torchvision", "torchvision", "maskrcnn_resnet50_fpn"),
        ("torchvision", "torchvision", "keypointrcnn_resnet50_fpn"),
        ("torchvision", "torchvision", "ssd300_vgg16"),
        ("torchvision", "torchvision", "deeplabv3_resnet50"),
    ],
)
def test_listed_models_run_with_the_batch_of_the_list(
    suite: str, package: str, name: str, mode: str
) -> None:
    pytest.importorskip(package)
    whole = expected_batch(suite, name)
    assert run_once(suite, name, mode).batch_size == whole


def test_a_large_model_is_drawn_on_the_gpu() -> None:
    import torch

    pytest.importorskip("transformers")
    torch.cuda.reset_peak_memory_stats()
    built = run_once("huggingface", "Llama-3.2-1B", "inference")
    weights = [p for p in built.module.parameters() if p.dim() > 1]
    assert all(float(weight.std()) > 0 for weight in weights)  # drawn, not left empty
    assert tuple(built.kwargs["input_ids"].shape) == (1, 1000)

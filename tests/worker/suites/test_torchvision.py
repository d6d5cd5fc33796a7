"""The suite torchvision: with a fake package, without the package, and with the real one."""

import importlib.util
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.worker.suites.package_suite import ask as ask_suite
from torchyard.worker import catalog, suites
from torchyard.worker.catalog import TORCHVISION, TORCHVISION_BY_NAME
from torchyard.worker.workload import flatten

pytestmark = pytest.mark.torch

FAKE = Path(__file__).parents[2] / "data" / "fake_torchvision"
with_torchvision = pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is None,
    reason="torchvision is not installed beside the tests",
)

ask = partial(ask_suite, "torchvision")


def test_the_list() -> None:
    names = [each.name for each in TORCHVISION]
    assert len(names) == len(set(names)) == 80 + 12 + 6
    assert catalog.LISTS["torchvision"] == TORCHVISION
    assert all(each.gpu_batch_size and each.cpu_batch_size for each in TORCHVISION)
    assert "detection" in TORCHVISION_BY_NAME["ssd300_vgg16"].about


def test_without_the_package() -> None:
    for answer in ask("none", "names", {"name": "resnet50"}):
        assert "torchvision cannot be imported in the target" in answer["refused"]
        assert answer["hint"] == "install the torchvision version that matches the target's torch"


def test_a_package_that_breaks_while_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator nms does not exist')")
    (answer,) = ask(str(tmp_path), {"name": "resnet50"})
    assert "operator nms does not exist" in answer["refused"]


def test_classification() -> None:
    names, plain, sized, trained, several, wished = ask(
        str(FAKE),
        "names",
        {"name": "tiny_net"},
        {"name": "vit_tiny", "batch_size": 2, "parameters": {"size": 32}},
        {"name": "tiny_net", "mode": "training", "batch_size": 3, "parameters": {"num_classes": 5}},
        {"name": "googlenet", "mode": "training", "batch_size": 3},
        {"name": "tiny_net", "parameters": {"dropout": 0.25}},
    )
    assert names[:3] == ["googlenet", "tiny_net", "vit_tiny"]
    assert names[-2:] == ["deeplabv3_tiny", "fcn_tiny"]
    shapes = [[8, 3, 224, 224]]
    assert plain == {"batch": 8, "said": "cross-entropy", "shapes": shapes, "dropout": 0.0}
    assert sized["shapes"] == [[2, 3, 32, 32]]
    assert trained["loss"] == pytest.approx(1.6, abs=0.5)  # about ln 5: it is not trained
    assert several["loss"] == pytest.approx(1.3 * 6.9, abs=1.5)  # the other head counts 0.3
    assert trained["without"] == several["without"] == 0
    assert wished["dropout"] == 0.25


def test_detection_has_lists_of_images_and_its_own_losses() -> None:
    found, masks, points, few = ask(
        str(FAKE),
        {"name": "maskrcnn_tiny", "batch_size": 2},
        {"name": "maskrcnn_tiny", "mode": "training", "batch_size": 2, "parameters": {"size": 90}},
        {"name": "keypointrcnn_tiny", "mode": "training", "batch_size": 1},
        {"name": "maskrcnn_tiny", "mode": "training", "parameters": {"num_classes": 2, "size": 64}},
    )
    assert found["shapes"] == [[3, 480, 640], [3, 480, 640]]
    assert masks["said"] == "the sum of the model's own"
    assert masks["shapes"] == [[3, 90, 90]] * 2
    assert points["loss"] > 0
    assert few["batch"] == 8
    assert masks["without"] == points["without"] == 0


def test_segmentation() -> None:
    one, both, alone = ask(
        str(FAKE),
        {"name": "fcn_tiny", "mode": "training", "batch_size": 1, "parameters": {"size": 16}},
        {
            "name": "fcn_tiny",
            "mode": "training",
            "batch_size": 1,
            "parameters": {"size": 16, "aux_loss": True},
        },
        {"name": "deeplabv3_tiny", "mode": "training", "batch_size": 1},
    )
    assert one["said"] == "per-pixel cross-entropy"
    assert one["shapes"] == [[1, 3, 16, 16]]
    assert both["loss"] == pytest.approx(1.5 * one["loss"])
    assert "cannot be trained with a batch size of 1" in alone["refused"]
    assert alone["hint"] == "give a batch size of at least 2"


def test_refusals() -> None:
    unknown, video, size, weights, parameter, classes, patches = ask(
        str(FAKE),
        {"name": "tiny_nett"},
        {"name": "tiny_video"},
        {"name": "tiny_net", "parameters": {"size": 0}},
        {"name": "tiny_net", "parameters": {"weights": "DEFAULT"}},
        {"name": "tiny_net", "parameters": {"depth": 3}},
        {"name": "tiny_net", "parameters": {"num_classes": 1}},
        {"name": "vit_tiny", "parameters": {"size": 30}},
    )
    assert (
        "torchvision 0.0-fake has no model 'tiny_nett'; did you mean tiny_net" in unknown["refused"]
    )
    assert "is not a classification, detection or segmentation model" in video["refused"]
    assert "invalid parameter size of torchvision/tiny_net: 0" in size["refused"]
    assert "weights would be downloaded" in weights["refused"]
    assert "depth" in parameter["refused"]
    assert "num_classes" in classes["refused"]
    assert "indivisible by patch size" in patches["refused"]


@with_torchvision
@pytest.mark.filterwarnings("default")  # what torchvision warns about is not ours
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet18", {"size": 64}),
        ("googlenet", {"size": 96}),
        ("vit_b_32", {"size": 64}),
        ("ssdlite320_mobilenet_v3_large", {"size": 64}),
        ("fasterrcnn_resnet50_fpn", {"size": 64, "min_size": 64, "max_size": 64}),
        ("maskrcnn_resnet50_fpn", {"size": 64, "min_size": 64, "max_size": 64}),
        ("keypointrcnn_resnet50_fpn", {"size": 64, "min_size": 64, "max_size": 64}),
        ("retinanet_resnet50_fpn", {"size": 64, "min_size": 64, "max_size": 64}),
        ("deeplabv3_mobilenet_v3_large", {"size": 64}),
        ("lraspp_mobilenet_v3_large", {"size": 64}),
    ],
)
def test_the_real_package(name: str, parameters: dict[str, Any]) -> None:
    import torch

    inference = suites.build("torchvision", name, "inference", 2, parameters)
    with torch.no_grad():
        inference.module(*inference.args)
    training = suites.build("torchvision", name, "training", 2, parameters)
    assert training.loss is not None
    loss = training.loss(training.module(*training.args))
    assert bool(loss.isfinite())
    loss.backward()
    assert len(flatten([p.grad for p in training.module.parameters()])) > 10


@with_torchvision
def test_the_real_package_has_what_is_listed() -> None:
    assert set(TORCHVISION_BY_NAME) <= set(suites.names("torchvision"))

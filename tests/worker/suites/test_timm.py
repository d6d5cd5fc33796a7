"""The suite timm, with a fake package of the same interface, and without the package."""

from functools import partial
from pathlib import Path

import pytest

from tests.worker.suites.package_suite import ask as ask_suite
from torchyard.worker.catalog import RENAMED, TIMM

pytestmark = pytest.mark.torch

FAKE = Path(__file__).parents[2] / "data" / "fake_timm"

ask = partial(ask_suite, "timm")


def test_without_the_package() -> None:
    named, built = ask("none", "names", {"name": "resnet50"})
    for answer in (named, built):
        assert "timm cannot be imported in the target" in answer["refused"]
        assert answer["hint"] == "install timm and torchvision into the target"


def test_a_package_that_breaks_while_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms is missing')")
    (answer,) = ask(str(tmp_path), {"name": "resnet50"})
    assert "operator torchvision::nms is missing" in answer["refused"]


def test_with_a_package() -> None:
    names, plain, tagged, sized, training, distilled = ask(
        str(FAKE),
        "names",
        {"name": "tiny_net"},
        {"name": "tiny_net.some_weights", "batch_size": 2},
        {"name": "tiny_net", "parameters": {"size": 20, "num_classes": 3}},
        {"name": "tiny_net", "mode": "training"},
        {"name": "tiny_distilled", "mode": "training", "batch_size": 3},
    )
    (headless,) = ask(
        str(FAKE),
        {"name": "tiny_net", "mode": "training", "parameters": {"num_classes": 0}},
    )
    assert names == ["tiny_net", "tiny_distilled"]
    assert plain == {
        "batch": 8,
        "shapes": [[8, 3, 32, 32]],
        "said": "cross-entropy",
        "dropout": 0.0,
        "path": 0.0,
    }
    assert tagged["shapes"] == [[2, 3, 32, 32]]
    assert sized["shapes"] == [[8, 3, 20, 20]]
    assert training["loss"] > 0
    assert distilled["shapes"] == [[3, 3, 48, 40]]
    assert distilled["loss"] > 0
    assert headless["said"] == "mean of squares of the features"
    assert headless["loss"] > 0


def test_dropout_is_disabled_unless_requested() -> None:
    plain, wished = ask(
        str(FAKE),
        {"name": "tiny_net", "mode": "training"},
        {"name": "tiny_net", "mode": "training", "parameters": {"drop_rate": 0.25}},
    )
    assert (plain["dropout"], plain["path"]) == (0.0, 0.0)
    assert (wished["dropout"], wished["path"]) == (0.25, 0.5)


def test_deprecated_names() -> None:
    taken, gone, renamed = ask(
        str(FAKE), {"name": "old_net"}, {"name": "lost_net"}, {"name": "jx_nest_base"}
    )
    assert taken["shapes"] == [[8, 3, 32, 32]]  # timm itself makes the new model
    assert gone["refused"] == "the model 'lost_net' was removed from timm 0.0-fake"
    assert renamed == {
        "refused": "timm 0.0-fake has no model 'jx_nest_base'; it was renamed to nest_base_jx",
        "hint": "use timm/nest_base_jx",
    }


def test_the_lists_are_those_of_the_harness() -> None:
    names = [each.name for each in TIMM]
    assert len(names) == len(set(names)) == 58
    assert sum(each.gpu_batch_size is not None for each in TIMM) == 18
    assert sum(each.cpu_batch_size is not None for each in TIMM) == 54
    assert set(RENAMED) <= set(names)


def test_refusals_with_a_package() -> None:
    unknown, parameter, size, weights = ask(
        str(FAKE),
        {"name": "tiny_nett"},
        {"name": "tiny_net", "parameters": {"depth": 3}},
        {"name": "tiny_net", "parameters": {"size": 0}},
        {"name": "tiny_net", "parameters": {"pretrained": True}},
    )
    assert unknown["refused"] == "timm 0.0-fake has no model 'tiny_nett'; did you mean tiny_net?"
    assert "depth" in parameter["refused"]
    assert "timm.create_model" in parameter["hint"]
    assert size["refused"] == "invalid parameter size of timm/tiny_net: 0"
    assert "would have to be downloaded" in weights["refused"]

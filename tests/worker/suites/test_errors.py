"""Errors of suites name the workload, the reason and the fix."""

from typing import Any

import pytest

from torchyard.worker import suites
from torchyard.worker.workload import CannotBuild

pytestmark = pytest.mark.torch


def refusal(*args: Any, **kwargs: Any) -> tuple[str, str]:
    with pytest.raises(CannotBuild) as caught:
        suites.build(*args, **kwargs)
    return str(caught.value), caught.value.hint


def test_an_unknown_suite_names_the_nearest() -> None:
    message, hint = refusal("kernel", "matmul")
    assert message == "there is no suite 'kernel'; did you mean kernels?"
    assert "huggingface" in hint


def test_a_suite_that_is_like_nothing_names_all() -> None:
    message, hint = refusal("xyzzy", "matmul")
    assert message == "there is no suite 'xyzzy'"
    assert hint == "suites: " + ", ".join(suites.MODULES)
    assert {"kernels", "huggingface", "torchvision", "file"} <= set(suites.MODULES)


@pytest.mark.parametrize(
    ("suite", "name", "near"),
    [
        ("kernels", "matmull", "matmul"),
        ("kernels", "layer_norm", "layer-norm"),
        ("models", "ResNet", "resnet"),
        ("models", "transformer-decoder", "transformer-encoder"),
    ],
)
def test_an_unknown_workload_names_the_nearest(suite: str, name: str, near: str) -> None:
    message, hint = refusal(suite, name)
    assert f"the suite {suite} has no workload {name!r}" in message
    assert near in message.partition("did you mean")[2]
    assert near in hint


def test_an_unknown_mode() -> None:
    message, _ = refusal("kernels", "matmul", "train")
    assert message == "there is no mode 'train'; did you mean training?"


def test_a_mode_that_the_workload_does_not_offer() -> None:
    message, hint = refusal("kernels", "optimizer-step", "training")
    assert message == "kernels/optimizer-step does not support training"
    assert hint == "use mode inference"


@pytest.mark.parametrize("batch_size", [0, -1, True, 2.0, "8"])
def test_invalid_batch_size(batch_size: Any) -> None:
    message, hint = refusal("kernels", "mlp", "inference", batch_size)
    assert message == f"invalid batch size of kernels/mlp: {batch_size!r}"
    assert "positive integer" in hint


def test_an_unknown_parameter_names_the_valid_ones_and_the_nearest() -> None:
    message, hint = refusal("kernels", "attention", parameters={"head": 4})
    assert message == "kernels/attention has no parameter 'head'; did you mean heads?"
    assert hint == "its parameters: heads, length, width, causal"


@pytest.mark.parametrize("value", [0, -5, 1.5, 1000.0, "1000", True, None])
def test_a_parameter_of_a_wrong_kind_or_size(value: Any) -> None:
    message, hint = refusal("kernels", "matmul", parameters={"size": value})
    assert message == f"invalid parameter size of kernels/matmul: {value!r}"
    assert hint == "give size an integer of at least 1"


def test_optional_parameters() -> None:
    built = suites.build("kernels", "replication-pad3d", parameters={"pad": 0, "size": 4})
    (volume,) = built.args
    assert built.module(volume).shape == volume.shape
    message, hint = refusal("kernels", "replication-pad3d", parameters={"pad": -1})
    assert "pad" in message
    assert "at least 0" in hint


def test_a_switch_has_an_upper_end() -> None:
    _, hint = refusal("kernels", "attention", parameters={"causal": 2})
    assert hint == "give causal an integer from 0 to 1"


@pytest.mark.parametrize(
    ("suite", "name", "parameters", "words"),
    [
        ("models", "gpt", {"width": 100, "heads": 8}, "width 100 is not a multiple of heads 8"),
        ("models", "transformer-encoder", {"heads": 7}, "width 256 is not a multiple of heads 7"),
        ("models", "unet", {"size": 60}, "size 60 cannot be halved 3 times"),
        ("kernels", "conv2d", {"kernel": 4}, "kernel is even"),
    ],
)
def test_parameters_that_do_not_fit_together(
    suite: str, name: str, parameters: dict[str, int], words: str
) -> None:
    message, hint = refusal(suite, name, parameters=parameters)
    assert message == f"{suite}/{name}: {words}"
    assert hint.startswith("give ")


def test_an_optimiser_step_has_no_batch() -> None:
    message, hint = refusal("kernels", "optimizer-step", batch_size=4)
    assert "no batch" in message
    assert "layers and width" in hint

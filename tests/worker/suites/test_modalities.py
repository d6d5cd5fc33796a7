"""Speech, diffusion and vision-language models: their parts matter, and are used as described."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.torch

SMALL: dict[str, dict[str, int]] = {
    "speech": {"layers": 1, "width": 32, "mels": 8, "frames": 20, "vocabulary": 64, "length": 8},
    "diffusion": {"size": 8, "width": 16, "depth": 1, "length": 7, "context": 12},
    "vision-language": {"layers": 1, "width": 32, "size": 32, "vocabulary": 64, "length": 8},
}


def build(name: str, mode: str = "inference", **more: int) -> Any:
    import torch

    from torchyard.worker import suites

    torch.manual_seed(5)
    return suites.build("models", name, mode, 3, {**SMALL[name], **more})


def output(built: Any, args: Any = None) -> Any:
    import torch

    with torch.no_grad():
        return built.module(*(built.args if args is None else args))


@pytest.mark.parametrize(
    ("name", "inputs"), [("speech", 2), ("diffusion", 3), ("vision-language", 2)]
)
def test_every_input_changes_the_result(name: str, inputs: int) -> None:
    built = build(name)
    assert len(built.args) == inputs
    for index in range(inputs):
        args = list(built.args)
        args[index] = args[index].flip(0)
        assert not output(built).allclose(output(built, args), atol=1e-5)


def test_the_decoder_of_speech_is_causal_and_reads_all_of_the_sound() -> None:
    built = build("speech")
    sound, tokens = (each.clone() for each in built.args)
    before = output(built)
    tokens[:, 5] = (tokens[:, 5] + 1) % 64
    after = output(built, (sound, tokens))
    assert before[:, :5].allclose(after[:, :5], atol=1e-6)
    assert not before[:, 5:].allclose(after[:, 5:], atol=1e-4)
    sound[:, :, -1] += 3.0
    assert not before[:, 0].allclose(output(built, (sound, built.args[1]))[:, 0], atol=1e-5)


@pytest.mark.parametrize("frames", [20, 21])
def test_the_encoder_halves_the_frames(frames: int) -> None:
    built = build("speech", frames=frames)
    assert built.args[0].shape == (3, 8, frames)
    assert built.module.places.shape[0] == (frames + 1) // 2
    assert output(built).shape == (3, 8, 64)


def test_timesteps_of_different_images_are_independent() -> None:
    import torch

    built = build("diffusion")
    images, _, text = built.args
    times = torch.tensor([1, 500, 999])
    whole = output(built, (images, times, text))
    alone = output(built, (images[1:2], times[1:2], text[1:2]))
    assert whole[1:2].allclose(alone, atol=1e-5)
    moved = output(built, (images, torch.tensor([1, 501, 999]), text))
    assert not whole[1].allclose(moved[1], atol=1e-6)
    assert whole[0].allclose(moved[0], atol=1e-6)


def test_embedded_timesteps_are_distinct() -> None:
    import torch

    from torchyard.worker.suites.modalities import STEPS, sinusoids

    embedded = sinusoids(torch.arange(STEPS), 64)
    gaps = torch.cdist(embedded, embedded) + 10 * torch.eye(STEPS)
    assert float(gaps.min()) > 0.1
    assert float(embedded.abs().max()) <= 1.0


def test_noise_that_was_predicted_has_no_loss() -> None:
    built = build("diffusion", "training")
    noise = built.loss.__closure__[0].cell_contents
    assert float(built.loss(noise)) == 0.0
    assert float(built.loss(noise + 1.0)) == pytest.approx(1.0)


def test_the_contrastive_loss_prefers_the_right_pairs() -> None:
    import torch

    built = build("vision-language", "training")
    right = 10.0 * torch.eye(3)
    assert float(built.loss(right)) < 0.01 < float(built.loss(right.roll(1, 0)))
    assert output(built).shape == (3, 3)
    assert float(output(built).abs().max()) <= 1.001 / 0.07  # scaled cosines


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("speech", {"width": 30}, "not a multiple of heads"),
        ("speech", {"width": 33, "heads": 3}, "odd"),
        ("diffusion", {"size": 9}, "cannot be halved"),
        ("diffusion", {"width": 20, "heads": 4}, "not a multiple of 8"),
        ("vision-language", {"size": 33}, "not a multiple of patch"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    name: str, parameters: dict[str, int], message: str
) -> None:
    from torchyard.worker.workload import CannotBuild

    with pytest.raises(CannotBuild, match=message) as error:
        build(name, "inference", **parameters)
    assert error.value.hint

"""Simulated machines have the stated properties."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.stats.simulated_launches import (
    AR1,
    BIMODAL,
    DRIFT,
    HEAVY_TAIL,
    IID,
    LINKED_LAUNCHES,
    NOISES,
    SPIKES,
    Noise,
    draw_launches,
    draw_times,
)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(42)


@pytest.mark.parametrize("noise", [*NOISES, LINKED_LAUNCHES], ids=lambda noise: noise.name)
def test_true_effect_is_in_the_middle(noise: Noise, rng: np.random.Generator) -> None:
    pairs = draw_launches(noise, rng, launches=4000, pairs=4, effect=0.05)
    assert pairs.shape == (4000, 4)
    # A machine with two modes has its median wherever, but its mean where the effect is.
    middle = np.mean(np.median(pairs, axis=1))
    assert middle == pytest.approx(0.05, abs=0.006)


def test_spreads_are_as_stated(rng: np.random.Generator) -> None:
    pairs = draw_launches(IID, rng, launches=3000, pairs=50)
    assert np.std(pairs - pairs.mean(axis=1, keepdims=True)) == pytest.approx(
        IID.block_sd * np.sqrt(2), rel=0.03
    )
    assert np.std(pairs.mean(axis=1)) == pytest.approx(IID.launch_sd, rel=0.07)


def test_adjacent_blocks_are_correlated_and_pairs_gain_from_it(rng: np.random.Generator) -> None:
    alone = dataclasses.replace(AR1, launch_sd=0.0)
    first, second = draw_times(alone, rng, samples=20_000)
    stream = np.log(np.stack([first, second], axis=1).ravel())
    assert np.corrcoef(stream[:-1], stream[1:])[0, 1] == pytest.approx(0.7, abs=0.03)
    pairs = draw_launches(alone, rng, launches=200, pairs=50)
    assert np.std(pairs) == pytest.approx(AR1.block_sd * np.sqrt(2 * 0.3), rel=0.05)


def test_random_streams_are_independent(rng: np.random.Generator) -> None:
    alone = dataclasses.replace(AR1, launch_sd=0.0)
    first, second = np.log(draw_times(alone, rng, samples=20_000, own_streams=True))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05
    assert np.corrcoef(first[:-1], first[1:])[0, 1] == pytest.approx(0.7, abs=0.03)


def test_drift_affects_blocks_and_cancels_in_alternation(rng: np.random.Generator) -> None:
    alone = dataclasses.replace(DRIFT, launch_sd=0.0)

    def typical_error(order: str) -> float:
        errors = []
        for _ in range(200):
            first, second = draw_times(alone, rng, samples=40, order=order)  # type: ignore[arg-type]
            errors.append(abs(np.log(np.median(first) / np.median(second))))
        return float(np.mean(errors))

    assert typical_error("blocks") > 8 * typical_error("alternating")


def test_tails_and_spikes_are_heavy(rng: np.random.Generator) -> None:
    calm = np.abs(draw_launches(IID, rng, launches=500, pairs=40))
    for noise in (HEAVY_TAIL, SPIKES):
        wild = np.abs(draw_launches(noise, rng, launches=500, pairs=40))
        assert np.quantile(wild, 0.999) > 3 * np.quantile(calm, 0.999)
        assert np.median(wild) < 3 * np.median(calm)


def test_two_modes(rng: np.random.Generator) -> None:
    centres = np.median(draw_launches(BIMODAL, rng, launches=2000, pairs=30), axis=1)
    high = np.mean(centres > BIMODAL.modes_apart / 2)
    low = np.mean(centres < -BIMODAL.modes_apart / 2)
    assert high == pytest.approx(0.25, abs=0.04)
    assert low == pytest.approx(0.25, abs=0.04)


def test_linked_launches_are_linked(rng: np.random.Generator) -> None:
    centres = np.median(draw_launches(LINKED_LAUNCHES, rng, launches=4000, pairs=60), axis=1)
    assert np.corrcoef(centres[:-1], centres[1:])[0, 1] == pytest.approx(0.5, abs=0.08)


def test_times_carry_the_effect(rng: np.random.Generator) -> None:
    exact = Noise(name="none", block_sd=0.0, launch_sd=0.0)
    first, second = draw_times(exact, rng, samples=3, effect=np.log(1.25), typical_s=0.02)
    assert list(second) == pytest.approx([0.02] * 3)
    assert list(first / second) == pytest.approx([1.25] * 3)


def test_one_seed_one_machine() -> None:
    drawn = [
        draw_launches(BIMODAL, np.random.default_rng(5), launches=3, pairs=4) for _ in range(2)
    ]
    assert np.array_equal(drawn[0], drawn[1])

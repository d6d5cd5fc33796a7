"""Simulated machines: launches and times with a known true effect, to test the statistics on.

The model has two levels. Inside a launch, blocks follow one another in time and share a stream of
noise (correlated, drifting, heavy-tailed); a pair is two neighbouring blocks in random order. Over
launches, each fresh process draws a layout and keeps it. Knows nothing of how data are analysed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "AR1",
    "BIMODAL",
    "DRIFT",
    "HEAVY_TAIL",
    "IID",
    "LINKED_LAUNCHES",
    "NOISES",
    "SPIKES",
    "Noise",
    "Order",
    "draw_launches",
    "draw_times",
]

Values = NDArray[np.float64]
Order = Literal["alternating", "blocks"]


@dataclass(frozen=True, kw_only=True)
class Noise:
    """One kind of machine. All spreads are of the logarithm of the time."""

    name: str
    block_sd: float = 0.02
    correlation: float = 0.0
    """Lag-1 correlation of neighbouring blocks."""
    drift: float = 0.0
    """Spread of how far the machine's speed moves over one launch, on a line."""
    tail_df: float | None = None
    """Student degrees of freedom instead of normal noise."""
    spike_share: float = 0.0
    spike_size: float = 0.0
    """Share of blocks that are preempted, and the mean of what that costs them."""
    launch_sd: float = 0.015
    """Spread of the difference between two fresh processes of identical code."""
    modes_apart: float = 0.0
    """Each process lands in one of two modes this far apart, with even odds."""
    launch_correlation: float = 0.0
    """Lag-1 correlation of launch effects: breaks what the method assumes."""


IID: Final = Noise(name="independent")
AR1: Final = Noise(name="AR(1), 0.7", correlation=0.7)
DRIFT: Final = Noise(name="drift", drift=0.3)
HEAVY_TAIL: Final = Noise(name="heavy tail (t, 2 df)", tail_df=2.0)
SPIKES: Final = Noise(name="preemption spikes", spike_share=0.2, spike_size=0.5)
BIMODAL: Final = Noise(name="two-mode launches", launch_sd=0.004, modes_apart=0.12)
NOISES: Final[tuple[Noise, ...]] = (IID, AR1, DRIFT, HEAVY_TAIL, SPIKES, BIMODAL)
"""Machines on which the stated error rates must hold."""
LINKED_LAUNCHES: Final = Noise(name="launches correlated, 0.5", launch_correlation=0.5)
"""A machine on which they do not: launches that are not independent."""


def draw_launches(
    noise: Noise, rng: np.random.Generator, *, launches: int, pairs: int, effect: float = 0.0
) -> Values:
    """Paired log speedups, one row per launch; `effect` is the true log speedup."""
    stream = _stream(noise, rng, launches, 2 * pairs).reshape(launches, pairs, 2)
    baseline_first = rng.random((launches, pairs)) < 0.5  # noqa: PLR2004
    difference = stream[:, :, 0] - stream[:, :, 1]
    layout = _layouts(noise, rng, launches)[:, np.newaxis]
    paired: Values = np.where(baseline_first, difference, -difference) + layout + effect
    return paired


def draw_times(
    noise: Noise,
    rng: np.random.Generator,
    *,
    samples: int,
    effect: float = 0.0,
    order: Order = "alternating",
    own_streams: bool = False,
    typical_s: float = 0.01,
) -> tuple[Values, Values]:
    """Raw times of baseline and candidate from one launch, without any pairing.

    `alternating` is strict A, B, A, B; `blocks` is all of A, then all of B. With `own_streams`
    each process has noise of its own instead of sharing the machine's.
    """
    if own_streams:
        first, second = _stream(noise, rng, 2, samples)
    else:
        both = _stream(noise, rng, 1, 2 * samples)[0]
        halves = (both[0::2], both[1::2]) if order == "alternating" else np.split(both, 2)
        first, second = halves
    layout = _layouts(noise, rng, 1)[0]
    return typical_s * np.exp(first + layout + effect), typical_s * np.exp(second)


def _stream(noise: Noise, rng: np.random.Generator, rows: int, length: int) -> Values:
    """Log time around its typical value, block after block."""
    if noise.tail_df is not None:
        shocks = rng.standard_t(noise.tail_df, (rows, length)) * noise.block_sd
    else:
        shocks = rng.normal(0.0, noise.block_sd, (rows, length))
    stream = shocks
    if noise.correlation:
        scale = np.sqrt(1.0 - noise.correlation**2)
        stream = np.empty_like(shocks)
        stream[:, 0] = shocks[:, 0]
        for place in range(1, length):
            stream[:, place] = noise.correlation * stream[:, place - 1] + scale * shocks[:, place]
    if noise.drift:
        slope = rng.normal(0.0, noise.drift, (rows, 1))
        stream = stream + slope * np.linspace(-0.5, 0.5, length)
    if noise.spike_share:
        hit = rng.random((rows, length)) < noise.spike_share
        stream = stream + hit * rng.exponential(noise.spike_size, (rows, length))
    return stream


def _layouts(noise: Noise, rng: np.random.Generator, launches: int) -> Values:
    """What each launch's two processes differ by for as long as they live."""
    layout = rng.normal(0.0, noise.launch_sd, launches)
    if noise.launch_correlation:
        scale = np.sqrt(1.0 - noise.launch_correlation**2)
        for place in range(1, launches):
            layout[place] = noise.launch_correlation * layout[place - 1] + scale * layout[place]
    if noise.modes_apart:
        modes = rng.integers(0, 2, (2, launches))
        layout = layout + noise.modes_apart * (modes[0] - modes[1])
    return layout

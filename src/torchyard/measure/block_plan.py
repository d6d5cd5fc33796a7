"""How long a block is: calls per sample, samples per block, and untimed calls before it.

Chosen from the iteration time seen in warm-up, so that looking at the clock and exchanging
messages cost less than half a percent of the block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["BlockPlan", "plan_block"]

CLOCK_COST_NS: Final = 420.0
"""Two looks at the clock and one turn of the loop in Python: 419-442 ns on a Neoverse-N1 core."""
CLOCK_SHARE: Final = 0.0025
MAX_SAMPLES: Final = 1000
PRIME_SHARE: Final = 0.1
"""An untimed first call is taken when it costs at most this share of the block."""


@dataclass(frozen=True, kw_only=True)
class BlockPlan:
    """What the worker is asked to do for one block."""

    inner: int
    samples: int
    prime: int

    @property
    def iterations(self) -> int:
        """Timed calls."""
        return self.inner * self.samples


def plan_block(iteration_ns: float, *, block_s: float, training: bool) -> BlockPlan:
    """The plan for an iteration of this length; training drops gradients after every call."""
    block_ns = block_s * 1e9
    iteration_ns = max(iteration_ns, 1.0)
    inner = 1
    if not training:
        inner = max(1, round(CLOCK_COST_NS / CLOCK_SHARE / iteration_ns))
        if iteration_ns * MAX_SAMPLES * inner < block_ns:
            inner = max(inner, round(block_ns / MAX_SAMPLES / iteration_ns))
    samples = max(1, min(MAX_SAMPLES, round(block_ns / (iteration_ns * inner))))
    return BlockPlan(
        inner=inner,
        samples=samples,
        prime=1 if iteration_ns <= PRIME_SHARE * block_ns else 0,
    )

"""Which clock a card is locked to: one that it can hold. Arithmetic only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["SHARE_OF_HIGHEST", "chosen_clock", "nearest"]

SHARE_OF_HIGHEST: Final = 0.7
"""A card at its highest clock leaves it again when it gets warm or reaches its power limit. On an
H200 (highest clock 1980 MHz, limit 700 W) products of 8192 x 8192 bfloat16 matrices ran at 1455 to
1545 MHz, 73 to 78 % of the highest, with the power cap as the reason of every one of 149 readings:
the 80 % that XLA's guide uses for the A100 would not hold there. Cards whose default application
clock (what the maker promises at full load) is lower still are locked to that: 585 of 1590 MHz on a
T4. It is no promise: a card that draws more for its clocks reaches its limit below this one, and
then the clock event reasons of its blocks say so."""
_STEP_MHZ: Final = 15
"""What the clocks of NVIDIA's chips are multiples of, where the card lists none."""


def chosen_clock(
    *, highest_mhz: int, promised_mhz: int | None, supported_mhz: Sequence[int]
) -> int:
    """The highest supported clock that is not above what the card can hold."""
    aim = SHARE_OF_HIGHEST * highest_mhz
    if promised_mhz:
        aim = min(aim, promised_mhz)
    if not supported_mhz:
        return max(_STEP_MHZ, int(aim) // _STEP_MHZ * _STEP_MHZ)
    return max((clock for clock in supported_mhz if clock <= aim), default=min(supported_mhz))


def nearest(asked_mhz: int, supported_mhz: Sequence[int]) -> int:
    """The supported clock beside the asked one; the lower of two that are as near."""
    return min(sorted(supported_mhz), key=lambda clock: abs(clock - asked_mhz), default=asked_mhz)

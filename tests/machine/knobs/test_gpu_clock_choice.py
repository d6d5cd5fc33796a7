"""Which clock a card is locked to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.machine.recorded_nvml import load
from torchyard.machine.knobs.gpu_clocks import SHARE_OF_HIGHEST, chosen_clock, nearest

H200 = tuple(range(345, 1995, 15))


@pytest.mark.parametrize(
    ("card", "highest", "promised", "supported", "expected"),
    [
        ("H200", 1980, 1980, H200, 1380),
        ("A100", 1410, 1095, tuple(range(210, 1425, 15)), 975),
        ("T4", 1590, 585, tuple(range(300, 1605, 15)), 585),
        ("GeForce that lists nothing", 2100, None, (), 1470),
        ("one clock only", 1000, None, (900,), 900),
    ],
)
def test_cards(
    card: str, highest: int, promised: int | None, supported: tuple[int, ...], expected: int
) -> None:
    chosen = chosen_clock(highest_mhz=highest, promised_mhz=promised, supported_mhz=supported)
    assert chosen == expected, card


def test_the_recorded_card_can_hold_it() -> None:
    """Its lowest clock under the heaviest load that was recorded lies above the choice."""
    under_load = load("h200")["under_load"]
    chosen = chosen_clock(highest_mhz=1980, promised_mhz=1980, supported_mhz=H200)
    assert under_load["reasons"] == {"0x4": under_load["samples"]}
    assert chosen < under_load["sm_clock_mhz"][0]


@given(
    highest=st.integers(300, 4000),
    promised=st.none() | st.integers(100, 4000),
    supported=st.lists(st.integers(100, 4000), max_size=30),
)
def test_the_choice_is_supported_and_low_enough(
    highest: int, promised: int | None, supported: list[int]
) -> None:
    chosen = chosen_clock(highest_mhz=highest, promised_mhz=promised, supported_mhz=supported)
    aim = min(SHARE_OF_HIGHEST * highest, promised or highest)
    assert chosen > 0
    if supported:
        assert chosen in supported
        assert chosen <= aim or chosen == min(supported)
    else:
        assert chosen <= aim


@pytest.mark.parametrize(
    ("asked", "expected"), [(1500, 1500), (1493, 1500), (1492, 1485), (9999, 1980), (1, 345)]
)
def test_the_nearest_clock(asked: int, expected: int) -> None:
    assert nearest(asked, H200) == expected


def test_of_two_that_are_as_near_the_lower() -> None:
    assert nearest(1000, (1010, 990)) == 990
    assert nearest(1000, ()) == 1000

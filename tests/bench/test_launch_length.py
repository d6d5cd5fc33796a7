from __future__ import annotations

import pytest

from torchyard.bench.rounds import SHORTEST_S, SessionClock, enough_rounds
from torchyard.core.study import Budget


@pytest.mark.parametrize("launch_s", [1.5, 2.0, 3.0])
def test_a_length_that_is_asked_for_is_kept(launch_s: float) -> None:
    pace = SessionClock(Budget(time_s=60.0, launch_s=launch_s))
    pace.launch_ready(4.0)
    assert pace.seconds_for_rounds() == launch_s


def test_without_a_length_the_time_is_divided_by_the_pace() -> None:
    pace = SessionClock(Budget(time_s=60.0))
    pace.launch_ready(0.0)
    assert pace.seconds_for_rounds() == pytest.approx(60.0 / 8, rel=0.01)


def test_the_time_allowed_comes_before_the_length() -> None:
    """Three launches must fit, whatever is asked for."""
    pace = SessionClock(Budget(time_s=9.0, launch_s=30.0))
    pace.launch_ready(0.0)
    assert pace.seconds_for_rounds() == pytest.approx(3.0, rel=0.01)
    short = SessionClock(Budget(time_s=60.0, launch_s=0.1))
    short.launch_ready(0.0)
    assert short.seconds_for_rounds() == SHORTEST_S


@pytest.mark.parametrize(
    ("rounds", "clean", "at_least", "enough"),
    [
        (2, 2, 3, False),
        (3, 3, 3, True),
        (3, 2, 3, False),  # one was disturbed: a launch that counts is worth another round
        (5, 3, 3, True),
        (6, 0, 3, True),  # a machine that is busy throughout
        (6, 5, 6, True),
        (6, 2, 6, False),
    ],
)
def test_a_launch_ends_when_it_has_enough_pairs(
    rounds: int, clean: int, at_least: int, enough: bool
) -> None:
    assert enough_rounds(rounds, clean, at_least) is enough

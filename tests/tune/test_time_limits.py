"""The time that one step of a race may take."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from tests.sweep.sample_sweeps import study, workload
from torchyard.core.study import Target
from torchyard.tune.space import plan_race


@pytest.mark.torch
@pytest.mark.parametrize(
    ("budget_s", "given", "limit_s"),
    [
        (240.0, False, 60.0),
        (20.0, False, 30.0),
        (36_000.0, False, 600.0),
        (240.0, True, 600.0),
    ],
)
def test_a_step_may_take_a_quarter_of_the_time(
    budget_s: float, given: bool, limit_s: float
) -> None:
    requested = study(workload("matmul"))
    here = Target(name="here", python=sys.executable)
    requested = replace(requested, baseline=replace(requested.baseline, target=here))
    race = plan_race(
        requested, space="default", budget_s=budget_s, with_changes=False, step_limit_given=given
    )
    assert race.settings.step_limit_s == limit_s

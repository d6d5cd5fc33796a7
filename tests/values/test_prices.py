"""What findings cost per step, and what mending all of them can save at most."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from torchyard.core.values import Place, ValueFinding, ValueProfile
from torchyard.values import prices
from torchyard.values.prices import steps_looked_at, steps_of, upper_bound, with_prices


def finding(operator: str = "aten::zero_", *, count: int = 4, line: int = 1) -> ValueFinding:
    place = Place(file="train.py", line=line)
    return ValueFinding(
        pattern="redundant write",
        operator=operator,
        place=place,
        count=count,
        recipe={"wasted": []},
    )


def profile(*findings: ValueFinding, steps: int = 5, **more: float) -> ValueProfile:
    return ValueProfile(
        format=1,
        state="finished",
        torch="2.13",
        steps=steps,
        step_ns=more.get("step_ns", 1e6),
        findings=findings,
    )


PRICE = {"operator_ns": 3000.0, "wasted_ns": 1000.0, "method": "best of 9", "fix": "so"}


def test_a_price_per_step_follows_the_count() -> None:
    worth = with_prices(profile(finding(count=8)), [PRICE]).findings[0].worth
    assert worth.operator_ns == 3000
    assert worth.wasted_ns == 1000
    assert worth.per_step_ns == 2000
    assert worth.share_of_step == 0.002
    assert (worth.method, worth.unavailable) == ("best of 9", "")


def test_how_a_fix_is_simulated_is_kept_with_the_recipe() -> None:
    assert with_prices(profile(finding()), [PRICE]).findings[0].recipe["fix"] == "so"


def test_without_the_time_of_a_step_there_is_no_share_and_a_reason() -> None:
    bare = profile(finding(), step_ns=0.0)
    found = with_prices(bare, [PRICE])
    assert found.findings[0].worth.share_of_step is None
    assert "was not timed" in found.findings[0].worth.unavailable
    assert upper_bound(found) is None


def test_what_was_not_priced_says_why() -> None:
    found = with_prices(profile(finding(), finding(), finding()), [PRICE, {"unavailable": "x"}])
    said = [item.worth.unavailable for item in found.findings]
    assert said[0] == ""
    assert said[1] == "x"
    assert "ended before" in said[2]


def test_steps_that_were_left_out_do_not_count() -> None:
    assert steps_looked_at(profile(steps=1)) == 1
    assert steps_looked_at(profile(steps=6)) == 5
    left_out = ValueProfile(
        format=1, state="finished", torch="2", steps=11, counts={"steps_left_out": 8}
    )
    assert steps_looked_at(left_out) == 2


def test_the_bound_counts_one_place_once() -> None:
    one, same, other = finding(), finding(), finding(line=2)
    dear = {**PRICE, "wasted_ns": 5000.0}
    found = with_prices(profile(one, same, other), [PRICE, dear, PRICE])
    assert upper_bound(found) == (5000 + 1000) / 1e6


def test_work_inside_an_operator_belongs_to_it() -> None:
    inner = ValueFinding(
        pattern="dead initialisation",
        operator="aten::fill_",
        path=("aten::mm", "aten::zero_"),
        place=Place(file="train.py", line=1),
        count=4,
    )
    found = with_prices(profile(finding("aten::mm"), inner), [{**PRICE, "wasted_ns": 9e3}, PRICE])
    assert upper_bound(found) == 9000 / 1e6


def test_nobody_saves_more_than_everything() -> None:
    found = with_prices(profile(finding(), step_ns=10.0), [PRICE])
    assert upper_bound(found) == 1.0
    assert found.findings[0].worth.share_of_step == 1.0


def test_prices_are_read_as_far_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    assert prices._read(path) == []
    path.write_text("{broken")
    assert prices._read(path) == []
    path.write_text(json.dumps({"prices": [PRICE, None]}))
    assert prices._read(path) == [PRICE, {}]


def test_a_survey_does_not_see_inside_of_operators() -> None:
    inside = replace(finding(), path=("aten::mse_loss_backward",), count=3, steps=(1, 2, 3))
    seen = ValueProfile(
        format=1, state="finished", torch="2", steps=13, counts={"steps_surveyed": 9}
    )
    assert steps_looked_at(seen) == 12
    assert steps_of(inside, seen) == 3
    assert steps_of(replace(inside, steps=tuple(range(1, 13))), seen) == 12
    assert steps_of(replace(inside, path=()), seen) == 12

"""Costs of findings per step: a range and a bound, or a reason for none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchyard.values import prices
from torchyard.values.model import Place, ValueFinding, ValueProfile
from torchyard.values.prices import priced, profiled_steps, sites_to_time, steps_of
from torchyard.values.target_run import NativeRun, SiteTime


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


PRICE = {
    "operator_ns": 3000.0,
    "wasted_ns": 1000.0,
    "wasted_low_ns": 1000.0,
    "wasted_high_ns": 1200.0,
    "differ": 1.1,
    "fix": "so",
}


def call(operator: str = "aten::zero_", line: int = 1, **more: object) -> dict[str, Any]:
    site = {"operator": operator, "file": "train.py", "line": line, "backward": False}
    return {**site, "shapes": "float32[4]", "role": "wasted", "calls": 4, **more}


def chained(*calls: dict[str, Any], count: int = 4, **recipe: object) -> ValueFinding:
    """A finding that was seen four times in four steps."""
    return replace(
        finding(count=count),
        recipe={"calls": list(calls or (call(),)), "sightings": 4, **recipe},
    )


def site(operator: str = "aten::zero_", line: int = 1, ns: float = 1000.0) -> SiteTime:
    return SiteTime(
        operator=operator,
        file="train.py",
        line=line,
        backward=False,
        shapes="float32[4]",
        calls=16,
        wall_ns=(ns, ns),
        cpu_ns=(ns, ns),
        wall_most_ns=1.5 * ns,
        cpu_most_ns=1.5 * ns,
    )


def run(*sites: SiteTime, step_ns: float = 1e6) -> NativeRun:
    return NativeRun(
        format=1,
        state="finished",
        steps=8,
        steps_ns=(step_ns,) * 3,
        steps_cpu_ns=(step_ns,) * 3,
        sites=sites,
        site_steps=4,
    )


def test_a_finding_has_a_range_and_a_bound() -> None:
    worth = priced(profile(chained(count=8)), [PRICE], run(site())).findings[0].worth
    assert worth.saving is not None
    assert (worth.saving.low_ns, worth.saving.high_ns) == (2000, 2000)
    assert (worth.saving.low_share, worth.saving.bound_share) == (0.002, 0.003)
    assert (worth.per_step_ns, worth.share_of_step) == (2000, 0.002)
    assert (worth.operator_ns, worth.wasted_ns, worth.unavailable) == (3000, 1000, "")


def test_how_a_fix_is_simulated_is_kept_with_the_recipe() -> None:
    assert priced(profile(chained()), [PRICE], run(site())).findings[0].recipe["fix"] == "so"


def test_without_the_time_of_a_step_nothing_is_priced() -> None:
    for native in (None, replace(run(site()), steps_ns=(), steps_cpu_ns=())):
        found = priced(profile(chained()), [PRICE], native)
        assert found.findings[0].worth.saving is None
        assert "was not timed" in found.findings[0].worth.unavailable
        assert found.saving is None


def test_calls_that_were_not_timed_are_estimated_alone_without_a_bound() -> None:
    worth = priced(profile(chained()), [PRICE], run()).findings[0].worth
    assert worth.saving is not None
    assert (worth.saving.low_ns, worth.saving.high_ns) == (1000, 1200)
    assert worth.saving.bound_share is None
    assert "fewer than 3 times" in worth.method


def test_repeats_that_disagree_are_not_measured() -> None:
    noisy = {**PRICE, "differ": 5.0}
    worth = priced(profile(chained()), [noisy], run()).findings[0].worth
    assert worth.saving is None
    assert worth.unavailable.startswith("noisy machine")
    shaky = replace(site(), cpu_ns=(1e3, 9e3), wall_ns=(1e3, 9e3))
    worth = priced(profile(chained()), [PRICE], run(shaky)).findings[0].worth
    assert worth.saving is None
    assert worth.unavailable.startswith("noisy machine"), "the price alone does not stand in"


@pytest.mark.parametrize(
    ("waited", "threads", "clocks"),
    [
        (0.05, 2, "wall time and CPU time"),
        (0.2, 2, "CPU time"),
        (0.8, 2, ""),
        (0.8, 1, "CPU time"),
    ],
)
def test_a_program_that_waited_for_a_core(waited: float, threads: int, clocks: str) -> None:
    native = replace(run(site()), program_ns=1e7, program_waited_ns=waited * 1e7)
    for one in (chained(), finding()):  # timed where the program calls it, and from its recipe
        profiled = replace(profile(one), threads=threads)
        worth = priced(profiled, [PRICE], native).findings[0].worth
        if clocks:
            assert worth.saving is not None
            assert worth.saving.clock in (clocks, clocks.partition(" and ")[0])
        else:
            assert worth.saving is None
            assert (
                worth.unavailable
                == "noisy machine: the program waited for a core for 80% of its time"
            )


def test_a_step_on_a_device_has_no_cpu_time() -> None:
    native = replace(run(site()), program_ns=1e7, program_waited_ns=2e6, accelerated=True)
    worth = priced(replace(profile(chained()), threads=2), [PRICE], native).findings[0].worth
    assert worth.saving is None
    assert "waited for a core for 20%" in worth.unavailable


def test_what_was_not_priced_says_why() -> None:
    three = profile(finding(), finding(), finding())
    found = priced(three, [PRICE, {"unavailable": "x"}], run())
    said = [item.worth.unavailable for item in found.findings]
    assert said[0] == ""
    assert said[1].endswith("; x")
    assert "ended before" in said[2]


def test_the_total_has_a_bound_only_if_every_finding_has_one() -> None:
    both = profile(chained(), chained(call("aten::mm", 2)))
    known = priced(both, [PRICE, PRICE], run(site(), site("aten::mm", 2)))
    assert known.saving is not None
    assert known.saving.bound_share == pytest.approx(0.003)
    part = priced(both, [PRICE, PRICE], run(site()))
    assert part.saving is not None
    assert part.saving.bound_share is None


def test_every_site_of_every_chain_is_timed_once() -> None:
    both = profile(chained(call(), call("aten::mm", 2)), chained(call("aten::mm", 2)))
    assert [one["operator"] for one in sites_to_time(both)] == ["aten::zero_", "aten::mm"]


def test_steps_that_were_left_out_do_not_count() -> None:
    assert profiled_steps(profile(steps=1)) == 1
    assert profiled_steps(profile(steps=6)) == 5
    left_out = ValueProfile(
        format=1, state="finished", torch="2", steps=11, counts={"steps_left_out": 8}
    )
    assert profiled_steps(left_out) == 2


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
    assert profiled_steps(seen) == 12
    assert steps_of(inside, seen) == 3
    assert steps_of(replace(inside, steps=tuple(range(1, 13))), seen) == 12
    assert steps_of(replace(inside, path=()), seen) == 12

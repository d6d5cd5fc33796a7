"""Savings: complete chains, both clocks, and no number where repeats disagree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from torchyard.values.model import Place, ValueFinding
from torchyard.values.prices import CallTimes, NotMeasured, chain_of, saving_of
from torchyard.values.target_run import NativeRun, SiteTime

STEP_NS = 1e6


def site(operator: str, *, wall: float = 1e3, cpu: float = 1e3, **more: Any) -> SiteTime:
    known: dict[str, Any] = {
        "operator": operator,
        "file": "f.py",
        "line": 1,
        "backward": False,
        "shapes": "s",
        "calls": 40,
        "wall_ns": (wall, wall, wall),
        "cpu_ns": (cpu, cpu, cpu),
        "wall_most_ns": wall,
        "cpu_most_ns": cpu,
    }
    return SiteTime(**{**known, **more})


def times(*sites: SiteTime, threads: int = 1, **more: Any) -> CallTimes:
    known: dict[str, Any] = {
        "format": 1,
        "state": "finished",
        "steps": 9,
        "steps_ns": (STEP_NS,) * 4,
        "steps_cpu_ns": (STEP_NS,) * 4,
        "sites": sites,
        "site_steps": 10,
    }
    return CallTimes(NativeRun(**{**known, **more}), threads)


def finding(*calls: tuple[str, str, int], count: int = 10, **more: Any) -> ValueFinding:
    """Calls are operator, role and how often in ten sightings."""
    written = [
        {
            "operator": operator,
            "role": role,
            "calls": number,
            "file": "f.py",
            "line": 1,
            "backward": False,
            "shapes": "s",
        }
        for operator, role, number in calls
    ]
    return ValueFinding(
        pattern=more.pop("pattern", "duplicate"),
        operator="mm",
        place=Place(file="f.py", line=1),
        count=count,
        detail=more.pop("detail", ""),
        recipe={"calls": written, "sightings": 10, **more},
    )


def test_every_operator_of_a_chain_counts() -> None:
    chain = finding(
        ("mm", "wasted", 10),
        ("sum", "repeated", 10),
        ("clone", "only for it", 10),
        ("mm_backward", "backward", 20),
    )
    sites = [site(name) for name in ("mm", "sum", "clone", "mm_backward")]
    found = saving_of([chain_of(chain, 10, {})], times(*sites))
    assert found.low_ns == 2e3, "what goes away for certain"
    assert found.high_ns == found.bound_ns == 5e3
    assert (found.low_share, found.high_share) == (0.002, 0.005)
    assert found.calls == 5


def test_sightings_that_were_only_counted_are_scaled() -> None:
    chain = finding(("mm", "wasted", 10), count=100)
    assert saving_of([chain_of(chain, 20, {})], times(site("mm"))).high_ns == 5e3


def test_an_operator_without_a_time_is_named_and_takes_the_bound_away() -> None:
    chain = finding(("mm", "wasted", 10), ("my::operator", "repeated", 10))
    found = saving_of([chain_of(chain, 10, {})], times(site("mm")))
    assert found.unpriced == ("my::operator",)
    assert found.bound_share is None
    assert found.high_ns == 1e3


def test_calls_that_were_not_followed_take_the_bound_away() -> None:
    chain = finding(("mm", "wasted", 10), calls_unknown="more call sites than are followed")
    assert saving_of([chain_of(chain, 10, {})], times(site("mm"))).bound_share is None
    with pytest.raises(NotMeasured, match="not followed"):
        chain_of(finding(), 10, {})


def test_two_calls_are_no_sample() -> None:
    chain = chain_of(finding(("mm", "wasted", 10)), 10, {})
    with pytest.raises(NotMeasured, match="fewer than 3"):
        saving_of([chain], times(site("mm", calls=2)))
    line = site("mm", calls=9, shapes="*", wall=7e3, cpu=7e3)
    found = saving_of([chain], times(site("mm", calls=2), line))
    assert found.high_ns == 7e3, "calls of the same line with other shapes stand in"


@pytest.mark.parametrize("threads", [1, 4])
def test_repeats_that_disagree_are_not_measured(threads: int) -> None:
    shaky = site("mm", wall_ns=(1e3, 1e3, 5e3, 5e3), cpu_ns=(1e3, 1e3, 5e3, 5e3))
    with pytest.raises(NotMeasured, match="noisy machine: repeats differ by a factor of 5"):
        saving_of([chain_of(finding(("mm", "wasted", 10)), 10, {})], times(shaky, threads=threads))


def test_a_clock_that_is_noisy_is_left_out() -> None:
    shaky = site("mm", wall_ns=(1e3, 1e3, 9e3, 9e3))
    found = saving_of([chain_of(finding(("mm", "wasted", 10)), 10, {})], times(shaky, threads=2))
    assert found.clock == "CPU time"
    assert found.high_ns == 1e3


def test_a_share_is_of_its_own_clock() -> None:
    chain = chain_of(finding(("mm", "wasted", 10)), 10, {})
    waited = saving_of([chain], times(site("mm"), steps_ns=(9 * STEP_NS,) * 4))
    assert (waited.clock, waited.high_share) == ("CPU time", 0.001)
    both = saving_of(
        [chain], times(site("mm", wall=1e3, cpu=4e3), threads=4, steps_cpu_ns=(2 * STEP_NS,) * 4)
    )
    assert both.clock == "wall time and CPU time"
    assert (both.low_share, both.high_share) == (0.001, 0.002)
    gpu = saving_of([chain], times(site("mm", wall=3e3), accelerated=True))
    assert (gpu.clock, gpu.high_share) == ("wall time", 0.003)


def test_threads_that_spin_after_a_parallel_call_are_in_the_bound() -> None:
    chain = chain_of(finding(("mm", "wasted", 10)), 10, {})
    parallel = saving_of([chain], times(site("mm", wall=1e3, cpu=1.5e3), threads=4))
    assert parallel.bound_share == 0.004
    alone = saving_of([chain], times(site("mm", wall=1e3, cpu=1e3), threads=4))
    assert alone.bound_share == 0.001


def test_the_bound_has_everything_that_may_go_away_with_a_call() -> None:
    slow = site("mm", cpu_most_ns=3e3, touched_bytes=1000.0)
    chain = chain_of(finding(("mm", "wasted", 10)), 10, {})
    found = saving_of([chain], times(slow, costs={"call_cpu": 500.0, "read": 0.1}))
    assert found.bound_ns == 3e3 + 500 + 100
    assert (found.low_ns, found.high_ns) == (900, 1100), "caches count both ways"
    far = saving_of([chain], times(replace(slow, touched_bytes=1e9), costs={"read": 0.1}))
    assert (far.low_ns, far.high_ns, far.bound_ns) == (750, 1250, 3750), "a quarter at most"


@pytest.mark.parametrize(
    ("faults", "own", "more"), [(0.0, 0.0, 0), (100.0, 0.0, 2.2e3), (100.0, 99.0, 1.3e3)]
)
def test_memory_reallocated_by_others_is_counted_up_to_the_page_faults(
    faults: float, own: float, more: float
) -> None:
    chain = chain_of(finding(("mm", "wasted", 10)), 10, {})
    made = site("mm", made_bytes=8192.0, faults=own)
    costs = {"fault": 1e3, "unmap": 100.0, "page": 4096.0}
    found = saving_of([chain], times(made, step_faults=faults, costs=costs))
    assert (found.low_ns, found.high_ns, found.bound_ns) == (1e3, 1e3 + more, 1e3 + more)


def test_python_around_a_call_is_in_the_range_and_the_bound() -> None:
    chain = chain_of(finding(("mm", "wasted", 10)), 10, {})
    costs = {"call_cpu": 500.0, "gap": 300.0}
    found = saving_of([chain], times(site("mm", before_ns=4300.0, after_ns=2300.0), costs=costs))
    assert (found.low_ns, found.high_ns, found.bound_ns) == (1e3, 5e3, 7e3)
    tight = saving_of([chain], times(site("mm", before_ns=310.0, after_ns=290.0), costs=costs))
    assert (tight.high_ns, tight.bound_ns) == (1010, 1500), "no less than a small module"


def test_long_operators_that_stay_limit_the_bound() -> None:
    chain = chain_of(finding(("mm", "wasted", 10)), 10, {})
    long = site("mm", cpu=6e5, wall=6e5, calls=10)
    alone = saving_of([chain], times(long))
    assert alone.bound_share == 0.6, "its only call in a step is removed"
    slow = replace(long, cpu_most_ns=2e6)
    assert saving_of([chain], times(slow)).bound_share == 1.0
    others = saving_of([chain], times(slow, other_ns=10 * 4e5))
    assert others.bound_share == pytest.approx(0.8), "half of what other operators take"
    twice = saving_of([chain], times(replace(slow, calls=20, cpu_ns=(4e5,) * 4)))
    assert twice.bound_share == pytest.approx(0.8), "a second call at the site stays"
    short = saving_of([chain], times(replace(slow, calls=20, cpu_ns=(4e4,) * 4)))
    assert short.bound_share == 1.0, "short operators are not timed well enough"


def test_a_machine_that_changes_its_speed_widens_the_range_and_then_measures_nothing() -> None:
    chain = chain_of(finding(("mm", "wasted", 10)), 10, {})
    whole: dict[str, Any] = {
        "steps": 0,
        "steps_ns": (),
        "steps_cpu_ns": (),
        "program_ns": STEP_NS,
        "program_cpu_ns": STEP_NS,
    }
    found = saving_of([chain], times(site("mm"), probes_ns=(1e6, 1.25e6, 0.0), **whole))
    assert (found.low_ns, found.high_ns, found.bound_ns) == (800, 1250, 1250)
    with pytest.raises(NotMeasured, match=r"noisy machine: its speed differs by a factor of 2\.5"):
        saving_of([chain], times(site("mm"), probes_ns=(1e6, 2.5e6), **whole))
    in_turns = saving_of([chain], times(site("mm"), probes_ns=(1e6, 2.5e6)))
    assert in_turns.high_ns == 1e3, "steps alternate in one run"


def test_what_timing_adds_is_taken_away_from_the_range_and_left_in_the_bound() -> None:
    chain = chain_of(finding(("mm", "wasted", 10)), 10, {})
    found = saving_of([chain], times(site("mm"), costs={"window_cpu": 400.0}))
    assert (found.low_ns, found.high_ns, found.bound_ns) == (200, 600, 1e3)


def test_results_that_shrink_may_save_nothing_and_at_most_their_operators() -> None:
    chain = finding(("to", "shrinks", 10), ("sin", "reads", 10), pattern="heavy type", share=0.5)
    found = saving_of([chain_of(chain, 10, {})], times(site("to"), site("sin")))
    assert (found.low_ns, found.high_ns, found.bound_ns) == (0.0, 1e3, 2e3)


def test_memory_that_is_still_needed_is_not_saved() -> None:
    chain = finding(("aten::zeros", "wasted", 10), pattern="dead initialisation")
    found = saving_of([chain_of(chain, 10, {"wasted_ns": 300.0})], times(site("aten::zeros")))
    assert (found.low_ns, found.high_ns) == (300.0, 1e3)
    kept = finding(("aten::zero_", "wasted", 10), detail="gradient zeroed only to be added to: so")
    assert saving_of([chain_of(kept, 10, {})], times(site("aten::zero_"))).low_ns == 0


def test_work_inside_of_an_operator_is_a_part_of_it() -> None:
    chain = finding(("loss", "inside", 10))
    price = {"ratio_low": 0.1, "ratio_high": 0.3}
    found = saving_of([chain_of(chain, 10, price)], times(site("loss")))
    assert (found.low_ns, found.high_ns, found.bound_ns) == (100, 300, 300)
    unknown = saving_of([chain_of(chain, 10, {})], times(site("loss")))
    assert (unknown.low_ns, unknown.bound_ns) == (0, 1e3)


def test_calls_that_findings_share_count_once() -> None:
    one = chain_of(finding(("mm", "wasted", 10)), 10, {})
    fewer = times(site("mm", calls=10))
    assert saving_of([one, one], fewer).high_ns == 1e3, "a step has one such call"
    more = times(site("mm", calls=20))
    assert saving_of([one, one], more).high_ns == 2e3, "a step has two: they may be different"


def test_the_saving_is_at_most_the_step_time() -> None:
    chain = chain_of(finding(("mm", "wasted", 10)), 10, {})
    found = saving_of([chain], times(site("mm", cpu=9e9, wall=9e9)))
    assert (found.low_share, found.high_share, found.bound_share) == (1.0, 1.0, 1.0)


def test_a_program_without_steps_is_its_own_step() -> None:
    chain = chain_of(finding(("mm", "wasted", 10)), 1, {})
    whole = times(
        site("mm"),
        steps=0,
        steps_ns=(),
        steps_cpu_ns=(),
        program_ns=5e6,
        program_cpu_ns=1e5,
    )
    assert saving_of([chain], whole).high_share == pytest.approx(0.1)
    recorded = NativeRun(format=1, state="finished", recorded_whole=True, program_cpu_ns=1e6)
    with pytest.raises(NotMeasured, match="was not timed"):
        saving_of([chain], CallTimes(replace(recorded, sites=(site("mm"),)), 1))

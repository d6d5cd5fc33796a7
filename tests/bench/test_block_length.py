"""The length of blocks, for iterations from a nanosecond to minutes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torchyard.bench.preparation import CLOCK_COST_NS, MAX_SAMPLES, plan_block

iterations_ns = st.floats(min_value=1.0, max_value=1e12)
blocks_s = st.floats(min_value=0.001, max_value=10.0)


@given(iterations_ns, blocks_s, st.booleans())
def test_every_plan_can_be_run(iteration_ns: float, block_s: float, training: bool) -> None:
    plan = plan_block(iteration_ns, block_s=block_s, training=training)
    assert plan.inner >= 1
    assert 1 <= plan.samples <= MAX_SAMPLES
    assert plan.prime in {0, 1}
    if training:
        assert plan.inner == 1


@given(iterations_ns, blocks_s)
def test_reading_the_clock_costs_less_than_half_a_percent(
    iteration_ns: float, block_s: float
) -> None:
    plan = plan_block(iteration_ns, block_s=block_s, training=False)
    assert 0.005 * plan.inner * iteration_ns >= CLOCK_COST_NS


@given(iterations_ns, blocks_s)
def test_a_block_is_about_as_long_as_asked_or_one_sample(
    iteration_ns: float, block_s: float
) -> None:
    plan = plan_block(iteration_ns, block_s=block_s, training=False)
    total_ns = plan.inner * plan.samples * iteration_ns
    if plan.samples > 1:
        assert 0.5 * block_s * 1e9 <= total_ns <= 1.7 * block_s * 1e9
    else:
        assert total_ns >= 0.5 * block_s * 1e9


@given(iterations_ns, blocks_s, st.booleans())
def test_an_untimed_call_costs_at_most_a_tenth(
    iteration_ns: float, block_s: float, training: bool
) -> None:
    plan = plan_block(iteration_ns, block_s=block_s, training=training)
    assert (plan.prime == 1) == (iteration_ns <= 0.1 * block_s * 1e9)


def test_known_cases() -> None:
    slow = plan_block(50e6, block_s=0.1, training=False)
    assert (slow.inner, slow.samples, slow.prime) == (1, 2, 0)
    quick = plan_block(1000.0, block_s=0.1, training=False)
    assert (quick.inner, quick.samples, quick.prime) == (168, 595, 1)
    assert plan_block(0.0, block_s=0.1, training=False).samples >= 1

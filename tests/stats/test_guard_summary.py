"""Counts of disturbed blocks of a comparison, by reason."""

from __future__ import annotations

from tests.sample_records import made_block
from torchyard.core.block import Block, GuardReading
from torchyard.core.comparison import Comparison, GuardSummary, Verdict
from torchyard.core.records import decode, encode
from torchyard.core.study import Workload
from torchyard.stats.pairs import summarize_guards


def block(number: int, variant: str, *dirty: str, degrees: float | None = None) -> Block:
    return made_block(
        variant, round=number, guard=GuardReading(cpu_temperature_c=degrees), dirty=dirty
    )


def test_blocks_are_counted_once_and_each_of_their_reasons() -> None:
    blocks = [
        block(0, "a", "waited for a core"),
        block(0, "b", "core slowed down", "waited for a core"),
        block(1, "a"),
        block(1, "b", "waited for a core"),
        block(2, "a"),
        block(2, "b"),
    ]
    assert summarize_guards(blocks, "a", "b") == GuardSummary(
        blocks=6, dirty=3, reasons=(("waited for a core", 3), ("core slowed down", 1))
    )


def test_only_rounds_that_have_both_variants_belong_to_the_comparison() -> None:
    blocks = [block(0, "a"), block(0, "b"), block(0, "c", "busy"), block(1, "a", "busy")]
    assert summarize_guards(blocks, "a", "b") == GuardSummary(blocks=2)
    assert summarize_guards([], "a", "b") == GuardSummary()


def test_the_range_of_temperatures() -> None:
    blocks = [
        block(0, "a", degrees=51.5),
        block(0, "b"),
        block(1, "a", degrees=47.0),
        block(1, "b"),
    ]
    assert summarize_guards(blocks, "a", "b").temperature_c == (47.0, 51.5)


def test_a_comparison_without_the_count_reads_as_not_counted_and_one_with_it_comes_back() -> None:
    guards = GuardSummary(blocks=4, dirty=1, reasons=(("preempted", 1),), temperature_c=(1.0, 2.0))
    comparison = Comparison(
        workload=Workload(suite="kernels", name="matmul"),
        baseline="a",
        candidate="b",
        verdict=Verdict.SAME,
        guards=guards,
    )
    record = encode(comparison)
    assert decode(Comparison, record, where="") == comparison
    del record["guards"]
    assert decode(Comparison, record, where="").guards.blocks == 0


def test_a_reading_of_an_older_run_has_none_of_the_newer_numbers() -> None:
    old = {"cpu_ns": 3, "run_queue_wait_ns": 1, "throttle_reasons": []}
    reading = decode(GuardReading, old, where="")
    assert reading.cpu_ns == 3
    assert (reading.swapped_pages, reading.probe_before_ns, reading.cooling_state) == (None,) * 3

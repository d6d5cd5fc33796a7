"""Roofline bounds and shares, compared with manual calculations."""

from __future__ import annotations

import math

import pytest

from tests.sample_records import made_peak
from torchyard.core.comparison import VariantMetrics
from torchyard.core.roofline import (
    ARITHMETIC,
    CACHE,
    MEMORY,
    MachinePeak,
    ProductRate,
    StreamRate,
    attainment_of,
    bytes_per_second,
    intensity,
)

PEAK = made_peak(
    100e9,
    20e9,
    products=(ProductRate(size=1024, flops_per_second=100e9),),
    streams=(
        StreamRate(kind="copy", working_set_bytes=1_000_000, bytes_per_second=80e9),
        StreamRate(kind="triad", working_set_bytes=1_000_000, bytes_per_second=60e9),
        StreamRate(kind="copy", working_set_bytes=10_000_000, bytes_per_second=21e9),
        StreamRate(kind="copy", working_set_bytes=100_000_000, bytes_per_second=20e9),
    ),
)


def metrics(
    seconds: float | None, *, flops: float | None = None, moved: float | None = None
) -> VariantMetrics:
    time_ns = None if seconds is None else seconds * 1e9
    return VariantMetrics(time_ns=time_ns, flops=flops, moved_bytes=moved)


def test_rates_and_the_ridge() -> None:
    one = metrics(0.5, flops=10e9, moved=4e9)
    assert one.flops_per_second == pytest.approx(20e9)
    assert bytes_per_second(one) == pytest.approx(8e9)
    assert intensity(one) == pytest.approx(2.5)
    assert PEAK.ridge == pytest.approx(5.0)
    assert PEAK.cache_bytes_per_second == 80e9


def test_unknown_metrics_have_no_rate() -> None:
    assert bytes_per_second(metrics(None, moved=1.0)) is None
    assert bytes_per_second(metrics(1.0)) is None
    assert intensity(metrics(1.0, flops=1.0)) is None
    assert intensity(metrics(1.0, moved=1.0)) is None
    assert intensity(metrics(1.0, flops=1.0, moved=0.0)) is None


@pytest.mark.parametrize(
    ("moved", "rate"),
    [
        (1.0, 80e9),
        (1_000_000, 80e9),
        (1_000_001, 21e9),
        (10_000_001, 20e9),
        (1e12, 20e9),
    ],
)
def test_bandwidth_of_a_working_set(moved: float, rate: float) -> None:
    assert PEAK.bytes_per_second_at(moved) == rate


def test_compute_bound_workload() -> None:
    # 100 operations per byte; at the peak it would take 1 s and took 2.
    attainment = attainment_of(metrics(2.0, flops=100e9, moved=1e9), PEAK)
    assert attainment is not None
    assert attainment.bound == ARITHMETIC
    assert attainment.roof_share == attainment.arithmetic_share == pytest.approx(0.5)
    assert attainment.memory_share == pytest.approx(0.025)


def test_memory_bound_workload() -> None:
    # One operation per byte; 20 GB take 1 s at least and took 1.25.
    attainment = attainment_of(metrics(1.25, flops=20e9, moved=20e9), PEAK)
    assert attainment is not None
    assert attainment.bound == MEMORY
    assert attainment.roof_share == attainment.memory_share == pytest.approx(0.8)
    assert attainment.arithmetic_share == pytest.approx(0.16)


def test_cache_bound_workload() -> None:
    # 800 kB in 20 µs are 40 GB/s: twice the memory, half the cache.
    attainment = attainment_of(metrics(20e-6, moved=800e3), PEAK)
    assert attainment is not None
    assert attainment.bound == CACHE
    assert attainment.roof_share == pytest.approx(0.5)
    assert attainment.intensity is None
    assert attainment.flops_per_second is None


def test_attainment_without_bytes() -> None:
    attainment = attainment_of(metrics(1.0, flops=50e9), PEAK)
    assert attainment is not None
    assert attainment.bound == ARITHMETIC
    assert attainment.roof_share == pytest.approx(0.5)
    assert attainment.bytes_per_second is None


def test_no_attainment_without_metrics() -> None:
    assert attainment_of(metrics(1.0), PEAK) is None
    assert attainment_of(metrics(None, flops=1.0, moved=1.0), PEAK) is None


def test_roofline_share_is_bound_time_over_measured_time() -> None:
    for flops, moved in ((1e9, 1e9), (1e9, 1e6), (1e6, 1e9), (7e9, 3e9)):
        attainment = attainment_of(metrics(3.0, flops=flops, moved=moved), PEAK)
        least = max(flops / PEAK.flops_per_second, moved / PEAK.bytes_per_second_at(moved))
        assert attainment is not None
        assert math.isclose(attainment.roof_share, least / 3.0)


def test_cache_bandwidth_close_to_memory_is_ignored() -> None:
    flat = MachinePeak(
        **{
            **vars(PEAK),
            "streams": (StreamRate(kind="copy", working_set_bytes=1_000, bytes_per_second=21.9e9),),
        }
    )
    assert flat.cache_bytes_per_second is None
    attainment = attainment_of(metrics(1e-6, moved=100.0), flat)
    assert attainment is not None
    assert attainment.bound == MEMORY

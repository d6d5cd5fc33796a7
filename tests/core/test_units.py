"""Durations, sizes and percentages as people write and read them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.core.units import (
    format_bytes,
    format_duration,
    format_energy,
    format_flops,
    format_percent,
    parse_bytes,
    parse_duration_s,
    parse_fraction,
)
from torchyard.errors import UsageError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60s", 60), ("1.5m", 90), ("90", 90), ("250ms", 0.25), ("2h", 7200), (" 3 min ", 180)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "fast", "-1s", "1 s s", "1e3s", "nan", "inf"])
def test_invalid_duration_error_has_an_example(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_duration_s(text)
    assert "60s" in caught.value.hint


def test_unknown_time_unit_lists_the_valid_ones() -> None:
    with pytest.raises(UsageError) as caught:
        parse_duration_s("3 weeks")
    assert "weeks" in caught.value.what
    assert "ms, s, m" in caught.value.hint


@pytest.mark.parametrize(("text", "fraction"), [("1%", 0.01), ("0.5%", 0.005), ("0.02", 0.02)])
def test_percentages(text: str, fraction: float) -> None:
    assert parse_fraction(text) == pytest.approx(fraction)


@pytest.mark.parametrize("text", ["2", "1s", "%", "one percent"])
def test_invalid_percentages(text: str) -> None:
    with pytest.raises(UsageError):
        parse_fraction(text)


@pytest.mark.parametrize(
    ("text", "size"), [("8GiB", 8 * 2**30), ("512 MiB", 2**29), ("1000", 1000), ("1.5KiB", 1536)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


def test_a_decimal_unit_of_size_is_refused_rather_than_guessed() -> None:
    with pytest.raises(UsageError) as caught:
        parse_bytes("8GB")
    assert "GiB" in caught.value.hint


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (12.34, "12.3 ns"),
        (1234, "1.23 µs"),
        (45.6e6, "45.6 ms"),
        (999e9, "999 s"),
        (math.nan, "unknown"),
    ],
)
def test_durations_are_written_with_three_digits(duration_ns: float, text: str) -> None:
    assert format_duration(duration_ns) == text


@given(st.floats(min_value=1e-3, max_value=1e15))
def test_a_written_duration_is_within_half_a_percent(duration_ns: float) -> None:
    number, unit = format_duration(duration_ns).split()
    size = {"ns": 1.0, "µs": 1e3, "ms": 1e6, "s": 1e9}[unit]
    assert float(number) * size == pytest.approx(duration_ns, rel=0.006, abs=0.006)


def test_sizes_rates_and_percentages_are_written_for_people() -> None:
    assert format_bytes(1536) == "1.50 KiB"
    assert format_bytes(12) == "12 B"
    assert format_flops(26.84e9, per_second=True) == "26.8 GFLOP/s"
    assert format_flops(12) == "12 FLOP"
    assert [format_energy(e) for e in (12.5, 0.83, 4.2e-5, 3e-9)] == [
        "12.5 J",
        "830 mJ",
        "42.0 µJ",
        "3.00 nJ",
    ]
    assert format_percent(0.0123) == "1.2%"
    assert format_percent(0.0012, signed=True) == "+0.12%"
    assert format_percent(-2.5, signed=True) == "-250%"

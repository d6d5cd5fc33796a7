"""Impossible times are found, and fast but possible ones are not."""

from __future__ import annotations

import pytest

from torchyard.bench.outcome import implausible_times
from torchyard.core.comparison import VariantMetrics
from torchyard.core.roofline import MachinePeak, ProductRate

PEAK = MachinePeak(
    machine="here",
    device="cpu",
    precision="float32",
    threads=1,
    flops_per_second=1e11,
    bytes_per_second=1e10,
    products=(ProductRate(size=1024, flops_per_second=1e11),),
    streams=(),
    torch_version="2.13",
    measured="2026-01-01T00:00:00+00:00",
)


def found(
    base_ns: float, mine_ns: float, flops: float | None, *, peak: MachinePeak | None = None
) -> list[str]:
    return implausible_times(
        VariantMetrics(time_ns=base_ns, flops=flops),
        VariantMetrics(time_ns=mine_ns, flops=flops),
        device="cpu",
        precision="float32",
        cores=2,
        peak=peak,
    )


@pytest.mark.parametrize(
    ("base_ns", "mine_ns", "flops"),
    [
        (1e6, 5e5, 1e7),
        (1e6, 2e4, None),
        (3000.0, 900.0, None),  # both short
        (1e9, 1e7, 1e10),
    ],
)
def test_possible_times_are_left_alone(base_ns: float, mine_ns: float, flops: float | None) -> None:
    assert found(base_ns, mine_ns, flops) == []


def test_more_arithmetic_than_any_core_can_do() -> None:
    (text,) = found(1e9, 1e6, 1e11)
    assert text.startswith("faster than the hardware allows: 100 TFLOP/s")


def test_far_beyond_the_measured_peak() -> None:
    assert found(1e8, 4e7, 1e7, peak=PEAK) == []
    (text,) = found(1e8, 1e5, 4e7, peak=PEAK)
    assert text == "faster than the hardware allows: 4 times the measured peak"
    # A convolution by Winograd's algorithm needs 2.25 times fewer operations than are counted.
    assert found(1e8, 1e5, 2.2e7, peak=PEAK) == []


def test_less_time_than_starting_one_operator() -> None:
    (text,) = found(1e6, 300.0, None)
    assert "cannot have computed the result" in text


def test_unknown_times_say_nothing() -> None:
    empty = VariantMetrics()
    assert implausible_times(empty, empty, device="cuda", precision="amp", cores=1) == []

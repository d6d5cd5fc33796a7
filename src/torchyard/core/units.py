"""Parse and format durations, sizes, rates and percentages.

All values inside Torchyard are nanoseconds, bytes and plain fractions; only this module converts
them. No I/O.
"""

from __future__ import annotations

import math
import re

from torchyard.errors import UsageError

_DURATION_UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_SIZE_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_NUMBER = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-z%]{0,10})")
_LONGEST = 80


def _split(text: str, what: str, example: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text[:_LONGEST]!r} is not a {what}", hint=f"write it like {example}")
    return float(match.group(1)), match.group(2)


def parse_duration_s(text: str) -> float:
    """Return the seconds of `90`, `60s`, `1.5m`, `250ms` or `2h`."""
    number, unit = _split(text, "duration", "60s, 1.5m or 2h")
    if unit == "":
        return number
    if unit not in _DURATION_UNITS_S:
        raise UsageError(
            f"{text!r} has an unknown time unit {unit!r}",
            hint="use one of " + ", ".join(_DURATION_UNITS_S),
        )
    return number * _DURATION_UNITS_S[unit]


def parse_fraction(text: str) -> float:
    """Return the fraction of `1%` or `0.01`."""
    number, unit = _split(text, "percentage", "1% or 0.5%")
    if unit == "%":
        return number / 100.0
    if unit == "" and number < 1.0:
        return number
    raise UsageError(f"{text!r} is not a percentage", hint="write it like 1% or 0.01")


def parse_bytes(text: str) -> int:
    """Return the bytes of `8GiB`, `512MiB` or a plain number."""
    number, unit = _split(text, "size", "8GiB or 512MiB")
    if unit not in _SIZE_UNITS:
        raise UsageError(
            f"{text!r} has an unknown size unit {unit!r}",
            hint="use one of " + ", ".join(name for name in _SIZE_UNITS if name),
        )
    return int(number * _SIZE_UNITS[unit])


def format_duration(duration_ns: float) -> str:
    """Format nanoseconds with three significant digits: `12.3 ms`."""
    if not math.isfinite(duration_ns):
        return "unknown"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(duration_ns) >= size:
            return f"{_three_digits(duration_ns / size)} {unit}"
    return f"{_three_digits(duration_ns)} ns"


def format_bytes(size_bytes: float) -> str:
    """Format bytes with three significant digits and a binary unit: `1.25 GiB`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if abs(size_bytes) >= _SIZE_UNITS[unit]:
            return f"{_three_digits(size_bytes / _SIZE_UNITS[unit])} {unit}"
    return f"{size_bytes:.0f} B"


def format_flops(flops: float, *, per_second: bool = False) -> str:
    """Format operations with three significant digits and a decimal unit: `26.8 GFLOP/s`."""
    ending = "/s" if per_second else ""
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(flops) >= size:
            return f"{_three_digits(flops / size)} {unit}FLOP{ending}"
    return f"{flops:.0f} FLOP{ending}"


def format_bandwidth(bytes_per_second: float) -> str:
    """Format a bandwidth with three significant digits and a decimal unit: `12.8 GB/s`."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(bytes_per_second) >= size:
            return f"{_three_digits(bytes_per_second / size)} {unit}/s"
    return f"{bytes_per_second:.0f} B/s"


def format_energy(energy_j: float) -> str:
    """Format joules with three significant digits: `1.25 J`, `830 mJ`, `42.0 µJ`."""
    for unit, size in (("J", 1.0), ("mJ", 1e-3), ("µJ", 1e-6)):
        if abs(energy_j) >= size:
            return f"{_three_digits(energy_j / size)} {unit}"
    return f"{_three_digits(energy_j * 1e9)} nJ"


def format_percent(fraction: float, *, signed: bool = False) -> str:
    """Format a fraction as `1.2%`, or as `+1.2%` when signed."""
    number = fraction * 100.0
    digits = 2 if abs(number) < 1 else 1 if abs(number) < 100 else 0  # noqa: PLR2004
    return f"{number:+.{digits}f}%" if signed else f"{number:.{digits}f}%"


def _three_digits(number: float) -> str:
    magnitude = abs(number)
    decimals = 2 if magnitude < 10 else 1 if magnitude < 100 else 0  # noqa: PLR2004
    return f"{number:.{decimals}f}"


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where it belongs."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

"""Batch sizes of a search: which one to try next, and the results as text and JSON.

Sizes are doubled from 1 until one does not fit, then bisected. A size smaller than one that fits is
assumed to fit. No I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from torchyard.core.records import encode
from torchyard.core.short_names import short_label
from torchyard.core.study import Workload
from torchyard.core.units import format_bytes, format_duration

Outcome = Literal["fits", "too-large", "refused"]
"""`refused`: failed for a reason other than memory (for example batch norm in training with one
image); a larger batch may work."""

OUT_OF_MEMORY: Final = "out-of-memory"
_REFUSED_UP_TO: Final = 4
"""The search ends if none of 1, 2 and 4 runs."""
_PARTS: Final = 8
"""Resolution of the result: a multiple of 1/8 of the power of two below it."""
_NEAR_BEST_SHARE: Final = 0.95


@dataclass(frozen=True, kw_only=True)
class BatchTry:
    """One size tried with one variant, or with all together, in fresh processes."""

    batch_size: int
    variant: str
    fits: bool
    kind: str = ""
    """Failure kind: `out-of-memory`, `raised`, `timeout`, ..."""
    reason: str = ""
    hint: str = ""
    iteration_ns: float | None = None
    peak_memory_bytes: int | None = None
    """Peak of tensors allocated during one iteration."""
    used_bytes: int | None = None
    """Peak resident memory of the process on the host, to which a memory limit applies."""
    left_bytes: int | None = None
    """Free memory of the device while the worker held its memory."""
    duration_s: float = 0.0

    @property
    def samples_per_second(self) -> float | None:
        """Throughput, from the time of one iteration after warming up."""
        return self.batch_size / self.iteration_ns * 1e9 if self.iteration_ns else None


@dataclass(frozen=True, kw_only=True)
class BatchSearch:
    """Result of a search."""

    workload: Workload
    variants: tuple[str, ...]
    tries: tuple[BatchTry, ...]
    most: int
    """The largest size allowed."""
    memory_limit_bytes: int | None = None
    """Host memory limit of one worker."""

    @property
    def batch_size(self) -> int | None:
        """The largest size that fits with every variant; None if 1 does not fit."""
        return max(
            (n for n, outcome in outcomes_of(self.tries).items() if outcome == "fits"), default=None
        )

    @property
    def multiple(self) -> int:
        """Resolution: the result is the largest multiple of this that fits."""
        size = self.batch_size
        return 1 if size is None or size == self.most else multiple_at(size)

    @property
    def obstacle(self) -> BatchTry | None:
        """The failure at the next larger size tried; None if the largest allowed size fits."""
        above = [
            one for one in self.tries if not one.fits and one.batch_size > (self.batch_size or 0)
        ]
        return min(above, key=lambda one: one.batch_size, default=None)


def outcomes_of(tries: Sequence[BatchTry]) -> dict[int, Outcome]:
    """Return the outcome of each size; a size fits if it fits with every variant."""
    outcomes: dict[int, Outcome] = {}
    for one in tries:
        outcome: Outcome = "fits" if one.fits else "refused"
        if one.kind == OUT_OF_MEMORY:
            outcome = "too-large"
        if outcomes.get(one.batch_size, "fits") == "fits":
            outcomes[one.batch_size] = outcome
    return outcomes


def multiple_at(batch_size: int) -> int:
    """Return the resolution of the search near a size."""
    return max(1, (1 << (batch_size.bit_length() - 1)) // _PARTS)


def next_size(outcomes: Mapping[int, Outcome], *, largest: int) -> int | None:
    """Return the size to try next; None when the search is over."""
    if not outcomes:
        return 1
    fitting = [size for size, outcome in outcomes.items() if outcome == "fits"]
    if not fitting:
        size = max(outcomes)
        again = outcomes[size] == "refused" and size < _REFUSED_UP_TO and 2 * size <= largest
        return 2 * size if again else None
    low = max(fitting)
    above = [size for size, outcome in outcomes.items() if outcome != "fits" and size > low]
    if not above:
        return min(2 * low, largest) if low < largest else None
    high, step = min(above), multiple_at(low)
    middle = low + max(step, (high - low) // 2 // step * step)
    return middle if middle < high else None


def size_that_pays(search: BatchSearch, variant: str) -> int | None:
    """Return the smallest size within 5 % of the best throughput; None if unknown."""
    largest = search.batch_size or 0
    rates = {
        one.batch_size: one.samples_per_second
        for one in search.tries
        if one.variant == variant
        and one.fits
        and one.batch_size <= largest
        and one.samples_per_second is not None
    }
    best = max(rates.values(), default=None)
    return (
        None
        if best is None
        else min(n for n, rate in rates.items() if rate >= _NEAR_BEST_SHARE * best)
    )


_HEADINGS = ("batch", "variant", "iteration", "samples/s", "tensors", "process", "left")


def search_text(search: BatchSearch) -> str:
    """Return the table of tries and the result."""
    lines = [short_label(search.workload), "", tries_text(search.tries), "", *result_lines(search)]
    return "\n".join(lines)


def tries_text(tries: Sequence[BatchTry]) -> str:
    """Return one line per try, smallest size first."""
    ordered = sorted(tries, key=lambda one: one.batch_size)
    rows = [_HEADINGS, *map(_cells, ordered)]
    full_rows = [row for row in rows if len(row) == len(_HEADINGS)]
    widths = [max(len(row[column]) for row in full_rows) for column in range(len(_HEADINGS))]
    widths[1] = max(len(row[1]) for row in rows)
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column == 1 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        if len(row) < len(_HEADINGS):
            cells[-1] = row[-1]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def try_line(one: BatchTry) -> str:
    """Return one try as a progress line."""
    _, variant, *rest = _cells(one)
    if not one.fits:
        return f"batch size {one.batch_size}, {variant}: {rest[0]}"
    return f"batch size {one.batch_size}, {variant}: {rest[1]} samples/s, {rest[2]} of tensors"


def result_lines(search: BatchSearch) -> list[str]:
    """Return the result, what limits it, and where larger batches stop paying off."""
    size, obstacle = search.batch_size, search.obstacle
    if size is None:
        return ["a batch size of 1 does not fit"]
    result = f"largest batch size: {size}"
    if obstacle is None:
        return [f"{result}, the largest size allowed", *_payoff_lines(search)]
    resolution = f", a multiple of {search.multiple}" if search.multiple > 1 else ""
    result += f"{resolution}; {obstacle.batch_size} does not fit with {obstacle.variant}"
    return [f"{result} ({obstacle.kind})", *_payoff_lines(search)]


def search_json(search: BatchSearch) -> dict[str, Any]:
    """Return the search as plain values for JSON."""
    return {
        "workload": encode(search.workload),
        "variants": list(search.variants),
        "batch_size": search.batch_size,
        "multiple": search.multiple,
        "most": search.most,
        "memory_limit_bytes": search.memory_limit_bytes,
        "pays_up_to": {name: size_that_pays(search, name) for name in search.variants},
        "tries": [
            {**encode(one), "samples_per_second": one.samples_per_second} for one in search.tries
        ],
    }


def _payoff_lines(search: BatchSearch) -> list[str]:
    lines = []
    for variant in search.variants:
        size = size_that_pays(search, variant)
        if size is not None and size != search.batch_size:
            lines.append(
                f"{variant}: sizes above {size} stop paying off (95 % of the best throughput)"
            )
    return lines


def _cells(one: BatchTry) -> tuple[str, ...]:
    if not one.fits:
        return str(one.batch_size), one.variant, f"does not fit: {one.reason or one.kind}"
    rate = one.samples_per_second
    return (
        str(one.batch_size),
        one.variant,
        "unknown" if one.iteration_ns is None else format_duration(one.iteration_ns),
        "unknown" if rate is None else f"{rate:.3g}" if rate < 1000 else f"{rate:.0f}",  # noqa: PLR2004
        *(
            "unknown" if size is None else format_bytes(size)
            for size in (one.peak_memory_bytes, one.used_bytes, one.left_bytes)
        ),
    )

"""Batch sizes of a search: which one to try next, and the results as text and JSON.

Sizes are doubled from 1 until one does not fit, then bisected. A size smaller than one that fits is
assumed to fit. No I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from torchyard.core.records import encode
from torchyard.core.study import Workload
from torchyard.core.units import format_bytes, format_duration

Outcome = Literal["fits", "too-large", "refused"]
"""`refused`: it failed for another reason than memory, as batch norm does in training with one
image; a larger batch may work."""

OUT_OF_MEMORY: Final = "out-of-memory"
_REFUSED_UP_TO: Final = 4
"""A workload that runs with none of 1, 2 and 4 is not searched any further."""
_PARTS: Final = 8
"""The answer is this fine: a multiple of an eighth of the power of two below it."""
_PAYS: Final = 0.95


@dataclass(frozen=True, kw_only=True)
class BatchTry:
    """One size with one variant, or with all together, in processes of its own."""

    batch_size: int
    variant: str
    fits: bool
    kind: str = ""
    """Of the failure: `out-of-memory`, `raised`, `timeout`, ..."""
    reason: str = ""
    hint: str = ""
    iteration_ns: float | None = None
    peak_memory_bytes: int | None = None
    """Of tensors in one iteration, above what was there before it."""
    used_bytes: int | None = None
    """The most that the process ever held, which is what a memory limit is about; on the host."""
    left_bytes: int | None = None
    """What the device had left while the worker held its memory."""
    duration_s: float = 0.0

    @property
    def samples_per_second(self) -> float | None:
        """Throughput, from the time of one iteration after warming up."""
        return self.batch_size / self.iteration_ns * 1e9 if self.iteration_ns else None


@dataclass(frozen=True, kw_only=True)
class BatchSearch:
    """What a search found."""

    workload: Workload
    variants: tuple[str, ...]
    tries: tuple[BatchTry, ...]
    most: int
    """The largest size that was allowed."""
    memory_limit_bytes: int | None = None
    """Of a worker, on the host."""

    @property
    def batch_size(self) -> int | None:
        """The largest that fits with every variant; None when not even one does."""
        return max(
            (n for n, come in outcomes_of(self.tries).items() if come == "fits"), default=None
        )

    @property
    def multiple(self) -> int:
        """The answer is the largest multiple of this; larger sizes in between were not tried."""
        found = self.batch_size
        return 1 if found is None or found == self.most else multiple_at(found)

    @property
    def obstacle(self) -> BatchTry | None:
        """The failure at the next size that was tried; None when the largest allowed size fits."""
        above = [
            one for one in self.tries if not one.fits and one.batch_size > (self.batch_size or 0)
        ]
        return min(above, key=lambda one: one.batch_size, default=None)


def outcomes_of(tries: Sequence[BatchTry]) -> dict[int, Outcome]:
    """What came of each size: it fits when it fits with every variant."""
    found: dict[int, Outcome] = {}
    for one in tries:
        come: Outcome = "fits" if one.fits else "refused"
        if one.kind == OUT_OF_MEMORY:
            come = "too-large"
        if found.get(one.batch_size, "fits") == "fits":
            found[one.batch_size] = come
    return found


def multiple_at(batch_size: int) -> int:
    """How fine sizes are told apart there."""
    return max(1, (1 << (batch_size.bit_length() - 1)) // _PARTS)


def next_size(outcomes: Mapping[int, Outcome], *, most: int) -> int | None:
    """The size to try next; None when the search is over."""
    if not outcomes:
        return 1
    fitting = [size for size, come in outcomes.items() if come == "fits"]
    if not fitting:
        size = max(outcomes)
        again = outcomes[size] == "refused" and size < _REFUSED_UP_TO and 2 * size <= most
        return 2 * size if again else None
    low = max(fitting)
    above = [size for size, come in outcomes.items() if come != "fits" and size > low]
    if not above:
        return min(2 * low, most) if low < most else None
    high, step = min(above), multiple_at(low)
    middle = low + max(step, (high - low) // 2 // step * step)
    return middle if middle < high else None


def size_that_pays(search: BatchSearch, variant: str) -> int | None:
    """The smallest size that reaches nearly the best throughput up to the answer; None: not known."""
    most = search.batch_size or 0
    rates = {
        one.batch_size: one.samples_per_second
        for one in search.tries
        if one.variant == variant
        and one.fits
        and one.batch_size <= most
        and one.samples_per_second is not None
    }
    best = max(rates.values(), default=None)
    return None if best is None else min(n for n, rate in rates.items() if rate >= _PAYS * best)


_HEADINGS = ("batch", "variant", "iteration", "samples/s", "tensors", "process", "left")


def search_text(search: BatchSearch) -> str:
    """The tries by size, and what was found."""
    lines = [search.workload.label, "", tries_text(search.tries), "", *found_text(search)]
    return "\n".join(lines)


def tries_text(tries: Sequence[BatchTry]) -> str:
    """One line per try, smaller sizes first."""
    ordered = sorted(tries, key=lambda one: one.batch_size)
    rows = [_HEADINGS, *map(_cells, ordered)]
    whole = [row for row in rows if len(row) == len(_HEADINGS)]
    widths = [max(len(row[column]) for row in whole) for column in range(len(_HEADINGS))]
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
    """The same in one line, for progress."""
    _, variant, *rest = _cells(one)
    if not one.fits:
        return f"batch size {one.batch_size}, {variant}: {rest[0]}"
    return f"batch size {one.batch_size}, {variant}: {rest[1]} samples/s, {rest[2]} of tensors"


def found_text(search: BatchSearch) -> list[str]:
    """The answer, what stands in the way of more, and from where on more hardly pays."""
    size, obstacle = search.batch_size, search.obstacle
    if size is None:
        return ["not even a batch size of 1 fits"]
    said = f"largest batch size: {size}"
    if obstacle is None:
        return [f"{said}, the largest that was allowed", *_paying(search)]
    fine = f", a multiple of {search.multiple}" if search.multiple > 1 else ""
    said += f"{fine}; {obstacle.batch_size} does not fit with {obstacle.variant}"
    return [f"{said} ({obstacle.kind})", *_paying(search)]


def search_json(search: BatchSearch) -> dict[str, Any]:
    """Everything that is known, as plain values."""
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


def _paying(search: BatchSearch) -> list[str]:
    lines = []
    for variant in search.variants:
        size = size_that_pays(search, variant)
        if size is not None and size != search.batch_size:
            lines.append(f"{variant}: more than {size} hardly pays (95 % of the best throughput)")
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

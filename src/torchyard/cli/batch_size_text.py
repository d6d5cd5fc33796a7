"""A search for a batch size as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchyard.core.batch_search import BatchSearch, BatchTry, size_that_pays
from torchyard.core.records import encode
from torchyard.core.units import format_bytes, format_duration

__all__ = ["found_text", "search_json", "search_text", "tries_text", "try_line"]

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

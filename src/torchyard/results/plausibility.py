"""Reject records with impossible numbers, such as negative times or speedups.

A record may be valid JSON of the right types and still be impossible, because a file was edited
or damaged. Statistics and charts take logarithms and divide, so such a record is rejected on
reading, with the name of the field, and not where the arithmetic fails. No I/O.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from torchyard.core.block import Block
from torchyard.core.comparison import Comparison, Estimate, Interval, VariantMetrics
from torchyard.core.records import decode
from torchyard.core.study import Study
from torchyard.errors import UsageError

__all__ = ["decode_possible", "impossible_in"]

T = TypeVar("T")

_LARGEST_COUNT: Final = 2**63
"""Larger counts do not fit into the index or into a machine counter."""

Check = tuple[str, Callable[[Any], bool], str]
"""Field, predicate, and the rule as text."""


def decode_possible(kind: type[T], value: object) -> T:
    """Decode a record; raise ValueError with a description if it is invalid or impossible."""
    try:
        record = decode(kind, value, where="", strict=False)
    except UsageError as error:
        raise ValueError(error.what) from error
    except (ArithmeticError, TypeError, RecursionError) as error:
        # For example an integer that is too large for a float.
        raise ValueError(str(error)) from error
    problem = impossible_in(record)
    if problem:
        raise ValueError(problem)
    return record


def impossible_in(record: object) -> str:
    """Describe the first field with an impossible value; empty if there is none."""
    checks: Iterator[str]
    if isinstance(record, Comparison):
        checks = _comparison(record)
    elif isinstance(record, Block):
        checks = _block(record)
    elif isinstance(record, Study):
        checks = _study(record)
    else:
        return ""
    return next(checks, "")


def _is_positive(value: float) -> bool:
    return 0.0 < value < math.inf


def _is_amount(value: float) -> bool:
    return 0.0 <= value < math.inf


def _is_amount_or_infinite(value: float) -> bool:
    return value >= 0.0


def _is_error(value: float) -> bool:
    """NaN and infinity are possible if results are not finite; negative values are not."""
    return math.isnan(value) or value >= 0.0


def _is_count(value: int) -> bool:
    return 0 <= value < _LARGEST_COUNT


def _is_counted(value: int) -> bool:
    return 1 <= value < _LARGEST_COUNT


def _is_share(value: float) -> bool:
    return 0.0 <= value <= 1.0


def _is_inner_share(value: float) -> bool:
    return 0.0 < value < 1.0


_POSITIVE: Final = "a positive number"
_AMOUNT: Final = "0 or more"
_COUNT: Final = "a count of 0 or more"

_ESTIMATE: Final[tuple[Check, ...]] = (
    ("speedup", _is_positive, _POSITIVE),
    ("mean_speedup", _is_positive, _POSITIVE),
    ("p_value", _is_share, "between 0 and 1"),
    ("p_adjusted", _is_share, "between 0 and 1"),
    ("launches", _is_count, _COUNT),
    ("pairs", _is_count, _COUNT),
    ("pairs_dropped", _is_count, _COUNT),
    ("launch_sd", _is_amount, _AMOUNT),
    ("pair_sd", _is_amount, _AMOUNT),
    ("minimum_detectable", _is_amount_or_infinite, _AMOUNT),
    ("time_needed_s", _is_amount_or_infinite, _AMOUNT),
)
_METRICS: Final[tuple[Check, ...]] = (
    ("time_ns", _is_positive, _POSITIVE),
    ("compile_cold_s", _is_amount, _AMOUNT),
    ("compile_warm_s", _is_amount, _AMOUNT),
    ("peak_memory_bytes", _is_count, _COUNT),
    ("graphs", _is_count, _COUNT),
    ("flops", _is_amount, _AMOUNT),
    ("moved_bytes", _is_amount, _AMOUNT),
    ("recompiles", _is_count, _COUNT),
    ("energy_j", _is_amount, _AMOUNT),
    ("batch_size", _is_counted, "1 or more"),
)
_ACCURACY: Final[tuple[Check, ...]] = (
    ("max_error", _is_error, _AMOUNT),
    ("candidate_rmse", _is_error, _AMOUNT),
    ("baseline_rmse", _is_error, _AMOUNT),
    ("nondeterminism", _is_error, _AMOUNT),
    ("candidate_nondeterminism", _is_error, _AMOUNT),
    ("compared", _is_count, _COUNT),
)
_ROW: Final[tuple[Check, ...]] = (
    ("elapsed_s", _is_amount, _AMOUNT),
    ("timed_share", _is_amount, _AMOUNT),
)
_BLOCK: Final[tuple[Check, ...]] = (
    ("launch", _is_count, _COUNT),
    ("round", _is_count, _COUNT),
    ("position", _is_count, _COUNT),
    ("seat", _is_count, _COUNT),
    ("inner", _is_counted, "1 or more"),
    ("started_ns", _is_count, _COUNT),
    ("wall_ns", _is_count, _COUNT),
)
_GUARD: Final[tuple[Check, ...]] = (
    *(
        (name, _is_count, _COUNT)
        for name in (
            *("cpu_ns", "run_queue_wait_ns", "involuntary_switches", "major_faults", "steal_ns"),
            *("watched_ns", "swapped_pages", "memory_stall_ns", "throttle_events", "cooling_state"),
            *("probe_before_ns", "probe_after_ns", "probe_usual_ns", "probe_limit_ns"),
            *("sm_clock_mhz", "other_gpu_processes"),
        )
    ),
    ("gpu_power_w", _is_amount, _AMOUNT),
    ("cpu_temperature_c", math.isfinite, "a number"),
    ("gpu_temperature_c", math.isfinite, "a number"),
)
_BUDGET: Final[tuple[Check, ...]] = (
    ("time_s", _is_amount_or_infinite, _AMOUNT),
    ("precision_goal", _is_amount, _AMOUNT),
    ("margin", _is_amount, _AMOUNT),
    ("alpha", _is_inner_share, "between 0 and 1"),
    ("min_launches", _is_counted, "1 or more"),
    ("max_launches", _is_counted, "1 or more"),
    ("launch_s", _is_amount_or_infinite, _AMOUNT),
)
_SETTINGS: Final[tuple[Check, ...]] = (
    ("block_s", _is_positive, _POSITIVE),
    ("threads", _is_counted, "1 or more"),
    ("memory_limit_bytes", _is_count, _COUNT),
    ("start_limit_s", _is_amount_or_infinite, _AMOUNT),
    ("step_limit_s", _is_amount_or_infinite, _AMOUNT),
    ("block_limit_s", _is_amount_or_infinite, _AMOUNT),
)


def _comparison(row: Comparison) -> Iterator[str]:
    yield from _violations("", row, _ROW)
    if row.estimate is not None:
        yield from _estimate(row.estimate)
    if row.accuracy is not None:
        yield from _violations("accuracy.", row.accuracy, _ACCURACY)
    yield from _metrics("baseline_metrics.", row.baseline_metrics)
    yield from _metrics("candidate_metrics.", row.candidate_metrics)
    yield from _batch_size(row.workload.batch_size)
    guards = row.guards
    yield from _counts("guards.reasons", guards.reasons)
    if not 0 <= guards.dirty <= guards.blocks < _LARGEST_COUNT:
        yield f"guards: {guards.dirty} of {guards.blocks} blocks disturbed is impossible"
    if guards.temperature_c is not None and not all(map(math.isfinite, guards.temperature_c)):
        yield f"guards.temperature_c = {guards.temperature_c} is impossible"


def _estimate(estimate: Estimate) -> Iterator[str]:
    yield from _violations("estimate.", estimate, _ESTIMATE)
    if estimate.interval is not None:
        yield from _interval("estimate.interval", estimate.interval)


def _interval(name: str, interval: Interval) -> Iterator[str]:
    if not 0.0 < interval.low <= interval.high < math.inf:
        yield f"{name} from {interval.low} to {interval.high} is impossible"
    if not _is_inner_share(interval.confidence):
        yield f"{name}.confidence = {interval.confidence} is impossible: it must be between 0 and 1"


def _metrics(name: str, metrics: VariantMetrics) -> Iterator[str]:
    yield from _violations(name, metrics, _METRICS)
    yield from _counts(f"{name}graph_breaks", metrics.graph_breaks)
    yield from _counts(f"{name}recompile_reasons", metrics.recompile_reasons)


def _block(block: Block) -> Iterator[str]:
    if not block.samples_ns:
        yield "samples_ns is empty"
    for number, sample in enumerate(block.samples_ns):
        if not _is_positive(sample):
            yield f"samples_ns[{number}] = {sample} is impossible: it must be {_POSITIVE}"
    yield from _violations("", block, _BLOCK)
    yield from _violations("guard.", block.guard, _GUARD)


def _study(study: Study) -> Iterator[str]:
    yield from _violations("study.budget.", study.budget, _BUDGET)
    yield from _violations("study.settings.", study.settings, _SETTINGS)
    for workload in study.workloads:
        yield from _batch_size(workload.batch_size)


def _batch_size(size: int | None) -> Iterator[str]:
    if size is not None and not _is_counted(size):
        yield f"workload.batch_size = {size} is impossible: it must be 1 or more"


def _counts(name: str, counts: Iterable[tuple[str, int]]) -> Iterator[str]:
    for key, count in counts:
        if not _is_count(count):
            yield f"{name}[{key!r}] = {count} is impossible: it must be {_COUNT}"


def _violations(name: str, record: object, checks: tuple[Check, ...]) -> Iterator[str]:
    for field, is_possible, rule in checks:
        value = getattr(record, field)
        if value is not None and not is_possible(value):
            yield f"{name}{field} = {value} is impossible: it must be {rule}"

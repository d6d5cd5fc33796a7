"""Reject records with impossible numbers, such as negative times or speedups.

A record may be valid JSON of the right types and still be impossible, because a file was edited
or damaged. Statistics and charts take logarithms and divide, so such a record is rejected on
reading, with the name of the field, and not where the arithmetic fails. No I/O.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from torchyard.core.block import Block, GuardReading
from torchyard.core.comparison import (
    Accuracy,
    Comparison,
    Estimate,
    GuardSummary,
    Interval,
    VariantMetrics,
)
from torchyard.core.records import decode
from torchyard.core.study import Budget, MeasureSettings, Study, Workload
from torchyard.errors import ResultsDamaged, UsageError

T = TypeVar("T")
Rule = tuple[Callable[[Any], bool], str]
"""Predicate of a possible value, and the rule as text."""

_LARGEST_COUNT: Final = 2**63
"""Larger counts do not fit into the index or into a machine counter."""
_POSITIVE: Final[Rule] = (lambda value: 0.0 < value < math.inf, "a positive number")
_AMOUNT: Final[Rule] = (lambda value: 0.0 <= value < math.inf, "0 or more")
_AMOUNT_OR_INFINITE: Final[Rule] = (lambda value: value >= 0.0, "0 or more")
_ERROR: Final[Rule] = (lambda value: math.isnan(value) or value >= 0.0, "0 or more")
"""NaN and infinity are possible if results are not finite; negative values are not."""
_COUNT: Final[Rule] = (lambda value: 0 <= value < _LARGEST_COUNT, "a count of 0 or more")
_COUNTED: Final[Rule] = (lambda value: 1 <= value < _LARGEST_COUNT, "1 or more")
_SHARE: Final[Rule] = (lambda value: 0.0 <= value <= 1.0, "between 0 and 1")
_INNER_SHARE: Final[Rule] = (lambda value: 0.0 < value < 1.0, "between 0 and 1")
_FINITE: Final[Rule] = (math.isfinite, "a number")

_RULES: Final[Mapping[type, Mapping[Rule, str]]] = {
    Comparison: {_AMOUNT: "elapsed_s timed_share"},
    Workload: {_COUNTED: "batch_size"},
    Estimate: {
        _POSITIVE: "speedup mean_speedup",
        _SHARE: "p_value p_adjusted",
        _COUNT: "launches pairs pairs_dropped",
        _AMOUNT: "launch_sd pair_sd",
        _AMOUNT_OR_INFINITE: "minimum_detectable time_needed_s",
    },
    Interval: {_INNER_SHARE: "confidence"},
    VariantMetrics: {
        _POSITIVE: "time_ns",
        _AMOUNT: "compile_cold_s compile_warm_s flops moved_bytes energy_j",
        _COUNT: "peak_memory_bytes graphs recompiles",
        _COUNTED: "batch_size",
    },
    Accuracy: {
        _ERROR: "max_error candidate_rmse baseline_rmse nondeterminism candidate_nondeterminism",
        _COUNT: "compared",
    },
    GuardSummary: {},
    Block: {
        _COUNT: " ".join(("launch", "round", "position", "seat", "started_ns", "wall_ns")),  # noqa: FLY002
        _COUNTED: "inner",
    },
    GuardReading: {
        _COUNT: "cpu_ns run_queue_wait_ns involuntary_switches major_faults steal_ns watched_ns "
        "swapped_pages memory_stall_ns throttle_events cooling_state probe_before_ns "
        "probe_after_ns probe_usual_ns probe_limit_ns sm_clock_mhz other_gpu_processes",
        _AMOUNT: "gpu_power_w",
        _FINITE: "cpu_temperature_c gpu_temperature_c",
    },
    Study: {},
    Budget: {
        _AMOUNT_OR_INFINITE: "time_s launch_s",
        _AMOUNT: "precision_goal margin",
        _INNER_SHARE: "alpha",
        _COUNTED: "min_launches max_launches",
    },
    MeasureSettings: {
        _POSITIVE: "block_s",
        _COUNTED: "threads",
        _COUNT: "memory_limit_bytes",
        _AMOUNT_OR_INFINITE: "start_limit_s step_limit_s block_limit_s",
    },
}
"""Fields by the rule of their values; None is always possible."""
_CHECKS: Final = {
    kind: [(name, *rule) for rule, names in rules.items() for name in names.split()]
    for kind, rules in _RULES.items()
}
_METRICS: Final = ("baseline_metrics", "candidate_metrics")
_INSIDE: Final = {
    Comparison: ("estimate", "accuracy", *_METRICS, "workload", "guards"),
    Estimate: ("interval",),
    Block: ("guard",),
    Study: ("budget", "settings"),
}
"""Fields that are records."""
_COUNTS: Final = {VariantMetrics: ("graph_breaks", "recompile_reasons"), GuardSummary: ("reasons",)}
"""Fields that are pairs of a text and a count."""


def decode_possible(kind: type[T], value: object) -> T:
    """Decode a record; raise ValueError with a description if it is invalid or impossible."""
    try:
        record = decode(kind, value, where="", strict=False)
    except UsageError as error:
        raise ValueError(error.what) from error
    except (ArithmeticError, TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    problem = impossible_in(record)
    if problem:
        raise ValueError(problem)
    return record


def decode_stored(
    kind: type[T], value: object, *, place: object, hint: str = "", what: str = ""
) -> T:
    """Decode a record of a file; raise ResultsDamaged with its place, what it should be, and a hint."""
    try:
        return decode_possible(kind, value)
    except ValueError as error:
        raise ResultsDamaged(
            f"{place}: not {what or f'a {kind.__name__.lower()}'}",
            why=str(error),
            hint=hint or "restore the file from a backup",
        ) from error


def check_format(path: Path, record: Mapping[str, Any], newest: int) -> None:
    """Raise ResultsDamaged if the record is of a newer format than this Torchyard reads."""
    version = record.get("format")
    if isinstance(version, int) and version > newest:
        writer = f" ({record['torchyard']})" if record.get("torchyard") else ""
        raise ResultsDamaged(
            f"{path} was written by a newer Torchyard{writer}",
            why=f"its format is {version}; this Torchyard reads up to {newest}",
            hint="update Torchyard to read it",
        )


def impossible_in(record: object) -> str:
    """Describe the first field with an impossible value; empty if there is none."""
    place = "study." if isinstance(record, Study) else ""
    return next(_problems(record, place), "")


def _problems(record: Any, place: str) -> Iterator[str]:
    kind = type(record)
    for name, is_possible, rule in _CHECKS.get(kind, ()):
        value = getattr(record, name)
        if value is not None and not is_possible(value):
            yield f"{place}{name} = {value} is impossible: it must be {rule}"
    for name in _COUNTS.get(kind, ()):
        for key, count in getattr(record, name):
            if not _COUNT[0](count):
                yield f"{place}{name}[{key!r}] = {count} is impossible: it must be {_COUNT[1]}"
    yield from _contradictions(record, place)
    for name in _INSIDE.get(kind, ()):
        yield from _problems(getattr(record, name), f"{place}{name}.")


def _contradictions(record: object, place: str) -> Iterator[str]:
    """Yield values that are impossible together."""
    if isinstance(record, Block):
        if not record.samples_ns:
            yield "samples_ns is empty"
        for number, sample in enumerate(record.samples_ns):
            if not 0.0 < sample < math.inf:
                yield f"samples_ns[{number}] = {sample} is impossible: it must be {_POSITIVE[1]}"
    elif isinstance(record, Interval):
        if not 0.0 < record.low <= record.high < math.inf:
            yield f"{place[:-1]} from {record.low} to {record.high} is impossible"
    elif isinstance(record, GuardSummary):
        if not 0 <= record.dirty <= record.blocks < _LARGEST_COUNT:
            yield f"guards: {record.dirty} of {record.blocks} blocks disturbed is impossible"
        if record.temperature_c is not None and not all(map(math.isfinite, record.temperature_c)):
            yield f"guards.temperature_c = {record.temperature_c} is impossible"
    elif isinstance(record, Study):
        for workload in record.workloads:
            yield from _problems(workload, "workload.")

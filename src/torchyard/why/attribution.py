"""Estimate the contribution of each group of source operators to the difference.

In each round both variants have a timed block and a profiled one. The contribution of a group is its
time on the candidate's side minus that on the baseline's side. Host time is what the timed block takes
beyond all operators: its interval contains the noise of both kinds of block. The profiler bias is the
difference between the two kinds that neither this noise nor the recording of events explains. So the
parts sum to the difference of the timed blocks in every round, in every launch, and in the result.
On a GPU, operators have the time in which the GPU is busy with their kernels, which the profiler does
not change. The rest of the timed block are idle gaps, and there is no profiler bias.
Launches are the unit of replication, as in all comparisons (`stats/launch_model.py`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median, stdev
from typing import Final

from torchyard.core.study import Workload
from torchyard.stats.launch_model import estimate_difference
from torchyard.stats.pairs import DIRTY_SHARE_LIMIT
from torchyard.stats.suite import benjamini_hochberg
from torchyard.why.alignment import UNATTRIBUTED, Groups, Key, align
from torchyard.why.model import (
    Attribution,
    Kernel,
    MeasuredRound,
    MeasuredSide,
    OperatorRow,
    Part,
    PartKind,
    Source,
    Work,
)

ALPHA: Final = 0.05
SMALLEST_SHARE: Final = 0.005
"""Contributions below this share of the iteration are never named."""
SMALLEST_SCALE: Final = 0.02
"""Parts below this share of the iteration have the noise of one of this size."""
OUTLIER: Final = 3.0
"""Rounds beyond this many deviations from the median of their launch are dropped."""
FEWEST_ROUNDS: Final = 3
LARGEST_EVENT_NS: Final = 3000.0
"""Highest plausible cost of recording one event."""
NOISE_ERRORS: Final = 3.0
"""A slowdown within this many standard errors of its expectation is noise."""
HOST: Final[Key] = ("host",)
PROFILER: Final[Key] = ("profiler",)
REST: Final = frozenset({HOST, PROFILER})
"""Computed from the time of the iteration, so they have its noise."""
_REMAINDERS: Final[dict[Key, PartKind]] = {
    HOST: "host",
    PROFILER: "profiler",
    UNATTRIBUTED: "unattributed",
}


@dataclass
class _Launch:
    """Means over the rounds of one launch."""

    totals: list[tuple[float, float]] = field(default_factory=list)
    """Timed iteration of baseline and candidate, by round."""
    parts: dict[Key, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))


def attribute(
    workload: Workload,
    baseline: str,
    candidate: str,
    rounds: Sequence[MeasuredRound],
    *,
    work: Sequence[Mapping[Source, Work]] = ({}, {}),
    facts: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Attribution:
    """Return the contributions over all launches; `work` is that of eager code, for both sides."""
    usable = usable_rounds(rounds)
    sides = ([one.baseline for one in usable], [one.candidate for one in usable])
    total_ns = fmean(side.plain_ns for side in sides[0])
    baseline_rows, candidate_rows = (
        [row for side in members for row in side.rows] for members in sides
    )
    groups = align(baseline_rows, candidate_rows, total_ns * len(usable))
    launches: dict[int, _Launch] = defaultdict(_Launch)
    on_gpu = workload.device != "cpu"
    event_costs = [None, None] if on_gpu else _biased_event_costs(usable)
    for one in usable:
        _add_round(launches[one.launch], one, groups, event_costs)
    measured = list(launches.values())
    keys = sorted({key for launch in measured for key in launch.parts})
    estimates = [
        _estimate(
            [launch.parts[key] for launch in measured], total_ns, has_own_noise=key not in REST
        )
        for key in keys
    ]
    adjusted = _adjusted_p(estimates, total_ns)
    parts = [
        _part(key, one, adjusted_p, groups, sides, total_ns, work, on_gpu=on_gpu)
        for key, one, adjusted_p in zip(keys, estimates, adjusted, strict=True)
    ]
    untrusted = _why_untrusted(rounds)
    if untrusted:
        parts = [replace(part, named=False) for part in parts]
    whole = _estimate([launch.totals for launch in measured], total_ns)
    return Attribution(
        workload=workload,
        baseline=baseline,
        candidate=candidate,
        launches=len(measured),
        rounds=len(usable),
        rounds_dropped=len(rounds) - len(usable),
        baseline_ns=whole.baseline_ns,
        candidate_ns=whole.candidate_ns,
        low_ns=whole.low_ns,
        high_ns=whole.high_ns,
        parts=tuple(sorted(parts, key=lambda part: -abs(part.difference_ns))),
        baseline_overhead=_overhead(sides[0]),
        candidate_overhead=_overhead(sides[1]),
        facts=tuple(facts),
        notes=tuple(notes),
        untrusted=untrusted,
    )


def _why_untrusted(rounds: Sequence[MeasuredRound]) -> str:
    """Return why nothing may be concluded from these rounds; empty when it may."""
    disturbed = sum(one.disturbed for one in rounds)
    if disturbed <= DIRTY_SHARE_LIMIT * len(rounds):
        return ""
    return f"noisy machine: {disturbed} of {len(rounds)} rounds were disturbed"


def usable_rounds(rounds: Sequence[MeasuredRound]) -> list[MeasuredRound]:
    """Drop disturbed rounds and outliers; keep the calmest ones where too few would remain.

    A round is kept or dropped as a whole, so that its parts still sum to its difference.
    """
    usable = []
    for launch in sorted({one.launch for one in rounds}):
        own = [one for one in rounds if one.launch == launch]
        distances = [0.0] * len(own)
        for values in zip(*(_times(one) for one in own), strict=True):
            center = median(values)
            spread = max(1.4826 * median(abs(value - center) for value in values), 0.02 * center)
            for index, value in enumerate(values):
                distances[index] = max(distances[index], abs(value - center) / max(spread, 1e-9))
        ranked = sorted(zip(distances, range(len(own)), strict=True))
        calm = [
            index for distance, index in ranked if distance <= OUTLIER and not own[index].disturbed
        ]
        if len(calm) < FEWEST_ROUNDS:
            calm = [index for _, index in ranked[:FEWEST_ROUNDS]]
        usable += [own[index] for index in sorted(calm)]
    return usable


def _times(one: MeasuredRound) -> tuple[float, ...]:
    return (
        one.baseline.plain_ns,
        one.baseline.instrumented_ns,
        one.candidate.plain_ns,
        one.candidate.instrumented_ns,
    )


def _biased_event_costs(rounds: Sequence[MeasuredRound]) -> list[float | None]:
    """Return the cost of an event for each side whose slowdown it does not explain, else None.

    The cost of an event is that of the side where it is lower. Within three standard errors over
    launches, the rest of a slowdown is noise.
    """
    launches = sorted({one.launch for one in rounds})
    means, errors, events = [], [], []
    for name in ("baseline", "candidate"):
        sides: list[tuple[int, MeasuredSide]] = [(one.launch, getattr(one, name)) for one in rounds]
        slowdowns = [
            fmean(side.instrumented_ns - side.plain_ns for own, side in sides if own == launch)
            for launch in launches
        ]
        means.append(fmean(slowdowns))
        errors.append(stdev(slowdowns) / math.sqrt(len(slowdowns)) if launches[1:] else math.inf)
        events.append(max(1.0, fmean(side.events for _, side in sides)))
    cheaper = min((0, 1), key=lambda index: means[index] / events[index])
    event_ns = min(LARGEST_EVENT_NS, max(0.0, means[cheaper] / events[cheaper]))
    costs: list[float | None] = []
    for mean_ns, error_ns, count in zip(means, errors, events, strict=True):
        noise_ns = math.hypot(error_ns, errors[cheaper] * count / events[cheaper])
        is_biased = abs(mean_ns - event_ns * count) > NOISE_ERRORS * noise_ns
        costs.append(event_ns if is_biased else None)
    return costs


def _add_round(
    launch: _Launch, one: MeasuredRound, groups: Groups, event_costs: Sequence[float | None]
) -> None:
    times: dict[Key, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for index, (side, event_ns) in enumerate(
        zip((one.baseline, one.candidate), event_costs, strict=True)
    ):
        operators_ns = 0.0
        for row, duration_ns in _durations(side):
            times[groups.group_of(row)][index] += duration_ns
            operators_ns += duration_ns
        bias_ns = 0.0
        if event_ns is not None:
            bias_ns = side.instrumented_ns - side.plain_ns - event_ns * side.events
            times[PROFILER][index] = -bias_ns
        times[HOST][index] = side.plain_ns - operators_ns + bias_ns
    launch.totals.append((one.baseline.plain_ns, one.candidate.plain_ns))
    for key, (baseline_ns, candidate_ns) in times.items():
        launch.parts[key].append((baseline_ns, candidate_ns))


def _durations(side: MeasuredSide) -> Iterator[tuple[OperatorRow, float]]:
    """Return the rows with their durations, without the cost of recording the events inside."""
    slowdown_ns = max(0.0, side.instrumented_ns - side.plain_ns)
    event_ns = min(LARGEST_EVENT_NS, slowdown_ns / side.events) if side.events > 0.0 else 0.0
    for row in side.rows:
        yield row, max(0.0, row.duration_ns - event_ns * row.nested)


@dataclass(frozen=True, kw_only=True)
class _Estimate:
    baseline_ns: float
    candidate_ns: float
    low_ns: float
    high_ns: float
    p_value: float


def _estimate(
    launches: Sequence[Sequence[tuple[float, float]]],
    total_ns: float,
    *,
    has_own_noise: bool = False,
) -> _Estimate:
    """Estimate a difference from the times of both sides in the rounds of each launch.

    The spread between launches is expected in proportion to the time of the iteration, or to that of
    the part if `has_own_noise`.
    """
    rounds = [launch or [(0.0, 0.0)] for launch in launches]
    baseline_ns = fmean(fmean(one for one, _ in launch) for launch in rounds)
    candidate_ns = fmean(fmean(other for _, other in launch) for launch in rounds)
    scale_ns = total_ns
    if has_own_noise:
        scale_ns = max(baseline_ns, candidate_ns, SMALLEST_SCALE * total_ns)
    difference = estimate_difference(
        [[(other - one) / scale_ns for one, other in launch] for launch in rounds], alpha=ALPHA
    )
    return _Estimate(
        baseline_ns=baseline_ns,
        candidate_ns=candidate_ns,
        low_ns=difference.low * scale_ns,
        high_ns=difference.high * scale_ns,
        p_value=difference.p_value,
    )


def _adjusted_p(estimates: Sequence[_Estimate], total_ns: float) -> list[float]:
    """Correct for the number of parts that are large enough to be named."""
    limit_ns = SMALLEST_SHARE * total_ns
    tested = [
        index
        for index, one in enumerate(estimates)
        if max(abs(one.baseline_ns), abs(one.candidate_ns)) >= limit_ns
    ]
    adjusted = [1.0] * len(estimates)
    p_values = benjamini_hochberg([estimates[index].p_value for index in tested])
    for index, p_value in zip(tested, p_values, strict=True):
        adjusted[index] = p_value
    return adjusted


def _part(
    key: Key,
    estimate: _Estimate,
    adjusted_p: float,
    groups: Groups,
    sides: tuple[list[MeasuredSide], list[MeasuredSide]],
    total_ns: float,
    work: Sequence[Mapping[Source, Work]],
    *,
    on_gpu: bool,
) -> Part:
    kind = _REMAINDERS.get(key, "operators")
    if kind == "host" and on_gpu:
        kind = "idle"
    sources: tuple[Source, ...] = ()
    if kind == "operators":
        members = groups.members(key)
        sources = tuple(sorted({one for member in members for one in groups.sources[member]}))
    difference_ns = estimate.candidate_ns - estimate.baseline_ns
    timed = kind in {"operators", "unattributed"}
    kernels = [_kernels(key, side, groups) if timed else () for side in sides]
    named = adjusted_p <= ALPHA and abs(difference_ns) >= SMALLEST_SHARE * total_ns
    return Part(
        kind=kind,
        name=part_name(kind, sources),
        baseline_ns=estimate.baseline_ns,
        candidate_ns=estimate.candidate_ns,
        low_ns=estimate.low_ns,
        high_ns=estimate.high_ns,
        p_value=estimate.p_value,
        adjusted_p=adjusted_p,
        named=named and kind in {"operators", "host", "idle"},
        sources=sources,
        baseline_kernels=kernels[0],
        candidate_kernels=kernels[1],
        baseline_work=_work(key, sides[0], groups, sources, work[0]),
        candidate_work=_work(key, sides[1], groups, sources, work[1]),
    )


def _work(
    key: Key,
    side: Sequence[MeasuredSide],
    groups: Groups,
    sources: Sequence[Source],
    work: Mapping[Source, Work],
) -> Work | None:
    """Return the work of a part on one side: of its generated kernels where known, else of eager code."""
    rows = [
        row
        for block in side
        for row in block.rows
        if row.moved_bytes and groups.group_of(row) == key
    ]
    generated = {source for row in rows for source in row.sources}
    work_of_sources = [work[one] for one in sources if one in work]
    moved_bytes = sum(row.calls * row.moved_bytes for row in rows) / max(1, len(side))
    moved_bytes += sum(
        work[one].moved_bytes for one in sources if one in work and one not in generated
    )
    flops = sum(one.flops for one in work_of_sources)
    return Work(flops=flops, moved_bytes=moved_bytes) if flops or moved_bytes else None


def part_name(kind: PartKind, sources: Sequence[Source]) -> str:
    """Return a name such as `LayerNorm blocks.*.norm: native_layer_norm`."""
    if kind == "host":
        return "host time outside of operators"
    if kind == "idle":
        return "idle gaps: the GPU waits for the host (launches, Python, synchronization)"
    if kind == "profiler":
        return "profiler bias: slowdown by the profiler that is not host time"
    if kind == "unattributed":
        return "operators without a known source"
    names: dict[str, list[str]] = {}
    for source in sources:
        module = f"{source.kind} {source.module}".strip() if source.module else source.kind
        where = module or "program"
        phase = "" if source.phase == "forward" else f" {source.phase}"
        operators = names.setdefault(where + phase, [])
        if source.operator not in operators:
            operators.append(source.operator)
    return "; ".join(f"{where}: {', '.join(operators)}" for where, operators in names.items())


def _kernels(key: Key, side: Sequence[MeasuredSide], groups: Groups) -> tuple[Kernel, ...]:
    totals: dict[str, list[float]] = {}
    for block in side:
        for row, duration_ns in _durations(block):
            if groups.group_of(row) == key:
                total = totals.setdefault(row.name, [0.0, 0.0])
                total[0] += row.calls
                total[1] += duration_ns
    count = len(side)
    kernels = [
        Kernel(name=name, calls=calls / count, duration_ns=duration_ns / count)
        for name, (calls, duration_ns) in totals.items()
    ]
    return tuple(sorted(kernels, key=lambda one: -one.duration_ns))


def _overhead(side: Sequence[MeasuredSide]) -> float:
    return median(block.instrumented_ns / block.plain_ns for block in side) - 1.0

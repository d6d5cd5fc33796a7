"""Detect changes in the histories of workloads, from the index of runs, and describe them.

All points of a series show how noisy it is; the requested period only selects which changes are reported. Over many
series the false discovery rate is controlled (Benjamini-Hochberg). Results are cached in a file next to the index,
valid only for exactly the points they were computed from.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from torchyard.core.comparison import Interval
from torchyard.core.records import decode, encode
from torchyard.core.short_names import short_texts
from torchyard.core.units import format_bytes, format_count, format_duration, format_percent
from torchyard.errors import NothingToDo, TorchyardError, UsageError
from torchyard.files.safe_reading import LARGEST_ROWS_BYTES, read_json
from torchyard.files.safe_writing import replace_file
from torchyard.presentation.safe_text import one_line
from torchyard.presentation.wording import number_text
from torchyard.results.model import (
    ChangePoint,
    Metric,
    RunFilter,
    Series,
    SeriesHistory,
    SeriesPoint,
)

if TYPE_CHECKING:
    from torchyard.results.index.store import Store
    from torchyard.stats.change_points.detection import Rules
    from torchyard.stats.change_points.shape import Move

_FORMAT: Final = 1
"""Incremented when the format of the cache or the detection method changes."""
_ENTRY_KEYS: Final = {"digest", "found", "settled_points", "settled_digest", "settled"}


class ChangeCache:
    """Cache of detected changes, in memory and optionally in a file.

    Entries have the digest of all analyzed points, the changes found as plain values, and the part of
    the analysis that later points do not affect (`settled`) with the number and digest of its points.
    """

    def __init__(self, place: Path | None = None) -> None:
        self.place = place
        self._entries = _read(place) if place is not None else {}
        self._changed = False

    def get(self, key: str) -> dict[str, Any]:
        """Return the entry of a series; empty if there is none."""
        entry = self._entries.get(key)
        return entry if isinstance(entry, dict) and entry.keys() == _ENTRY_KEYS else {}

    def put(self, key: str, entry: dict[str, Any]) -> None:
        """Cache the entry of a series; `save` writes it to the file."""
        self._entries[key] = entry
        self._changed = True

    def save(self) -> None:
        """Write new entries to the file; write errors are ignored."""
        if self.place is None or not self._changed:
            return
        text = json.dumps({"format": _FORMAT, "series": self._entries}, separators=(",", ":"))
        with suppress(TorchyardError):
            replace_file(self.place, text)
            self._changed = False


def digest_of(points: Sequence[SeriesPoint]) -> str:
    """Return a digest of the runs and values."""
    state = hashlib.sha256()
    for point in points:
        state.update(repr((point.run, point.value, point.low, point.high)).encode())
    return state.hexdigest()


def _read(place: Path) -> dict[str, Any]:
    try:
        document = read_json(place, largest_bytes=LARGEST_ROWS_BYTES)
    except (OSError, ValueError):
        return {}
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        return {}
    entries = document.get("series")
    return entries if isinstance(entries, dict) else {}


FALSE_DISCOVERY_RATE: Final = 0.05
"""Accepted share of false changes among all reported changes."""
_Z_95: Final = 1.96
"""Half width of a 95 % confidence interval in standard errors."""


def histories(
    store: Store,
    filters: RunFilter,
    metric: Metric = "speedup",
    *,
    with_untrusted: bool = False,
    **options: Any,
) -> list[SeriesHistory]:
    """Return every matching series with its changes in the requested period; raise NothingToDo if none matches.

    `options` are those of `histories_of`.
    """
    matching = store.series(filters, metric)
    if not matching and filters.workload:
        # A name without its mode means all modes: labels are `kernels/matmul inference`.
        all_modes = replace(filters, workload=f"{filters.workload} *")
        matching = store.series(all_modes, metric)
    if not matching:
        what = f" of {filters.workload!r}" if filters.workload else ""
        raise NothingToDo(
            f"there is no history{what}",
            why=f"no matching run has a {metric} of it",
            hint="see the measured workloads with `torchyard results list --comparisons`",
        )

    def points_of(series: Series) -> list[SeriesPoint]:
        points = store.points(series)
        return [point._replace(untrusted=False) for point in points] if with_untrusted else points

    return [_in_period(one, filters) for one in histories_of(matching, points_of, **options)]


def histories_of(
    matching: Collection[Series],
    points_of: Callable[[Series], Sequence[SeriesPoint]],
    *,
    rules: Rules | None = None,
    cache: ChangeCache | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[SeriesHistory]:
    """Return the series with their changes, corrected for the number of series."""
    cache = cache or ChangeCache()
    analyzed = []
    for number, series in enumerate(matching, start=1):
        analyzed.append(history_of(series, points_of(series), rules=rules, cache=cache))
        if progress is not None:
            progress(number, len(matching))
    cache.save()
    return _adjusted(analyzed)


def history_of(
    series: Series,
    points: Sequence[SeriesPoint],
    *,
    rules: Rules | None = None,
    cache: ChangeCache | None = None,
) -> SeriesHistory:
    """Detect the changes of one series, without correction for other series."""
    indices = [
        index
        for index, point in enumerate(points)
        if not point.untrusted and math.isfinite(point.value) and point.value > 0.0
    ]
    usable = [points[index] for index in indices]
    moves = _moves(series, usable, rules, cache or ChangeCache())
    return SeriesHistory(
        series=series,
        points=tuple(points),
        changes=tuple(_change(move, usable, indices) for move in moves),
    )


def ranked(series: Sequence[SeriesHistory]) -> list[SeriesHistory]:
    """Return the series that changed, largest change first."""
    changed = [one for one in series if one.changes]
    return sorted(changed, key=lambda one: -max(abs(math.log(c.ratio)) for c in one.changes))


def _moves(
    series: Series, points: list[SeriesPoint], rules: Rules | None, cache: ChangeCache
) -> list[Move]:
    key = "\n".join([*map(str, encode(series).values()), repr(rules)])
    digest = digest_of(points)
    cached = cache.get(key)
    is_current = cached.get("digest") == digest
    if is_current and not cached["found"]:
        return []
    # Loads numpy, so only if needed.
    from torchyard.stats.change_points.detection import Settled, find_moves, settle
    from torchyard.stats.change_points.shape import Move

    settled = Settled()
    try:
        if is_current:
            return [decode(Move, move, where="changes", strict=False) for move in cached["found"]]
        if cached and cached["settled_digest"] == digest_of(points[: cached["settled_points"]]):
            settled = decode(Settled, cached["settled"], where="changes", strict=False)
    except (UsageError, TypeError):
        settled = Settled()
    values = [point.value for point in points]
    errors = [_error(point) for point in points]
    settled = settle(values, errors, settled=settled, rules=rules)
    moves = find_moves(values, errors, settled=settled, rules=rules)
    # The settled part also depends on some points after it.
    rests_on = settled.rests_on
    entry = {
        "digest": digest,
        "found": encode(moves),
        "settled_points": rests_on,
        "settled_digest": digest_of(points[:rests_on]),
        "settled": encode(settled),
    }
    cache.put(key, entry)
    return moves


def _error(point: SeriesPoint) -> float | None:
    """Return the standard error of the logarithm from the interval, if there is one."""
    if point.low is None or point.high is None or not 0.0 < point.low <= point.high < math.inf:
        return None
    return math.log(point.high / point.low) / (2.0 * _Z_95)


def _change(move: Move, points: list[SeriesPoint], indices: list[int]) -> ChangePoint:
    last = min(move.last, len(points) - 1)
    begins = move.first - 1 if move.kind == "step" else move.first
    return ChangePoint(
        kind=move.kind,
        position=indices[move.first],
        last=indices[last],
        before=points[max(begins, 0)],
        after=points[last],
        ratio=math.exp(move.shift),
        interval=Interval(low=math.exp(move.low), high=math.exp(move.high)),
        p_value=move.p_value,
    )


def _adjusted(series: list[SeriesHistory]) -> list[SeriesHistory]:
    """Correct p-values over all series; changes that are not significant afterwards are weak."""
    # A series without a change is a test with p = 1.
    p_values = [
        p_value
        for one in series
        for p_value in ([change.p_value for change in one.changes] or [1.0])
    ]
    if all(p_value >= 1.0 for p_value in p_values):
        return series
    from torchyard.stats.suite import benjamini_hochberg

    adjusted = iter(benjamini_hochberg(p_values))
    result = []
    for one in series:
        if not one.changes:
            next(adjusted)
        changes = [replace(change, p_adjusted=next(adjusted)) for change in one.changes]
        result.append(
            replace(
                one,
                changes=tuple(c for c in changes if (c.p_adjusted or 0.0) <= FALSE_DISCOVERY_RATE),
                weak=tuple(c for c in changes if (c.p_adjusted or 0.0) > FALSE_DISCOVERY_RATE),
            )
        )
    return result


def _in_period(one: SeriesHistory, filters: RunFilter) -> SeriesHistory:
    def in_period(change: ChangePoint) -> bool:
        late_enough = not filters.since or change.after.started >= filters.since
        return late_enough and (not filters.until or change.before.started < filters.until)

    return replace(
        one,
        changes=tuple(change for change in one.changes if in_period(change)),
        weak=tuple(change for change in one.weak if in_period(change)),
    )


METRIC_NAMES: Final[dict[Metric, str]] = {
    "speedup": "speedup",
    "time": "time",
    "compile": "compile time",
    "memory": "peak memory",
}
METHOD: Final = (
    "Changes are detected by ranks (circular binary segmentation); p is the probability that a series "
    "without changes shows such a change."
)
_REVISION_LETTERS: Final = 12
_SMALLEST_P: Final = 1e-4


def with_short_names(histories: Sequence[SeriesHistory]) -> list[SeriesHistory]:
    """Return the histories with short names of user files, for people."""
    labels = short_texts(one.series.workload for one in histories)
    return [
        replace(one, series=replace(one.series, workload=labels[one.series.workload]))
        for one in histories
    ]


def series_title(history: SeriesHistory) -> str:
    """Return the title of a history."""
    series = history.series
    of = f"{METRIC_NAMES[series.metric]} of {series.candidate}"
    if series.metric == "speedup":
        of += f" over {series.baseline}"
    where = f" on {series.machine}" if series.machine else ""
    return one_line(f"{series.workload}: {of}{where}")


def changed_title(histories: Sequence[SeriesHistory], metric: Metric) -> str:
    """Return how many histories changed."""
    changed = sum(bool(one.changes) for one in histories)
    noun = "history" if len(histories) == 1 else "histories"
    return f"{changed} of {len(histories)} {noun} changed in {METRIC_NAMES[metric]}"


def counts_text(history: SeriesHistory) -> str:
    """Return the number of points, their period, and what was not analyzed."""
    parts = [format_count(len(history.points), "run")]
    if history.points:
        parts.append(f"{when_text(history.points[0])} to {when_text(history.points[-1])}")
    if history.left_out:
        every = "all" if history.left_out == len(history.points) else str(history.left_out)
        parts.append(f"{every} untrusted, not analyzed (--with-untrusted includes them)")
    if history.weak:
        parts.append(
            f"{len(history.weak)} more not significant after correction for all analyzed histories"
        )
    return "; ".join(parts)


def value_text(metric: Metric, value: float) -> str:
    """Format a value of the metric."""
    if metric == "speedup":
        return f"{number_text(value)}x"
    if metric == "memory":
        return format_bytes(value)
    return format_duration(value if metric == "time" else value * 1e9)


def change_size(change: ChangePoint) -> str:
    """Return the relative change."""
    return format_percent(change.ratio - 1.0, signed=True)


def change_interval(change: ChangePoint) -> str:
    """Return the confidence interval of the change; empty if there is none."""
    if change.interval is None:
        return ""
    ends = (change.interval.low, change.interval.high)
    return "[" + ", ".join(format_percent(end - 1.0, signed=True) for end in ends) + "]"


def change_levels(history: SeriesHistory, change: ChangePoint) -> tuple[float, float]:
    """Return the levels before and after a change; their ratio is the size of the change."""
    starts = [one.last for one in history.changes if one.last < change.position]
    points = history.points[max(starts, default=0) : change.position]
    before = median([one.value for one in points if not one.untrusted] or [change.before.value])
    return before, before * change.ratio


def p_text(change: ChangePoint) -> str:
    """Return the p-value, adjusted over all series if there are several."""
    p_value = change.p_value if change.p_adjusted is None else change.p_adjusted
    return f"< {_SMALLEST_P:g}" if p_value < _SMALLEST_P else f"{p_value:.2g}"


def revision_text(point: SeriesPoint) -> str:
    """Return the revision, or the run if the revision is unknown."""
    return one_line(point.revision)[:_REVISION_LETTERS] or one_line(point.run)


def range_text(change: ChangePoint) -> str:
    """Return the range of revisions that contains the cause, in git notation."""
    return f"{revision_text(change.before)}..{revision_text(change.after)}"


def when_text(point: SeriesPoint) -> str:
    """Return date and time to the minute, in UTC."""
    return one_line(point.started)[:16].replace("T", " ")


def change_sentence(change: ChangePoint, metric: Metric) -> str:
    """Return a sentence such as `speedup: step change of -12.3% [...], worse, in a1b..c2d (p ...)`."""
    name = METRIC_NAMES[metric]
    runs = change.last - change.position + 1
    kind = "step change" if change.kind == "step" else f"drift over {runs} runs"
    return (
        f"{name}: {kind} of {change_size(change)} {change_interval(change)}, "
        f"{change.towards(metric)}, in {range_text(change)} (p {p_text(change)})"
    )

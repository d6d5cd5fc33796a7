"""Histories of workloads with their changes: joins the index of runs and change-point detection.

Changes are detected in all points of a series, whatever period is requested, because earlier
points show how noisy the series is; the period only selects which changes are reported. Over many
series the false discovery rate is controlled (Benjamini-Hochberg).

Earlier results are cached in a file beside the index, so that a new point costs as little as
possible. The cache may be deleted at any time. An entry is valid only for exactly the points it
was computed from, identified by their digest.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from torchyard.core.comparison import Interval
from torchyard.core.records import decode, encode
from torchyard.errors import NothingToDo, TorchyardError, UsageError
from torchyard.files.safe_reading import LARGEST_ROWS_BYTES, read_json
from torchyard.files.safe_writing import replace_file
from torchyard.results.model import ChangePoint, Metric, Series, SeriesHistory, SeriesPoint, Wanted

_FORMAT: Final = 1
"""Raised when what is kept, or the method that makes it, changes."""


@dataclass(frozen=True, kw_only=True)
class Remembered:
    """What is known of a series."""

    digest: str
    """Of all points that were judged."""
    found: Any
    """What was found in them, as plain values."""
    settled_points: int = 0
    settled_digest: str = ""
    settled: Any = None
    """What will not change any more, whatever points come after those."""


class HistoryMemory:
    """In memory, and in a file if there is a place for one."""

    def __init__(self, place: Path | None = None) -> None:
        self.place = place
        self._known = _read(place) if place is not None else {}
        self._changed = False

    def recall(self, key: str) -> Remembered | None:
        """What is known under the key."""
        entry = self._known.get(key)
        if not isinstance(entry, dict):
            return None
        try:
            return Remembered(**entry)
        except TypeError:
            return None

    def keep(self, key: str, found: Remembered) -> None:
        """Remember it until the next `save`."""
        self._known[key] = dict(vars(found))
        self._changed = True

    def save(self) -> None:
        """Write what is new; a full or read-only disk costs only the time saved next time."""
        if self.place is None or not self._changed:
            return
        text = json.dumps({"format": _FORMAT, "series": self._known}, separators=(",", ":"))
        with suppress(TorchyardError):
            replace_file(self.place, text)
            self._changed = False


def digest_of(points: Sequence[SeriesPoint]) -> str:
    """Alike for the same runs and values only."""
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
    known = document.get("series")
    return known if isinstance(known, dict) else {}


if TYPE_CHECKING:
    from torchyard.stats.change_points.detection import Rules
    from torchyard.stats.change_points.shape import Move


FALSE_SHARE: Final = 0.05
"""Share of wrong ones that is allowed among all changes told at once."""
_NORMAL_REACH: Final = 1.96
"""Half of a 95 % interval in standard errors."""


class HistoryStore(Protocol):
    """What is asked of `results.index.store.Store`."""

    def series(self, wanted: Wanted, metric: Metric) -> list[Series]:
        """What there is a history of."""

    def points(self, series: Series) -> list[SeriesPoint]:
        """The history, oldest first."""


def histories(
    store: HistoryStore,
    wanted: Wanted,
    metric: Metric = "speedup",
    *,
    rules: Rules | None = None,
    with_untrusted: bool = False,
    memory: HistoryMemory | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[SeriesHistory]:
    """Every series that fits, with the changes in the time that is asked for.

    `with_untrusted` judges untrusted points like all others. Raises NothingToDo when no series
    fits.
    """
    found = store.series(wanted, metric)
    if not found and wanted.workload:
        # A name without its mode means all modes: labels are `kernels/matmul inference`.
        found = store.series(dataclasses.replace(wanted, workload=f"{wanted.workload} *"), metric)
    if not found:
        what = f" of {wanted.workload!r}" if wanted.workload else ""
        raise NothingToDo(
            f"there is no history{what}",
            why=f"no run that fits has a {metric} of it",
            hint="`torchyard results list --comparisons` shows what was measured",
        )
    memory = memory or HistoryMemory()
    looked_at = []
    for number, series in enumerate(found, start=1):
        points = store.points(series)
        if with_untrusted:
            points = [point._replace(untrusted=False) for point in points]
        looked_at.append(history_of(series, points, rules=rules, memory=memory))
        if progress is not None:
            progress(number, len(found))
    memory.save()
    return [_in_time(one, wanted) for one in _adjusted(looked_at)]


def history_of(
    series: Series,
    points: Sequence[SeriesPoint],
    *,
    rules: Rules | None = None,
    memory: HistoryMemory | None = None,
) -> SeriesHistory:
    """One series with its changes, judged by itself."""
    places = [place for place, point in enumerate(points) if _judged(point)]
    judged = [points[place] for place in places]
    moves = _moves(series, judged, rules, memory or HistoryMemory())
    return SeriesHistory(
        series=series,
        points=tuple(points),
        changes=tuple(_change(move, judged, places) for move in moves),
    )


def ranked(found: Sequence[SeriesHistory]) -> list[SeriesHistory]:
    """Those that changed, the largest change first."""
    changed = [one for one in found if one.changes]
    return sorted(changed, key=lambda one: -_size(one.largest))


def _judged(point: SeriesPoint) -> bool:
    return not point.untrusted and math.isfinite(point.value) and point.value > 0.0


def _moves(
    series: Series, points: list[SeriesPoint], rules: Rules | None, memory: HistoryMemory
) -> list[Move]:
    key = "\n".join([*map(str, encode(series).values()), repr(rules)])
    digest = digest_of(points)
    known = memory.recall(key)
    if known is not None and known.digest == digest and not known.found:
        return []
    # Loads numpy: not before there is something to say.
    from torchyard.stats.change_points.detection import Settled, find_moves, settle
    from torchyard.stats.change_points.shape import Move

    settled = Settled()
    if known is not None:
        try:
            if known.digest == digest:
                return [decode(Move, move, where="changes", strict=False) for move in known.found]
            if known.settled_digest == digest_of(points[: known.settled_points]):
                settled = decode(Settled, known.settled, where="changes", strict=False)
        except UsageError:
            settled = Settled()
    values = [point.value for point in points]
    errors = [_error(point) for point in points]
    settled = settle(values, errors, settled=settled, rules=rules)
    moves = find_moves(values, errors, settled=settled, rules=rules)
    # What is settled rests on points after it, too; with other ones it would not be the same.
    rests_on = settled.rests_on
    memory.keep(
        key,
        Remembered(
            digest=digest,
            found=encode(moves),
            settled_points=rests_on,
            settled_digest=digest_of(points[:rests_on]),
            settled=encode(settled),
        ),
    )
    return moves


def _error(point: SeriesPoint) -> float | None:
    """Standard error of the logarithm, from the interval where there is one."""
    if point.low is None or point.high is None or not 0.0 < point.low <= point.high < math.inf:
        return None
    return math.log(point.high / point.low) / (2.0 * _NORMAL_REACH)


def _change(move: Move, judged: list[SeriesPoint], places: list[int]) -> ChangePoint:
    last = min(move.last, len(judged) - 1)
    begins = move.first - 1 if move.kind == "step" else move.first
    return ChangePoint(
        kind=move.kind,
        position=places[move.first],
        last=places[last],
        before=judged[max(begins, 0)],
        after=judged[last],
        ratio=math.exp(move.shift),
        interval=Interval(low=math.exp(move.low), high=math.exp(move.high)),
        p_value=move.p_value,
    )


def _adjusted(found: list[SeriesHistory]) -> list[SeriesHistory]:
    """With p-values among all series; changes that do not stand among them are weak."""
    # A series without a change is a test that found nothing.
    chances = [
        chance for one in found for chance in ([change.p_value for change in one.changes] or [1.0])
    ]
    if all(chance >= 1.0 for chance in chances):
        return found
    from torchyard.stats.suite import benjamini_hochberg

    adjusted = iter(benjamini_hochberg(chances))
    result = []
    for one in found:
        if not one.changes:
            next(adjusted)
        changes = [dataclasses.replace(change, p_adjusted=next(adjusted)) for change in one.changes]
        result.append(
            dataclasses.replace(
                one,
                changes=tuple(c for c in changes if (c.p_adjusted or 0.0) <= FALSE_SHARE),
                weak=tuple(c for c in changes if (c.p_adjusted or 0.0) > FALSE_SHARE),
            )
        )
    return result


def _in_time(one: SeriesHistory, wanted: Wanted) -> SeriesHistory:
    def told(change: ChangePoint) -> bool:
        late_enough = not wanted.since or change.after.started >= wanted.since
        return late_enough and (not wanted.until or change.before.started < wanted.until)

    return dataclasses.replace(
        one,
        changes=tuple(change for change in one.changes if told(change)),
        weak=tuple(change for change in one.weak if told(change)),
    )


def _size(change: ChangePoint | None) -> float:
    return abs(math.log(change.ratio)) if change is not None else 0.0

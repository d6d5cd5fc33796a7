"""When the workers of this process were paused, or waited for their turn on the device.

Times are those of the monotonic clock, which all processes share.
"""

from __future__ import annotations

from pathlib import Path

_spans: list[tuple[float, float]] = []
_turn_folder = ""


def take_turns(folder: Path | None) -> None:
    """Make all workers take turns on the device in this folder; None: they may use it at any time."""
    global _turn_folder  # noqa: PLW0603  # of the process, like its workers
    _turn_folder = "" if folder is None else str(folder)


def turn_fields() -> dict[str, str]:
    """Return the fields of a request that make a worker take turns (`worker/device_turn.py`)."""
    return {"turn": _turn_folder} if _turn_folder else {}


def record_pause(start_s: float, end_s: float) -> None:
    """Record a pause."""
    _spans.append((start_s, end_s))


def record_waits(waits: object) -> None:
    """Record the waits that an answer of a worker reports; anything else in it is ignored."""
    for wait in waits if isinstance(waits, list) else ():
        match wait:
            case [int() | float() as start_s, int() | float() as end_s]:
                record_pause(float(start_s), float(end_s))


def pauses(start_s: float, end_s: float) -> list[tuple[float, float]]:
    """Return the pauses between these moments."""
    spans = [(max(start_s, start), min(end_s, end)) for start, end in _spans]
    return [(start, end) for start, end in spans if start < end]


def paused_s(start_s: float, end_s: float) -> float:
    """Return the duration of the pauses between these moments."""
    return sum(end - start for start, end in pauses(start_s, end_s))

"""The wall time of a session by phase of its launches, and the sums.

A phase is a request to a worker process, or what the controller does between requests. Phases can
contain others: a block contains its timed part, an accuracy check the first call of a variant, a
request the times in which its process was paused or waited for the device. Each moment counts for
the innermost phase only, so that the sums add up to the wall time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from torchyard.process.timing_turn import pauses

TIMED: Final = "timed blocks"
COMPILATION: Final = "compilation"
START: Final = "process start"
TEMPLATES: Final = "template start"
EXIT: Final = "process exit"
WAITING: Final = "waiting"
OTHER: Final = "other"
_REQUESTS: Final = {
    "hello": START,
    "build": "model build",
    "reference": "accuracy check",
    "judge": "accuracy check",
    "warm": "warm-up",
    "measure": "metrics",
    "reseat": "relocation",
    "block": "block set-up",
    "verify": "result check",
    "recheck": "result check",
}

Phase = tuple[str, str, float, float]
"""Name, variant (empty for all), start and end in seconds since the session began."""


class Timeline:
    """The phases of a session, as they end."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_s = clock()
        self._phases: list[Phase] = []

    @contextmanager
    def phase(self, name: str, variant: str = "") -> Iterator[None]:
        """Record the block as a phase, also if it raises."""
        start_s = self._now_s()
        try:
            yield
        finally:
            self._add(name, variant, start_s, self._now_s())

    def ask(self, verb: str, variant: str, request: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Make a request; record it, and the timed part or the first call that its answer reports."""
        start_s = self._now_s()
        try:
            answer = request()
        finally:
            end_s = self._now_s()
            self._add(_REQUESTS.get(verb, OTHER), variant, start_s, end_s)
            for pause in pauses(self._began_s + start_s, self._began_s + end_s):
                self._add(WAITING, variant, *(moment - self._began_s for moment in pause))
        # A first call comes first in its request, the timed part of a block last.
        if (compile_s := float(answer.get("compile_s", 0.0))) > 0.0:
            self._add(COMPILATION, variant, start_s, min(end_s, start_s + compile_s))
        if verb == "block":
            timed_s = float(answer["wall_ns"]) / 1e9
            self._add(TIMED, variant, max(start_s, end_s - timed_s), end_s)
        return answer

    def take(self) -> list[Phase]:
        """Return the phases since the last call, in order of their start."""
        phases, self._phases = self._phases, []
        return sorted(phases, key=lambda phase: (phase[2], -phase[3]))

    def _now_s(self) -> float:
        return self._clock() - self._began_s

    def _add(self, name: str, variant: str, start_s: float, end_s: float) -> None:
        self._phases.append((name, variant, round(start_s, 6), round(end_s, 6)))


@dataclass(kw_only=True)
class PhaseTimes:
    """Sums of the phases of launches, without waiting for other sessions."""

    seconds: dict[str, float] = field(default_factory=dict)
    """By name of the phase, longest first."""
    after_compilation_s: float = 0.0
    """Wall time after the variants of the first launch of each workload were compiled."""

    @property
    def wall_s(self) -> float:
        """Wall time of all launches."""
        return math.fsum(self.seconds.values())

    @property
    def timed_share(self) -> float | None:
        """Share of the wall time inside timed blocks."""
        return self.seconds.get(TIMED, 0.0) / self.wall_s if self.wall_s > 0.0 else None

    @property
    def timed_share_after_compilation(self) -> float | None:
        """Share of the wall time inside timed blocks, once the first launch had compiled."""
        after_s = self.after_compilation_s
        return self.seconds.get(TIMED, 0.0) / after_s if after_s > 0.0 else None


def phase_times(launches: Iterable[Mapping[str, Any]]) -> PhaseTimes:
    """Sum the phases in records of launches; records of older versions have none."""
    seconds: dict[str, float] = {}
    after_s = 0.0
    compiled: set[str] = set()
    for launch in launches:
        phases = _read_phases(launch.get("phases"))
        if not phases:
            continue
        label = str(launch.get("workload"))
        is_first = label not in compiled
        compiled.add(label)
        compiled_s = max((p[3] for p in phases if p[0] == COMPILATION), default=-math.inf)
        for name, start_s, end_s in _innermost(phases):
            if name != WAITING:
                seconds[name] = seconds.get(name, 0.0) + end_s - start_s
                if not is_first or start_s >= compiled_s:
                    after_s += end_s - start_s
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    return PhaseTimes(seconds=dict(ordered), after_compilation_s=after_s)


def _read_phases(record: object) -> list[Phase]:
    """Return the valid phases of a record, which may be damaged."""
    phases = []
    for one in record if isinstance(record, Sequence) and not isinstance(record, str) else ():
        match one:
            case [str(name), str(variant), int() | float() as start, int() | float() as end]:
                if math.isfinite(start) and math.isfinite(end) and start < end:
                    phases.append((name, variant, float(start), float(end)))
    return phases


def _innermost(phases: Sequence[Phase]) -> Iterator[tuple[str, float, float]]:
    """Yield intervals without overlap, each with the name of the phase that started last in it."""
    waiting = sorted(phases, key=lambda phase: (-phase[2], phase[3]))
    active: list[Phase] = []
    moments = sorted({moment for phase in phases for moment in phase[2:]})
    for start_s, end_s in pairwise(moments):
        active = [phase for phase in active if phase[3] > start_s]
        while waiting and waiting[-1][2] <= start_s:
            active.append(waiting.pop())
        if active:
            yield max(active, key=lambda phase: (phase[2], -phase[3]))[0], start_s, end_s

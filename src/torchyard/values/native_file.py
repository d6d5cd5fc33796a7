"""What a run without the watch left: which operators ran, and how long a step took. Reads only."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from torchyard.core.records import decode
from torchyard.errors import ResultsDamaged, UsageError

__all__ = ["CountedChain", "NativeRun", "SiteTime", "read_native_run"]

FORMAT: Final = 1


@dataclass(frozen=True, kw_only=True)
class CountedChain:
    """Operators, each inside the one before, and how often the last of them ran there."""

    chain: tuple[str, ...]
    count: int


@dataclass(frozen=True, kw_only=True)
class SiteTime:
    """Times of an operator at one call site, in the program itself."""

    operator: str
    file: str
    line: int
    backward: bool
    shapes: str
    """`*` for all calls on the line, whatever their shapes."""
    calls: int
    wall_ns: tuple[float, ...] = ()
    """Means of groups of calls in order of time, each without its slowest calls."""
    cpu_ns: tuple[float, ...] = ()
    wall_most_ns: float = 0.0
    """The largest mean of a group, with its slowest calls."""
    cpu_most_ns: float = 0.0
    faults: float = 0.0
    """Page faults of one call."""
    made_bytes: float = 0.0
    """New memory of one call."""
    touched_bytes: float = 0.0


@dataclass(frozen=True, kw_only=True)
class NativeRun:
    """One run of the program without the watch."""

    format: int
    state: str
    exit_code: int = 0
    steps: int = 0
    recorded_steps: int = 0
    """Steps during which events were recorded."""
    recorded_whole: bool = False
    """Whether events were recorded to the end, so that nothing was timed untouched."""
    step_ns: float | None = None
    """Median of the steps that ran untouched."""
    step_cpu_ns: float | None = None
    timed_steps: int = 0
    steps_ns: tuple[float, ...] = ()
    """Each of the steps that ran untouched."""
    steps_cpu_ns: tuple[float, ...] = ()
    sites: tuple[SiteTime, ...] = ()
    """Operators that were timed where the program calls them."""
    site_steps: int = 0
    """Steps in which they were timed."""
    costs: dict[str, float] = field(default_factory=dict)
    """Of what surrounds operators on this machine (`worker/values/site_times.py`)."""
    turns_ns: tuple[tuple[float, float], ...] = ()
    """Pairs of steps: with gradients set to zero, with gradients set to None."""
    program_ns: float = 0.0
    program_cpu_ns: float = 0.0
    step_faults: float | None = None
    """Page faults of the untouched step that has most of them, and of the program."""
    program_faults: float = 0.0
    probes_ns: tuple[float, ...] = ()
    """CPU time of a fixed piece of work before and after each run that times were taken in: how much
    the speed of the machine has changed between them."""
    threads: int = 0
    accelerated: bool = False
    """Whether a GPU was used, so that CPU time says nothing of a step."""
    chains: tuple[CountedChain, ...] = ()
    notes: tuple[str, ...] = ()

    def times_seen(self, wanted: tuple[str, ...]) -> int:
        """How often a chain ran; around it are autograd and wrappers that the watch does not see."""
        length = len(wanted)
        return sum(item.count for item in self.chains if item.chain[-length:] == wanted)


def read_native_run(path: Path) -> NativeRun:
    """What the worker wrote; raises ResultsDamaged when it wrote nothing readable."""
    try:
        data = json.loads(path.read_bytes())
        run = decode(
            NativeRun,
            {key: value for key, value in data.items() if value is not None},
            where=str(path),
            strict=False,
        )
    except (OSError, ValueError, AttributeError, UsageError) as error:
        raise ResultsDamaged(f"{path} cannot be read: {error}", hint="run it again") from error
    if run.format > FORMAT:
        raise ResultsDamaged(f"{path} is of a newer format ({run.format})", hint="update Torchyard")
    return run

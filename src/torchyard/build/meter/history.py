"""What compiling each file has cost on this machine, and how long each step took.

One small JSON file per component. It only makes guesses better, so nothing here fails a build: a
damaged file counts as none, and an unwritable one is not written.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from torchyard.build.meter.log import Compile, MeterLog
from torchyard.errors import TorchyardError
from torchyard.results.durable import replace_file, to_json_text

__all__ = ["ComponentHistory", "CurvePoint", "FileCost", "History", "StepRun"]

_FORMAT: Final = 1
_MOST_FILES: Final = 20_000
_MOST_STEPS: Final = 40
_MOST_POINTS: Final = 120
_TABLE_MARGIN: Final = 1.1
"""Files grow from release to release, and ru_maxrss leaves out driver and assembler."""
_FORGET: Final = 0.25
"""Share by which a remembered peak above the new one comes down at each measurement."""
_HIT_MIB: Final = 16.0
"""Less than a compiler proper takes: measured, gcc 12 takes 20 MiB for a one-line C file, and
ccache 4.7 takes 4 MiB for a hit."""
_HIT_CPU_SHARE: Final = 0.5
_ELSEWHERE: Final = {"sccache", "distcc", "icecc"}
"""Their compiles run in another process than the one that the meter waits for."""
_PROBES: Final = re.compile(r"/CMakeFiles/CMake(Tmp|Scratch)/|/cmTC_[^/]*$|/TryCompile-|/conftest")


@dataclass(frozen=True, kw_only=True)
class FileCost:
    """What one file of a component needs."""

    peak_mib: float
    cpu_s: float
    copies: int = 1
    """Outputs of this basename in one build."""
    seen: int = 0
    """Day of the last measurement, for dropping the oldest."""


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """Where a step was at a time: in its n-th counted build, so many of so many."""

    build: int
    done: int
    total: int
    """0: that build gave no total."""
    elapsed_s: float


@dataclass(frozen=True, kw_only=True)
class StepRun:
    """One whole run of a step."""

    wall_s: float
    jobs: int = 0
    cpu_s: float = 0.0
    curve: tuple[CurvePoint, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ComponentHistory:
    """All that is remembered of a component."""

    files: Mapping[str, FileCost] = field(default_factory=dict)
    """By basename of the output."""
    steps: Mapping[str, StepRun] = field(default_factory=dict)
    """The last whole run of each step."""

    @property
    def cpu_s(self) -> float:
        """CPU time of a build of everything remembered."""
        return sum(cost.cpu_s * cost.copies for cost in self.files.values())

    def needs_mib(self) -> dict[str, int]:
        """Memory to reserve for each file, with a margin."""
        return {
            name: max(math.ceil(cost.peak_mib * _TABLE_MARGIN), 1)
            for name, cost in self.files.items()
            if cost.peak_mib > 0
        }

    def peak_quantile_mib(self, share: float) -> float | None:
        """The peak that this share of the files stays under; None when nothing is known."""
        peaks = sorted(cost.peak_mib for cost in self.files.values() if cost.peak_mib > 0)
        return peaks[min(int(share * len(peaks)), len(peaks) - 1)] if peaks else None


@dataclass(frozen=True, kw_only=True)
class History:
    """The folder of all components' histories."""

    folder: Path

    def read(self, component: str) -> ComponentHistory:
        """What is known of a component; empty when nothing is, or when the file is damaged."""
        try:
            content = json.loads(self._path(component).read_bytes())
            if content["format"] != _FORMAT:
                return ComponentHistory()
            return ComponentHistory(
                files={str(name): _file_cost(cost) for name, cost in content["files"].items()},
                steps={str(name): _step_run(run) for name, run in content["steps"].items()},
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return ComponentHistory()

    def learn(self, component: str, log: MeterLog) -> bool:
        """Add the compiles of a log; False when it could not be kept."""
        return self._change(
            component, lambda known: replace(known, files=_merged(known.files, log))
        )

    def learn_step(self, component: str, step: str, run: StepRun) -> bool:
        """Remember the whole run of a step; False when it could not be kept."""
        thinned = replace(run, curve=_thinned(run.curve))

        def add(known: ComponentHistory) -> ComponentHistory:
            steps = {name: other for name, other in known.steps.items() if name != step}
            newest = [*steps.items(), (step, thinned)][-_MOST_STEPS:]
            return replace(known, steps=dict(newest))

        return self._change(component, add)

    def _change(
        self, component: str, change: Callable[[ComponentHistory], ComponentHistory]
    ) -> bool:
        path = self._path(component)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _locked(path.with_suffix(".lock")):
                replace_file(path, _history_text(change(self.read(component))))
        except (OSError, TorchyardError):
            return False
        return True

    def _path(self, component: str) -> Path:
        return self.folder / f"{quote(component, safe='')}.json"


def _merged(known: Mapping[str, FileCost], log: MeterLog) -> dict[str, FileCost]:
    files = dict(known)
    for name, compiles in _by_name(log).items():
        old = files.get(name)
        real = [one for one in compiles if not _is_hit(one, old)]
        if not real:
            continue
        peak = max(one.peak_mib for one in real)
        cpu = sum(one.cpu_s for one in real) / len(real)
        if old is not None:
            peak = max(peak, old.peak_mib - (old.peak_mib - peak) * _FORGET)
            cpu = (cpu + old.cpu_s) / 2
        copies = max(len({one.output for one in real}), old.copies if old else 1)
        today = int(time.time() // 86_400)
        files[name] = FileCost(peak_mib=peak, cpu_s=cpu, copies=copies, seen=today)
    if len(files) > _MOST_FILES:
        newest = sorted(files.items(), key=lambda item: item[1].seen, reverse=True)[:_MOST_FILES]
        files = dict(newest)
    return files


def _by_name(log: MeterLog) -> dict[str, list[Compile]]:
    """Compiles worth learning from, by basename: real ones that ended well or for want of memory.

    Of a failed compile neither time nor memory is that of the whole file; of one that the kernel
    killed, the memory is a lower bound worth having.
    """
    found: dict[str, list[Compile]] = {}
    for one in log.compiles:
        if (one.succeeded or one.out_of_memory) and not _PROBES.search(one.output):
            found.setdefault(one.name, []).append(one)
    return found


def _is_hit(one: Compile, old: FileCost | None) -> bool:
    if one.tool in _ELSEWHERE:
        return True
    if one.tool != "ccache":
        return False
    return one.peak_mib < _HIT_MIB or (old is not None and one.cpu_s < old.cpu_s * _HIT_CPU_SHARE)


def _thinned(curve: tuple[CurvePoint, ...]) -> tuple[CurvePoint, ...]:
    if len(curve) <= _MOST_POINTS:
        return curve
    last = len(curve) - 1
    picks = sorted({round(index * last / (_MOST_POINTS - 1)) for index in range(_MOST_POINTS)})
    return tuple(curve[index] for index in picks)


def _file_cost(content: Any) -> FileCost:
    peak, cpu, copies, seen = content
    return FileCost(peak_mib=float(peak), cpu_s=float(cpu), copies=int(copies), seen=int(seen))


def _step_run(content: Mapping[str, Any]) -> StepRun:
    points = (
        CurvePoint(build=int(build), done=int(done), total=int(total), elapsed_s=float(elapsed))
        for build, done, total, elapsed in content["curve"]
    )
    return StepRun(
        wall_s=float(content["wall_s"]),
        jobs=int(content["jobs"]),
        cpu_s=float(content["cpu_s"]),
        curve=tuple(points),
    )


def _history_text(history: ComponentHistory) -> str:
    """Lists instead of named values: a component may have thousands of files."""
    files = {
        name: [round(cost.peak_mib, 1), round(cost.cpu_s, 3), cost.copies, cost.seen]
        for name, cost in history.files.items()
    }
    steps = {
        name: {
            "wall_s": round(run.wall_s, 3),
            "jobs": run.jobs,
            "cpu_s": round(run.cpu_s, 3),
            "curve": [
                [point.build, point.done, point.total, round(point.elapsed_s, 2)]
                for point in run.curve
            ],
        }
        for name, run in history.steps.items()
    }
    return to_json_text({"format": _FORMAT, "files": files, "steps": steps}) + "\n"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock file: reading, merging and replacing is one act, whoever else does it too."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

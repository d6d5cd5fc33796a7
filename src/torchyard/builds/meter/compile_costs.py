"""Memory and time of every compile: the log of the meter, and the history of this machine.

A damaged line of the log (full disk, power loss) is skipped and counted. The history is one small
JSON file per component. It only improves estimates, so it never fails a build: a damaged file
counts as none, and a file that cannot be written is not written.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

from torchyard.builds.build_folders import open_lock_file
from torchyard.errors import TorchyardError
from torchyard.files.safe_writing import replace_file, to_json_text

_MIB: Final = 1024


@dataclass(frozen=True, kw_only=True)
class Compile:
    """One run of a compiler, from its start to its end."""

    output: str
    """Absolute."""
    source: str
    """As on the command line; empty for a link."""
    kind: Literal["compile", "link"]
    language: str
    tool: str
    """Program that was started: a compiler or a compiler cache."""
    start_s: float
    """Seconds since 1970."""
    end_s: float
    wall_s: float
    cpu_s: float
    peak_mib: float
    """Of the largest single process (the compiler proper), not of driver and assembler together."""
    waited_s: float
    """Time until a job slot and the memory were free."""
    expected_mib: int
    status: int
    """Exit status; -1 when a signal ended it."""
    signal: int
    attempt: int
    out_of_memory: bool
    retried: bool
    """It was killed for lack of memory, and is retried alone."""

    @property
    def name(self) -> str:
        """Base name of the output."""
        return Path(self.output).name

    @property
    def succeeded(self) -> bool:
        """Whether the compiler succeeded."""
        return self.status == 0


@dataclass(frozen=True, kw_only=True)
class MeterLog:
    """Content of a meter log."""

    compiles: tuple[Compile, ...] = ()
    """Ordered by end time."""
    unfinished: tuple[str, ...] = ()
    """Outputs whose last compile was interrupted or failed: they may be incomplete."""
    damaged_lines: int = 0

    @property
    def cpu_s(self) -> float:
        """User and system time of all compiles."""
        return sum(compile_.cpu_s for compile_ in self.compiles)

    @property
    def peak_mib(self) -> float:
        """Peak memory of the largest compile."""
        return max((compile_.peak_mib for compile_ in self.compiles), default=0.0)

    def since(self, start_s: float) -> MeterLog:
        """Return only the compiles started at or after a time (seconds since 1970)."""
        return replace(self, compiles=tuple(one for one in self.compiles if one.start_s >= start_s))

    def made(self) -> MeterLog:
        """Return the last successful compile or link of each output that exists."""
        last = {one.output: one for one in self.compiles if one.succeeded}
        existing = (one for one in last.values() if Path(one.output).exists())
        return replace(self, compiles=tuple(existing))

    @property
    def busy_s(self) -> float:
        """Wall time during which at least one compile ran, over all runs."""
        total = until = 0.0
        for start_s, end_s in sorted((one.start_s, one.end_s) for one in self.compiles):
            total += max(end_s - max(start_s, until), 0.0)
            until = max(until, end_s)
        return total


def read_meter_log(path: Path) -> MeterLog:
    """Read a log; a missing file is an empty log."""
    try:
        text = path.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return MeterLog()
    compiles: list[Compile] = []
    open_outputs: dict[str, str] = {}
    failed: dict[str, None] = {}
    damaged = 0
    for line in text.split("\n"):
        if not line:
            continue
        try:
            record = json.loads(line)
            name, output = str(record["id"]), str(record["output"])
            if record["event"] == "begin":
                open_outputs[name] = output
                failed.pop(output, None)
                continue
            compile_ = _compile(record)
        except (ValueError, KeyError, TypeError):
            damaged += 1
            continue
        compiles.append(compile_)
        open_outputs.pop(name, None)
        # A later success supersedes an earlier interruption of the same output.
        open_outputs = {key: value for key, value in open_outputs.items() if value != output}
        if compile_.succeeded:
            failed.pop(output, None)
        else:
            failed[output] = None
    unfinished = dict.fromkeys([*failed, *open_outputs.values()])
    return MeterLog(compiles=tuple(compiles), unfinished=tuple(unfinished), damaged_lines=damaged)


def remove_unfinished(log: MeterLog, *, below: Path | None = None) -> tuple[Path, ...]:
    """Delete incomplete outputs, so that make does not treat them as finished.

    Only regular files (a compile may have used `-o /dev/null`), and only below the given folder.
    """
    removed: list[Path] = []
    for output in log.unfinished:
        path = Path(output)
        try:
            if below is not None and not path.parent.resolve().is_relative_to(below.resolve()):
                continue
            if stat.S_ISREG(path.lstat().st_mode):
                path.unlink()
                removed.append(path)
        except (OSError, ValueError):
            # Already removed (by the compiler), or not writable.
            continue
    return tuple(removed)


def _compile(record: dict[str, Any]) -> Compile:
    kind: Literal["compile", "link"] = "link" if record["kind"] == "link" else "compile"
    return Compile(
        output=str(record["output"]),
        source=str(record["source"]),
        kind=kind,
        language=str(record["language"]),
        tool=str(record["tool"]),
        start_s=float(record["start"]),
        end_s=float(record["end"]),
        wall_s=float(record["wall_s"]),
        cpu_s=float(record["user_s"]) + float(record["system_s"]),
        peak_mib=int(record["rss_kib"]) / _MIB,
        waited_s=float(record["waited_s"]),
        expected_mib=int(record["expected_mib"]),
        status=int(record["status"]),
        signal=int(record["signal"]),
        attempt=int(record["attempt"]),
        out_of_memory=bool(record["out_of_memory"]),
        retried=bool(record["retried"]),
    )


_FORMAT: Final = 1
_MAX_FILES: Final = 20_000
_MAX_STEPS: Final = 40
_MAX_POINTS: Final = 120
_TABLE_MARGIN: Final = 1.1
"""Files grow from release to release, and ru_maxrss excludes driver and assembler."""
_DECAY: Final = 0.25
"""Fraction by which a larger recorded peak decreases towards each new measurement."""
_HIT_MIB: Final = 16.0
"""Below the memory of a real compile: gcc 12 takes 20 MiB for a one-line C file, and ccache 4.7
takes 4 MiB for a hit (measured)."""
_HIT_CPU_SHARE: Final = 0.5
_REMOTE_TOOLS: Final = {"sccache", "distcc", "icecc"}
"""Their compiles run in another process than the one that the meter measures."""
_PROBES: Final = re.compile(r"/CMakeFiles/CMake(Tmp|Scratch)/|/cmTC_[^/]*$|/TryCompile-|/conftest")


@dataclass(frozen=True, kw_only=True)
class FileCost:
    """Cost of compiling one file of a component."""

    peak_mib: float
    cpu_s: float
    copies: int = 1
    """Number of outputs with this base name in one build."""
    seen: int = 0
    """Day of the last measurement; the oldest entries are dropped."""


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """Progress of a step at a time: steps done in its n-th counted build."""

    build: int
    done: int
    total: int
    """0 if the build reported no total."""
    elapsed_s: float


@dataclass(frozen=True, kw_only=True)
class StepRun:
    """One complete run of a step."""

    wall_s: float
    jobs: int = 0
    cpu_s: float = 0.0
    curve: tuple[CurvePoint, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ComponentHistory:
    """Recorded costs of a component."""

    files: Mapping[str, FileCost] = field(default_factory=dict)
    """By base name of the output."""
    steps: Mapping[str, StepRun] = field(default_factory=dict)
    """The last complete run of each step."""

    @property
    def cpu_s(self) -> float:
        """CPU time of compiling all recorded files."""
        return sum(cost.cpu_s * cost.copies for cost in self.files.values())

    def needs_mib(self) -> dict[str, int]:
        """Return the memory to reserve for each file, with a margin."""
        return {
            name: max(math.ceil(cost.peak_mib * _TABLE_MARGIN), 1)
            for name, cost in self.files.items()
            if cost.peak_mib > 0
        }

    def peak_quantile_mib(self, share: float) -> float | None:
        """Return a quantile of the peaks of all files; None if nothing is recorded."""
        peaks = sorted(cost.peak_mib for cost in self.files.values() if cost.peak_mib > 0)
        return peaks[min(int(share * len(peaks)), len(peaks) - 1)] if peaks else None


@dataclass(frozen=True, kw_only=True)
class History:
    """The folder with the histories of all components."""

    folder: Path

    def read(self, component: str) -> ComponentHistory:
        """Return the history of a component; empty if there is none or the file is damaged."""
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
        """Add the compiles of a log; return False if the history cannot be written."""
        return self._change(
            component, lambda history: replace(history, files=_merged(history.files, log))
        )

    def learn_step(self, component: str, step: str, run: StepRun) -> bool:
        """Record a complete run of a step; return False if the history cannot be written."""
        thinned = replace(run, curve=_thinned(run.curve))

        def add(history: ComponentHistory) -> ComponentHistory:
            steps = {name: other for name, other in history.steps.items() if name != step}
            newest = [*steps.items(), (step, thinned)][-_MAX_STEPS:]
            return replace(history, steps=dict(newest))

        return self._change(component, add)

    def _change(
        self, component: str, change: Callable[[ComponentHistory], ComponentHistory]
    ) -> bool:
        path = self._path(component)
        try:
            descriptor = open_lock_file(path.with_suffix(".lock"))
            try:
                # Locked, so that reading, merging and replacing is atomic.
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                replace_file(path, _history_text(change(self.read(component))))
            finally:
                os.close(descriptor)
        except (OSError, TorchyardError):
            return False
        return True

    def _path(self, component: str) -> Path:
        return self.folder / f"{quote(component, safe='')}.json"


def _merged(recorded: Mapping[str, FileCost], log: MeterLog) -> dict[str, FileCost]:
    files = dict(recorded)
    for name, compiles in _by_name(log).items():
        old = files.get(name)
        real = [one for one in compiles if not _is_hit(one, old)]
        if not real:
            continue
        peak = max(one.peak_mib for one in real)
        cpu = sum(one.cpu_s for one in real) / len(real)
        if old is not None:
            peak = max(peak, old.peak_mib - (old.peak_mib - peak) * _DECAY)
            cpu = (cpu + old.cpu_s) / 2
        copies = max(len({one.output for one in real}), old.copies if old else 1)
        today = int(time.time() // 86_400)
        files[name] = FileCost(peak_mib=peak, cpu_s=cpu, copies=copies, seen=today)
    if len(files) > _MAX_FILES:
        newest = sorted(files.items(), key=lambda item: item[1].seen, reverse=True)[:_MAX_FILES]
        files = dict(newest)
    return files


def _by_name(log: MeterLog) -> dict[str, list[Compile]]:
    """Return successful compiles, and those killed for lack of memory, by base name.

    Time and memory of other failed compiles do not represent the whole file; the memory of a killed
    one is a lower bound.
    """
    compiles: dict[str, list[Compile]] = {}
    for one in log.compiles:
        if (one.succeeded or one.out_of_memory) and not _PROBES.search(one.output):
            compiles.setdefault(one.name, []).append(one)
    return compiles


def _is_hit(one: Compile, old: FileCost | None) -> bool:
    if one.tool in _REMOTE_TOOLS:
        return True
    if one.tool != "ccache":
        return False
    return one.peak_mib < _HIT_MIB or (old is not None and one.cpu_s < old.cpu_s * _HIT_CPU_SHARE)


def _thinned(curve: tuple[CurvePoint, ...]) -> tuple[CurvePoint, ...]:
    if len(curve) <= _MAX_POINTS:
        return curve
    last = len(curve) - 1
    picks = sorted({round(index * last / (_MAX_POINTS - 1)) for index in range(_MAX_POINTS)})
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
    """Return the JSON text, with lists instead of objects: there may be thousands of files."""
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

"""Reading what the meter has logged: the cost of every compile, and what was cut short.

A line that is damaged (the disk was full, the machine lost power) is skipped and counted.
"""

from __future__ import annotations

import json
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

__all__ = ["Compile", "MeterLog", "read_meter_log", "remove_unfinished"]

_MIB: Final = 1024


@dataclass(frozen=True, kw_only=True)
class Compile:
    """One run of a compiler, from its start to its end."""

    output: str
    """Absolute."""
    source: str
    """As the command line had it; empty for a link."""
    kind: Literal["compile", "link"]
    language: str
    tool: str
    """Program that was started: a compiler, or the cache before it."""
    start_s: float
    """Seconds since 1970."""
    end_s: float
    wall_s: float
    cpu_s: float
    peak_mib: float
    """Of the largest single process (the compiler proper), not of driver and assembler together."""
    waited_s: float
    """Until a slot and the memory were free."""
    expected_mib: int
    status: int
    """Exit status; -1 when a signal ended it."""
    signal: int
    attempt: int
    out_of_memory: bool
    retried: bool
    """It was killed for want of memory, and a second attempt, alone, follows."""

    @property
    def name(self) -> str:
        """Basename of the output."""
        return Path(self.output).name

    @property
    def succeeded(self) -> bool:
        """The compiler was content."""
        return self.status == 0


@dataclass(frozen=True, kw_only=True)
class MeterLog:
    """All that a meter log tells."""

    compiles: tuple[Compile, ...] = ()
    """In the order of their ends."""
    unfinished: tuple[str, ...] = ()
    """Outputs whose last compile was cut short or failed: they may be half-written."""
    damaged_lines: int = 0

    @property
    def cpu_s(self) -> float:
        """User and system time of everything."""
        return sum(compile_.cpu_s for compile_ in self.compiles)

    @property
    def peak_mib(self) -> float:
        """Of the biggest compile."""
        return max((compile_.peak_mib for compile_ in self.compiles), default=0.0)

    @property
    def waited_s(self) -> float:
        """Time that compiles waited for a slot or for memory, added up."""
        return sum(compile_.waited_s for compile_ in self.compiles)

    @property
    def retried(self) -> tuple[Compile, ...]:
        """Compiles that were killed for want of memory and tried again alone."""
        return tuple(compile_ for compile_ in self.compiles if compile_.retried)

    def since(self, start_s: float) -> MeterLog:
        """Only the compiles that began at that time (seconds since 1970) or later."""
        return replace(self, compiles=tuple(one for one in self.compiles if one.start_s >= start_s))

    def made(self) -> MeterLog:
        """Of what is on disk now, the compiles and links that made it: each output once."""
        last = {one.output: one for one in self.compiles if one.succeeded}
        there = (one for one in last.values() if Path(one.output).exists())
        return replace(self, compiles=tuple(there))

    @property
    def busy_s(self) -> float:
        """Wall time during which anything was compiled, over all runs."""
        total = until = 0.0
        for start_s, end_s in sorted((one.start_s, one.end_s) for one in self.compiles):
            total += max(end_s - max(start_s, until), 0.0)
            until = max(until, end_s)
        return total

    def slowest(self, count: int = 10) -> tuple[Compile, ...]:
        """Those that took the most CPU time."""
        return tuple(sorted(self.compiles, key=lambda one: one.cpu_s, reverse=True)[:count])

    def biggest(self, count: int = 10) -> tuple[Compile, ...]:
        """Those that took the most memory."""
        return tuple(sorted(self.compiles, key=lambda one: one.peak_mib, reverse=True)[:count])

    def together_mib(self) -> float:
        """The most memory that compiles running at one time can have used together."""
        changes = sorted(
            change
            for one in self.compiles
            for change in ((one.start_s, one.peak_mib), (one.end_s, -one.peak_mib))
        )
        most = present = 0.0
        for _, change in changes:
            present += change
            most = max(most, present)
        return most


def read_meter_log(path: Path) -> MeterLog:
    """Read a log; one that is not there is empty."""
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
        # A later success makes up for an earlier interruption of the same output.
        open_outputs = {key: value for key, value in open_outputs.items() if value != output}
        if compile_.succeeded:
            failed.pop(output, None)
        else:
            failed[output] = None
    unfinished = dict.fromkeys([*failed, *open_outputs.values()])
    return MeterLog(compiles=tuple(compiles), unfinished=tuple(unfinished), damaged_lines=damaged)


def remove_unfinished(log: MeterLog, *, below: Path | None = None) -> tuple[Path, ...]:
    """Delete half-written outputs, so that make does not take them for whole.

    Only regular files, because a compile may well have had `-o /dev/null`; and only those below
    the folder, where one is given.
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
            # Gone already, or not ours to remove: the compiler deletes its failed outputs itself.
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

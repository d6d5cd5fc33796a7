"""perf: stack samples, and counters of the kernel and, where available, of the processor.

`perf stat` runs inside `perf record`, so that one run gives both and the counters cover the
program alone. Python writes /tmp/perf-PID.map with function names and never removes it; it is
moved into the profile's folder.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from torchyard.errors import MissingTool, NotAllowed, StepFailed
from torchyard.process.programs import capture
from torchyard.profile.model import Collected, CostRow, CounterValue, KeptFile, StackCost
from torchyard.profile.tools.interface import (
    InstalledTool,
    Job,
    Tool,
    ToolCommand,
    text_of,
    thread_variables,
)

_COUNTER_FIELDS: Final = 3
# `python 16525/16525   5025125 cpu-clock:u: `; a name may hold blanks, so numbers anchor the match.
_HEAD: Final = re.compile(
    r"^(?P<comm>\S.*?)\s+(?P<pid>-?\d+)/(?P<tid>-?\d+)\s+(?P<period>\d+)\s+(?P<event>.+?):\s*$"
)
_FRAME: Final = re.compile(r"^\s+[0-9a-f]+\s+(?P<symbol>.+?)(?:\s+\((?P<library>[^()]*|.*)\))?\s*$")
_PERF_ITSELF: Final = re.compile(r"^perf(-exec)?$")
_PYTHON: Final = "py::"
_NO_SYMBOL: Final = "[unknown]"


class Frame(NamedTuple):
    """One function of a stack."""

    symbol: str
    library: str

    @property
    def folded(self) -> str:
        """Name for a folded stack, in which semicolons and newlines are separators."""
        return " ".join(self.symbol.replace(";", ":").split())


@dataclass
class Folded:
    """Stacks, outermost frame first, with the sum of their samples."""

    event: str = ""
    costs: dict[tuple[Frame, ...], float] = field(default_factory=dict)
    samples: int = 0
    pids: set[int] = field(default_factory=set)
    notes: tuple[str, ...] = ()


def fold_script(lines: Iterable[str]) -> Folded:
    """Fold the output of `perf script`; samples of perf itself are skipped."""
    folded = Folded()
    head: re.Match[str] | None = None
    frames: list[Frame] = []
    others: set[str] = set()

    def add() -> None:
        if head is None or _PERF_ITSELF.match(head["comm"]):
            return
        event = head["event"].split(":")[0]
        folded.pids.add(int(head["pid"]))
        folded.event = folded.event or event
        if event != folded.event:
            others.add(event)
            return
        stack = tuple(reversed(frames)) or (Frame(_NO_SYMBOL, ""),)
        folded.costs[stack] = folded.costs.get(stack, 0.0) + float(head["period"])
        folded.samples += 1

    for line in lines:
        if not line.strip():
            add()
            head, frames = None, []
        elif not line[0].isspace():
            head, frames = _HEAD.match(line), []
        elif head is not None:
            frame = _FRAME.match(line.rstrip("\n"))
            if frame is not None:
                frames.append(Frame(frame["symbol"], frame["library"] or ""))
    add()
    if others:
        folded.notes = (
            f"the table shows {folded.event}; perf.data also contains {', '.join(sorted(others))}",
        )
    return folded


def stack_rows(
    folded: Folded, *, most_stacks: int
) -> tuple[tuple[CostRow, ...], tuple[StackCost, ...]]:
    """Return functions sorted by self cost, and the most expensive stacks."""
    own: dict[Frame, float] = {}
    whole: dict[Frame, float] = {}
    for frames, cost in folded.costs.items():
        own[frames[-1]] = own.get(frames[-1], 0.0) + cost
        for frame in set(frames):  # a recursive function counts once
            whole[frame] = whole.get(frame, 0.0) + cost
    rows = tuple(
        CostRow(
            name=frame.symbol.removeprefix(_PYTHON),
            where="Python" if frame.symbol.startswith(_PYTHON) else frame.library,
            self_cost=own.get(frame, 0.0),
            total_cost=cost,
        )
        for frame, cost in whole.items()
    )
    costliest = sorted(folded.costs.items(), key=lambda item: -item[1])[:most_stacks]
    stacks = tuple(
        StackCost(frames=tuple(frame.folded for frame in frames), cost=cost)
        for frames, cost in costliest
    )
    return tuple(sorted(rows, key=lambda row: (-row.self_cost, -(row.total_cost or 0)))), stacks


def read_counters(path: Path) -> tuple[CounterValue, ...]:
    """Read the output of `perf stat --field-separator ';'`; unsupported counters are None."""
    counters = []
    for line in text_of(path).splitlines():
        parts = line.split(";")
        if line.startswith("#") or len(parts) < _COUNTER_FIELDS:
            continue
        value, unit, name = parts[:_COUNTER_FIELDS]
        try:
            number: float | None = float(value)
        except ValueError:
            number = None
        counters.append(CounterValue(name=name.split(":")[0], value=number, unit=unit))
    return tuple(counters)


_TEMPORARY: Final = Path("/tmp")  # noqa: S108 - where Python and perf agree to look


def take_maps(pids: Iterable[int], folder: Path, *, temporary: Path = _TEMPORARY) -> list[str]:
    """Move the perf maps of these processes; only regular files of this user."""
    moved = []
    for pid in sorted(set(pids)):
        path = temporary / f"perf-{pid}.map"
        with suppress(OSError):
            facts = os.lstat(path)
            if stat.S_ISREG(facts.st_mode) and facts.st_uid == os.getuid():
                shutil.move(path, folder / path.name)
                moved.append(path.name)
    return moved


DATA_FILE: Final = "perf.data"
COUNTERS_FILE: Final = "counters.csv"
FOLDED_FILE: Final = "stacks.folded"
SAMPLED_EVENT: Final = "cpu-clock"
"""A software event: works in virtual machines without hardware counters."""
COUNTERS: Final = (
    *("cpu-clock", "task-clock", "page-faults", "major-faults", "context-switches"),
    *("cpu-migrations", "cycles", "instructions", "cache-misses", "branch-misses"),
)
_MOST_STACKS: Final = 50
_PROBE_LIMIT_S: Final = 20.0
_PARANOID: Final = Path("/proc/sys/kernel/perf_event_paranoid")
_REFUSALS: Final = ("access to performance monitoring", "permission", "not permitted")


def command(program: str, job: Job) -> ToolCommand:
    """Return the command: `perf stat` inside `perf record`."""
    options = job.options
    events = options.events or (SAMPLED_EVENT,)
    record = (
        *(program, "record", "--quiet", "--output", str(job.folder / DATA_FILE)),
        *("--freq", str(options.frequency_hz), "--call-graph", options.call_graph),
        *(word for event in events for word in ("--event", event)),
        *options.extra,
    )
    count = (
        *(program, "stat", "--field-separator", ";"),
        *("--output", str(job.folder / COUNTERS_FILE), "--event", ",".join(COUNTERS)),
    )
    names: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    if job.facts.perf_trampoline:
        # Python writes /tmp/perf-PID.map, from which perf reads symbols of generated code.
        names = (("PYTHONPERFSUPPORT", "1"),)
    else:
        version = ".".join(map(str, job.facts.python_version[:2]))
        reason = f"Python {version} cannot report Python functions to perf (3.12 and newer can)"
        notes = (f"{reason}: stacks show the C functions of the interpreter",)
    return ToolCommand(
        words=(*record, "--", *count, "--", *job.program),
        variables=(*names, *thread_variables(options.threads)),
        notes=notes,
    )


def check(installed: InstalledTool, _job: Job) -> None:
    """Raise NotAllowed with a suggested fix if the kernel denies access."""
    try:
        probe = [installed.path, "stat", "--event", SAMPLED_EVENT, "--", "true"]
        completed = capture(probe, limit_s=_PROBE_LIMIT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingTool(f"cannot run {installed.path}: {error}", hint=TOOL.package) from error
    if completed.returncode == 0 and "<not supported>" not in completed.stderr:
        return
    if any(mark in completed.stderr.lower() for mark in _REFUSALS):
        raise NotAllowed(
            "perf is not permitted to profile programs",
            why=f"kernel.perf_event_paranoid is {text_of(_PARANOID).strip() or 'unknown'}, or the "
            "container does not permit it",
            hint="`sudo sysctl kernel.perf_event_paranoid=1`, or run as root, or give the container "
            "CAP_PERFMON",
        )
    message = " / ".join(line.strip() for line in completed.stderr.splitlines() if line.strip())
    raise StepFailed(f"perf cannot count {SAMPLED_EVENT}: {message[:500]}", hint=TOOL.package)


def collect(installed: InstalledTool, job: Job) -> Collected:
    """Fold the samples and read the counters."""
    data = job.folder / DATA_FILE
    counters = read_counters(job.folder / COUNTERS_FILE)
    if not data.is_file() or not data.stat().st_size:
        raise StepFailed("perf recorded no samples", hint="see its output above")
    # --no-inline: resolving inlined functions starts addr2line for every frame.
    script = [
        *(installed.path, "script", "--input", str(data), "--no-inline"),
        *("--fields", "comm,pid,tid,period,event,ip,sym,dso"),
    ]
    with subprocess.Popen(
        script,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        errors="replace",
    ) as process:
        if process.stdout is None:
            raise StepFailed("perf script has no output")
        folded = fold_script(process.stdout)
    notes = (
        () if process.returncode == 0 else (f"perf script exited with code {process.returncode}",)
    )
    with (job.folder / FOLDED_FILE).open("w", encoding="utf-8", errors="replace") as file:
        for frames, cost in folded.costs.items():
            file.write(";".join(frame.folded for frame in frames) + f" {cost:.0f}\n")
    maps = take_maps(folded.pids, job.folder) if job.facts.perf_trampoline else []
    rows, stacks = stack_rows(folded, most_stacks=_MOST_STACKS)
    return Collected(
        rows=rows,
        unit="ns" if folded.event in ("cpu-clock", "task-clock") else folded.event,
        row_kind="function",
        counters=counters,
        stacks=stacks,
        files=(
            KeptFile(name=DATA_FILE, about="samples; open with `perf report --input`"),
            KeptFile(name=FOLDED_FILE, about="folded stacks, for flamegraph.pl or speedscope"),
            *(
                KeptFile(
                    name=name, about="names of Python functions; perf report reads it from /tmp"
                )
                for name in maps
            ),
        ),
        notes=(*notes, *folded.notes),
    )


TOOL: Final = Tool(
    name="perf",
    about="stack samples of native and Python functions; software and hardware counters",
    package="Debian: apt install linux-perf; Ubuntu: apt install linux-tools-$(uname -r); "
    "Fedora: dnf install perf",
    programs=("perf",),
    supported_options=("frequency_hz", "call_graph", "events", "threads", "extra"),
    command=command,
    collect=collect,
    check=check,
)

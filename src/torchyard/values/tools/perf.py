"""perf: samples of stacks, and counters of the kernel and, where there are any, of the processor.

`perf stat` runs inside `perf record`, so that one run gives both and the counters count the program
alone.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from torchyard.core.tool_profile import KeptFile
from torchyard.errors import MissingTool, NotAllowed, StepFailed
from torchyard.values.tools.contract import (
    Collected,
    FoundTool,
    Job,
    Tool,
    ToolCommand,
    thread_variables,
)
from torchyard.values.tools.perf_maps import take_maps
from torchyard.values.tools.perf_text import fold_script, read_counters, stack_rows

__all__ = ["COUNTED", "DATA_FILE", "TOOL"]

DATA_FILE: Final = "perf.data"
COUNTERS_FILE: Final = "counters.csv"
FOLDED_FILE: Final = "stacks.folded"
SAMPLED: Final = "cpu-clock"
"""Of software, so that it works in virtual machines that show no counters of the processor."""
COUNTED: Final = (
    *("cpu-clock", "task-clock", "page-faults", "major-faults", "context-switches"),
    *("cpu-migrations", "cycles", "instructions", "cache-misses", "branch-misses"),
)
_MOST_STACKS: Final = 50
_PROBE_LIMIT_S: Final = 20.0
_PARANOID: Final = Path("/proc/sys/kernel/perf_event_paranoid")
_REFUSALS: Final = ("access to performance monitoring", "permission", "not permitted")


def command(program: str, job: Job) -> ToolCommand:
    """Counters inside, samples outside."""
    options = job.options
    events = options.events or (SAMPLED,)
    record = (
        *(program, "record", "--quiet", "--output", str(job.folder / DATA_FILE)),
        *("--freq", str(options.frequency_hz), "--call-graph", options.call_graph),
        *(word for event in events for word in ("--event", event)),
        *options.extra,
    )
    count = (
        *(program, "stat", "--field-separator", ";"),
        *("--output", str(job.folder / COUNTERS_FILE), "--event", ",".join(COUNTED)),
    )
    names: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    if job.facts.perf_trampoline:
        # Python writes /tmp/perf-PID.map, where perf looks for names of code made at run time.
        names = (("PYTHONPERFSUPPORT", "1"),)
    else:
        version = ".".join(map(str, job.facts.python_version[:2]))
        said = f"Python {version} tells perf no names of Python functions (3.12 and newer do)"
        notes = (f"{said}: stacks show the interpreter's own functions",)
    return ToolCommand(
        words=(*record, "--", *count, "--", *job.program),
        variables=(*names, *thread_variables(options.threads)),
        notes=notes,
    )


def check(found: FoundTool, _job: Job) -> None:
    """Raise NotAllowed with the mend when the kernel refuses."""
    try:
        done = subprocess.run(
            [found.path, "stat", "--event", SAMPLED, "--", "true"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=_PROBE_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingTool(f"{found.path} cannot be run: {error}", hint=TOOL.package) from error
    if done.returncode == 0 and "<not supported>" not in done.stderr:
        return
    if any(mark in done.stderr.lower() for mark in _REFUSALS):
        raise NotAllowed(
            "perf may not look at programs here",
            why=f"kernel.perf_event_paranoid is {_paranoid()}, or a container forbids it",
            hint="`sudo sysctl kernel.perf_event_paranoid=1`, or run as root, or give the container "
            "CAP_PERFMON",
        )
    said = " / ".join(line.strip() for line in done.stderr.splitlines() if line.strip())
    raise StepFailed(f"perf cannot count {SAMPLED} here: {said[:500]}", hint=TOOL.package)


def collect(found: FoundTool, job: Job) -> Collected:
    """Fold the samples, read the counters."""
    data = job.folder / DATA_FILE
    counters = read_counters(job.folder / COUNTERS_FILE)
    if not data.is_file() or not data.stat().st_size:
        raise StepFailed("perf left no samples", hint="look at what it printed")
    # Inlined functions are left out: finding them starts addr2line for every frame.
    script = [
        *(found.path, "script", "--input", str(data), "--no-inline"),
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
    notes = () if process.returncode == 0 else (f"perf script ended with {process.returncode}",)
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
            KeptFile(name=DATA_FILE, about="samples: `perf report --input` it"),
            KeptFile(name=FOLDED_FILE, about="folded stacks, for flamegraph.pl or speedscope"),
            *(
                KeptFile(name=name, about="names of Python functions: perf report wants it in /tmp")
                for name in maps
            ),
        ),
        notes=(*notes, *folded.notes),
    )


def _paranoid() -> str:
    try:
        return _PARANOID.read_text().strip()
    except OSError:
        return "unknown"


TOOL: Final = Tool(
    name="perf",
    about="sampled stacks of native and Python functions, counters of the kernel and processor",
    package="Debian: apt install linux-perf; Ubuntu: apt install linux-tools-$(uname -r); "
    "Fedora: dnf install perf",
    programs=("perf",),
    takes=("frequency_hz", "call_graph", "events", "threads", "extra"),
    command=command,
    collect=collect,
    check=check,
)

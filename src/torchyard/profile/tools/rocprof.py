"""rocprofv3 (AMD ROCm): HIP calls, kernels and copies, with a trace for Perfetto."""

from __future__ import annotations

from typing import Final

from torchyard.errors import StepFailed
from torchyard.profile.model import Collected, KeptFile
from torchyard.profile.tools.interface import (
    Columns,
    InstalledTool,
    Job,
    Tool,
    ToolCommand,
    kernel_rows,
    library_path,
    thread_variables,
)

_COLUMNS: Final = Columns(name="Name", time="TotalDurationNs", calls="Calls")
_MOST_FILES: Final = 20


def command(program: str, job: Job) -> ToolCommand:
    """Return the command: runtime trace and kernel statistics; `--event` selects counters."""
    options = job.options
    counters = ("--pmc", *options.events) if options.events else ()
    return ToolCommand(
        words=(
            *(program, "--runtime-trace", "--stats", *counters),
            *("--output-directory", str(job.folder), "--output-file", "trace"),
            *("--output-format", "csv", "pftrace"),
            *options.extra,
            "--",
            *job.program,
        ),
        variables=(*library_path(job), *thread_variables(options.threads)),
    )


def collect(_installed: InstalledTool, job: Job) -> Collected:
    """Read the table of kernels."""
    notes: tuple[str, ...] = ()
    tables = sorted(job.folder.rglob("*kernel_stats.csv"))
    traces = sorted(job.folder.rglob("*.pftrace"))
    if not tables and not traces:
        raise StepFailed("rocprofv3 wrote no files", hint="see its output above")
    table = tables[0].read_text(encoding="utf-8", errors="replace") if tables else ""
    rows = kernel_rows(table.splitlines(), _COLUMNS)
    if not rows:
        notes = ("rocprofv3 recorded no kernels",)
    elif len(tables) > 1:
        notes = (f"{len(tables)} processes ran kernels; the table shows the first",)
    files = [(path, "trace; open it at ui.perfetto.dev") for path in traces]
    files += [(path, "kernel statistics") for path in tables]
    return Collected(
        rows=rows,
        row_kind="kernel",
        files=tuple(
            KeptFile(name=str(path.relative_to(job.folder)), about=about)
            for path, about in files[:_MOST_FILES]
        ),
        notes=notes,
    )


TOOL: Final = Tool(
    name="rocprof",
    about="HIP calls, kernels and copies of AMD GPUs (rocprofv3)",
    package="AMD's ROCm repository: apt install rocprofiler-sdk; then /opt/rocm/bin/rocprofv3",
    programs=("rocprofv3",),
    places=("/opt/rocm/bin",),
    supported_options=("events", "threads", "extra"),
    command=command,
    collect=collect,
)

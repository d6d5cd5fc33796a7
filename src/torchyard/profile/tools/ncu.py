"""ncu (NVIDIA Nsight Compute): metrics of single kernels, each of which it replays."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from torchyard.errors import NotAllowed, StepFailed
from torchyard.profile.model import Collected, KeptFile
from torchyard.profile.tools.interface import (
    STEPS,
    InstalledTool,
    Job,
    Tool,
    ToolCommand,
    escaped_path,
    library_path,
    program_command,
    recorded_steps_of,
    text_of,
    thread_variables,
)
from torchyard.profile.tools.kernel_table import Columns, query_kernels

REPORT_FILE: Final = "report.ncu-rep"
LOG_FILE: Final = "ncu.log"
_TIME: Final = "gpu__time_duration.sum"
_COLUMNS: Final = Columns(name="Kernel Name", time=_TIME)
_IMPORT_LIMIT_S: Final = 600.0


def command(program: str, job: Job) -> ToolCommand:
    """Return the command; to record some steps only, ncu waits for cudaProfilerStart."""
    options = job.options
    words, files, capture_range = program_command(job, "cuda", "--profile-from-start", "off")
    return ToolCommand(
        words=(
            *(program, "--target-processes", "all", "--set", "basic"),
            *(word for event in options.events for word in ("--section", event)),
            *("--launch-count", str(options.launches), *capture_range),
            *("--log-file", escaped_path(job.folder / LOG_FILE)),
            *("--force-overwrite", "--export", escaped_path(job.folder / REPORT_FILE)),
            *options.extra,
            *words,
        ),
        variables=(*library_path(job), *thread_variables(options.threads)),
        files=files,
        notes=(
            f"ncu profiles the first {options.launches} kernel launches and replays each several times",
        ),
    )


def explain_failure(job: Job) -> None:
    """Raise NotAllowed if the driver denies access to the counters."""
    if "ERR_NVGPUCTRPERM" in text_of(job.folder / LOG_FILE):
        raise NotAllowed(
            "the NVIDIA driver does not permit this user to read GPU performance counters",
            why="ERR_NVGPUCTRPERM",
            hint="run as root, or load the driver with the module option "
            "NVreg_RestrictProfilingToAdminUsers=0",
            log=str(job.folder / LOG_FILE),
        )


def collect(installed: InstalledTool, job: Job) -> Collected:
    """Read the times of the profiled kernels."""
    explain_failure(job)
    report = job.folder / REPORT_FILE
    recorded = recorded_steps_of(job)
    if not report.is_file():
        raise StepFailed("ncu wrote no report", hint="see its log", log=str(job.folder / LOG_FILE))
    rows, notes = query_kernels(
        (
            *(installed.path, "--import", str(report), "--csv"),
            *("--page", "raw", "--metrics", _TIME),
        ),
        _COLUMNS,
        tool="ncu",
        limit_s=_IMPORT_LIMIT_S,
    )
    return replace(
        recorded,
        rows=rows,
        row_kind="kernel",
        files=(
            KeptFile(name=REPORT_FILE, about="metrics of each kernel; open with ncu-ui"),
            KeptFile(name=LOG_FILE, about="log of ncu"),
        ),
        notes=(*recorded.notes, *notes),
    )


TOOL: Final = Tool(
    name="ncu",
    about="metrics of single CUDA kernels (NVIDIA Nsight Compute)",
    package="NVIDIA's CUDA repository: apt install nsight-compute",
    programs=("ncu",),
    places=("/usr/local/cuda/bin",),
    supported_options=(*STEPS, "launches", "events", "threads", "extra"),
    command=command,
    collect=collect,
    explain_failure=explain_failure,
)

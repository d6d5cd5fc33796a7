"""ncu (NVIDIA Nsight Compute): metrics of single kernels, each of which it replays."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from torchyard.errors import NotAllowed, StepFailed
from torchyard.profile.model import Collected, KeptFile
from torchyard.profile.tools import interface
from torchyard.profile.tools.interface import Columns, query_kernels

REPORT_FILE: Final = "report.ncu-rep"
LOG_FILE: Final = "ncu.log"
_TIME: Final = "gpu__time_duration.sum"
_COLUMNS: Final = Columns(name="Kernel Name", time=_TIME)
_IMPORT_LIMIT_S: Final = 600.0


def command(program: str, job: interface.Job) -> interface.ToolCommand:
    """Return the command; to record some steps only, ncu waits for cudaProfilerStart."""
    options = job.options
    words, files, capture_range = interface.program_command(
        job, "cuda", "--profile-from-start", "off"
    )
    return interface.ToolCommand(
        words=(
            *(program, "--target-processes", "all", "--set", "basic"),
            *(word for event in options.events for word in ("--section", event)),
            *("--launch-count", str(options.launches), *capture_range),
            *("--log-file", interface.escaped_path(job.folder / LOG_FILE)),
            *("--force-overwrite", "--export", interface.escaped_path(job.folder / REPORT_FILE)),
            *options.extra,
            *words,
        ),
        variables=(*interface.library_path(job), *interface.thread_variables(options.threads)),
        files=files,
        notes=(
            f"ncu profiles the first {options.launches} kernel launches and replays each several times",
        ),
    )


def explain_failure(job: interface.Job) -> None:
    """Raise NotAllowed if the driver denies access to the counters."""
    if "ERR_NVGPUCTRPERM" in interface.text_of(job.folder / LOG_FILE):
        raise NotAllowed(
            "the NVIDIA driver does not permit this user to read GPU performance counters",
            why="ERR_NVGPUCTRPERM",
            hint="run as root, or load the driver with the module option "
            "NVreg_RestrictProfilingToAdminUsers=0",
            log=str(job.folder / LOG_FILE),
        )


def collect(installed: interface.InstalledTool, job: interface.Job) -> Collected:
    """Read the times of the profiled kernels."""
    explain_failure(job)
    report = job.folder / REPORT_FILE
    recorded = interface.recorded_steps_of(job)
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


TOOL: Final = interface.Tool(
    name="ncu",
    about="metrics of single CUDA kernels (NVIDIA Nsight Compute)",
    package="NVIDIA's CUDA repository: apt install nsight-compute",
    programs=("ncu",),
    places=("/usr/local/cuda/bin",),
    supported_options=(*interface.STEPS, "launches", "events", "threads", "extra"),
    command=command,
    collect=collect,
    explain_failure=explain_failure,
)

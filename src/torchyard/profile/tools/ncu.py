"""ncu (NVIDIA Nsight Compute): counters of single kernels, each of which it runs many times."""

from __future__ import annotations

from typing import Final

from torchyard.errors import NotAllowed, StepFailed
from torchyard.profile.model import KeptFile
from torchyard.profile.tools.interface import (
    STEPS,
    Collected,
    FoundTool,
    Job,
    Tool,
    ToolCommand,
    library_path,
    plain_path,
    range_program,
    ranged,
    thread_variables,
)
from torchyard.profile.tools.kernel_table import Columns, ask_for_kernels

__all__ = ["TOOL"]

REPORT_FILE: Final = "report.ncu-rep"
LOG_FILE: Final = "ncu.log"
_TIME: Final = "gpu__time_duration.sum"
_COLUMNS: Final = Columns(name="Kernel Name", time=_TIME)
_IMPORT_LIMIT_S: Final = 600.0


def command(program: str, job: Job) -> ToolCommand:
    """A bounded number of kernels; for some steps only, it waits for CUDA's switch."""
    options = job.options
    words = job.program
    files: tuple[tuple[str, str], ...] = ()
    switched: tuple[str, ...] = ()
    if options.ranged:
        words, files = range_program(job, "cuda")
        switched = ("--profile-from-start", "off")
    return ToolCommand(
        words=(
            *(program, "--target-processes", "all", "--set", "basic"),
            *(word for event in options.events for word in ("--section", event)),
            *("--launch-count", str(options.launches), *switched),
            *("--log-file", plain_path(job.folder / LOG_FILE)),
            *("--force-overwrite", "--export", plain_path(job.folder / REPORT_FILE)),
            *options.extra,
            *words,
        ),
        variables=(*library_path(job), *thread_variables(options.threads)),
        files=files,
        notes=(f"ncu looks at the first {options.launches} kernels, and runs each several times",),
    )


def explain_failure(job: Job) -> None:
    """Raise when the driver keeps its counters to itself."""
    try:
        log = (job.folder / LOG_FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    if "ERR_NVGPUCTRPERM" in log:
        raise NotAllowed(
            "the NVIDIA driver does not let this user read counters of the GPU",
            why="ERR_NVGPUCTRPERM",
            hint="run as root, or load the driver with the module option "
            "NVreg_RestrictProfilingToAdminUsers=0",
            log=str(job.folder / LOG_FILE),
        )


def collect(found: FoundTool, job: Job) -> Collected:
    """Times of the kernels it looked at."""
    explain_failure(job)
    report = job.folder / REPORT_FILE
    said = ranged(job)
    if not report.is_file():
        raise StepFailed(
            "ncu left no report", hint="look at its log", log=str(job.folder / LOG_FILE)
        )
    rows, notes = ask_for_kernels(
        (
            *(found.path, "--import", str(report), "--csv"),
            *("--page", "raw", "--metrics", _TIME),
        ),
        _COLUMNS,
        tool="ncu",
        limit_s=_IMPORT_LIMIT_S,
    )
    return Collected(
        rows=rows,
        row_kind="kernel",
        steps=said.steps,
        recorded_steps=said.recorded_steps,
        state=said.state,
        files=(
            KeptFile(name=REPORT_FILE, about="counters of each kernel: open them in ncu-ui"),
            KeptFile(name=LOG_FILE, about="what ncu said"),
        ),
        notes=(*said.notes, *notes),
    )


TOOL: Final = Tool(
    name="ncu",
    about="counters of single CUDA kernels (NVIDIA Nsight Compute)",
    package="NVIDIA's CUDA repository: apt install nsight-compute",
    programs=("ncu",),
    places=("/usr/local/cuda/bin",),
    takes=(*STEPS, "launches", "events", "threads", "extra"),
    command=command,
    collect=collect,
    explain_failure=explain_failure,
)

"""NVIDIA's profilers: nsys, a timeline of calls, kernels and copies; ncu, metrics of single kernels.

To record some steps only, both wait for cudaProfilerStart. ncu replays each kernel several times.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from torchyard.errors import NotAllowed, StepFailed
from torchyard.profile.model import Collected, KeptFile
from torchyard.profile.tools import interface
from torchyard.profile.tools.interface import Columns, InstalledTool, Job, query_kernels

_NSYS_REPORT: Final = KeptFile(name="report.nsys-rep", about="timeline; open with nsys-ui")
_NSYS_COLUMNS: Final = Columns(name="Name", time="Total Time (ns)", calls="Instances")
_TRACED: Final = ("cuda", "nvtx", "osrt", "cudnn", "cublas")

_NCU_REPORT: Final = KeptFile(
    name="report.ncu-rep", about="metrics of each kernel; open with ncu-ui"
)
_NCU_LOG: Final = KeptFile(name="ncu.log", about="log of ncu")
_TIME: Final = "gpu__time_duration.sum"
_NCU_COLUMNS: Final = Columns(name="Kernel Name", time=_TIME)

_EXPORT_LIMIT_S: Final = 600.0


def _kernels_of(
    job: Job, columns: Columns, command: tuple[str, ...], files: tuple[KeptFile, ...]
) -> Collected:
    """Return the kernels in the report, the first of the files, as the command exports them."""
    recorded = interface.recorded_steps_of(job)
    tool = Path(command[0]).name
    if not (job.folder / files[0].name).is_file():
        log = str(job.folder / files[1].name) if files[1:] else ""
        hint = "see its log" if log else "see its output above"
        raise StepFailed(f"{tool} wrote no report", hint=hint, log=log)
    rows, notes = query_kernels(command, columns, tool=tool, limit_s=_EXPORT_LIMIT_S)
    notes = (*recorded.notes, *notes)
    return replace(recorded, rows=rows, row_kind="kernel", files=files, notes=notes)


def nsys_command(program: str, job: Job) -> interface.ToolCommand:
    """Return the command of nsys."""
    options = job.options
    words, files, capture_range = interface.program_command(
        job, "--capture-range=cudaProfilerApi", "--capture-range-end=stop"
    )
    sampled = (
        ("--sample=process-tree", "--python-sampling=true")
        if options.stacks
        else ("--sample=none", "--cpuctxsw=none")
    )
    report = (job.folder / _NSYS_REPORT.name).with_suffix("")  # nsys appends the suffix
    return interface.ToolCommand(
        words=(
            *(program, "profile", f"--trace={','.join(options.events or _TRACED)}", *sampled),
            *(("--cuda-memory-usage=true",) if options.memory else ()),
            *capture_range,
            *("--force-overwrite=true", f"--output={interface.escaped_path(report)}"),
            *options.extra,
            *words,
        ),
        variables=(*interface.library_path(job), *interface.thread_variables(options.threads)),
        files=files,
    )


def nsys_kernels(installed: InstalledTool, job: Job) -> Collected:
    """Read the kernels with `nsys stats`."""
    command = (
        *(installed.path, "stats", "--report", "cuda_gpu_kern_sum", "--format", "csv"),
        *("--force-export=true", str(job.folder / _NSYS_REPORT.name)),
    )
    return _kernels_of(job, _NSYS_COLUMNS, command, (_NSYS_REPORT,))


NSYS: Final = interface.Tool(
    name="nsys",
    about="timeline of CUDA calls, kernels and copies (NVIDIA Nsight Systems)",
    package="NVIDIA's CUDA repository: apt install nsight-systems",
    programs=("nsys",),
    places=("/usr/local/cuda/bin", "/opt/nvidia/nsight-systems/bin"),
    supported_options=(*interface.STEPS, "memory", "stacks", "events", "threads", "extra"),
    command=nsys_command,
    collect=nsys_kernels,
)


def ncu_command(program: str, job: Job) -> interface.ToolCommand:
    """Return the command of ncu."""
    options = job.options
    words, files, capture_range = interface.program_command(job, "--profile-from-start", "off")
    log, report = (
        interface.escaped_path(job.folder / file.name) for file in (_NCU_LOG, _NCU_REPORT)
    )
    return interface.ToolCommand(
        words=(
            *(program, "--target-processes", "all", "--set", "basic"),
            *(word for event in options.events for word in ("--section", event)),
            *("--launch-count", str(options.launches), *capture_range),
            *("--log-file", log, "--force-overwrite", "--export", report),
            *options.extra,
            *words,
        ),
        variables=(*interface.library_path(job), *interface.thread_variables(options.threads)),
        files=files,
        notes=(
            f"ncu profiles the first {options.launches} kernel launches and replays each several times",
        ),
    )


def explain_failure(job: Job) -> None:
    """Raise NotAllowed if the driver denies access to the counters."""
    log = job.folder / _NCU_LOG.name
    if "ERR_NVGPUCTRPERM" in interface.text_of(log):
        raise NotAllowed(
            "the NVIDIA driver does not permit this user to read GPU performance counters",
            why="ERR_NVGPUCTRPERM",
            hint="run as root, or load the driver with the module option "
            "NVreg_RestrictProfilingToAdminUsers=0",
            log=str(log),
        )


def ncu_kernels(installed: InstalledTool, job: Job) -> Collected:
    """Read the times of the profiled kernels."""
    explain_failure(job)
    report = str(job.folder / _NCU_REPORT.name)
    command = (installed.path, "--import", report, "--csv", "--page", "raw", "--metrics", _TIME)
    return _kernels_of(job, _NCU_COLUMNS, command, (_NCU_REPORT, _NCU_LOG))


NCU: Final = interface.Tool(
    name="ncu",
    about="metrics of single CUDA kernels (NVIDIA Nsight Compute)",
    package="NVIDIA's CUDA repository: apt install nsight-compute",
    programs=("ncu",),
    places=("/usr/local/cuda/bin",),
    supported_options=(*interface.STEPS, "launches", "events", "threads", "extra"),
    command=ncu_command,
    collect=ncu_kernels,
    explain_failure=explain_failure,
)

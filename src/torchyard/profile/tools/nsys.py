"""nsys (NVIDIA Nsight Systems): a timeline of CUDA calls, kernels, copies and NVTX ranges."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from torchyard.errors import StepFailed
from torchyard.profile.model import Collected, KeptFile
from torchyard.profile.tools import interface
from torchyard.profile.tools.interface import Columns, query_kernels

REPORT: Final = "report"
REPORT_FILE: Final = "report.nsys-rep"
_TRACED: Final = ("cuda", "nvtx", "osrt", "cudnn", "cublas")
_COLUMNS: Final = Columns(name="Name", time="Total Time (ns)", calls="Instances")
_STATS_LIMIT_S: Final = 600.0


def command(program: str, job: interface.Job) -> interface.ToolCommand:
    """Return the command; to record some steps only, nsys waits for cudaProfilerStart."""
    options = job.options
    words, files, capture_range = interface.program_command(
        job, "cuda", "--capture-range=cudaProfilerApi", "--capture-range-end=stop"
    )
    sampled = (
        ("--sample=process-tree", "--python-sampling=true")
        if options.stacks
        else ("--sample=none", "--cpuctxsw=none")
    )
    return interface.ToolCommand(
        words=(
            *(program, "profile", f"--trace={','.join(options.events or _TRACED)}", *sampled),
            *(("--cuda-memory-usage=true",) if options.memory else ()),
            *capture_range,
            *("--force-overwrite=true", f"--output={interface.escaped_path(job.folder / REPORT)}"),
            *options.extra,
            *words,
        ),
        variables=(*interface.library_path(job), *interface.thread_variables(options.threads)),
        files=files,
    )


def collect(installed: interface.InstalledTool, job: interface.Job) -> Collected:
    """Read the kernels with `nsys stats`."""
    report = job.folder / REPORT_FILE
    recorded = interface.recorded_steps_of(job)
    if not report.is_file():
        raise StepFailed("nsys wrote no report", hint="see its output above")
    rows, notes = query_kernels(
        (
            *(installed.path, "stats", "--report", "cuda_gpu_kern_sum", "--format", "csv"),
            *("--force-export=true", str(report)),
        ),
        _COLUMNS,
        tool="nsys",
        limit_s=_STATS_LIMIT_S,
    )
    return replace(
        recorded,
        rows=rows,
        row_kind="kernel",
        files=(KeptFile(name=REPORT_FILE, about="timeline; open with nsys-ui"),),
        notes=(*recorded.notes, *notes),
    )


TOOL: Final = interface.Tool(
    name="nsys",
    about="timeline of CUDA calls, kernels and copies (NVIDIA Nsight Systems)",
    package="NVIDIA's CUDA repository: apt install nsight-systems",
    programs=("nsys",),
    places=("/usr/local/cuda/bin", "/opt/nvidia/nsight-systems/bin"),
    supported_options=(*interface.STEPS, "memory", "stacks", "events", "threads", "extra"),
    command=command,
    collect=collect,
)

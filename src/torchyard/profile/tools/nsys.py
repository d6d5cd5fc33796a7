"""nsys (NVIDIA Nsight Systems): a timeline of CUDA calls, kernels, copies and NVTX ranges."""

from __future__ import annotations

from typing import Final

from torchyard.errors import StepFailed
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

REPORT: Final = "report"
REPORT_FILE: Final = "report.nsys-rep"
_TRACED: Final = ("cuda", "nvtx", "osrt", "cudnn", "cublas")
_COLUMNS: Final = Columns(name="Name", time="Total Time (ns)", calls="Instances")
_STATS_LIMIT_S: Final = 600.0


def command(program: str, job: Job) -> ToolCommand:
    """`nsys profile`; for some steps only, it waits for CUDA's switch."""
    options = job.options
    words = job.program
    files: tuple[tuple[str, str], ...] = ()
    switched: tuple[str, ...] = ()
    if options.ranged:
        words, files = range_program(job, "cuda")
        switched = ("--capture-range=cudaProfilerApi", "--capture-range-end=stop")
    sampled = (
        ("--sample=process-tree", "--python-sampling=true")
        if options.stacks
        else ("--sample=none", "--cpuctxsw=none")
    )
    return ToolCommand(
        words=(
            *(program, "profile", f"--trace={','.join(options.events or _TRACED)}", *sampled),
            *(("--cuda-memory-usage=true",) if options.memory else ()),
            *switched,
            *("--force-overwrite=true", f"--output={plain_path(job.folder / REPORT)}"),
            *options.extra,
            *words,
        ),
        variables=(*library_path(job), *thread_variables(options.threads)),
        files=files,
    )


def collect(found: FoundTool, job: Job) -> Collected:
    """Kernels from `nsys stats`."""
    report = job.folder / REPORT_FILE
    said = ranged(job)
    if not report.is_file():
        raise StepFailed("nsys left no report", hint="look at what it printed")
    rows, notes = ask_for_kernels(
        (
            *(found.path, "stats", "--report", "cuda_gpu_kern_sum", "--format", "csv"),
            *("--force-export=true", str(report)),
        ),
        _COLUMNS,
        tool="nsys",
        limit_s=_STATS_LIMIT_S,
    )
    return Collected(
        rows=rows,
        row_kind="kernel",
        steps=said.steps,
        recorded_steps=said.recorded_steps,
        state=said.state,
        files=(KeptFile(name=REPORT_FILE, about="timeline: open it in nsys-ui"),),
        notes=(*said.notes, *notes),
    )


TOOL: Final = Tool(
    name="nsys",
    about="a timeline of CUDA calls, kernels and copies (NVIDIA Nsight Systems)",
    package="NVIDIA's CUDA repository: apt install nsight-systems",
    programs=("nsys",),
    places=("/usr/local/cuda/bin", "/opt/nvidia/nsight-systems/bin"),
    takes=(*STEPS, "memory", "stacks", "events", "threads", "extra"),
    command=command,
    collect=collect,
)

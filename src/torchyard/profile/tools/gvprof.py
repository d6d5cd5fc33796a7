"""GVProf (ValueExpert): value profiles of CUDA programs by its own hpcrun. Unmaintained since 2021.

`torchyard values` finds the same patterns on any PyTorch; this module is for comparing with it.
"""

from __future__ import annotations

from typing import Final

from torchyard.errors import StepFailed
from torchyard.profile.model import KeptFile
from torchyard.profile.tools.interface import (
    Collected,
    FoundTool,
    Job,
    Tool,
    ToolCommand,
    library_path,
    thread_variables,
)

__all__ = ["KNOBS", "TOOL"]

MEASUREMENTS: Final = "measurements"
KNOBS: Final[dict[str, str]] = {
    "HPCRUN_SANITIZER_READ_TRACE_IGNORE": "1",
    "HPCRUN_SANITIZER_DATA_FLOW_HASH": "0",
    "HPCRUN_SANITIZER_GPU_ANALYSIS_BLOCKS": "1",
    "HPCRUN_SANITIZER_GPU_PATCH_RECORD_NUM": "131072",
}
"""As its authors ran PyTorch: reads and hashes are left out, and the analysis runs on the GPU."""
_ANALYSIS: Final = "data_flow"
_ABOUT: Final = {".dot": "flow of values: `dot -Tsvg` draws it", ".csv": "patterns of values"}
_MOST_FILES: Final = 20


def command(program: str, job: Job) -> ToolCommand:
    """`hpcrun` with the library path and the knobs that a Python program needs."""
    options = job.options
    knobs = {**KNOBS, **dict(options.knobs)}
    analysis = options.events or (_ANALYSIS,)
    return ToolCommand(
        words=(
            *(program, "-o", str(job.folder / MEASUREMENTS)),
            *("-e", ",".join(("gpu=nvidia", *analysis))),
            *(word for name, value in knobs.items() for word in ("-ck", f"{name}={value}")),
            *options.extra,
            *job.program,
        ),
        variables=(
            *library_path(job),
            # GVProf asks for it with drivers newer than 470.57.
            ("SANITIZER_DISABLE_PARALLEL_LAUNCHES", "1"),
            *thread_variables(options.threads),
        ),
        notes=("`torchyard values` finds the same patterns on any torch, without this tool",),
    )


def collect(_found: FoundTool, job: Job) -> Collected:
    """Names what it left; its formats are for its own viewers."""
    folder = job.folder / MEASUREMENTS
    if not folder.is_dir():
        raise StepFailed(
            "hpcrun left no measurements",
            why="an hpcrun that is not GVProf's does not know its events",
            hint="put gvprof/hpctoolkit/bin of GVProf first on the PATH",
        )
    found = [path for path in sorted(folder.rglob("*")) if path.suffix in _ABOUT]
    return Collected(
        row_kind="kernel",
        files=(
            *(
                KeptFile(name=str(path.relative_to(job.folder)), about=_ABOUT[path.suffix])
                for path in found[:_MOST_FILES]
            ),
            KeptFile(name=MEASUREMENTS, about="database: hpcstruct and hpcprof read it"),
        ),
        notes=("hpcprof may hang on libtorch_python.so: end it, run hpcstruct on it, try again",),
    )


TOOL: Final = Tool(
    name="gvprof",
    about="values of CUDA programs (GVProf's hpcrun)",
    package="no distribution has it: build GVProf (github.com/GVProf/GVProf, bin/install) and put "
    "gvprof/hpctoolkit/bin on the PATH",
    programs=("hpcrun",),
    takes=("events", "knobs", "threads", "extra"),
    command=command,
    collect=collect,
)

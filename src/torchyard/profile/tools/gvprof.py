"""GVProf (ValueExpert): value profiles of CUDA programs by its own hpcrun. Unmaintained since 2021.

`torchyard values` finds the same patterns with any PyTorch; this module allows a comparison.
"""

from __future__ import annotations

from typing import Final

from torchyard.errors import StepFailed
from torchyard.profile.model import Collected, KeptFile
from torchyard.profile.tools.interface import (
    InstalledTool,
    Job,
    Tool,
    ToolCommand,
    library_path,
    thread_variables,
)

MEASUREMENTS: Final = "measurements"
KNOBS: Final[dict[str, str]] = {
    "HPCRUN_SANITIZER_READ_TRACE_IGNORE": "1",
    "HPCRUN_SANITIZER_DATA_FLOW_HASH": "0",
    "HPCRUN_SANITIZER_GPU_ANALYSIS_BLOCKS": "1",
    "HPCRUN_SANITIZER_GPU_PATCH_RECORD_NUM": "131072",
}
"""Settings of its authors for PyTorch: no reads, no hashes, analysis on the GPU."""
_ANALYSIS: Final = "data_flow"
_ABOUT: Final = {".dot": "value flow graph; draw it with `dot -Tsvg`", ".csv": "value patterns"}
_MOST_FILES: Final = 20


def command(program: str, job: Job) -> ToolCommand:
    """Return the `hpcrun` command with the library path and knobs for a Python program."""
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
            # Required by GVProf with drivers newer than 470.57.
            ("SANITIZER_DISABLE_PARALLEL_LAUNCHES", "1"),
            *thread_variables(options.threads),
        ),
        notes=("`torchyard values` finds the same patterns with any PyTorch and without GVProf",),
    )


def collect(_installed: InstalledTool, job: Job) -> Collected:
    """List the output files; only GVProf's viewers read their formats."""
    folder = job.folder / MEASUREMENTS
    if not folder.is_dir():
        raise StepFailed(
            "hpcrun wrote no measurements",
            why="an hpcrun that is not GVProf's does not support its events",
            hint="put gvprof/hpctoolkit/bin of GVProf first on the PATH",
        )
    files = [path for path in sorted(folder.rglob("*")) if path.suffix in _ABOUT]
    return Collected(
        row_kind="kernel",
        files=(
            *(
                KeptFile(name=str(path.relative_to(job.folder)), about=_ABOUT[path.suffix])
                for path in files[:_MOST_FILES]
            ),
            KeptFile(
                name=MEASUREMENTS, about="measurement database; read it with hpcstruct and hpcprof"
            ),
        ),
        notes=(
            "if hpcprof hangs on libtorch_python.so: stop it, run hpcstruct on that library, try again",
        ),
    )


TOOL: Final = Tool(
    name="gvprof",
    about="value patterns of CUDA programs (GVProf's hpcrun)",
    package="not packaged by any distribution: build GVProf (github.com/GVProf/GVProf, bin/install) and put "
    "gvprof/hpctoolkit/bin on the PATH",
    programs=("hpcrun",),
    supported_options=("events", "knobs", "threads", "extra"),
    command=command,
    collect=collect,
)

"""torch.profiler, which runs inside the target: operators, times, memory and a Chrome trace."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from torchyard.core.records import decode
from torchyard.errors import MissingTool, ResultsDamaged, UsageError, WorkerFailed
from torchyard.presentation.wording import data_wait_text
from torchyard.profile.model import Collected, KeptFile
from torchyard.profile.tools.interface import (
    STEPS,
    InstalledTool,
    Job,
    Tool,
    ToolCommand,
    thread_variables,
)

SUMMARY_FILE: Final = "operators.json"
TRACE_FILE: Final = "trace.json.gz"
PLAN_FILE: Final = "plan.json"
_SUMMARY: Final = (
    *("rows", "notes", "state", "recorded_ns", "steps", "recorded_steps"),
    *("peak_memory_bytes", "peak_device_bytes"),
)
"""Fields of `Collected` in the summary."""
_LOADERS: Final = "enumerate(DataLoader)"
"""Start of the names under which torch records the calls that get a batch."""
# By default Kineto logs each start and stop on stderr, mixed with the program's output.
_QUIET: Final = ("KINETO_LOG_LEVEL", "9")


def command(_program: str, job: Job) -> ToolCommand:
    """Return the command that runs the program in the worker, with a plan for torch.profiler."""
    options = {
        key: value for key, value in asdict(job.options).items() if key in TOOL.supported_options
    }
    plan = {
        "tool": "torch",
        "output": str(job.folder / SUMMARY_FILE),
        "trace": str(job.folder / TRACE_FILE),
        "tool_options": options,
    }
    path = str(job.folder / PLAN_FILE)
    quiet = () if _QUIET[0] in job.environment else (_QUIET,)
    return ToolCommand(
        words=job.inside_worker(path),
        variables=(*quiet, *thread_variables(job.options.threads)),
        files=((path, json.dumps(plan)),),
    )


def check(_installed: InstalledTool, job: Job) -> None:
    """Raise MissingTool if the target has no torch."""
    if job.facts.torch_folder is None:
        raise MissingTool(
            f"the target {job.python} has no torch",
            hint="select one that has: --target PYTHON or --target build:NAME",
        )


def collect(_installed: InstalledTool, job: Job) -> Collected:
    """Read the summary that the worker wrote."""
    path = job.folder / SUMMARY_FILE
    if not path.is_file():
        raise WorkerFailed(
            "the program ended before torch.profiler was started",
            hint="see its output above; `torchyard target` checks its torch",
        )
    try:
        data = dict(json.loads(path.read_bytes()))
        summary = {name: data[name] for name in _SUMMARY if name in data}
        collected = decode(Collected, summary, where=str(path), strict=False)
    except (OSError, ValueError, TypeError, RecursionError, UsageError) as error:
        raise ResultsDamaged(
            f"cannot read {path}: {error}", hint="profile the program again"
        ) from error
    return replace(
        collected,
        tool_version=str(data.get("torch", "")),
        files=_trace(job.folder),
        notes=(*data_notes(collected), *collected.notes),
    )


def data_notes(collected: Collected) -> list[str]:
    """Return which share of the recorded time is spent in data loaders, if it matters."""
    loading_ns = sum(
        row.total_cost or 0.0 for row in collected.rows if row.name.startswith(_LOADERS)
    )
    if not collected.recorded_ns:
        return []
    text = data_wait_text(loading_ns / collected.recorded_ns, "the recorded time")
    return [text] if text else []


def _trace(folder: Path) -> tuple[KeptFile, ...]:
    if not (folder / TRACE_FILE).is_file():
        return ()
    return (
        KeptFile(
            name=TRACE_FILE, about="Chrome trace; open it at ui.perfetto.dev or in chrome://tracing"
        ),
    )


TOOL: Final = Tool(
    name="torch",
    about="operators, kernels, memory and a Chrome trace, by torch.profiler inside the target",
    package="torch in the target",
    supported_options=("shapes", "memory", "stacks", *STEPS, "most_s", "threads"),
    command=command,
    collect=collect,
    check=check,
)

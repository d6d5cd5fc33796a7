"""Some steps of a program for tools outside its process: the plan of the worker that switches them."""

from __future__ import annotations

import json
from typing import Any, Final

from torchyard.values.tools.contract import Collected, Job

__all__ = ["RANGE_FILE", "range_pid", "range_program", "ranged"]

PLAN_FILE: Final = "range.plan.json"
RANGE_FILE: Final = "range.json"


def range_program(job: Job, switch: str) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The words that run the program, and the files they need."""
    options = job.options
    plan = {
        "tool": "range",
        "switch": switch,
        "output": str(job.folder / RANGE_FILE),
        "tool_options": {
            "skip_steps": options.skip_steps,
            "warm_steps": options.warm_steps,
            "active_steps": options.active_steps,
        },
    }
    path = str(job.folder / PLAN_FILE)
    return job.surrounded(path), ((path, json.dumps(plan)),)


def ranged(job: Job) -> Collected:
    """What the worker says of steps; nothing when the program ran without it."""
    try:
        data: Any = json.loads((job.folder / RANGE_FILE).read_bytes())
        return Collected(
            steps=int(data["steps"]),
            recorded_steps=int(data["recorded_steps"]),
            state=str(data["state"]),
            notes=tuple(str(note) for note in data["notes"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return Collected()


def range_pid(job: Job) -> int | None:
    """The process of the program; None when its worker wrote nothing."""
    try:
        return int(json.loads((job.folder / RANGE_FILE).read_bytes())["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None

"""What is known on disk of each step: done, with which fingerprint, and what it took.

A state is written whole before a step starts and when it ends, so a step that was killed is seen as
started and never as done. Knows nothing of how steps run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from torchyard.core.build_plan import Step
from torchyard.core.records import decode, encode
from torchyard.errors import UsageError
from torchyard.results.durable import replace_file, to_json_text, write_failed

__all__ = ["StepState", "StepStatus", "is_fresh", "read_state", "touch", "write_state"]

StepStatus = Literal["running", "done", "failed", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class StepState:
    """The last run of a step."""

    step: str
    fingerprint: str
    status: StepStatus
    started_at: float
    first_started_at: float = 0.0
    """Start of the first of several attempts of one fingerprint that were cut off; 0: unknown."""
    wall_s: float = 0.0
    earlier_s: float = 0.0
    """Time of runs of the same fingerprint that were cut off before."""
    exit_code: int | None = None
    detail: str = ""


def read_state(path: Path) -> StepState | None:
    """The state; None when there is none, or none that can be read: the step then runs again."""
    try:
        return decode(StepState, json.loads(path.read_text()), where=str(path), strict=False)
    except (OSError, ValueError, UsageError):
        return None


def write_state(path: Path, state: StepState) -> None:
    """Put the state on disk, whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_failed(path, error, kept="what was built") from error
    replace_file(path, to_json_text(encode(state), indent=1) + "\n")


def touch(step: Step, path: Path, fingerprint: str) -> bool:
    """Take what an earlier plan's step made for what this plan wants; False where nothing is.

    Of a step that was cut off only its time is kept: it goes on at the next run.
    """
    state = read_state(path)
    if state is None or state.fingerprint == fingerprint:
        return False
    if state.status == "done" and not all(Path(made).exists() for made in step.creates):
        return False
    write_state(path, replace(state, fingerprint=fingerprint))
    return True


def is_fresh(step: Step, state: StepState | None, fingerprint: str) -> bool:
    """Whether the step is done as the plan wants it and what it made is still there."""
    return (
        state is not None
        and state.status == "done"
        and state.fingerprint == fingerprint
        and (not step.kept or all(Path(path).exists() for path in step.creates))
    )

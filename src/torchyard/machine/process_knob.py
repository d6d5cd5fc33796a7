"""Knobs of one process and its children: pinning, priority, own address randomisation, variables.

What `tune --user` may use, because they need no root and nothing has to be put back: they end with
the process. The starting process sets them for its child between fork and exec; without a command
they are shown as words that a shell puts in front of one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torchyard.core.machine import Wish
from torchyard.machine.knob import Knob, Machine

__all__ = ["ProcessKnob", "ProcessSetting", "nothing_to_apply"]


def nothing_to_apply() -> None:
    """For settings that are variables only."""


@dataclass(frozen=True, kw_only=True)
class ProcessSetting:
    """What one knob does to a process that is about to start."""

    words: tuple[str, ...] = ()
    """What a shell puts in front of the command to get the same: ("taskset", "-c", "2-3")."""
    variables: tuple[tuple[str, str], ...] = ()
    """Variables of its environment. Those that the user has set already stay as they are."""
    apply: Callable[[], None] = nothing_to_apply
    """Runs in the child before it becomes the command: system calls only, all imports and
    look-ups done before. Raises OSError when the kernel refuses."""
    unavailable: str = ""
    """Why nothing can be done here; then the rest is empty."""


@runtime_checkable
class ProcessKnob(Knob, Protocol):
    """A knob with reach "process".

    `survey` shows what this process has now and what the command would get, as for every knob.
    `write` and `restore` are never called.
    """

    def prefix(self, machine: Machine, wish: Wish) -> ProcessSetting:
        """What to do to the command. Reads only, never raises."""

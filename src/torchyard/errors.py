"""Every error Torchyard raises on purpose, with the exit code each one ends the program with.

TorchyardError                1   our own mistake if it is ever raised bare
├─ UsageError                 2   a wrong option or configuration value
├─ NothingToDo                3   the request selects no work
├─ MissingTool                4   a program, library or device that is not here
├─ NotAllowed                 4   a permission that is not ours
├─ WorkerFailed               5   a worker died, hung or spoke another protocol
├─ StepFailed                 5   a command of ours ended badly
├─ Untrustworthy              6   measured, but the numbers must not be believed
├─ GateFailed                 7   a limit that the user set is crossed
├─ ResultsDamaged             8   a run folder that is broken or newer than we are
├─ WrongResults               9   every candidate computes something else than the baseline
└─ TimeLimit                124   a limit of time ran out

Ctrl-C ends with 130, SIGHUP with 129 and SIGTERM with 143. Library code raises these and never prints or exits: only `cli` does.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "EXIT_CODES",
    "GateFailed",
    "MissingTool",
    "NotAllowed",
    "NothingToDo",
    "ResultsDamaged",
    "StepFailed",
    "TimeLimit",
    "TorchyardError",
    "Untrustworthy",
    "UsageError",
    "WorkerFailed",
    "WrongResults",
]


class TorchyardError(Exception):
    """Base of the tree: what happened, why, what to do about it, and where the log is."""

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, why: str = "", hint: str = "", log: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.hint = hint
        self.log = log


class UsageError(TorchyardError):
    """An option or a configuration value is wrong."""

    exit_code = 2


class NothingToDo(TorchyardError):
    """The request is well-formed and selects no work."""

    exit_code = 3


class MissingTool(TorchyardError):
    """A program, library or device that the request needs is not on this machine."""

    exit_code = 4


class NotAllowed(TorchyardError):
    """The operating system refuses what the request needs."""

    exit_code = 4


class WorkerFailed(TorchyardError):
    """A worker died, hung, or does not speak our protocol."""

    exit_code = 5


class StepFailed(TorchyardError):
    """A command that was part of the work ended badly."""

    exit_code = 5


class Untrustworthy(TorchyardError):
    """The measurement ran, and its numbers must not be believed."""

    exit_code = 6


class GateFailed(TorchyardError):
    """A limit that the user set is crossed."""

    exit_code = 7


class ResultsDamaged(TorchyardError):
    """A run folder is broken, or was written by a newer Torchyard."""

    exit_code = 8


class WrongResults(TorchyardError):
    """Every candidate computes something else than the baseline."""

    exit_code = 9


class TimeLimit(TorchyardError):
    """A limit of time ran out."""

    exit_code = 124


EXIT_CODES: dict[int, str] = {
    0: "good",
    1: "a mistake of Torchyard's own: please report it",
    2: "wrong option or configuration",
    3: "nothing to do",
    4: "missing tool or permission",
    5: "a step or worker failed",
    6: "the measurement is not trustworthy",
    7: "a gate failed: a limit was crossed",
    8: "results damaged or from a newer version",
    9: "every candidate computes wrong results",
    124: "time limit",
    129: "ended by SIGHUP",
    130: "interrupted",
    141: "the reader of the output went away",
    143: "ended by SIGTERM",
}

"""The exceptions of Torchyard and their exit codes.

A TorchyardError raised directly is a bug in Torchyard. Ctrl-C ends the program with 130, SIGHUP with 129
and SIGTERM with 143. Library code raises these exceptions and never prints or exits: only `cli` does.
"""

from __future__ import annotations


class TorchyardError(Exception):
    """Base class: what failed, why, a hint how to fix it, and the path of the log."""

    exit_code: int = 1

    def __init__(self, what: str, *, why: str = "", hint: str = "", log: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.hint = hint
        self.log = log


class UsageError(TorchyardError):
    """An option or a configuration value is invalid."""

    exit_code = 2


class NothingToDo(TorchyardError):
    """The request is valid and selects no work."""

    exit_code = 3


class MissingTool(TorchyardError):
    """A program, library or device that the request needs is missing on this machine."""

    exit_code = 4


class NotAllowed(TorchyardError):
    """The operating system refuses what the request needs."""

    exit_code = 4


class WorkerFailed(TorchyardError):
    """A worker died, hung, or violated the protocol."""

    exit_code = 5


class StepFailed(TorchyardError):
    """A command that is part of the work failed."""

    exit_code = 5


class Untrustworthy(TorchyardError):
    """The measurement ran, and its results are not trustworthy."""

    exit_code = 6


class GateFailed(TorchyardError):
    """A limit set by the user was exceeded."""

    exit_code = 7


class ResultsDamaged(TorchyardError):
    """A run folder is damaged, or was written by a newer version of Torchyard."""

    exit_code = 8


class WrongResults(TorchyardError):
    """Every candidate computes wrong results."""

    exit_code = 9


class TimeLimit(TorchyardError):
    """A time limit was exceeded."""

    exit_code = 124


EXIT_CODES: dict[int, str] = {
    0: "success",
    1: "internal error: please report it",
    2: "invalid option or configuration",
    3: "nothing to do",
    4: "missing tool or permission",
    5: "a step or worker failed",
    6: "the measurements are not trustworthy",
    7: "a gate failed: a limit was exceeded",
    8: "results damaged or from a newer version",
    9: "every candidate computes wrong results",
    124: "time limit exceeded",
    129: "terminated by SIGHUP",
    130: "interrupted (Ctrl-C)",
    141: "the reader of the output closed it (SIGPIPE)",
    143: "terminated by SIGTERM",
}

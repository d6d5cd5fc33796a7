"""What can go wrong with a worker, in one word and in a sentence with a hint.

Knows exit codes and signals. Knows nothing of pipes, of measuring or of torch.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Final, Literal, get_args

from torchyard.errors import WorkerFailed

__all__ = ["TROUBLE_KINDS", "Ending", "TroubleKind", "WorkerTrouble", "kind_of_ending"]

TroubleKind = Literal[
    "raised",  # the worker answered with an exception and lives on
    "cannot-build",  # the workload or backend cannot be made in this target, and why
    "crashed",  # it ended by itself: a signal of its own making, or an exit in the middle of work
    "killed",  # somebody else ended it
    "out-of-memory",
    "timeout",
    "protocol",  # it wrote something that is not an answer, or closed its pipe
    "no-python",  # the interpreter cannot be started, is too old, or is no Python
    "no-torch",
    "interrupted",  # we ended it, or left a question unanswered
]
TROUBLE_KINDS: Final[tuple[TroubleKind, ...]] = get_args(TroubleKind)

_SENT_BY_OTHERS: Final = frozenset(
    {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
)


class WorkerTrouble(WorkerFailed):
    """A worker did not answer as it should; says what happened and shows the log's last lines."""

    def __init__(
        self,
        message: str,
        *,
        kind: TroubleKind,
        traceback: str = "",
        log_tail: str = "",
        why: str = "",
        hint: str = "",
        log: str = "",
    ) -> None:
        super().__init__(message, why=why, hint=hint, log=log)
        self.kind: TroubleKind = kind
        self.message = message
        self.traceback = traceback
        self.log_tail = log_tail

    def again(self) -> WorkerTrouble:
        """A fresh copy, to be raised when somebody asks the same dead worker once more."""
        return WorkerTrouble(
            self.message,
            kind=self.kind,
            traceback=self.traceback,
            log_tail=self.log_tail,
            why=self.why,
            hint=self.hint,
            log=self.log,
        )


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a process ended: by an exit code or by a signal."""

    exit_code: int | None = None
    signal_number: int | None = None

    @property
    def said(self) -> str:
        """`ended with exit code 3`, `was ended by SIGSEGV`."""
        if self.signal_number is not None:
            return f"was ended by {self._signal_name}"
        return f"ended with exit code {self.exit_code}"

    @property
    def hint(self) -> str:
        """What this ending usually means."""
        by_name = {
            "SIGILL": "this build of torch may use instructions that this processor lacks",
            "SIGSEGV": "the last lines of the log show where; a crash in native code is a bug of "
            "the target, or of a library that is preloaded",
            "SIGABRT": "the last lines of the log show the assertion that failed",
            "SIGBUS": "shared memory may be full: see the size of /dev/shm",
            "SIGKILL": "something outside ended it: a scheduler's limit, an administrator, kill -9",
        }
        return by_name.get(self._signal_name, "the last lines of the log may say why")

    @property
    def _signal_name(self) -> str:
        if self.signal_number is None:
            return ""
        try:
            return signal.Signals(self.signal_number).name
        except ValueError:  # real-time signals have no name of their own
            return f"signal {self.signal_number}"


def kind_of_ending(ending: Ending, *, kernel_killed_for_memory: bool) -> TroubleKind:
    """The word for a worker that ended though nobody here asked it to."""
    if ending.signal_number == signal.SIGKILL and kernel_killed_for_memory:
        return "out-of-memory"
    if ending.signal_number in _SENT_BY_OTHERS:
        return "killed"
    return "crashed"

"""Measure what quieting does to the noise: alternate audits with and without the settings.

The order is plain, quieted, plain: half of the plain audit before the settings are applied and
half after they are restored, so that a machine that becomes quieter by itself does not look
improved. Knob by knob it continues plain, quieted, plain, ... Every audit is a process of its
own, because pinning, priorities and isolated cores belong to processes.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from torchyard.audit.audit_files import changes_between, read_audit
from torchyard.audit.model import Audit, QuietingEffect
from torchyard.errors import NotAllowed, NothingToDo, StepFailed, Untrustworthy, WorkerFailed
from torchyard.machine.knob import Machine
from torchyard.machine.knobs.process_knobs import ProcessSetting, pinned_cpus
from torchyard.machine.model import QuietRequest, Restored
from torchyard.machine.quieting.apply_settings import QuietSession, chosen_knobs, dry_run
from torchyard.machine.quieting.journal import boot_of, journal_folder, read_journal
from torchyard.machine.quieting.quiet_run import process_settings, run_command
from torchyard.machine.quieting.restoring import may_write

EVERYTHING: Final = "everything"
_TOO_NOISY: Final = Untrustworthy.exit_code
_SIGNALS: Final = 128
"""Shell convention: an exit code above this is a signal."""
Settings = Sequence[tuple[str, ProcessSetting]]


def audit_command() -> tuple[str, ...]:
    """Return the command that audits the machine in a separate process; options are appended."""
    return (sys.executable, "-m", "torchyard", "machine", "audit", "--silent")


@dataclass(frozen=True, kw_only=True)
class EffectPlan:
    """What to measure."""

    request: QuietRequest
    seconds: float
    """Duration of each audit; the plain audits at both ends are half as long."""
    each: bool = False
    """Also measure each knob alone."""
    user: bool = False
    """Only process settings, which need no root."""
    command: tuple[str, ...] = ()
    """Command of the audits with their common options; empty: `audit_command()`."""


@dataclass(frozen=True, kw_only=True)
class _State:
    settings: Settings
    written: tuple[str, ...]
    refused: tuple[tuple[str, str], ...] = ()


class EffectRun:
    """Measures the effects of quieting; `effects` is valid at any time, also after an interrupt."""

    def __init__(
        self, machine: Machine, plan: EffectPlan, *, on_step: Callable[[str], None] = lambda _: None
    ) -> None:
        self.effects: list[QuietingEffect] = []
        self.audits: list[Audit] = []
        """Every audit, in chronological order."""
        self.restored: Restored | None = None
        """The last restore."""
        self._machine = machine
        self._plan = plan
        self._on_step = on_step

    def run(self) -> list[QuietingEffect]:
        """Measure; raises before the first audit if no setting can be changed here."""
        steps = self._steps()
        self._check_rights()
        half_s = self._plan.seconds / 2
        plain = self._audit("plain", half_s, ())
        for number, (what, request) in enumerate(steps, start=1):
            with self._quieted(request) as state:
                quieted = self._audit(what, self._plan.seconds, state.settings)
            last = number == len(steps)
            again = self._audit("plain", half_s if last else self._plan.seconds, ())
            self.effects.append(
                QuietingEffect(
                    what=what,
                    written=state.written,
                    refused=state.refused,
                    plain=(plain, again),
                    quieted=quieted,
                    changes=changes_between((plain, again), (quieted,)),
                    unsteady=tuple(
                        change.name
                        for change in changes_between((plain,), (again,))
                        if change.verdict in ("quieter", "noisier")
                    ),
                )
            )
            plain = again
        return self.effects

    def _steps(self) -> list[tuple[str, QuietRequest]]:
        request = self._plan.request
        names = [name for name, _ in process_settings(self._machine, request)]
        if not self._plan.user:
            planned = dry_run(self._machine, request)
            names = [*planned.to_write, *names]
        if not names:
            raise NothingToDo(
                "no knob has anything to change on this machine",
                why="each is unavailable or already set",
                hint="`torchyard machine quiet --dry-run` shows why",
            )
        steps = [(EVERYTHING, request)]
        if self._plan.each:
            alone = replace(request, also=(), without=())
            steps += [(name, replace(alone, only=(name,))) for name in dict.fromkeys(names)]
        return steps

    def _check_rights(self) -> None:
        """Check permissions before the first audit."""
        if self._plan.user:
            return
        if not may_write(self._machine):
            raise NotAllowed(
                "quieting this machine needs root",
                hint="use sudo, or add --user to measure process settings only",
            )
        files = self._machine.files
        journal = read_journal(journal_folder(files))
        if journal is not None and journal.mode == "standing" and journal.boot == boot_of(files):
            raise NotAllowed(
                f"the machine is already quieted ({journal.who})",
                hint="restore it first: `sudo torchyard machine restore`",
            )

    @contextmanager
    def _quieted(self, request: QuietRequest) -> Iterator[_State]:
        if self._plan.user or not chosen_knobs(request):  # nothing that must be restored
            settings = process_settings(self._machine, request)
            yield _State(settings=settings, written=tuple(name for name, _ in settings))
            return
        session = QuietSession(self._machine, request)
        try:
            with session:
                settings = process_settings(self._machine, request, applied=session.applied)
                changed = [change.setting.knob for change in session.applied.written]
                yield _State(
                    settings=settings,
                    written=tuple(dict.fromkeys([*changed, *(name for name, _ in settings)])),
                    refused=tuple(
                        (change.setting.knob, change.reason) for change in session.applied.refused
                    ),
                )
        finally:
            self.restored = session.restored
        if self.restored is not None and not self.restored.complete:
            raise StepFailed(
                "the machine could not be restored",
                why=self.restored.missing[0].reason,
                hint="`sudo torchyard machine restore` tries again and shows details",
            )

    def _audit(self, label: str, seconds: float, settings: Settings) -> Audit:
        self._on_step(f"audit: {label}, {seconds:.0f} s")
        # The same in all audits, pinned or not: one for each core they share.
        cores = self._plan.request.cores or pinned_cpus(self._machine.files, QuietRequest())
        with tempfile.TemporaryDirectory(prefix="torchyard-quiet-") as folder:
            audit_path = Path(folder) / "audit.json"
            command = (
                *(self._plan.command or audit_command()),
                *("--seconds", f"{seconds:g}", "--threads", str(max(1, len(cores)))),
                *("--label", label, "--keep", str(audit_path)),
            )
            end = run_command(command, settings)
            for name, reason in end.refused:
                self._on_step(f"{name}: refused for the audit, because {reason}")
            if end.exit_code > _SIGNALS:
                raise KeyboardInterrupt
            if end.exit_code not in (0, _TOO_NOISY):
                raise WorkerFailed(
                    f"the audit {label!r} failed with exit code {end.exit_code}",
                    hint="its output is above; run `torchyard machine audit` alone for details",
                )
            audit = read_audit(audit_path)
        self.audits.append(audit)
        return audit

"""Measure what quieting does to the noise: alternate audits with and without the settings.

The order is plain, quieted, plain: half of the plain audit before the settings are applied and
half after they are restored, so that a machine that becomes quieter by itself does not look
improved. Knob by knob it continues plain, quieted, plain, ... Every audit is a process of its
own, because pinning, priorities and isolated cores belong to processes.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from torchyard.audit.kept_audits import changes_between, read_audit
from torchyard.audit.model import Audit, TuneEffect
from torchyard.errors import NotAllowed, NothingToDo, StepFailed, WorkerFailed
from torchyard.machine.knob import Knob, Machine
from torchyard.machine.knobs import KNOBS
from torchyard.machine.knobs.process_knobs import ProcessSetting, pinned_cpus
from torchyard.machine.model import Restored, Wish
from torchyard.machine.quieting.apply_settings import Tuning, chosen_knobs, dry_run
from torchyard.machine.quieting.journal import boot_of, journal_folder, read_journal
from torchyard.machine.quieting.process_settings import process_settings, run_command
from torchyard.machine.quieting.restoring import may_write

__all__ = ["EVERYTHING", "EffectPlan", "EffectRun", "audit_command"]

EVERYTHING: Final = "everything"
_TOO_NOISY: Final = 6
_SIGNALS: Final = 128
Settings = Sequence[tuple[str, ProcessSetting]]


def audit_command() -> tuple[str, ...]:
    """How a process of its own audits the machine; options are added behind it."""
    return (sys.executable, "-m", "torchyard", "machine", "audit", "--silent")


@dataclass(frozen=True, kw_only=True)
class EffectPlan:
    """What to measure."""

    wish: Wish
    seconds: float
    """Of each audit; plain ones at both ends are half as long."""
    each: bool = False
    """Also every knob alone."""
    user: bool = False
    """Only knobs of one process, which need no root."""
    command: tuple[str, ...] = ()
    """Of the audit, with options that all audits share; as `audit_command` when empty."""


@dataclass(frozen=True, kw_only=True)
class _State:
    settings: Settings
    written: tuple[str, ...]
    refused: tuple[tuple[str, str], ...] = ()


class EffectRun:
    """Measures; `effects` can be read at any time, also after an interrupt."""

    def __init__(
        self,
        machine: Machine,
        plan: EffectPlan,
        *,
        on_step: Callable[[str], None] = lambda _: None,
        knobs: Mapping[str, Knob] = KNOBS,
    ) -> None:
        self.effects: list[TuneEffect] = []
        self.audits: list[Audit] = []
        """Every audit, in the order they were made."""
        self.restored: Restored | None = None
        """The last restore; look at it when it is not complete."""
        self._machine = machine
        self._plan = plan
        self._on_step = on_step
        self._knobs = knobs

    def run(self) -> list[TuneEffect]:
        """Raises before anything is measured when nothing can be changed here."""
        steps = self._steps()
        self._check_rights()
        half_s = self._plan.seconds / 2
        plain = self._audit("plain", half_s, ())
        for number, (what, wish) in enumerate(steps, start=1):
            with self._tuned(wish) as state:
                tuned = self._audit(what, self._plan.seconds, state.settings)
            last = number == len(steps)
            again = self._audit("plain", half_s if last else self._plan.seconds, ())
            self.effects.append(
                TuneEffect(
                    what=what,
                    written=state.written,
                    refused=state.refused,
                    plain=(plain, again),
                    tuned=tuned,
                    changes=changes_between((plain, again), (tuned,)),
                    unsteady=tuple(
                        change.name
                        for change in changes_between((plain,), (again,))
                        if change.verdict in ("quieter", "noisier")
                    ),
                )
            )
            plain = again
        return self.effects

    def _steps(self) -> list[tuple[str, Wish]]:
        wish = self._plan.wish
        names = [name for name, _ in process_settings(self._machine, wish, knobs=self._knobs)]
        if not self._plan.user:
            found = dry_run(self._machine, wish, knobs=self._knobs)
            kept = {change.setting for change in found.changes}
            names = [
                *(s.knob for s in found.knobs if any(item not in kept for item in s.settings)),
                *names,
            ]
        if not names:
            raise NothingToDo(
                "no knob can change anything here",
                why="each is unavailable, or set as wanted already",
                hint="`torchyard machine tune --dry-run` shows why",
            )
        steps = [(EVERYTHING, wish)]
        if self._plan.each:
            alone = replace(wish, also=(), without=())
            steps += [(name, replace(alone, only=(name,))) for name in dict.fromkeys(names)]
        return steps

    def _check_rights(self) -> None:
        """Before the first audit, not after it."""
        if self._plan.user:
            return
        if not may_write(self._machine):
            raise NotAllowed(
                "tuning this machine needs root",
                hint="use sudo, or add --user to measure what a user may do",
            )
        files = self._machine.files
        text = read_journal(journal_folder(files))
        if text is not None and text.mode == "standing" and text.boot == boot_of(files):
            raise NotAllowed(
                f"the machine is tuned already ({text.who})",
                hint="put it back first with `torchyard machine restore`",
            )

    @contextmanager
    def _tuned(self, wish: Wish) -> Iterator[_State]:
        knobs_of_machine = chosen_knobs(wish, knobs=self._knobs)
        if self._plan.user or not knobs_of_machine:  # nothing is written that must be put back
            settings = process_settings(self._machine, wish, knobs=self._knobs)
            yield _State(settings=settings, written=tuple(name for name, _ in settings))
            return
        tuning = Tuning(self._machine, wish, knobs=self._knobs)
        try:
            with tuning:
                settings = process_settings(
                    self._machine, wish, tuned=tuning.tuned, knobs=self._knobs
                )
                changed = [change.setting.knob for change in tuning.tuned.written]
                yield _State(
                    settings=settings,
                    written=tuple(dict.fromkeys([*changed, *(name for name, _ in settings)])),
                    refused=tuple(
                        (change.setting.knob, change.reason) for change in tuning.tuned.refused
                    ),
                )
        finally:
            self.restored = tuning.restored
        if self.restored is not None and not self.restored.complete:
            raise StepFailed(
                "the machine could not be put back as it was found",
                why=self.restored.missing[0].reason,
                hint="`sudo torchyard machine restore` tries again and shows everything",
            )

    def _threads(self) -> int:
        """The same for all audits, although some are pinned: one for each core they all have."""
        return max(1, len(self._plan.wish.cores or pinned_cpus(self._machine.files, Wish())))

    def _audit(self, label: str, seconds: float, settings: Settings) -> Audit:
        self._on_step(f"audit: {label}, {seconds:.0f} s")
        with tempfile.TemporaryDirectory(prefix="torchyard-tune-") as folder:
            kept = Path(folder) / "audit.json"
            command = (
                *(self._plan.command or audit_command()),
                *("--seconds", f"{seconds:g}", "--threads", str(self._threads())),
                *("--label", label, "--keep", str(kept)),
            )
            end = run_command(command, settings)
            for name, reason in end.refused:
                self._on_step(f"{name}: refused for the audit, because {reason}")
            if end.exit_code > _SIGNALS:
                raise KeyboardInterrupt
            if end.exit_code not in (0, _TOO_NOISY):
                raise WorkerFailed(
                    f"the audit {label!r} ended with exit code {end.exit_code}",
                    hint="what it said is above; `torchyard machine audit` alone says more",
                )
            found = read_audit(kept)
        self.audits.append(found)
        return found

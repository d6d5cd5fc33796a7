"""Quiet the machine for one run and restore it afterwards.

Also for runs that change no setting: what an earlier, killed process left behind is restored first,
because it would affect the measurement. Knows nothing of what is measured.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Self

from torchyard.core.study import Study
from torchyard.errors import TorchyardError
from torchyard.machine.gpu.library import open_gpu_libraries
from torchyard.machine.knob import Machine
from torchyard.machine.model import (
    PROFILE_CHOICES,
    AppliedSettings,
    QuietRequest,
    Restored,
    SettingChange,
)
from torchyard.machine.quieting.apply_settings import QuietSession, needs_gpus
from torchyard.machine.quieting.process_settings import (
    apply_here,
    own_priority_and_cores,
    process_settings,
)
from torchyard.machine.quieting.restoring import Recovery, recover
from torchyard.machine.system.file_tree import FileTree

_RESTORE = "`sudo torchyard machine restore`"


def request_for(profile: str, study: Study) -> QuietRequest:
    """Return the request of `--tune-profile`; `auto` selects by the devices of the study."""
    cpu_only = all(workload.device == "cpu" for workload in study.workloads)
    name = ("cpu" if cpu_only else "all") if profile == "auto" else profile
    return QuietRequest(profiles=PROFILE_CHOICES[name])


class QuietMachine:
    """Quiets the machine around a run. Without a request, only restores an interrupted session."""

    def __init__(self, request: QuietRequest | None, *, files: FileTree | None = None) -> None:
        self.before: list[str] = []
        """Notes for the user before the run."""
        self.after: list[str] = []
        """Notes for the user after it: values not restored, or changed by other programs."""
        self.tuned: AppliedSettings | None = None
        self.is_back = True
        """Whether everything is restored."""
        self._request = request
        self._files = files or FileTree()
        self._stack = ExitStack()
        self._session: QuietSession | None = None

    def __enter__(self) -> Self:
        machine = Machine(files=self._files)
        recovery = self._recovered(machine)
        if recovery is not None and recovery.restored is None:
            self.before.append(
                f"this machine still has the settings of a killed session ({recovery.who}): "
                f"restore it with {_RESTORE}"
            )
        elif recovery is not None and recovery.restored is not None:
            self.before.append(f"a session was killed ({recovery.who}): its settings were restored")
            self.before += _restore_notes(recovery.restored)
        if self._request is None:
            return self
        with ExitStack() as stack:
            if needs_gpus(self._request):
                libraries = stack.enter_context(open_gpu_libraries(self._files))
                machine = Machine(files=self._files, gpus=libraries)
            stack.enter_context(own_priority_and_cores())
            session = QuietSession(machine, self._request)
            stack.enter_context(session)
            # Workers are started by this process and inherit its affinity and priority.
            settings = process_settings(machine, self._request, applied=session.applied)
            refused = apply_here(settings)
            self._stack = stack.pop_all()
        self.before += [f"not quieted: {name}: {reason}" for name, reason in refused]
        self._session, self.tuned = session, session.applied
        self.before += [f"not quieted: {_refusal(change)}" for change in session.applied.refused]
        return self

    def _recovered(self, machine: Machine) -> Recovery | None:
        try:
            return recover(machine)
        except TorchyardError as error:
            if self._request is not None:
                raise
            # A run that changes nothing continues, with a warning.
            self.before.append(
                f"an earlier session may not be restored: {error.what} ({error.hint})"
            )
            return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._stack.__exit__(kind, error, traceback)
        finally:
            restored = self._session.restored if self._session is not None else None
            if restored is not None:
                self.is_back = restored.complete
                self.after += _restore_notes(restored)


def quieting_facts(applied: AppliedSettings) -> dict[str, dict[str, str]]:
    """Return the applied settings as facts of a run: outcome -> knob -> text."""
    facts: dict[str, dict[str, str]] = {"written": {}, "refused": {}, "unavailable": {}}
    for state in applied.knobs:
        if state.unavailable:
            facts["unavailable"][state.knob] = state.unavailable
        for outcome in ("written", "refused"):
            changes = [change for change in applied.of_knob(state.knob) if change.state == outcome]
            if changes:
                facts[outcome][state.knob] = "; ".join(dict.fromkeys(map(_change_text, changes)))
    return {outcome: knobs for outcome, knobs in facts.items() if knobs}


def _change_text(change: SettingChange) -> str:
    setting = change.setting
    text = f"{setting.place.rpartition('/')[2]}: {setting.found} -> {setting.wanted}"
    return f"{text} ({change.reason})" if change.reason else text


def _refusal(change: SettingChange) -> str:
    return f"{change.setting.knob} ({change.setting.where}): {change.reason}"


def _restore_notes(restored: Restored) -> list[str]:
    lines = [
        f"{item.setting.where} could not be restored to {item.setting.found!r}: {item.reason}; "
        f"try {_RESTORE}"
        for item in restored.missing
    ]
    lines += [
        f"another program changed {item.setting.where} to {item.meanwhile!r} meanwhile"
        for item in restored.settings
        if item.meanwhile and not restored.rebooted
    ]
    return lines

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
from torchyard.machine.model import Profile, Restored, SettingChange, Tuned, Wish
from torchyard.machine.quieting.apply_settings import Tuning, wants_gpus
from torchyard.machine.quieting.process_settings import (
    apply_here,
    own_priority_and_cores,
    process_settings,
)
from torchyard.machine.quieting.restoring import Recovery, recover
from torchyard.machine.system.file_tree import FileTree

__all__ = ["QuietMachine", "tune_facts", "wish_for"]

_RESTORE = "`sudo torchyard machine restore`"


def wish_for(profile: str, study: Study) -> Wish:
    """The wish of `--tune-profile`; `auto` asks for what the devices of the study need."""
    cpu_only = all(workload.device == "cpu" for workload in study.workloads)
    name = ("cpu" if cpu_only else "all") if profile == "auto" else profile
    profiles: tuple[Profile, ...] = ("cpu", "gpu")
    if name != "all":
        profiles = ("gpu",) if name == "gpu" else ("cpu",)
    return Wish(profiles=profiles)


class QuietMachine:
    """Around a run. With no wish it only puts back what an earlier tune left."""

    def __init__(self, wish: Wish | None, *, files: FileTree | None = None) -> None:
        self.before: list[str] = []
        """What the user should know before the run."""
        self.after: list[str] = []
        """What the user should know after it: values that are not back, or were changed by others."""
        self.tuned: Tuned | None = None
        self.is_back = True
        """Whether everything is as it was found."""
        self._wish = wish
        self._files = files or FileTree()
        self._stack = ExitStack()
        self._tuning: Tuning | None = None

    def __enter__(self) -> Self:
        machine = Machine(files=self._files)
        recovery = self._recovered(machine)
        if recovery is not None and recovery.restored is None:
            self.before.append(
                f"this machine is still changed by a tune that was killed ({recovery.who}): "
                f"put it back with {_RESTORE}"
            )
        elif recovery is not None and recovery.restored is not None:
            self.before.append(f"a tune was killed ({recovery.who}): its values were put back now")
            self.before += _not_back(recovery.restored)
        if self._wish is None:
            return self
        with ExitStack() as stack:
            if wants_gpus(self._wish):
                libraries = stack.enter_context(open_gpu_libraries(self._files))
                machine = Machine(files=self._files, gpus=libraries)
            stack.enter_context(own_priority_and_cores())
            tuning = Tuning(machine, self._wish)
            stack.enter_context(tuning)
            # Workers are started by this process and inherit where and how it may run.
            settings = process_settings(machine, self._wish, tuned=tuning.tuned)
            refused = apply_here(settings)
            self._stack = stack.pop_all()
        self.before += [f"not tuned: {name}: {reason}" for name, reason in refused]
        self._tuning, self.tuned = tuning, tuning.tuned
        self.before += [f"not tuned: {_said(change)}" for change in tuning.tuned.refused]
        return self

    def _recovered(self, machine: Machine) -> Recovery | None:
        try:
            return recover(machine)
        except TorchyardError as error:
            if self._wish is not None:
                raise
            # A run that changes nothing goes on, and says what it may be measuring.
            self.before.append(f"this machine may be tuned: {error.what} ({error.hint})")
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
            restored = self._tuning.restored if self._tuning is not None else None
            if restored is not None:
                self.is_back = restored.complete
                self.after += _not_back(restored)


def tune_facts(tuned: Tuned) -> dict[str, dict[str, str]]:
    """What was done to the machine, as facts of a run: knob -> what became of it."""
    facts: dict[str, dict[str, str]] = {"written": {}, "refused": {}, "unavailable": {}}
    for state in tuned.knobs:
        if state.unavailable:
            facts["unavailable"][state.knob] = state.unavailable
        for word in ("written", "refused"):
            changes = [change for change in tuned.of_knob(state.knob) if change.state == word]
            if changes:
                facts[word][state.knob] = "; ".join(dict.fromkeys(map(_said_short, changes)))
    return {word: found for word, found in facts.items() if found}


def _said_short(change: SettingChange) -> str:
    setting = change.setting
    text = f"{setting.place.rpartition('/')[2]}: {setting.found} -> {setting.wanted}"
    return f"{text} ({change.reason})" if change.reason else text


def _said(change: SettingChange) -> str:
    return f"{change.setting.knob} ({change.setting.where}): {change.reason}"


def _not_back(restored: Restored) -> list[str]:
    lines = [
        f"{item.setting.where} could not be put back to {item.setting.found!r}: {item.reason}; "
        f"try {_RESTORE}"
        for item in restored.missing
    ]
    lines += [
        f"somebody else changed {item.setting.where} to {item.meanwhile!r} meanwhile"
        for item in restored.settings
        if item.meanwhile and not restored.rebooted
    ]
    return lines

"""One cycle of quieting on a fake machine: survey, journal, writes, restore, by the real functions.

It does what `QuietSession` does, without its lock and its restore process, which would be a process
for every test.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.machine.fake_kernel import FakeKernel
from tests.machine.trees import make_tree
from torchyard.machine.knob import Knob, Machine
from torchyard.machine.knobs import KNOBS
from torchyard.machine.model import KnobState, QuietRequest, Restored, Setting, SettingChange
from torchyard.machine.quieting.apply_settings import survey
from torchyard.machine.quieting.journal import Journal, boot_of
from torchyard.machine.quieting.restoring import (
    needs_writing,
    recheck,
    restore_journal,
    write_setting,
)

CLOCK_KNOBS: Mapping[str, Knob] = {
    name: KNOBS[name]
    for name in (
        "smt",
        "governor",
        "turbo",
        "preference",
        "frequency",
        "idle-latency",
        "idle-states",
    )
}


class KnobCycle:
    """A fake machine that is tuned and put back."""

    def __init__(
        self, kernel: FakeKernel, folder: Path, knobs: Mapping[str, Knob] = CLOCK_KNOBS
    ) -> None:
        self.kernel = kernel
        self.machine = Machine(files=kernel)
        self.knobs = knobs
        self.folder = folder / "journal"
        self.folder.mkdir()
        self.found = kernel.snapshot()
        """Every file, before anything was written."""
        self.states: tuple[KnobState, ...] = ()
        self.changes: list[SettingChange] = []

    @classmethod
    def of(cls, kind: str, folder: Path, *names: str) -> KnobCycle:
        """A round on one of the trees, with some of the knobs of clocks."""
        knobs = {name: CLOCK_KNOBS[name] for name in names or CLOCK_KNOBS}
        return cls(FakeKernel(make_tree(kind, folder / "root")), folder, knobs)

    def survey(self, **request: object) -> list[Setting]:
        """What every knob found, all knobs asked for, the one that is off by default, too."""
        asked = QuietRequest(only=tuple(self.knobs), **request)  # type: ignore[arg-type]
        self.states = survey(self.machine, asked, knobs=self.knobs)
        return [setting for state in self.states for setting in state.settings]

    def tune(self, **request: object) -> list[SettingChange]:
        """Write everything, as a tune does; KeyboardInterrupt of the kernel ends it half-way."""
        settings = self.survey(**request)
        journal = Journal.create(
            self.folder,
            mode="session",
            request=QuietRequest(),
            boot=boot_of(self.kernel),
            settings=settings,
        )
        try:
            for setting in settings:
                if needs_writing(setting, self.knobs):
                    journal.note("writing", setting)
                    self.changes.append(write_setting(self.machine, setting, self.knobs))
        finally:
            journal.close()
        self.changes = [recheck(self.machine, item, self.knobs) for item in self.changes]
        return self.changes

    def restore(self) -> Restored | None:
        """Put back what the journal names."""
        return restore_journal(self.machine, self.folder, self.knobs)

    def state(self, name: str) -> KnobState:
        """What one knob found."""
        return next(state for state in self.states if state.knob == name)

    def text(self, path: str) -> str:
        """What a file of the fake machine holds."""
        return self.kernel.text(path)

    def left(self) -> dict[str, tuple[bytes | None, bytes | None]]:
        """Files that are not as they were found: (then, now)."""
        return difference(self.found, self.kernel.snapshot())


def difference(
    one: Mapping[str, bytes], other: Mapping[str, bytes]
) -> dict[str, tuple[bytes | None, bytes | None]]:
    """Paths whose bytes differ."""
    return {
        path: (one.get(path), other.get(path))
        for path in sorted(one.keys() | other.keys())
        if one.get(path) != other.get(path)
    }

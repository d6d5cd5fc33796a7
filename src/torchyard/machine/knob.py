"""Define what a knob is: one machine setting that can be read, and possibly written and restored.

`Machine` is what every reader and knob receives: the file tree and the GPU libraries. `FileKnob`
is the base for knobs whose places are files and whose values are the texts of these files, as in
most of /proc/sys and /sys: the knob's own module names the files and the requested values, and
how a text is parsed and compared where it is not plain. A knob is independent of the journal and
of other knobs; all knobs and their order are listed in `knobs/__init__.py`, their texts in
`knobs/knobs.toml`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from torchyard.core.records import decode
from torchyard.errors import NotAllowed
from torchyard.machine.model import Effect, KnobState, Profile, QuietRequest, Setting
from torchyard.machine.system.file_tree import FileTree

if TYPE_CHECKING:
    from torchyard.machine.gpu.library import GpuLibraries


Reach = Literal["machine", "held", "process"]
"""How long a value lasts. machine: until it is written again; held: as long as a process of ours
holds it; process: for one process and its children (the knobs of `quiet --user`)."""


GONE: Final = "gone"
"""The value of a task, group or interrupt that no longer exists: there is nothing to restore."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What every reader and knob receives."""

    files: FileTree = field(default_factory=FileTree)
    gpus: GpuLibraries | None = None
    """None if GPUs are not used."""


class SkippedWrite(NotAllowed):
    """Raised by `write` for a location that needs no write now, such as an offline CPU.

    Reported with its reason, not as a failure. `restore` must still handle the location.
    """


@dataclass(frozen=True, kw_only=True)
class KnobDescription:
    """An entry of `knobs/knobs.toml`."""

    about: str = ""
    why: str = ""
    effect: Effect = "small"
    """Upper bound of its effect on noise."""
    default: bool = True
    """Whether it is used without `--only`. False for knobs that change what is measured."""


@cache
def _descriptions() -> dict[str, KnobDescription]:
    path = Path(__file__).parent / "knobs" / "knobs.toml"
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return decode(dict[str, KnobDescription], table, where=path.name)


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One machine setting. A subclass defines at least `survey`, `read` and `put`."""

    name: str
    """As in `--only governor`."""
    profile: Profile = "cpu"
    """The profile it belongs to."""
    reach: Reach = "machine"
    """How long a written value lasts."""
    needs_root: bool = True
    """Whether only root may write it."""

    @property
    def described(self) -> KnobDescription:
        """Its entry in `knobs.toml`."""
        return _descriptions().get(self.name) or KnobDescription()

    def survey(self, machine: Machine, request: QuietRequest) -> KnobState:
        """Return present and requested values. Reads only, needs no root, never raises."""
        raise NotImplementedError

    def read(self, machine: Machine, place: str) -> str:
        """Return the present value of a location, as in `Setting.found`; raises TorchyardError."""
        raise NotImplementedError

    def put(self, machine: Machine, place: str, value: str) -> None:
        """Set a requested or original value; raises TorchyardError if the kernel refuses."""
        raise NotImplementedError

    def write(self, machine: Machine, setting: Setting) -> None:
        """Set the requested value; raises TorchyardError if the kernel refuses."""
        if setting.wanted is not None:
            self.put(machine, setting.place, setting.wanted)

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Set the original value. Must work if `write` never ran, ran partly or ran twice."""
        self.put(machine, setting.place, setting.found)

    def same(self, place: str, one: str, other: str) -> bool:  # noqa: ARG002
        """Whether two values are equivalent (`ff` and `000000ff`; clocks within a step)."""
        return one == other

    def setting(self, place: str, found: str, wanted: str | None) -> Setting:
        """Return a setting of this knob."""
        return Setting(knob=self.name, place=place, found=found, wanted=wanted)

    def state(self, *settings: Setting, notes: Iterable[str] = ()) -> KnobState:
        """Return the state of this knob where it is available."""
        return KnobState(knob=self.name, settings=settings, notes=tuple(notes))

    def unavailable(self, why: str, notes: Iterable[str] = ()) -> KnobState:
        """Return the state of this knob where it is unavailable."""
        return KnobState(knob=self.name, unavailable=why, notes=tuple(notes))


@dataclass(frozen=True, kw_only=True)
class RequestedValues:
    """Files of a knob, and the values requested for them."""

    values: Mapping[str, str | None] = field(default_factory=dict)
    """Location -> requested value, in the order of writing; None: only restored."""
    unavailable: str = ""
    """Why the knob is unavailable here."""
    notes: tuple[str, ...] = ()


def whole_text(place: str, text: str) -> str:  # noqa: ARG001
    """Return the value of a plain file: its text without surrounding blanks."""
    return text.strip()


def chosen_word(place: str, text: str) -> str:  # noqa: ARG001
    """Return the value of a file that lists all choices: `always` of `[always] madvise never`."""
    return next((word[1:-1] for word in text.split() if word.startswith("[")), text.strip())


def same_text(place: str, one: str, other: str) -> bool:  # noqa: ARG001
    """Whether two texts are equal except for blanks."""
    return one.split() == other.split()


@dataclass(frozen=True, kw_only=True)
class FileKnob(Knob):
    """A knob whose settings are files."""

    requested: Callable[[Machine, QuietRequest], RequestedValues]
    """Reads only, needs no root, never raises."""
    value_of: Callable[[str, str], str] = whole_text
    """(location, text of the file) -> the value, in a form that can be written."""
    same_value: Callable[[str, str, str], bool] = same_text
    """(location, one, other) -> whether they are equivalent."""

    def survey(self, machine: Machine, request: QuietRequest) -> KnobState:
        """Read the files. An unreadable one becomes a note; if all are, the knob is unavailable."""
        requested = self.requested(machine, request)
        settings: list[Setting] = []
        unreadable: list[str] = []
        for place, value in requested.values.items():
            reading = machine.files.read(place)
            if reading.value is None:
                unreadable.append(reading.because)
            else:
                settings.append(self.setting(place, self.value_of(place, reading.value), value))
        if requested.unavailable or (unreadable and not settings):
            return self.unavailable(requested.unavailable or unreadable[0], requested.notes)
        skipped = (f"skipped, because {reason}" for reason in unreadable)
        return self.state(*settings, notes=(*requested.notes, *skipped))

    def read(self, machine: Machine, place: str) -> str:
        """Return the present value of one file."""
        return self.value_of(place, machine.files.read(place).or_raise())

    def put(self, machine: Machine, place: str, value: str) -> None:
        """Write one file."""
        # A write of zero bytes never reaches the kernel; a bare newline empties a list.
        machine.files.write(place, value or "\n")

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Write the original value unless present: some files refuse their own value."""
        reading = machine.files.read(setting.place)
        if reading.value is not None:
            present = self.value_of(setting.place, reading.value)
            if self.same(setting.place, present, setting.found):
                return
        self.put(machine, setting.place, setting.found)

    def same(self, place: str, one: str, other: str) -> bool:
        """Whether two values are equivalent."""
        return self.same_value(place, one, other)

"""Define what a knob is: one machine setting that can be read, and possibly written and restored.

`Machine` is what every reader and knob receives: the file tree and the GPU libraries. `FileKnob`
is the base for knobs whose places are files and whose values are the texts of these files, as in
most of /proc/sys and /sys: the knob's own module names the files and the requested values, and
how a text is parsed and compared where it is not plain. A knob knows nothing of the journal and
of other knobs; all knobs and their order are listed in `knobs/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from torchyard.errors import MissingTool, NotAllowed
from torchyard.machine.model import Effect, KnobState, Profile, QuietRequest, Setting
from torchyard.machine.system.file_tree import FileTree

if TYPE_CHECKING:
    from torchyard.machine.gpu.library import GpuLibraries


Reach = Literal["machine", "held", "process"]
"""How long a value lasts. machine: until it is written again; held: as long as a process of ours
holds it; process: for one process and its children (the knobs of `quiet --user`)."""


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


class Knob(Protocol):
    """One machine setting."""

    @property
    def name(self) -> str:
        """As in `--only governor`."""

    @property
    def about(self) -> str:
        """A short description."""

    @property
    def why(self) -> str:
        """Why its benchmark value reduces noise, and what it costs."""

    @property
    def profile(self) -> Profile:
        """The profile it belongs to."""

    @property
    def effect(self) -> Effect:
        """Upper bound of its effect on noise."""

    @property
    def reach(self) -> Reach:
        """How long a written value lasts."""

    @property
    def needs_root(self) -> bool:
        """Whether only root may write it."""

    @property
    def default(self) -> bool:
        """Whether it is used without `--only`. False for knobs that change what is measured."""

    def survey(self, machine: Machine, request: QuietRequest) -> KnobState:
        """Return present and requested values. Reads only, needs no root, never raises."""

    def read(self, machine: Machine, place: str) -> str:
        """Return the present value of a location, as in `Setting.found`; raises TorchyardError."""

    def write(self, machine: Machine, setting: Setting) -> None:
        """Write the requested value; raises TorchyardError if the kernel refuses."""

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Write the original value. Must work if `write` never ran, ran partly or ran twice."""

    def same(self, place: str, one: str, other: str) -> bool:
        """Whether two values are equivalent (`ff` and `000000ff`; clocks within a step)."""


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
class FileKnob:
    """A knob whose settings are files; satisfies `Knob`."""

    name: str
    about: str
    why: str
    effect: Effect
    requested: Callable[[Machine, QuietRequest], RequestedValues]
    """Reads only, needs no root, never raises."""
    profile: Profile = "cpu"
    reach: Reach = "machine"
    needs_root: bool = True
    default: bool = True
    value_of: Callable[[str, str], str] = whole_text
    """(location, text of the file) -> the value, in a form that can be written."""
    same_value: Callable[[str, str, str], bool] = same_text
    """(location, one, other) -> whether they are equivalent."""

    def survey(self, machine: Machine, request: QuietRequest) -> KnobState:
        """Read the files. An unreadable one becomes a note; if all are, the knob is unavailable."""
        requested = self.requested(machine, request)
        settings: list[Setting] = []
        unreadable: list[str] = []
        for place, wanted in requested.values.items():
            reading = machine.files.read(place)
            if reading.value is None:
                unreadable.append(reading.because)
                continue
            value = self.value_of(place, reading.value)
            settings.append(Setting(knob=self.name, place=place, found=value, wanted=wanted))
        if requested.unavailable or (unreadable and not settings):
            return KnobState(
                knob=self.name,
                unavailable=requested.unavailable or unreadable[0],
                notes=requested.notes,
            )
        notes = (*requested.notes, *(f"skipped, because {reason}" for reason in unreadable))
        return KnobState(knob=self.name, settings=tuple(settings), notes=notes)

    def read(self, machine: Machine, place: str) -> str:
        """Return the present value of one file."""
        reading = machine.files.read(place)
        if reading.value is None:
            raise MissingTool(f"cannot read {reading.because}")
        return self.value_of(place, reading.value)

    def write(self, machine: Machine, setting: Setting) -> None:
        """Write the requested value."""
        if setting.wanted is not None:
            self._put(machine, setting.place, setting.wanted)

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Write the original value unless present: some files refuse their own value."""
        reading = machine.files.read(setting.place)
        if reading.value is not None:
            present = self.value_of(setting.place, reading.value)
            if self.same(setting.place, present, setting.found):
                return
        self._put(machine, setting.place, setting.found)

    def same(self, place: str, one: str, other: str) -> bool:
        """Whether two values are equivalent."""
        return self.same_value(place, one, other)

    @staticmethod
    def _put(machine: Machine, place: str, value: str) -> None:
        # A write of zero bytes never reaches the kernel; a bare newline empties a list.
        machine.files.write(place, value or "\n")

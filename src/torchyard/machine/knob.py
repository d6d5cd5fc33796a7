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
from torchyard.machine.model import Effect, KnobState, Profile, Setting, Wish
from torchyard.machine.system.file_tree import FileTree

if TYPE_CHECKING:
    from torchyard.machine.gpu.library import GpuLibraries


Reach = Literal["machine", "held", "process"]
"""machine: stays until it is written again; held: as long as a process of ours lives; process: of
one process and its children (what `tune --user` may use)."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Everything a knob and a fact may touch."""

    files: FileTree = field(default_factory=FileTree)
    gpus: GpuLibraries | None = None
    """None when GPUs are not looked at."""


class SkippedWrite(NotAllowed):
    """What `write` raises for a place that needs no write now, such as one of an offline processor.

    No failure of the tune: it is told with its reason. `restore` still has to bring the place back.
    """


class Knob(Protocol):
    """One machine setting."""

    @property
    def name(self) -> str:
        """As in `--only governor`."""

    @property
    def about(self) -> str:
        """What it is, in half a line."""

    @property
    def why(self) -> str:
        """Why its benchmark value makes numbers steadier, and what it costs."""

    @property
    def profile(self) -> Profile:
        """Which profile it belongs to."""

    @property
    def effect(self) -> Effect:
        """How much of the noise is at stake, at most."""

    @property
    def reach(self) -> Reach:
        """How long a written value stays."""

    @property
    def needs_root(self) -> bool:
        """Whether only root may write it."""

    @property
    def default(self) -> bool:
        """Whether a tune without `--only` uses it. False for those that change what is measured."""

    def survey(self, machine: Machine, request: Wish) -> KnobState:
        """What is there and what it would be set to. Reads only, needs no root, never raises."""

    def read(self, machine: Machine, place: str) -> str:
        """The present value of a place, in the form of `Setting.found`; raises TorchyardError."""

    def write(self, machine: Machine, setting: Setting) -> None:
        """Bring the wanted value about; raises TorchyardError when the kernel refuses."""

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Bring back the found value. Also right when `write` never ran, ran half, or ran twice."""

    def same(self, place: str, one: str, other: str) -> bool:
        """Whether two values mean the same (`ff` and `000000ff`; clocks within a step)."""


@dataclass(frozen=True, kw_only=True)
class RequestedValues:
    """Which files a knob looks at, and what it wants in them."""

    values: Mapping[str, str | None] = field(default_factory=dict)
    """Place -> wanted value; None for one that is only put back. In the order of writing."""
    unavailable: str = ""
    """Why the knob can do nothing here."""
    notes: tuple[str, ...] = ()


def whole_text(place: str, text: str) -> str:  # noqa: ARG001
    """The value of most files: all of their text, without blanks around it."""
    return text.strip()


def chosen_word(place: str, text: str) -> str:  # noqa: ARG001
    """The value of files that list every choice: `always` of `[always] madvise never`."""
    return next((word[1:-1] for word in text.split() if word.startswith("[")), text.strip())


def same_text(place: str, one: str, other: str) -> bool:  # noqa: ARG001
    """Equal texts, however blanks are set."""
    return one.split() == other.split()


@dataclass(frozen=True, kw_only=True)
class FileKnob:
    """A knob made of files; satisfies `Knob`."""

    name: str
    about: str
    why: str
    effect: Effect
    wants: Callable[[Machine, Wish], RequestedValues]
    """Reads only, needs no root, never raises."""
    profile: Profile = "cpu"
    reach: Reach = "machine"
    needs_root: bool = True
    default: bool = True
    value_of: Callable[[str, str], str] = whole_text
    """(place, text of the file) -> the value, in the form that can be written again."""
    same_value: Callable[[str, str, str], bool] = same_text
    """(place, one, other) -> whether they mean the same."""

    def survey(self, machine: Machine, request: Wish) -> KnobState:
        """What is in the files. One that cannot be read becomes a note, all of them a reason."""
        wants = self.wants(machine, request)
        settings: list[Setting] = []
        unreadable: list[str] = []
        for place, wanted in wants.values.items():
            found = machine.files.read(place)
            if found.value is None:
                unreadable.append(found.because)
                continue
            value = self.value_of(place, found.value)
            settings.append(Setting(knob=self.name, place=place, found=value, wanted=wanted))
        if wants.unavailable or (unreadable and not settings):
            return KnobState(
                knob=self.name, unavailable=wants.unavailable or unreadable[0], notes=wants.notes
            )
        notes = (*wants.notes, *(f"left alone, because {reason}" for reason in unreadable))
        return KnobState(knob=self.name, settings=tuple(settings), notes=notes)

    def read(self, machine: Machine, place: str) -> str:
        """The present value of one file."""
        found = machine.files.read(place)
        if found.value is None:
            raise MissingTool(f"cannot read {found.because}")
        return self.value_of(place, found.value)

    def write(self, machine: Machine, setting: Setting) -> None:
        """Hand the wanted value to the kernel."""
        if setting.wanted is not None:
            self._put(machine, setting.place, setting.wanted)

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Hand the found value to the kernel, unless it is there: some files refuse their own."""
        found = machine.files.read(setting.place)
        if found.value is not None:
            present = self.value_of(setting.place, found.value)
            if self.same(setting.place, present, setting.found):
                return
        self._put(machine, setting.place, setting.found)

    def same(self, place: str, one: str, other: str) -> bool:
        """Whether two values mean the same."""
        return self.same_value(place, one, other)

    @staticmethod
    def _put(machine: Machine, place: str, value: str) -> None:
        # A write of no bytes never reaches the kernel; a bare newline empties a list.
        machine.files.write(place, value or "\n")

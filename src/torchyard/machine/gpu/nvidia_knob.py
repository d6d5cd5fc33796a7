"""A knob of NVIDIA's cards, set through NVML: one setting per card, at `gpu/UUID/PROPERTY`.

The knob's own module says what is wanted of a card, how its value is read and how it is set. This
base finds the cards, leaves those alone that others compute on, and turns NVML's refusals into
errors. It knows nothing of the journal and of any one property.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchyard.core.machine import Effect, KnobState, Profile, Setting, Wish
from torchyard.errors import MissingTool, NotAllowed
from torchyard.machine.file_tree import FileTree
from torchyard.machine.gpu.answer import NO_PERMISSION, Answer, ask
from torchyard.machine.gpu.processes import read_processes
from torchyard.machine.knob import Machine, Reach

__all__ = ["CardWant", "NvidiaCard", "NvidiaKnob", "same_text"]


@dataclass(frozen=True, kw_only=True)
class NvidiaCard:
    """One card and how to ask it."""

    nvml: Any
    handle: Any
    index: int
    uuid: str

    def ask(self, *names: str, more: tuple[Any, ...] = ()) -> Answer[Any]:
        """One question, under its newer and older names."""
        return ask(self.nvml, *names, of=(self.handle, *more))

    def order(self, name: str, *values: Any) -> None:
        """Change something; raises TorchyardError when NVML refuses."""
        function = getattr(self.nvml, name, None)
        if function is None:
            raise MissingTool(f"{name} is not in this release of nvidia-ml-py")
        try:
            function(self.handle, *values)
        except Exception as error:
            said = f"GPU {self.index}: NVML refuses {name}{values}: {error}"
            if getattr(error, "value", None) == NO_PERMISSION:
                raise NotAllowed(said, hint="run as root, outside a container") from error
            raise MissingTool(said) from error


@dataclass(frozen=True, kw_only=True)
class CardWant:
    """What a knob found on a card and wants of it."""

    found: str | None = None
    wanted: str | None = None
    because: str = ""
    """Why nothing is found: the card cannot, or must not."""
    notes: tuple[str, ...] = ()


def same_text(one: str, other: str) -> bool:
    """For values that have one form."""
    return one == other


@dataclass(frozen=True, kw_only=True)
class NvidiaKnob:
    """A property of every NVIDIA card; satisfies `Knob`."""

    name: str
    about: str
    why: str
    effect: Effect
    property: str
    """The last part of the place."""
    wants: Callable[[NvidiaCard, Wish], CardWant]
    """Reads only, never raises."""
    value_of: Callable[[NvidiaCard], Answer[str]]
    put: Callable[[NvidiaCard, str], None]
    """Set a value that was found or wanted; raises TorchyardError."""
    same_value: Callable[[str, str], bool] = same_text
    disturbs: bool = True
    """Whether it changes the work of other processes on the card."""
    profile: Profile = "gpu"
    reach: Reach = "machine"
    needs_root: bool = True
    default: bool = True

    def survey(self, machine: Machine, wish: Wish) -> KnobState:
        """Every card; one that cannot becomes a note, all of them a reason."""
        cards = _cards(machine)
        if cards.value is None:
            return KnobState(knob=self.name, unavailable=cards.because)
        settings: list[Setting] = []
        notes: list[str] = []
        for card in cards.value:
            busy = self._used_by_others(card, machine.files, wish)
            want = CardWant(because=busy) if busy else self.wants(card, wish)
            notes += [f"GPU {card.index}: {note}" for note in want.notes]
            if want.found is None:
                notes.append(f"GPU {card.index}: left alone, because {want.because}")
                continue
            place = f"gpu/{card.uuid}/{self.property}"
            settings.append(
                Setting(knob=self.name, place=place, found=want.found, wanted=want.wanted)
            )
        if not settings:
            return KnobState(knob=self.name, unavailable="; ".join(notes) or "NVML counts no GPU")
        return KnobState(knob=self.name, settings=tuple(settings), notes=tuple(notes))

    def read(self, machine: Machine, place: str) -> str:
        """The present value of one card."""
        card = self._card(machine, place)
        found = self.value_of(card)
        if found.value is None:
            raise MissingTool(f"GPU {card.index}: cannot read {self.property}: {found.because}")
        return found.value

    def write(self, machine: Machine, setting: Setting) -> None:
        """Set the wanted value."""
        if setting.wanted is not None:
            self.put(self._card(machine, setting.place), setting.wanted)

    def restore(self, machine: Machine, setting: Setting) -> None:
        """Set the found value."""
        self.put(self._card(machine, setting.place), setting.found)

    def same(self, place: str, one: str, other: str) -> bool:  # noqa: ARG002
        """Whether two values mean the same."""
        return self.same_value(one, other)

    def _used_by_others(self, card: NvidiaCard, files: FileTree, wish: Wish) -> str:
        """Why it must not be touched: a card that somebody else computes on, unless asked for."""
        if not self.disturbs or self.name in (*wish.only, *wish.also):
            return ""
        processes = read_processes(card.nvml, card.handle, files).value or ()
        others = [
            str(process.pid)
            for process in processes
            if process.owner == "other" and process.kind == "compute"
        ]
        if not others:
            return ""
        return f"others compute on it (process {', '.join(others)}); --only {self.name} insists"

    @staticmethod
    def _card(machine: Machine, place: str) -> NvidiaCard:
        uuid = place.split("/")[1]
        cards = _cards(machine)
        for card in cards.value or ():
            if card.uuid == uuid:
                return card
        raise MissingTool(
            f"there is no GPU {uuid}", why=cards.because, hint="is its driver still loaded?"
        )


def _cards(machine: Machine) -> Answer[tuple[NvidiaCard, ...]]:
    if machine.gpus is None:
        return Answer(because="NVIDIA's library is not asked here")
    nvml = machine.gpus.nvml
    if nvml is None:
        return Answer(because=machine.gpus.nvml_because)
    count = ask(nvml, "nvmlDeviceGetCount")
    if count.value is None:
        return Answer(because=count.because)
    cards: list[NvidiaCard] = []
    for index in range(int(count.value)):
        handle = ask(nvml, "nvmlDeviceGetHandleByIndex", of=(index,))
        uuid = ask(nvml, "nvmlDeviceGetUUID", of=(handle.value,)) if handle.value else handle
        if uuid.value is not None:
            text = uuid.value.decode() if isinstance(uuid.value, bytes) else str(uuid.value)
            cards.append(NvidiaCard(nvml=nvml, handle=handle.value, index=index, uuid=text))
    return Answer(value=tuple(cards))

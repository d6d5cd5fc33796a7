"""Settings of NVIDIA GPUs through NVML: persistence mode, power limit, compute mode.

`NvidiaKnob` is the base, also for the clocks (`gpu_clocks.py`): one setting per card, at
`gpu/UUID/PROPERTY`. It finds the cards, leaves alone those on which others compute, and turns
NVML's refusals into errors. Persistence mode keeps the driver loaded without a user; the power
limit is set to the vendor's default where it was changed; the compute mode allows one process
only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from torchyard.errors import MissingTool, NotAllowed
from torchyard.machine.gpu.compute_processes import read_processes
from torchyard.machine.gpu.library import NO_PERMISSION, Answer, ask
from torchyard.machine.gpu.nvidia import COMPUTE_MODES
from torchyard.machine.knob import Knob, Machine, Reach
from torchyard.machine.model import Effect, KnobState, Profile, Setting, Wish
from torchyard.machine.system.file_tree import FileTree


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

    def survey(self, machine: Machine, request: Wish) -> KnobState:
        """Every card; one that cannot becomes a note, all of them a reason."""
        cards = _cards(machine)
        if cards.value is None:
            return KnobState(knob=self.name, unavailable=cards.because)
        settings: list[Setting] = []
        notes: list[str] = []
        for card in cards.value:
            busy = self._used_by_others(card, machine.files, request)
            want = CardWant(because=busy) if busy else self.wants(card, request)
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

    def _used_by_others(self, card: NvidiaCard, files: FileTree, request: Wish) -> str:
        """Why it must not be touched: a card that somebody else computes on, unless asked for."""
        if not self.disturbs or self.name in (*request.only, *request.also):
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


_ON: Final = "on"
_OFF: Final = "off"


def _persistence_mode(card: NvidiaCard) -> Answer[str]:
    return card.ask("nvmlDeviceGetPersistenceMode").map(lambda mode: _ON if mode else _OFF)


def _persistence_wants(card: NvidiaCard, request: Wish) -> CardWant:  # noqa: ARG001
    found = _persistence_mode(card)
    return CardWant(found=found.value, wanted=_ON, because=found.because)


def _put_persistence(card: NvidiaCard, value: str) -> None:
    # Nothing to ask for, then no root is needed either.
    if _persistence_mode(card).value != value:
        card.order("nvmlDeviceSetPersistenceMode", int(value == _ON))


PERSISTENCE_KNOB: Final[Knob] = NvidiaKnob(
    name="nvidia-persistence",
    about="NVIDIA cards stay awake without a user",
    why=(
        "Without it the driver lets go of the card with its last user. Every new process then "
        "waits for the card to start, and a clock lock is lost. Costs some watts while idle."
    ),
    effect="medium",
    property="persistence",
    wants=_persistence_wants,
    value_of=_persistence_mode,
    put=_put_persistence,
    disturbs=False,
)


def _limit(card: NvidiaCard) -> Answer[str]:
    # The limit that was asked for, not the one enforced now: only the former can be put back.
    return card.ask("nvmlDeviceGetPowerManagementLimit").map(_text)


def _power_wants(card: NvidiaCard, request: Wish) -> CardWant:  # noqa: ARG001
    found = _limit(card)
    default = card.ask("nvmlDeviceGetPowerManagementDefaultLimit").map(_text)
    if found.value is None or default.value is None:
        return CardWant(because=found.because or default.because)
    return CardWant(found=found.value, wanted=default.value)


def _put_power(card: NvidiaCard, value: str) -> None:
    card.order("nvmlDeviceSetPowerManagementLimit", int(value.removesuffix(" mW")))


def _text(milliwatts: int) -> str:
    return f"{milliwatts} mW"


POWER_LIMIT_KNOB: Final[Knob] = NvidiaKnob(
    name="nvidia-power",
    about="NVIDIA cards may draw the power they were made for",
    why=(
        "A lowered limit holds the clock down under load, so numbers do not compare with other "
        "cards of the type. Somebody may have lowered it for a reason (supply, heat, noise): it is "
        "left alone unless asked for."
    ),
    effect="medium",
    property="power-limit",
    wants=_power_wants,
    value_of=_limit,
    put=_put_power,
    default=False,
)


_EXCLUSIVE: Final = "exclusive process"
_NUMBERS: Final = {name: number for number, name in COMPUTE_MODES.items()}


def _compute_mode(card: NvidiaCard) -> Answer[str]:
    found = card.ask("nvmlDeviceGetComputeMode")
    if found.value is not None and int(found.value) not in COMPUTE_MODES:
        return Answer(because=f"NVML says mode {found.value}, which has no name here")
    return found.map(lambda mode: COMPUTE_MODES[int(mode)])


def _compute_mode_wants(card: NvidiaCard, request: Wish) -> CardWant:  # noqa: ARG001
    found = _compute_mode(card)
    if found.value == "prohibited":
        return CardWant(because="somebody forbade computing on it")
    return CardWant(found=found.value, wanted=_EXCLUSIVE, because=found.because)


def _put_compute_mode(card: NvidiaCard, value: str) -> None:
    card.order("nvmlDeviceSetComputeMode", _NUMBERS[value])


COMPUTE_MODE_KNOB: Final[Knob] = NvidiaKnob(
    name="nvidia-compute-mode",
    about="NVIDIA cards take one process at a time",
    why=(
        "Keeps other users off the card: their programs fail instead of sharing it. So does a "
        "comparison of two interpreters, which holds two processes on the card. It is left alone "
        "unless asked for."
    ),
    effect="medium",
    property="compute-mode",
    wants=_compute_mode_wants,
    value_of=_compute_mode,
    put=_put_compute_mode,
    default=False,
)

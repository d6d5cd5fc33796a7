"""Settings of NVIDIA GPUs through NVML: persistence mode, power limit, compute mode.

`NvidiaKnob` is the base, also for the clocks (`gpu_clocks.py`): one setting per card, at
`gpu/UUID/PROPERTY`. It finds the cards, leaves alone those on which others compute, and turns
NVML's refusals into errors. Persistence mode keeps the driver loaded without a user; the power
limit is set to the vendor's default where it was changed; the compute mode allows one process
only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from torchyard.errors import MissingTool, NotAllowed
from torchyard.machine.gpu.library import NO_PERMISSION, GpuProcess, ask, read_processes
from torchyard.machine.gpu.nvidia import COMPUTE_MODES, read_uuid
from torchyard.machine.knob import Knob, Machine
from torchyard.machine.model import KnobState, Profile, QuietRequest, Setting
from torchyard.machine.system.file_tree import Answer, FileTree


@dataclass(frozen=True, kw_only=True)
class NvidiaCard:
    """One card, with its NVML handle."""

    nvml: Any
    handle: Any
    index: int
    uuid: str

    def ask(self, *names: str, more: tuple[Any, ...] = ()) -> Answer[Any]:
        """Call a query by its newer and older names."""
        return ask(self.nvml, *names, of=(self.handle, *more))

    def call(self, name: str, *values: Any) -> None:
        """Call a function that changes the card; raises TorchyardError if NVML refuses."""
        function = getattr(self.nvml, name, None)
        if function is None:
            raise MissingTool(f"{name} is not in this release of nvidia-ml-py")
        try:
            function(self.handle, *values)
        except Exception as error:
            message = f"GPU {self.index}: NVML refuses {name}{values}: {error}"
            if getattr(error, "value", None) == NO_PERMISSION:
                raise NotAllowed(message, hint="run as root, outside a container") from error
            raise MissingTool(message) from error


@dataclass(frozen=True, kw_only=True)
class CardRequest:
    """Present and requested value of one card."""

    present: str | None = None
    requested: str | None = None
    because: str = ""
    """Why there is no value: the card does not support it, or must not be changed."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NvidiaKnob(Knob):
    """A property of every NVIDIA card."""

    property: str
    """Last part of the location."""
    requested: Callable[[NvidiaCard, QuietRequest], CardRequest]
    """Reads only, never raises."""
    value_of: Callable[[NvidiaCard], Answer[str]]
    change: Callable[[NvidiaCard, str], None]
    """Set an original or requested value; raises TorchyardError."""
    same_value: Callable[[str, str], bool] = operator.eq
    disturbs: bool = True
    """Whether it affects other processes on the card."""
    profile: Profile = "gpu"

    def survey(self, machine: Machine, request: QuietRequest) -> KnobState:
        """Survey every card; an unsupported one becomes a note, and all of them a reason."""
        cards = _cards(machine)
        if cards.value is None:
            return self.unavailable(cards.because)
        settings: list[Setting] = []
        notes: list[str] = []
        for card in cards.value:
            in_use = self._used_by_others(card, machine.files, request)
            card_request = CardRequest(because=in_use) if in_use else self.requested(card, request)
            notes += [f"GPU {card.index}: {note}" for note in card_request.notes]
            if card_request.present is None:
                notes.append(f"GPU {card.index}: skipped, because {card_request.because}")
                continue
            place = f"gpu/{card.uuid}/{self.property}"
            settings.append(self.setting(place, card_request.present, card_request.requested))
        if not settings:
            return self.unavailable("; ".join(notes) or "NVML reports no GPU")
        return self.state(*settings, notes=notes)

    def read(self, machine: Machine, place: str) -> str:
        """Return the present value of one card."""
        card = self._card(machine, place)
        answer = self.value_of(card)
        if answer.value is None:
            raise MissingTool(f"GPU {card.index}: cannot read {self.property}: {answer.because}")
        return answer.value

    def put(self, machine: Machine, place: str, value: str) -> None:
        """Set the value of one card."""
        self.change(self._card(machine, place), value)

    def same(self, place: str, one: str, other: str) -> bool:  # noqa: ARG002
        """Whether two values are equivalent."""
        return self.same_value(one, other)

    def _used_by_others(self, card: NvidiaCard, files: FileTree, request: QuietRequest) -> str:
        """Return why a card must not be changed: other processes use it. Empty with --only."""
        if not self.disturbs or self.name in (*request.only, *request.also):
            return ""
        processes = read_processes(card.nvml, card.handle, files).value or ()
        return used_by_others((one for one in processes if one.kind == "compute"), self.name)

    @staticmethod
    def _card(machine: Machine, place: str) -> NvidiaCard:
        uuid = place.split("/")[1]
        cards = _cards(machine)
        for card in cards.value or ():
            if card.uuid == uuid:
                return card
        raise MissingTool(
            f"no GPU {uuid}", why=cards.because, hint="check that its driver is loaded"
        )


def used_by_others(processes: Iterable[GpuProcess], knob: str) -> str:
    """Return why a card must not be changed: processes of others use it. Empty if none does."""
    others = ", ".join(str(process.pid) for process in processes if process.owner == "other")
    return f"other processes use it ({others}); --only {knob} overrides this" if others else ""


def _cards(machine: Machine) -> Answer[tuple[NvidiaCard, ...]]:
    if machine.gpus is None:
        return Answer(because="NVML is not used here")
    nvml = machine.gpus.nvml
    if nvml is None:
        return Answer(because=machine.gpus.nvml_because)
    count = ask(nvml, "nvmlDeviceGetCount")
    if count.value is None:
        return Answer(because=count.because)
    cards: list[NvidiaCard] = []
    for index in range(int(count.value)):
        handle = ask(nvml, "nvmlDeviceGetHandleByIndex", of=(index,))
        uuid = read_uuid(nvml, handle.value) if handle.value else handle
        if uuid.value is not None:
            cards.append(NvidiaCard(nvml=nvml, handle=handle.value, index=index, uuid=uuid.value))
    return Answer(value=tuple(cards))


_ON: Final = "on"
_OFF: Final = "off"


def _persistence_mode(card: NvidiaCard) -> Answer[str]:
    return card.ask("nvmlDeviceGetPersistenceMode").map(lambda mode: _ON if mode else _OFF)


def _persistence_request(card: NvidiaCard, request: QuietRequest) -> CardRequest:  # noqa: ARG001
    answer = _persistence_mode(card)
    return CardRequest(present=answer.value, requested=_ON, because=answer.because)


def _put_persistence(card: NvidiaCard, value: str) -> None:
    # No call if it is set already: the call needs root.
    if _persistence_mode(card).value != value:
        card.call("nvmlDeviceSetPersistenceMode", int(value == _ON))


PERSISTENCE_KNOB: Final[Knob] = NvidiaKnob(
    name="nvidia-persistence",
    property="persistence",
    requested=_persistence_request,
    value_of=_persistence_mode,
    change=_put_persistence,
    disturbs=False,
)


def _limit(card: NvidiaCard) -> Answer[str]:
    # The requested limit, not the enforced one: only the former can be restored.
    return card.ask("nvmlDeviceGetPowerManagementLimit").map("{} mW".format)


def _power_request(card: NvidiaCard, request: QuietRequest) -> CardRequest:  # noqa: ARG001
    answer = _limit(card)
    default = card.ask("nvmlDeviceGetPowerManagementDefaultLimit").map("{} mW".format)
    if answer.value is None or default.value is None:
        return CardRequest(because=answer.because or default.because)
    return CardRequest(present=answer.value, requested=default.value)


POWER_LIMIT_KNOB: Final[Knob] = NvidiaKnob(
    name="nvidia-power",
    property="power-limit",
    requested=_power_request,
    value_of=_limit,
    change=lambda card, value: card.call(
        "nvmlDeviceSetPowerManagementLimit", int(value.removesuffix(" mW"))
    ),
)


_EXCLUSIVE: Final = "exclusive process"
_NUMBERS: Final = {name: number for number, name in COMPUTE_MODES.items()}


def _compute_mode(card: NvidiaCard) -> Answer[str]:
    answer = card.ask("nvmlDeviceGetComputeMode")
    if answer.value is not None and int(answer.value) not in COMPUTE_MODES:
        return Answer(because=f"unknown compute mode {answer.value}")
    return answer.map(lambda mode: COMPUTE_MODES[int(mode)])


def _compute_mode_request(card: NvidiaCard, request: QuietRequest) -> CardRequest:  # noqa: ARG001
    answer = _compute_mode(card)
    if answer.value == "prohibited":
        return CardRequest(because="its compute mode is `prohibited`")
    return CardRequest(present=answer.value, requested=_EXCLUSIVE, because=answer.because)


COMPUTE_MODE_KNOB: Final[Knob] = NvidiaKnob(
    name="nvidia-compute-mode",
    property="compute-mode",
    requested=_compute_mode_request,
    value_of=_compute_mode,
    change=lambda card, value: card.call("nvmlDeviceSetComputeMode", _NUMBERS[value]),
)

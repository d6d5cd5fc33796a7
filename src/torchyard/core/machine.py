"""What a machine is, how it is set, and what may be done about it. No I/O.

A fact is one thing that was read, or the reason why it could not be. A setting is one value of one
knob, as found and as wanted. Advice is a fact that makes numbers worse, with the mend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "EFFECTS",
    "Advice",
    "Effect",
    "Fact",
    "KnobState",
    "MachineView",
    "Profile",
    "Setting",
    "Wish",
]

Effect = Literal["large", "medium", "small"]
EFFECTS: tuple[Effect, ...] = ("large", "medium", "small")
"""How much of the noise is at stake: above 5 %, above 1 %, less or only for some programs."""

Profile = Literal["cpu", "gpu"]


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One thing that was read, or why it is unavailable."""

    section: str
    """Where it is shown: processor, frequency, idle, isolation, interrupts, memory, kernel, ..."""
    name: str
    value: str | None = None
    unavailable: str = ""
    """Why there is no value; empty exactly when there is one."""

    @property
    def text(self) -> str:
        """The value, or `unavailable, because ...`."""
        return self.value if self.value is not None else f"unavailable, because {self.unavailable}"


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Something that makes numbers worse, and how to mend it."""

    name: str
    effect: Effect
    what: str
    why: str
    """With where the size of the effect is known from, where it is known."""
    mend: str = ""
    """A command or a line for the boot loader; empty when nothing can be done on this machine."""
    needs_root: bool = False
    needs_reboot: bool = False
    unfit: bool = False
    """Numbers taken now must not be believed, whatever the method."""


@dataclass(frozen=True, kw_only=True)
class MachineView:
    """Facts, state and advice, at one moment."""

    facts: tuple[Fact, ...]
    advice: tuple[Advice, ...]
    """Largest effect first."""

    @property
    def fit(self) -> bool:
        """Whether numbers taken now can be believed."""
        return not any(advice.unfit for advice in self.advice)


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a tune is asked for; None leaves the choice to the knob."""

    profiles: tuple[Profile, ...] = ("cpu",)
    only: tuple[str, ...] = ()
    """Names of knobs; empty means all of the profiles that are on by default."""
    also: tuple[str, ...] = ()
    """Knobs that are off by default and asked for."""
    without: tuple[str, ...] = ()
    cores: tuple[int, ...] = ()
    """Logical processors for measuring; empty means that no core is set apart."""
    partition: Literal["root", "isolated"] = "root"
    """How cores are set apart: `root` balances load among them, `isolated` leaves threads alone."""
    frequency_khz: int | None = None
    """Fixed clock of the processor; the knob's own choice is the base clock."""
    latency_us: int = 1
    """Longest wake-up that idle states may have; 0 polls."""
    randomize: Literal["keep", "on", "off"] = "keep"
    """Address randomisation."""
    huge_pages: Literal["keep", "always", "madvise", "never"] = "keep"
    gpu_clock_mhz: int | None = None
    """Locked clock of the GPU; the knob's own choice is below where it throttles."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One value of one knob: where it is, what was found, what is wanted."""

    knob: str
    place: str
    """What the knob calls it: usually a path below the root, without a leading slash."""
    found: str
    wanted: str | None
    """None: not changed by us, but lost when something else changes, so it is put back, too."""

    @property
    def where(self) -> str:
        """The place as a person reads it: paths begin with a slash."""
        is_path = self.place.startswith(("proc/", "sys/", "dev/"))
        return f"/{self.place}" if is_path else self.place

    @property
    def changes(self) -> bool:
        """Whether there is something to write."""
        return self.wanted is not None and self.wanted != self.found


@dataclass(frozen=True, kw_only=True)
class KnobState:
    """What a knob found on this machine."""

    knob: str
    unavailable: str = ""
    """Why the knob can do nothing here; empty when it can."""
    settings: tuple[Setting, ...] = ()
    notes: tuple[str, ...] = ()
    """What the user should know: limits, what was left alone and why."""

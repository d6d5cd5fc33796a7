"""Records of a machine: facts, settings, advice, and what quieting or a restore changed. No I/O.

A fact is one value that was read, or the reason why it could not be read. A setting is one value of
one knob, as found and as requested. Advice is a fact that makes measurements worse, with the fix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

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


Mode = Literal["standing", "session"]
"""standing: until `restore`; session: for one command or run."""

ChangeState = Literal["written", "already so", "refused", "left alone"]

ReturnState = Literal["restored", "was so", "not restored"]
"""was so: the found value was there, nothing had to be written."""


@dataclass(frozen=True, kw_only=True)
class SettingChange:
    """What became of one setting."""

    setting: Setting
    state: ChangeState
    reason: str = ""
    """Why it was refused or left alone."""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What a tune found, wrote and could not write."""

    request: Wish
    knobs: tuple[KnobState, ...]
    """Every knob that was looked at, also those that can do nothing here."""
    changes: tuple[SettingChange, ...] = ()

    @property
    def written(self) -> tuple[SettingChange, ...]:
        """What is changed now."""
        return tuple(change for change in self.changes if change.state == "written")

    @property
    def refused(self) -> tuple[SettingChange, ...]:
        """What the machine did not take."""
        return tuple(change for change in self.changes if change.state == "refused")

    def of_knob(self, name: str) -> Iterator[SettingChange]:
        """The settings of one knob."""
        return (change for change in self.changes if change.setting.knob == name)


@dataclass(frozen=True, kw_only=True)
class SettingReturn:
    """Whether one setting is as it was found."""

    setting: Setting
    state: ReturnState
    reason: str = ""
    """Why it is not restored."""
    meanwhile: str = ""
    """A value that was there and that neither was found nor is ours: somebody else wrote it."""


@dataclass(frozen=True, kw_only=True)
class Restored:
    """What a restore put back."""

    settings: tuple[SettingReturn, ...]
    rebooted: bool = False
    """The machine was started anew since the tune, which undid it: nothing was written."""

    @property
    def missing(self) -> tuple[SettingReturn, ...]:
        """What is not as it was found."""
        return tuple(item for item in self.settings if item.state == "not restored")

    @property
    def complete(self) -> bool:
        """Whether everything is as it was found."""
        return not self.missing

"""Records of a machine: facts, settings, advice, and what quieting or a restore changed. No I/O.

A fact is one value that was read, or the reason why it could not be read. A setting is one value of
one knob, as found and as requested. Advice is a fact that makes measurements worse, with the fix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from torchyard.core.records import renamed

UNAVAILABLE: Final = "unavailable, because "
"""Start of the text of a fact that could not be read; run folders and audits contain it."""

Effect = Literal["large", "medium", "small"]
EFFECTS: tuple[Effect, ...] = ("large", "medium", "small")
"""How much of the noise is at stake: above 5 %, above 1 %, less or only for some programs."""

Profile = Literal["cpu", "gpu"]
PROFILE_CHOICES: Final[dict[str, tuple[Profile, ...]]] = {
    "cpu": ("cpu",),
    "gpu": ("gpu",),
    "all": ("cpu", "gpu"),
}
"""Value of `--profile` -> profiles that it selects."""


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One value that was read, or why it is unavailable."""

    section: str
    """Where it is shown: processor, frequency, idle, isolation, interrupts, memory, kernel, ..."""
    name: str
    value: str | None = None
    unavailable: str = ""
    """Why there is no value; empty if and only if there is one."""

    @property
    def text(self) -> str:
        """The value, or `unavailable, because ...`."""
        return self.value if self.value is not None else UNAVAILABLE + self.unavailable


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Something that makes measurements worse, and how to fix it."""

    name: str
    effect: Effect
    what: str
    why: str
    """With the source for the size of the effect, if known."""
    fix: str = renamed("", formerly="mend")
    """A command or a kernel parameter; empty if nothing can be done on this machine."""
    needs_root: bool = False
    needs_reboot: bool = False
    unfit: bool = False
    """Measurements taken now are not trustworthy, whatever the method."""


@dataclass(frozen=True, kw_only=True)
class MachineView:
    """Facts, state and advice, at one moment."""

    facts: tuple[Fact, ...]
    advice: tuple[Advice, ...]
    """Largest effect first."""

    @property
    def fit(self) -> bool:
        """Whether measurements taken now are trustworthy."""
        return not any(advice.unfit for advice in self.advice)


@dataclass(frozen=True, kw_only=True)
class QuietRequest:
    """What quieting should do; None leaves the choice to the knob."""

    profiles: tuple[Profile, ...] = ("cpu",)
    only: tuple[str, ...] = ()
    """Names of knobs; empty: all default knobs of the profiles."""
    also: tuple[str, ...] = ()
    """Additional knobs that are off by default."""
    without: tuple[str, ...] = ()
    cores: tuple[int, ...] = ()
    """CPUs for measuring; empty: no core is isolated."""
    partition: Literal["root", "isolated"] = "root"
    """cpuset partition of isolated cores: `root` balances load among them, `isolated` does not."""
    frequency_khz: int | None = None
    """Fixed CPU clock; None: the base clock."""
    latency_us: int = 1
    """Maximum wake-up latency of idle states; 0: polling."""
    randomize: Literal["keep", "on", "off"] = "keep"
    """Address space layout randomization."""
    huge_pages: Literal["keep", "always", "madvise", "never"] = "keep"
    gpu_clock_mhz: int | None = None
    """Locked GPU clock; None: a clock below the throttling point."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One value of one knob: its location, its original and its requested value."""

    knob: str
    place: str
    """The knob's name for the location: usually a path without a leading slash."""
    found: str
    wanted: str | None
    """None: not changed by us, but lost when another setting changes, so it is restored, too."""

    @property
    def where(self) -> str:
        """The location for display: paths start with a slash."""
        is_path = self.place.startswith(("proc/", "sys/", "dev/"))
        return f"/{self.place}" if is_path else self.place

    @property
    def changes(self) -> bool:
        """Whether there is something to write."""
        return self.wanted is not None and self.wanted != self.found


@dataclass(frozen=True, kw_only=True)
class KnobState:
    """State of a knob on this machine."""

    knob: str
    unavailable: str = ""
    """Why the knob is unavailable here; empty if it is available."""
    settings: tuple[Setting, ...] = ()
    notes: tuple[str, ...] = ()
    """Notes for the user: limits, what is skipped and why."""


Mode = Literal["standing", "session"]
"""standing: until `restore`; session: for one command or run."""

ChangeState = Literal["written", "already so", "refused", "left alone"]

ReturnState = Literal["restored", "was so", "not restored"]
"""was so: the original value was present, nothing had to be written."""


@dataclass(frozen=True, kw_only=True)
class SettingChange:
    """Outcome of writing one setting."""

    setting: Setting
    state: ChangeState
    reason: str = ""
    """Why it was refused or skipped."""


@dataclass(frozen=True, kw_only=True)
class AppliedSettings:
    """What quieting read, wrote and could not write."""

    request: QuietRequest
    knobs: tuple[KnobState, ...]
    """Every surveyed knob, also unavailable ones."""
    changes: tuple[SettingChange, ...] = ()

    @property
    def written(self) -> tuple[SettingChange, ...]:
        """Changes in force."""
        return tuple(change for change in self.changes if change.state == "written")

    @property
    def refused(self) -> tuple[SettingChange, ...]:
        """Changes that the machine refused."""
        return tuple(change for change in self.changes if change.state == "refused")

    @property
    def to_write(self) -> dict[str, list[Setting]]:
        """Settings without a change, by knob: after a dry run, those that would be written."""
        changed = {change.setting for change in self.changes}
        settings = {
            state.knob: [setting for setting in state.settings if setting not in changed]
            for state in self.knobs
        }
        return {knob: missing for knob, missing in settings.items() if missing}

    def of_knob(self, name: str) -> Iterator[SettingChange]:
        """Yield the changes of one knob."""
        return (change for change in self.changes if change.setting.knob == name)


@dataclass(frozen=True, kw_only=True)
class SettingReturn:
    """Outcome of restoring one setting."""

    setting: Setting
    state: ReturnState
    reason: str = ""
    """Why it is not restored."""
    meanwhile: str = ""
    """A value that is neither the original nor ours: another program wrote it."""


@dataclass(frozen=True, kw_only=True)
class Restored:
    """Outcome of a restore."""

    settings: tuple[SettingReturn, ...]
    rebooted: bool = False
    """The machine was rebooted, which reset the settings: nothing was written."""

    @property
    def missing(self) -> tuple[SettingReturn, ...]:
        """Settings that are not restored."""
        return tuple(item for item in self.settings if item.state == "not restored")

    @property
    def complete(self) -> bool:
        """Whether everything is restored."""
        return not self.missing

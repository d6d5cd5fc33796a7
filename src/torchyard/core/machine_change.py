"""What a tune did to a machine, and what a restore put back. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torchyard.core.machine import KnobState, Setting, Wish

__all__ = [
    "ChangeState",
    "Mode",
    "Restored",
    "ReturnState",
    "SettingChange",
    "SettingReturn",
    "Tuned",
]

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

    wish: Wish
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

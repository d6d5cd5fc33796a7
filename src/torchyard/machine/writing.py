"""Writing one setting, and making sure that it took. Knows nothing of the journal and of order."""

from __future__ import annotations

from collections.abc import Mapping

from torchyard.core.machine import Setting
from torchyard.core.machine_change import SettingChange
from torchyard.errors import TorchyardError
from torchyard.machine.knob import Knob, LeftAlone, Machine
from torchyard.machine.knobs import KNOBS

__all__ = ["lost_again", "needs_writing", "write_setting"]


def needs_writing(setting: Setting, knobs: Mapping[str, Knob] = KNOBS) -> bool:
    """Whether the found value is another than the wanted one."""
    wanted = setting.wanted
    return wanted is not None and not knobs[setting.knob].same(setting.place, setting.found, wanted)


def write_setting(
    machine: Machine, setting: Setting, knobs: Mapping[str, Knob] = KNOBS
) -> SettingChange:
    """Write and read back. A refusal is a result, not an error: the rest of the tune goes on."""
    knob = knobs[setting.knob]
    try:
        knob.write(machine, setting)
        now = knob.read(machine, setting.place)
    except LeftAlone as error:
        return SettingChange(setting=setting, state="left alone", reason=error.what)
    except TorchyardError as error:
        return SettingChange(setting=setting, state="refused", reason=error.what)
    except Exception as error:  # noqa: BLE001  # one bad knob must not end the others' tune
        reason = f"{type(error).__name__}: {error}"
        return SettingChange(setting=setting, state="refused", reason=reason)
    if setting.wanted is not None and not knob.same(setting.place, now, setting.wanted):
        reason = f"the kernel took it and has {now!r}"
        return SettingChange(setting=setting, state="refused", reason=reason)
    return SettingChange(setting=setting, state="written")


def lost_again(
    machine: Machine, change: SettingChange, knobs: Mapping[str, Knob] = KNOBS
) -> SettingChange:
    """The change as it is at the end of the tune: a later knob may have undone it."""
    setting = change.setting
    knob = knobs[setting.knob]
    if change.state != "written" or setting.wanted is None:
        return change
    try:
        now = knob.read(machine, setting.place)
    except TorchyardError as error:
        reason = f"written, but gone since another knob was set: {error.what}"
        return SettingChange(setting=setting, state="refused", reason=reason)
    if knob.same(setting.place, now, setting.wanted):
        return change
    reason = f"written, but another knob made it {now!r}"
    return SettingChange(setting=setting, state="refused", reason=reason)

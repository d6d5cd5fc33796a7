"""Write single settings with a check that they took effect, and restore what the journal recorded.

Restoring happens at the end of quieting, after a kill, and by `torchyard machine restore`. It works
from the journal alone, so that any process can do it, at any time and repeatedly.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from torchyard.errors import MissingTool, NotAllowed, NothingToDo, TorchyardError
from torchyard.machine.gpu.library import open_gpu_libraries
from torchyard.machine.knob import Knob, Machine, SkippedWrite
from torchyard.machine.knobs import KNOBS, RESTORE_ORDER, WRITE_ORDER, in_order
from torchyard.machine.model import Restored, Setting, SettingChange, SettingReturn
from torchyard.machine.quieting.journal import (
    Journal,
    JournalLock,
    JournalState,
    boot_of,
    journal_folder,
    read_journal,
)
from torchyard.process.owner import is_gone


def needs_writing(setting: Setting, knobs: Mapping[str, Knob] = KNOBS) -> bool:
    """Whether the requested value differs from the original one."""
    requested = setting.wanted
    if requested is None:
        return False
    return not knobs[setting.knob].same(setting.place, setting.found, requested)


def write_setting(
    machine: Machine, setting: Setting, knobs: Mapping[str, Knob] = KNOBS
) -> SettingChange:
    """Write one setting and read it back. A refusal is a result, not an error."""
    knob = knobs[setting.knob]
    try:
        knob.write(machine, setting)
        now = knob.read(machine, setting.place)
    except SkippedWrite as error:
        return SettingChange(setting=setting, state="left alone", reason=error.what)
    except TorchyardError as error:
        return _refused(setting, error.what)
    except Exception as error:  # noqa: BLE001  # one bad knob must not stop the others
        return _refused(setting, f"{type(error).__name__}: {error}")
    if setting.wanted is not None and not knob.same(setting.place, now, setting.wanted):
        return _refused(setting, f"the kernel accepted the write, but the value is {now!r}")
    return SettingChange(setting=setting, state="written")


def _refused(setting: Setting, reason: str) -> SettingChange:
    return SettingChange(setting=setting, state="refused", reason=reason)


def recheck(
    machine: Machine, change: SettingChange, knobs: Mapping[str, Knob] = KNOBS
) -> SettingChange:
    """Return the change as it is after all writes: a later knob may have undone it."""
    setting = change.setting
    knob = knobs[setting.knob]
    if change.state != "written" or setting.wanted is None:
        return change
    try:
        now = knob.read(machine, setting.place)
    except TorchyardError as error:
        return _refused(
            setting, f"written, but unreadable since another knob was set: {error.what}"
        )
    if knob.same(setting.place, now, setting.wanted):
        return change
    return _refused(setting, f"written, but another knob changed it to {now!r}")


_RESTORE_PROCESS_S: Final = 15.0
"""How long a restore process may take after its owner was killed."""
_HOLDER_S: Final = 5.0
RELATED_KNOBS: Final = frozenset((first, then) for first, then, _ in (*WRITE_ORDER, *RESTORE_ORDER))
"""Pairs of knobs of which one may change the value of the other."""


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """An interrupted session, and its restore."""

    who: str
    restored: Restored | None
    """None if this process may not write: the settings are still changed."""


def restore(machine: Machine, knobs: Mapping[str, Knob] = KNOBS) -> Restored:
    """Restore this machine; raises NothingToDo if there is nothing to restore."""
    folder = journal_folder(machine.files)
    if read_journal(folder) is None:
        raise _nothing()
    if not may_write(machine):
        raise NotAllowed("restoring this machine needs root", hint="use sudo")
    # A lock without a living owner belongs to the restore process, which is at work.
    lock = JournalLock.take(folder)
    if lock is None:
        journal = read_journal(folder)
        if journal is not None and is_gone(journal.owner):
            lock = JournalLock.take(folder, wait_s=_RESTORE_PROCESS_S)
    if lock is None:
        raise in_use_error(folder)
    try:
        restored = restore_journal(machine, folder, knobs)
    finally:
        lock.release()
    if restored is None:
        raise _nothing()
    return restored


def recover(machine: Machine) -> Recovery | None:
    """Restore the settings of an interrupted session; None if there is none.

    Settings that stand until `restore`, or that belong to a living process, are not touched.
    """
    folder = journal_folder(machine.files)
    state = read_journal(folder)
    if state is None or state.is_standing:
        return None
    if not may_write(machine):
        return Recovery(who=state.who, restored=None) if is_gone(state.owner) else None
    lock = JournalLock.take(folder, wait_s=_RESTORE_PROCESS_S if is_gone(state.owner) else 0.0)
    if lock is None:
        return None
    try:
        restored = restore_journal(machine, folder)
    finally:
        lock.release()
    return None if restored is None else Recovery(who=state.who, restored=restored)


def restore_journal(
    machine: Machine, folder: Path, knobs: Mapping[str, Knob] = KNOBS
) -> Restored | None:
    """Restore the settings in the journal; the caller holds the lock. None without a journal."""
    state = read_journal(folder)
    if state is None:
        return None
    if state.holder is not None:
        _end_holder(state.holder)
    journal = Journal(folder)
    try:
        if state.boot == boot_of(machine.files):
            with _with_gpus(machine, state, knobs) as machine_with_gpus:
                restored = restore_settings(machine_with_gpus, state, journal, knobs)
        else:
            restored = _after_reboot(machine, state, knobs)
        if restored.complete:
            journal.archive()
    finally:
        journal.close()
    return restored


def restore_settings(
    machine: Machine, state: JournalState, journal: Journal | None, knobs: Mapping[str, Knob]
) -> Restored:
    """Restore every setting that is not restored yet; a refused one does not stop the others."""
    pending = _pending(state)
    # In reverse, because later writes may need earlier ones; knobs follow RESTORE_ORDER.
    pending.reverse()
    names = in_order(list(dict.fromkeys(setting.knob for setting in pending)), RESTORE_ORDER)
    ordered = sorted(pending, key=lambda setting: names.index(setting.knob))
    results: dict[Setting, SettingReturn] = {}
    # Read before the first restore, which may change other settings.
    foreign = {
        setting: _foreign_value(machine, knobs.get(setting.knob), setting) for setting in ordered
    }
    # Twice, because a limit may be refused until its opposite limit is restored.
    for _ in range(2):
        for setting in ordered:
            before = results.get(setting)
            if before is None or before.state == "not restored":
                result = _restore_one(machine, knobs.get(setting.knob), setting)
                results[setting] = replace(result, meanwhile=result.meanwhile or foreign[setting])
        if all(item.state != "not restored" for item in results.values()):
            break
    if journal is not None:
        for item in results.values():
            # A full disk must not prevent the restore.
            with suppress(TorchyardError):
                done = item.state != "not restored"
                journal.note("restored" if done else "not restored", item.setting, item.reason)
    return Restored(settings=tuple(results.values()))


def _pending(state: JournalState) -> list[Setting]:
    """Return the settings to restore: of written knobs, and of knobs related to them.

    Other settings are not touched: if one has another value now, another program wrote it.
    """
    written = {knob for knob, _ in state.touched}
    related = {knob for pair in RELATED_KNOBS for knob in pair if not written.isdisjoint(pair)}
    return [
        setting
        for setting in state.settings
        if setting.knob in written | related and (setting.knob, setting.place) not in state.returned
    ]


def may_write(machine: Machine) -> bool:
    """Whether this process may change settings: as root, or in a copy of a machine."""
    return os.geteuid() == 0 or not machine.files.live


def in_use_error(folder: Path) -> NotAllowed:
    """Return the error for a machine that another process quiets or restores at this moment."""
    journal = read_journal(folder)
    return NotAllowed(
        "another process is quieting this machine" + (f" ({journal.who})" if journal else ""),
        why="two at once would restore each other's values",
        hint="wait until it ends and restores its settings; after a kill: "
        "`sudo torchyard machine restore`",
    )


def _restore_one(machine: Machine, knob: Knob | None, setting: Setting) -> SettingReturn:
    if knob is None:
        return _not_restored(setting, f"this version of Torchyard has no knob {setting.knob!r}")
    before = _current_value(machine, knob, setting)
    was_so = before is not None and knob.same(setting.place, before, setting.found)
    try:
        knob.restore(machine, setting)
        now = knob.read(machine, setting.place)
    except TorchyardError as error:
        return _not_restored(setting, error.what)
    except Exception as error:  # noqa: BLE001  # one bad knob must not stop the others
        return _not_restored(setting, f"{type(error).__name__}: {error}")
    if not knob.same(setting.place, now, setting.found):
        if knob.reach == "held":  # ours is released; the value belongs to another program
            return SettingReturn(setting=setting, state="restored", meanwhile=now)
        return _not_restored(setting, f"it is {now!r} and not {setting.found!r}")
    return SettingReturn(setting=setting, state="was so" if was_so else "restored")


def _foreign_value(machine: Machine, knob: Knob | None, setting: Setting) -> str:
    """Return a value that is neither the original nor ours; empty if there is none.

    A setting that is only restored changes through other settings of ours, so it does not count.
    """
    now = None if knob is None else _current_value(machine, knob, setting)
    if knob is None or now is None or setting.wanted is None:
        return ""
    ours = (setting.found, setting.wanted)
    return "" if any(knob.same(setting.place, now, value) for value in ours) else now


def _not_restored(setting: Setting, reason: str) -> SettingReturn:
    return SettingReturn(setting=setting, state="not restored", reason=reason)


def _current_value(machine: Machine, knob: Knob, setting: Setting) -> str | None:
    try:
        return knob.read(machine, setting.place)
    except Exception:  # noqa: BLE001  # the restore reports the reason
        return None


def _after_reboot(machine: Machine, state: JournalState, knobs: Mapping[str, Knob]) -> Restored:
    """Compare only: a reboot resets every knob, so nothing is written."""
    results: list[SettingReturn] = []
    for setting in state.settings:
        knob = knobs.get(setting.knob)
        now = None if knob is None else _current_value(machine, knob, setting)
        differs = (
            knob is not None
            and now is not None
            and not knob.same(setting.place, now, setting.found)
        )
        results.append(
            SettingReturn(setting=setting, state="was so", meanwhile=(now or "") if differs else "")
        )
    return Restored(settings=tuple(results), rebooted=True)


@contextmanager
def _with_gpus(
    machine: Machine, state: JournalState, knobs: Mapping[str, Knob]
) -> Iterator[Machine]:
    """Open the GPU libraries only for journals with GPU settings: it may take seconds."""
    profiles = {knobs[item.knob].profile for item in state.settings if item.knob in knobs}
    if machine.gpus is not None or "gpu" not in profiles:
        yield machine
        return
    with open_gpu_libraries(machine.files) as libraries:
        yield replace(machine, gpus=libraries)


def _end_holder(holder: Mapping[str, Any]) -> None:
    """End the process that holds settings, which releases them."""
    pid = holder.get("pid")
    if not isinstance(pid, int) or is_gone(holder):
        return
    try:
        # By descriptor: a PID can be reused, a descriptor cannot.
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if is_gone(holder):
            return
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        deadline = time.monotonic() + _HOLDER_S
        while not is_gone(holder):
            if time.monotonic() > deadline:
                raise MissingTool(
                    f"process {pid}, which holds settings, does not exit",
                    hint=f"kill it (`kill -9 {pid}`), then restore again",
                )
            time.sleep(0.01)
    finally:
        os.close(descriptor)


def _nothing() -> NothingToDo:
    return NothingToDo("nothing to restore", why="this machine is not quieted")

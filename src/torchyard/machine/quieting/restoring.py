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
from torchyard.machine.knob import Knob, LeftAlone, Machine
from torchyard.machine.knobs import KNOBS, RESTORE_ORDER, WRITE_ORDER, in_order
from torchyard.machine.model import Restored, Setting, SettingChange, SettingReturn
from torchyard.machine.quieting.journal import (
    Journal,
    JournalLock,
    JournalText,
    boot_of,
    journal_folder,
    read_journal,
)
from torchyard.process.owner import is_gone


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


_KEEPER_S: Final = 15.0
"""How long a keeper may take to put everything back after its owner was killed."""
_HOLDER_S: Final = 5.0
NEIGHBOURS: Final = frozenset((first, then) for first, then, _ in (*WRITE_ORDER, *RESTORE_ORDER))
"""Pairs of knobs of which one may change what the other has."""


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """A tune that was cut off, and what was done about it."""

    who: str
    restored: Restored | None
    """None when this process may not write: the machine is still changed."""


def restore(machine: Machine, knobs: Mapping[str, Knob] = KNOBS) -> Restored:
    """Put back what the tune of this machine found; NothingToDo when there is none."""
    folder = journal_folder(machine.files)
    if read_journal(folder) is None:
        raise _nothing()
    if not may_write(machine):
        raise NotAllowed("putting this machine back needs root", hint="use sudo")
    # A lock without a living owner is the keeper's, which is putting everything back just now.
    lock = JournalLock.take(folder)
    if lock is None:
        text = read_journal(folder)
        lock = JournalLock.take(folder, wait_s=_KEEPER_S) if text and is_gone(text.owner) else None
    if lock is None:
        raise busy(folder)
    try:
        restored = restore_journal(machine, folder, knobs)
    finally:
        lock.release()
    if restored is None:
        raise _nothing()
    return restored


def recover(machine: Machine, knobs: Mapping[str, Knob] = KNOBS) -> Recovery | None:
    """Put back what a tune that was cut off left; None when there is no such tune.

    Leaves standing tunes and those of living processes alone.
    """
    folder = journal_folder(machine.files)
    text = read_journal(folder)
    if text is None or _stands(text):
        return None
    if not may_write(machine):
        return Recovery(who=text.who, restored=None) if is_gone(text.owner) else None
    lock = JournalLock.take(folder, wait_s=_KEEPER_S if is_gone(text.owner) else 0.0)
    if lock is None:
        return None
    try:
        restored = restore_journal(machine, folder, knobs)
    finally:
        lock.release()
    return None if restored is None else Recovery(who=text.who, restored=restored)


def restore_journal(
    machine: Machine, folder: Path, knobs: Mapping[str, Knob] = KNOBS
) -> Restored | None:
    """Put back what the journal names; the caller holds the lock. None when there is no journal."""
    text = read_journal(folder)
    if text is None:
        return None
    if text.holder is not None:
        _end_holder(text.holder)
    journal = Journal(folder)
    try:
        if text.boot == boot_of(machine.files):
            with _gpus_of(machine, text, knobs) as whole:
                restored = put_back(whole, text, journal, knobs)
        else:
            restored = _after_reboot(machine, text, knobs)
        if restored.complete:
            journal.put_away()
    finally:
        journal.close()
    return restored


def put_back(
    machine: Machine, text: JournalText, journal: Journal | None, knobs: Mapping[str, Knob]
) -> Restored:
    """Put back every setting that is not back yet, and go on when one is refused."""
    waiting = _waiting(text)
    # Backwards, as later writes may need earlier ones; between knobs as the order says.
    waiting.reverse()
    names = in_order(list(dict.fromkeys(setting.knob for setting in waiting)), RESTORE_ORDER)
    ordered = sorted(waiting, key=lambda setting: names.index(setting.knob))
    results: dict[Setting, SettingReturn] = {}
    # Before anything is put back: that changes other settings, too.
    others = {setting: _of_others(machine, knobs.get(setting.knob), setting) for setting in ordered}
    # Twice, because a limit may be refused until its opposite limit is back.
    for _ in range(2):
        for setting in ordered:
            before = results.get(setting)
            if before is None or before.state == "not restored":
                found = _put_back_one(machine, knobs.get(setting.knob), setting)
                results[setting] = replace(found, meanwhile=found.meanwhile or others[setting])
        if all(item.state != "not restored" for item in results.values()):
            break
    if journal is not None:
        for item in results.values():
            # A full disk must not keep the machine changed.
            with suppress(TorchyardError):
                done = item.state != "not restored"
                journal.note("restored" if done else "not restored", item.setting, item.reason)
    return Restored(settings=tuple(results.values()))


def _waiting(text: JournalText) -> list[Setting]:
    """What may be changed by the tune: what it wrote, and what goes with what it wrote.

    The rest of what was found is left alone: if it is another value now, somebody else wrote it.
    """
    written = {knob for knob, _ in text.touched}
    near = {knob for pair in NEIGHBOURS for knob in pair if not written.isdisjoint(pair)}
    return [
        setting
        for setting in text.settings
        if setting.knob in written | near and (setting.knob, setting.place) not in text.returned
    ]


def may_write(machine: Machine) -> bool:
    """Whether this process may change settings: root, or anybody in a copy of a machine."""
    return os.geteuid() == 0 or not machine.files.live


def busy(folder: Path) -> NotAllowed:
    """The error for a machine that another process tunes or restores at this moment."""
    text = read_journal(folder)
    return NotAllowed(
        "another tune of this machine is under way" + (f" ({text.who})" if text else ""),
        why="two at once would put back each other's values",
        hint="wait until it ends, which puts everything back; after a kill: "
        "`torchyard machine restore`",
    )


def _put_back_one(machine: Machine, knob: Knob | None, setting: Setting) -> SettingReturn:
    if knob is None:
        reason = f"this Torchyard has no knob {setting.knob!r}"
        return SettingReturn(setting=setting, state="not restored", reason=reason)
    before = _present(machine, knob, setting)
    was_so = before is not None and knob.same(setting.place, before, setting.found)
    try:
        knob.restore(machine, setting)
        now = knob.read(machine, setting.place)
    except TorchyardError as error:
        return _not_back(setting, error.what)
    except Exception as error:  # noqa: BLE001  # one bad knob must not keep the others changed
        return _not_back(setting, f"{type(error).__name__}: {error}")
    if not knob.same(setting.place, now, setting.found):
        if knob.reach == "held":  # ours is released; what is left is somebody else's
            return SettingReturn(setting=setting, state="restored", meanwhile=now)
        return _not_back(setting, f"it is {now!r} and not {setting.found!r}")
    return SettingReturn(setting=setting, state="was so" if was_so else "restored")


def _of_others(machine: Machine, knob: Knob | None, setting: Setting) -> str:
    """A value that neither was found nor is ours; empty when there is none.

    A setting that is only put back is lost through other settings of ours, so nobody is accused.
    """
    now = None if knob is None else _present(machine, knob, setting)
    if knob is None or now is None or setting.wanted is None:
        return ""
    known = (setting.found, setting.wanted)
    return "" if any(knob.same(setting.place, now, value) for value in known) else now


def _not_back(setting: Setting, reason: str) -> SettingReturn:
    return SettingReturn(setting=setting, state="not restored", reason=reason)


def _present(machine: Machine, knob: Knob, setting: Setting) -> str | None:
    try:
        return knob.read(machine, setting.place)
    except Exception:  # noqa: BLE001  # restoring it says why
        return None


def _after_reboot(machine: Machine, text: JournalText, knobs: Mapping[str, Knob]) -> Restored:
    """A start of the machine undoes every knob. Compares, and writes nothing."""
    results: list[SettingReturn] = []
    for setting in text.settings:
        knob = knobs.get(setting.knob)
        now = None if knob is None else _present(machine, knob, setting)
        other = (
            knob is not None
            and now is not None
            and not knob.same(setting.place, now, setting.found)
        )
        results.append(
            SettingReturn(setting=setting, state="was so", meanwhile=(now or "") if other else "")
        )
    return Restored(settings=tuple(results), rebooted=True)


@contextmanager
def _gpus_of(machine: Machine, text: JournalText, knobs: Mapping[str, Knob]) -> Iterator[Machine]:
    """GPUs are opened only where a setting of theirs waits: it may take seconds."""
    profiles = {knobs[item.knob].profile for item in text.settings if item.knob in knobs}
    if machine.gpus is not None or "gpu" not in profiles:
        yield machine
        return
    with open_gpu_libraries(machine.files) as libraries:
        yield replace(machine, gpus=libraries)


def _stands(text: JournalText) -> bool:
    return text.mode == "standing" and text.tuned


def _end_holder(holder: Mapping[str, Any]) -> None:
    """The process that holds settings lets go of them when it ends."""
    pid = holder.get("pid")
    if not isinstance(pid, int) or is_gone(holder):
        return
    try:
        # By descriptor: the number may pass to another process, the descriptor cannot.
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
                    f"process {pid}, which holds settings, does not end",
                    hint=f"end it with `kill -9 {pid}`, then restore again",
                )
            time.sleep(0.01)
    finally:
        os.close(descriptor)


def _nothing() -> NothingToDo:
    return NothingToDo("there is nothing to restore", why="no tune of this machine is in force")

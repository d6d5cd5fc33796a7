"""Quiet a machine and restore everything: survey, journal, ordered writes, restore.

    with QuietSession(machine, request):    for one run; restored at the end, on errors and signals
        ...
    apply_until_restore(machine, request)   until `torchyard machine restore`

`RestoreProcess` is the owner's end of the restore process (`restore_process.py`): it starts that
process before the first write, lets it hold settings, and tells it how quieting ended. Nothing
here depends on a particular knob, on files or on GPUs.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

import torchyard
from torchyard.core.records import decode, encode, nearest_hint
from torchyard.errors import NotAllowed, StepFailed, TorchyardError, UsageError
from torchyard.machine.knob import Knob, Machine, Reach
from torchyard.machine.knobs import KNOBS, WRITE_ORDER, in_order
from torchyard.machine.model import (
    AppliedSettings,
    KnobState,
    Mode,
    QuietRequest,
    Restored,
    Setting,
    SettingChange,
)
from torchyard.machine.quieting.journal import (
    Journal,
    JournalLock,
    JournalState,
    boot_of,
    journal_folder,
    read_journal,
)
from torchyard.machine.quieting.restoring import (
    in_use_error,
    may_write,
    needs_writing,
    recheck,
    restore_journal,
    restore_settings,
    write_setting,
)
from torchyard.process.owner import owner_of
from torchyard.process.signals import DeferredSignals, SignalsRaise

_START_S: Final = 60.0
_ANSWER_S: Final = 30.0
_END_S: Final = 5.0


class RestoreProcess:
    """The owner's connection to a restore process that waits for the end of this process."""

    def __init__(self, *, root: Path, folder: Path, lock: JournalLock) -> None:
        """Start it and wait until it is able to restore; nothing may be written before."""
        # -P: this may run as root in any user's folder, which must not be searched for modules.
        words = [sys.executable, "-P", "-m", "torchyard.machine.quieting.restore_process"]
        own = str(Path(torchyard.__file__).resolve().parents[1])
        paths = [own, *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            self._process = subprocess.Popen(
                [*words, str(root), str(folder), str(lock.descriptor)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=(lock.descriptor,),
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )
        except OSError as error:
            raise _restore_process_failed(str(error)) from error
        self._unread = b""
        self._answer(_START_S)

    @property
    def pid(self) -> int:
        """Process ID of the restore process."""
        return self._process.pid

    def hold(self, settings: Sequence[Setting]) -> list[SettingChange]:
        """Let it write settings that last as long as a process, so that they outlive this one."""
        self._tell({"say": "hold", "settings": [encode(setting) for setting in settings]})
        results = self._answer(_ANSWER_S)["results"]
        return [decode(SettingChange, item, where="restore process") for item in results]

    def stay(self) -> dict[str, object]:
        """Leave it running with the settings it holds; return what identifies it."""
        owner = owner_of(self._process.pid)
        self._tell({"say": "stay"})
        self._answer(_ANSWER_S)  # from here on others can restore
        self._close_pipes()
        # It outlives this process: nothing waits for it, and Popen must not warn.
        self._process.returncode = 0
        return owner

    def done(self) -> None:
        """Tell it that the restore is done and recorded, and end it. Idempotent."""
        if self._process.returncode is not None:
            return
        with suppress(OSError):
            self._tell({"say": "done"})
        self._close_pipes()
        try:
            self._process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def hand_over(self) -> None:
        """Close the pipe without a message, so that it restores in place of this process."""
        self._close_pipes()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_ANSWER_S)

    def _tell(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None  # noqa: S101  # opened as a pipe
        self._process.stdin.write((json.dumps(message) + "\n").encode())
        self._process.stdin.flush()

    def _answer(self, limit_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None  # noqa: S101  # opened as a pipe
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            ready, _, _ = select.select([descriptor], [], [], limit_s)
            chunk = os.read(descriptor, 1 << 16) if ready else b""
            if not chunk:
                self._process.kill()
                self._close_pipes()
                self._process.wait()
                raise _restore_process_failed(
                    f"no answer within {limit_s:g} s" if not ready else ""
                )
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


def _restore_process_failed(why: str) -> StepFailed:
    return StepFailed(
        "cannot start the process that restores settings after a kill",
        why=why or "it exited at once",
        hint="nothing was changed; check that `python -m torchyard.machine.quieting.restore_process` starts",
    )


MACHINE_REACHES: Final[tuple[Reach, ...]] = ("machine", "held")
"""Reaches of the knobs that quieting writes and a restore writes back."""


def chosen_knobs(
    request: QuietRequest,
    *,
    reaches: Sequence[Reach] = MACHINE_REACHES,
    knobs: Mapping[str, Knob] = KNOBS,
) -> list[str]:
    """Return the names of the requested knobs, in the order of writing."""
    for name in (*request.only, *request.also, *request.without):
        if name not in knobs:
            raise UsageError(
                f"unknown knob {name!r}", hint=nearest_hint(name, list(knobs), what="knob")
            )
    names = [
        name
        for name, knob in knobs.items()
        if knob.reach in reaches
        and name not in request.without
        and (
            name in (*request.only, *request.also)
            or (not request.only and knob.described.default and knob.profile in request.profiles)
        )
    ]
    return in_order(names, WRITE_ORDER)


def needs_gpus(request: QuietRequest) -> bool:
    """Whether the request needs the GPU libraries."""
    return any(KNOBS[name].profile == "gpu" for name in chosen_knobs(request))


def survey(
    machine: Machine,
    request: QuietRequest,
    *,
    reaches: Sequence[Reach] = MACHINE_REACHES,
    knobs: Mapping[str, Knob] = KNOBS,
) -> tuple[KnobState, ...]:
    """Return the state of every chosen knob, in the order of writing. Reads only; needs no root."""
    states: list[KnobState] = []
    for name in chosen_knobs(request, reaches=reaches, knobs=knobs):
        try:
            states.append(knobs[name].survey(machine, request))
        except Exception as error:  # noqa: BLE001  # one bad knob must not hide the others
            reason = getattr(error, "what", f"{type(error).__name__}: {error}")
            states.append(KnobState(knob=name, unavailable=str(reason)))
    return tuple(states)


def dry_run(
    machine: Machine, request: QuietRequest, *, knobs: Mapping[str, Knob] = KNOBS
) -> AppliedSettings:
    """Return what quieting would do; `changes` holds only the settings it would not write."""
    states = survey(machine, request, knobs=knobs)
    settings = [setting for state in states for setting in state.settings]
    unchanged = (_unchanged(setting) for setting in settings if not needs_writing(setting, knobs))
    return AppliedSettings(request=request, knobs=states, changes=tuple(unchanged))


def apply_until_restore(machine: Machine, request: QuietRequest) -> AppliedSettings:
    """Apply settings until `restore`. An error or a signal on the way restores everything."""
    session = QuietSession(machine, request, mode="standing")
    with DeferredSignals() as signals:
        session.apply(signals)
        try:
            session.leave_standing()
        except BaseException:
            session.restore()
            raise
    return session.applied


class QuietSession:
    """Settings that are applied for the duration of a `with` block; sets `restored` at the end."""

    def __init__(
        self,
        machine: Machine,
        request: QuietRequest,
        *,
        mode: Mode = "session",
        knobs: Mapping[str, Knob] = KNOBS,
    ) -> None:
        self.machine = machine
        self.applied = AppliedSettings(request=request, knobs=())
        self.before: Restored | None = None
        """The restore of an earlier, interrupted session, done first."""
        self.restored: Restored | None = None
        self._mode = mode
        self._knobs = knobs
        self._folder = journal_folder(machine.files)
        self._lock: JournalLock | None = None
        self._journal: Journal | None = None
        self._restore_process: RestoreProcess | None = None
        self._raising = SignalsRaise()

    def __enter__(self) -> Self:
        with DeferredSignals() as signals:
            self.apply(signals)
        self._raising.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            with DeferredSignals():
                self.restore()
        finally:
            self._raising.stop()

    def apply(self, signals: DeferredSignals | None = None) -> None:
        """Survey, write the journal, then write the settings. Restores everything on failure."""
        check_may_quiet(self.machine)
        self._lock = JournalLock.take(self._folder)
        if self._lock is None:
            raise in_use_error(self._folder)
        try:
            self._restore_earlier()
            request = self.applied.request
            states = survey(self.machine, request, knobs=self._knobs)
            self.applied = AppliedSettings(request=request, knobs=states)
            self._restore_process = RestoreProcess(
                root=self.machine.files.root, folder=self._folder, lock=self._lock
            )
            settings = [setting for state in states for setting in state.settings]
            self._journal = Journal.create(
                self._folder,
                mode=self._mode,
                request=request,
                boot=boot_of(self.machine.files),
                settings=settings,
            )
            changes = self._write_all(settings, signals)
            self.applied = AppliedSettings(request=request, knobs=states, changes=tuple(changes))
        except BaseException:
            self.restore()
            raise
        if signals is not None and signals.caught:
            self.restore()

    def restore(self) -> None:
        """Restore everything and release the lock. Idempotent."""
        if self._lock is None:
            return
        journal, restore_process, lock = self._journal, self._restore_process, self._lock
        self._journal = self._restore_process = self._lock = None
        try:
            if journal is not None:
                journal.close()
                self.restored = self._restore_settings()
            if restore_process is not None:
                restore_process.done()
        except BaseException:
            if restore_process is not None:
                restore_process.hand_over()
            raise
        finally:
            lock.release()

    def _restore_settings(self) -> Restored:
        try:
            restored = restore_journal(self.machine, self._folder, self._knobs)
        except (TorchyardError, OSError):
            restored = None
        if restored is not None:
            return restored
        # The journal was removed or damaged meanwhile: this process still knows the values.
        settings = [setting for state in self.applied.knobs for setting in state.settings]
        state = JournalState(
            mode=self._mode,
            boot="",
            owner={},
            started="",
            settings=tuple(settings),
            touched=frozenset((setting.knob, setting.place) for setting in settings),
        )
        return restore_settings(self.machine, state, None, self._knobs)

    def leave_standing(self) -> None:
        """Leave the settings in force after this process; does nothing once restored."""
        if self._journal is None or self._restore_process is None or self._lock is None:
            return
        if not self.applied.written:  # nothing to restore
            self.restore()
            return
        self._journal.mark_complete()
        if self._held(self.applied.written):
            self._journal.held_by(self._restore_process.stay())
        self._journal.close()
        self._restore_process.done()
        self._lock.release()
        self._journal = self._restore_process = self._lock = None

    def _restore_earlier(self) -> None:
        journal = read_journal(self._folder)
        if journal is None:
            return
        if journal.is_standing and journal.boot == boot_of(self.machine.files):
            raise NotAllowed(
                f"the machine is already quieted ({journal.who})",
                hint="restore it first: `sudo torchyard machine restore`",
            )
        self.before = restore_journal(self.machine, self._folder, self._knobs)
        if self.before is not None and not self.before.complete:
            missing = ", ".join(f"{item.setting.where}" for item in self.before.missing)
            raise StepFailed(
                f"cannot restore the settings of an earlier session: {missing}",
                why=f"{self.before.missing[0].reason} ({journal.who})",
                hint="`sudo torchyard machine restore` tries again and shows details",
            )

    def _write_all(
        self, settings: Sequence[Setting], signals: DeferredSignals | None
    ) -> list[SettingChange]:
        assert self._journal is not None  # noqa: S101  # made just before
        changes: list[SettingChange] = []
        for setting in settings:
            if signals is not None and signals.caught:
                break
            if not needs_writing(setting, self._knobs):
                changes.append(_unchanged(setting))
                continue
            self._journal.note("writing", setting)
            change = self._write(setting)
            with suppress(TorchyardError):  # for inspection; a restore needs only `writing`
                written = change.state == "written"
                self._journal.note("written" if written else "refused", setting, change.reason)
            changes.append(change)
        return [recheck(self.machine, change, self._knobs) for change in changes]

    def _write(self, setting: Setting) -> SettingChange:
        if self._mode == "standing" and self._knobs[setting.knob].reach == "held":
            assert self._restore_process is not None  # noqa: S101  # started just before
            return self._restore_process.hold([setting])[0]
        return write_setting(self.machine, setting, self._knobs)

    def _held(self, changes: Sequence[SettingChange]) -> bool:
        return any(self._knobs[change.setting.knob].reach == "held" for change in changes)


def _unchanged(setting: Setting) -> SettingChange:
    if setting.wanted is None:
        reason = "restored if another knob changes it"
        return SettingChange(setting=setting, state="left alone", reason=reason)
    return SettingChange(setting=setting, state="already so")


def check_may_quiet(machine: Machine) -> None:
    """Raise NotAllowed unless this process may change settings."""
    if not may_write(machine):
        raise NotAllowed(
            "quieting this machine needs root",
            hint="use sudo; without root, `torchyard machine quiet --user` applies process settings "
            "and `--dry-run` shows what root would change",
        )

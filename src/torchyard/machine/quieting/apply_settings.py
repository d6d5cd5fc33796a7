"""Quiet a machine and restore everything: survey, journal, ordered writes, restore.

    with Tuning(machine, wish) as tuning:   for one run; restored at the end, on errors and signals
        ...
    tune_standing(machine, wish)            until `torchyard machine restore`

`KeeperLink` is the owner's end of the restore process (`restore_process.py`): it starts that
process before the first write, lets it hold settings, and tells it how quieting ended. Knows
nothing of any particular knob, of files and of GPUs.
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
from types import TracebackType
from typing import Any, Final, Self

import torchyard
from torchyard.core.records import decode, encode, nearest_hint
from torchyard.errors import NotAllowed, StepFailed, TorchyardError, UsageError
from torchyard.machine.knob import Knob, Machine, Reach
from torchyard.machine.knobs import KNOBS, WRITE_ORDER, in_order
from torchyard.machine.model import KnobState, Mode, Restored, Setting, SettingChange, Tuned, Wish
from torchyard.machine.quieting.journal import (
    Journal,
    JournalLock,
    JournalText,
    boot_of,
    journal_folder,
    read_journal,
)
from torchyard.machine.quieting.restoring import (
    busy,
    lost_again,
    may_write,
    needs_writing,
    put_back,
    restore_journal,
    write_setting,
)
from torchyard.process.owner import owner_of
from torchyard.process.signals import DeferredSignals, SignalsRaise

_START_S: Final = 60.0
_ANSWER_S: Final = 30.0
_END_S: Final = 5.0


class KeeperLink:
    """A keeper that waits for the end of this process."""

    def __init__(self, *, root: Path, folder: Path, lock: JournalLock) -> None:
        """Start it and wait until it could restore; nothing may be written before."""
        # -P: this may run as root in anybody's folder, which must not be searched for modules.
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
            raise _no_keeper(str(error)) from error
        self._unread = b""
        self._answer(_START_S)

    @property
    def pid(self) -> int:
        """The keeper's process."""
        return self._process.pid

    def hold(self, settings: Sequence[Setting]) -> list[SettingChange]:
        """Have it write settings that last as long as a process, so that they outlive this one."""
        self._tell({"say": "hold", "settings": [encode(setting) for setting in settings]})
        results = self._answer(_ANSWER_S)["results"]
        return [decode(SettingChange, item, where="keeper") for item in results]

    def stay(self) -> dict[str, object]:
        """Leave it behind with what it holds; what identifies it."""
        owner = owner_of(self._process.pid)
        self._tell({"say": "stay"})
        self._answer(_ANSWER_S)  # from here on others can restore
        self._close_pipes()
        # It is to outlive this process: nobody will wait for it, and Popen must not complain.
        self._process.returncode = 0
        return owner

    def done(self) -> None:
        """Everything is put back, or noted as not: it may go. A second call does nothing."""
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

    def leave_it(self) -> None:
        """End without a word: it restores in place of this process."""
        self._close_pipes()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_ANSWER_S)

    def _tell(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None  # noqa: S101  # a pipe was asked for
        self._process.stdin.write((json.dumps(message) + "\n").encode())
        self._process.stdin.flush()

    def _answer(self, limit_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None  # noqa: S101  # a pipe was asked for
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            ready, _, _ = select.select([descriptor], [], [], limit_s)
            piece = os.read(descriptor, 1 << 16) if ready else b""
            if not piece:
                self._process.kill()
                self._close_pipes()
                self._process.wait()
                raise _no_keeper(f"it does not answer within {limit_s:g} s" if not ready else "")
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


def _no_keeper(why: str) -> StepFailed:
    return StepFailed(
        "the process that restores after a kill cannot be started",
        why=why or "it ended at once",
        hint="nothing was changed; see whether `python -m torchyard.machine.quieting.restore_process` starts",
    )


OF_THE_MACHINE: Final[tuple[Reach, ...]] = ("machine", "held")
"""Knobs that a tune writes and a restore puts back."""


def chosen_knobs(
    wish: Wish, *, reaches: Sequence[Reach] = OF_THE_MACHINE, knobs: Mapping[str, Knob] = KNOBS
) -> list[str]:
    """Names of the knobs that the wish asks for, in the order of writing."""
    for name in (*wish.only, *wish.also, *wish.without):
        if name not in knobs:
            raise UsageError(
                f"there is no knob {name!r}", hint=nearest_hint(name, list(knobs), what="knob")
            )
    names = [
        name
        for name, knob in knobs.items()
        if knob.reach in reaches
        and name not in wish.without
        and (
            name in (*wish.only, *wish.also)
            or (not wish.only and knob.default and knob.profile in wish.profiles)
        )
    ]
    return in_order(names, WRITE_ORDER)


def wants_gpus(wish: Wish, knobs: Mapping[str, Knob] = KNOBS) -> bool:
    """Whether the wish needs the libraries of GPUs."""
    return any(knobs[name].profile == "gpu" for name in chosen_knobs(wish, knobs=knobs))


def survey(
    machine: Machine,
    wish: Wish,
    *,
    reaches: Sequence[Reach] = OF_THE_MACHINE,
    knobs: Mapping[str, Knob] = KNOBS,
) -> tuple[KnobState, ...]:
    """What every chosen knob found, in the order of writing. Reads only and needs no root."""
    states: list[KnobState] = []
    for name in chosen_knobs(wish, reaches=reaches, knobs=knobs):
        try:
            states.append(knobs[name].survey(machine, wish))
        except Exception as error:  # noqa: BLE001  # one bad knob must not hide the others
            reason = getattr(error, "what", f"{type(error).__name__}: {error}")
            states.append(KnobState(knob=name, unavailable=str(reason)))
    return tuple(states)


def dry_run(machine: Machine, wish: Wish, *, knobs: Mapping[str, Knob] = KNOBS) -> Tuned:
    """What a tune would find; `changes` holds only what it would leave alone."""
    states = survey(machine, wish, knobs=knobs)
    settings = [setting for state in states for setting in state.settings]
    kept = (_kept(setting) for setting in settings if not needs_writing(setting, knobs))
    return Tuned(wish=wish, knobs=states, changes=tuple(kept))


def tune_standing(machine: Machine, wish: Wish, *, knobs: Mapping[str, Knob] = KNOBS) -> Tuned:
    """Tune until `restore`. When this ends early, by an error or a signal, everything is put back."""
    tuning = Tuning(machine, wish, mode="standing", knobs=knobs)
    with DeferredSignals() as signals:
        tuning.apply(signals)
        try:
            tuning.leave_standing()
        except BaseException:
            tuning.restore()
            raise
    return tuning.tuned


class Tuning:
    """A tune for as long as the block runs. Afterwards look at `restored`."""

    def __init__(
        self,
        machine: Machine,
        wish: Wish,
        *,
        mode: Mode = "session",
        knobs: Mapping[str, Knob] = KNOBS,
    ) -> None:
        self.machine = machine
        self.tuned = Tuned(wish=wish, knobs=())
        self.before: Restored | None = None
        """What an earlier tune had left and was put back first."""
        self.restored: Restored | None = None
        self._mode = mode
        self._knobs = knobs
        self._folder = journal_folder(machine.files)
        self._lock: JournalLock | None = None
        self._journal: Journal | None = None
        self._keeper: KeeperLink | None = None
        self._raising = SignalsRaise()

    def __enter__(self) -> Self:
        with DeferredSignals() as signals:
            self.apply(signals)
        self._raising.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            with DeferredSignals():
                self.restore()
        finally:
            self._raising.stop()

    def apply(self, signals: DeferredSignals | None = None) -> None:
        """Survey everything, keep it, then write. Puts everything back when it cannot finish."""
        check_may_tune(self.machine)
        self._lock = JournalLock.take(self._folder)
        if self._lock is None:
            raise busy(self._folder)
        try:
            self._settle_earlier()
            wish = self.tuned.wish
            states = survey(self.machine, wish, knobs=self._knobs)
            self.tuned = Tuned(wish=wish, knobs=states)
            self._keeper = KeeperLink(
                root=self.machine.files.root, folder=self._folder, lock=self._lock
            )
            settings = [setting for state in states for setting in state.settings]
            self._journal = Journal.create(
                self._folder,
                mode=self._mode,
                wish=wish,
                boot=boot_of(self.machine.files),
                settings=settings,
            )
            changes = self._write_all(settings, signals)
            self.tuned = Tuned(wish=wish, knobs=states, changes=tuple(changes))
        except BaseException:
            self.restore()
            raise
        if signals is not None and signals.caught:
            self.restore()

    def restore(self) -> None:
        """Put everything back and let others tune; a second call does nothing."""
        if self._lock is None:
            return
        journal, keeper, lock = self._journal, self._keeper, self._lock
        self._journal = self._keeper = self._lock = None
        try:
            if journal is not None:
                journal.close()
                self.restored = self._put_back()
            if keeper is not None:
                keeper.done()
        except BaseException:
            if keeper is not None:
                keeper.leave_it()
            raise
        finally:
            lock.release()

    def _put_back(self) -> Restored:
        try:
            restored = restore_journal(self.machine, self._folder, self._knobs)
        except (TorchyardError, OSError):
            restored = None
        if restored is not None:
            return restored
        # Somebody removed or damaged the journal meanwhile: this process still knows the values.
        settings = [setting for state in self.tuned.knobs for setting in state.settings]
        text = JournalText(
            mode=self._mode,
            boot="",
            owner={},
            started="",
            settings=tuple(settings),
            touched=frozenset((setting.knob, setting.place) for setting in settings),
        )
        return put_back(self.machine, text, None, self._knobs)

    def leave_standing(self) -> None:
        """Keep the machine as it is when this process ends; nothing when it is put back already."""
        if self._journal is None or self._keeper is None or self._lock is None:
            return
        if not self.tuned.written:  # nothing is changed: there is nothing to restore
            self.restore()
            return
        self._journal.tuned()
        if self._held(self.tuned.written):
            self._journal.held_by(self._keeper.stay())
        self._journal.close()
        self._keeper.done()
        self._lock.release()
        self._journal = self._keeper = self._lock = None

    def _settle_earlier(self) -> None:
        text = read_journal(self._folder)
        if text is None:
            return
        if text.mode == "standing" and text.tuned and text.boot == boot_of(self.machine.files):
            raise NotAllowed(
                f"the machine is tuned already ({text.who})",
                hint="put it back first with `torchyard machine restore`",
            )
        self.before = restore_journal(self.machine, self._folder, self._knobs)
        if self.before is not None and not self.before.complete:
            missing = ", ".join(f"{item.setting.where}" for item in self.before.missing)
            raise StepFailed(
                f"what an earlier tune changed cannot be put back: {missing}",
                why=f"{self.before.missing[0].reason} ({text.who})",
                hint="`torchyard machine restore` tries again and shows everything",
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
                changes.append(_kept(setting))
                continue
            self._journal.note("writing", setting)
            change = self._write(setting)
            with suppress(TorchyardError):  # only for reading: restore needs `writing` alone
                written = change.state == "written"
                self._journal.note("written" if written else "refused", setting, change.reason)
            changes.append(change)
        return [lost_again(self.machine, change, self._knobs) for change in changes]

    def _write(self, setting: Setting) -> SettingChange:
        if self._mode == "standing" and self._knobs[setting.knob].reach == "held":
            assert self._keeper is not None  # noqa: S101  # started just before
            return self._keeper.hold([setting])[0]
        return write_setting(self.machine, setting, self._knobs)

    def _held(self, changes: Sequence[SettingChange]) -> bool:
        return any(self._knobs[change.setting.knob].reach == "held" for change in changes)


def _kept(setting: Setting) -> SettingChange:
    if setting.wanted is None:
        reason = "only put back, should another knob change it"
        return SettingChange(setting=setting, state="left alone", reason=reason)
    return SettingChange(setting=setting, state="already so")


def check_may_tune(machine: Machine) -> None:
    """Raise NotAllowed before anything is begun that needs root."""
    if not may_write(machine):
        raise NotAllowed(
            "tuning this machine needs root",
            hint="use sudo; `torchyard machine tune --user` does what a user may, and `--dry-run` "
            "shows what root would change",
        )

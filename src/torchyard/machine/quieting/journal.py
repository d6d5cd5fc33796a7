"""The journal: every original setting, on disk before the first write, and every write since.

    FOLDER/lock            held while a process writes settings (`JournalLock`)
    FOLDER/tune.jsonl      the settings that are in force or were interrupted; absent otherwise
    FOLDER/restored.jsonl  the last journal that was restored, for inspection

Lines of tune.jsonl: one `tune` (who, when, which boot), one `found` for every setting of every
knob, then as it happens `writing` before and `written` or `refused` after each write, `tuned` at
the end, `holder` for a process that holds settings, and `restored` or `not restored`. The file
appears as a whole with all `found` lines in it, so it never names less than what may have been
written.

The lock allows one quieting at a time. The restore process inherits the owner's descriptor; a lock
belongs to the open file and not to the process, so it stays held after the owner's death until the
restore process has restored everything.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from torchyard import __version__
from torchyard.core.records import decode, encode
from torchyard.errors import NotAllowed, ResultsDamaged, TorchyardError, UsageError
from torchyard.files.safe_reading import read_records
from torchyard.files.safe_writing import replace_file, to_json_text
from torchyard.machine.model import Mode, Setting, Wish
from torchyard.machine.system.file_tree import FileTree
from torchyard.process.owner import this_process

JOURNAL_VARIABLE: Final = "TORCHYARD_MACHINE_JOURNAL"

_LOCK_FILE: Final = "lock"
_LOOK_AGAIN_S: Final = 0.05


class JournalLock:
    """A lock that is held. Its descriptor may be handed to another process."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def take(cls, folder: Path, *, wait_s: float = 0.0) -> JournalLock | None:
        """The lock of the folder, which is made; None when another process holds it until then."""
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            # Not for others: whoever may open it could hold it and forbid every tune.
            descriptor = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise cannot_keep(folder, error) from error
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return cls(descriptor)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(descriptor)
                    return None
                time.sleep(_LOOK_AGAIN_S)
            except OSError as error:
                os.close(descriptor)
                raise cannot_keep(folder, error) from error

    def release(self) -> None:
        """Give up this process's hold; a second call does nothing."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def cannot_keep(folder: Path, error: OSError) -> NotAllowed:
    """The error for a folder in which no journal can be kept."""
    return NotAllowed(
        f"cannot keep a journal in {folder}: {error.strerror or error}",
        why="nothing was changed: what is found must be on disk before the first write",
        hint=f"free some space or run as root, or name another folder with {JOURNAL_VARIABLE}",
    )


FORMAT_VERSION: Final = 1
"""Raised when an older Torchyard could no longer put back what the journal says."""

JOURNAL_FILE: Final = "tune.jsonl"
RESTORED_FILE: Final = "restored.jsonl"

Event = Literal["writing", "written", "refused", "restored", "not restored"]


def journal_folder(files: FileTree) -> Path:
    """Where the journal of this machine is: one place for everybody."""
    named = os.environ.get(JOURNAL_VARIABLE)
    return Path(named).absolute() if named else files.path("var/lib/torchyard/machine")


def boot_of(files: FileTree) -> str:
    """Which start of the machine this is; empty when it does not say."""
    return files.read("proc/sys/kernel/random/boot_id").value or ""


@dataclass(frozen=True, kw_only=True)
class JournalText:
    """What a journal says."""

    mode: Mode
    boot: str
    owner: Mapping[str, Any]
    started: str
    settings: tuple[Setting, ...]
    """In the order of writing."""
    touched: frozenset[tuple[str, str]] = field(default_factory=frozenset)
    """(knob, place) of the settings whose writing was begun."""
    tuned: bool = False
    """Whether the tune came to its end."""
    returned: frozenset[tuple[str, str]] = field(default_factory=frozenset)
    """(knob, place) of the settings that are put back."""
    holder: Mapping[str, Any] | None = None
    """The process that holds settings of reach "held"."""

    @property
    def who(self) -> str:
        """The owner, for messages."""
        return f"process {self.owner.get('pid', 'unknown')}, {self.mode}, since {self.started}"


class Journal:
    """The one writer of a journal; whoever makes one holds the lock."""

    def __init__(self, folder: Path) -> None:
        """Go on with the journal that is there."""
        self._path = folder / JOURNAL_FILE
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        # A kill may have cut off the last line; another one behind it would be damage.
        whole = self._path.read_bytes().rfind(b"\n") + 1
        os.ftruncate(self._descriptor, whole)
        os.lseek(self._descriptor, 0, os.SEEK_END)

    @classmethod
    def create(
        cls, folder: Path, *, mode: Mode, wish: Wish, boot: str, settings: Sequence[Setting]
    ) -> Journal:
        """Put everything that was found on the disk; nothing may be written before this returns."""
        header = {
            "kind": "tune",
            "format": FORMAT_VERSION,
            "torchyard": __version__,
            "started": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            "boot": boot,
            "mode": mode,
            "owner": this_process(),
            "wish": encode(wish),
            "settings": len(settings),
        }
        found = ({"kind": "found", "setting": encode(setting)} for setting in settings)
        text = "".join(to_json_text(record) + "\n" for record in (header, *found))
        try:
            replace_file(folder / JOURNAL_FILE, text)
            journal = cls(folder)
            # Everybody may read it; whoever may write it decides what root writes in a restore.
            os.fchmod(journal._descriptor, 0o644)
            return journal
        except TorchyardError as error:
            cause = error.__cause__
            if isinstance(cause, OSError):
                raise cannot_keep(folder, cause) from error
            raise
        except OSError as error:
            raise cannot_keep(folder, error) from error

    def note(self, event: Event, setting: Setting, reason: str = "") -> None:
        """Say what happens to a setting. It outlives this process when this returns."""
        said = {"reason": reason} if reason else {}
        self._append({"kind": event, "knob": setting.knob, "place": setting.place, **said})

    def tuned(self) -> None:
        """Say that the tune came to its end."""
        self._append({"kind": "tuned"})
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._not_written(error) from error

    def held_by(self, holder: Mapping[str, object]) -> None:
        """Say which process holds settings from now on."""
        self._append({"kind": "holder", "owner": dict(holder)})

    def put_away(self) -> None:
        """Everything is back: there is no tune any more."""
        self.close()
        self._path.replace(self._path.with_name(RESTORED_FILE))

    def close(self) -> None:
        """Give the file back; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _append(self, record: Mapping[str, object]) -> None:
        line = (to_json_text(record) + "\n").encode("ascii")
        before = os.lseek(self._descriptor, 0, os.SEEK_CUR)
        try:
            written = os.write(self._descriptor, line)
            if written < len(line):
                os.write(self._descriptor, line[written:])
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._descriptor, before)
                os.lseek(self._descriptor, before, os.SEEK_SET)
            raise self._not_written(error) from error

    def _not_written(self, error: OSError) -> NotAllowed:
        return NotAllowed(
            f"cannot write to {self._path}: {error.strerror or error}",
            why="nothing is written to the machine that the journal does not name",
            hint="free some space",
        )


def read_journal(folder: Path) -> JournalText | None:
    """The journal of the tune that is in force or was cut off; None when there is none."""
    path = folder / JOURNAL_FILE
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _damaged(path, str(error.strerror)) from error
    own = stat.S_ISREG(found.st_mode) and found.st_uid in (0, os.geteuid())
    if not own or found.st_mode & 0o022:
        # What it says is written to the machine, as root.
        raise NotAllowed(
            f"{path} is not a file that only root or this user may write",
            hint="restart the machine, which undoes a tune, and remove the file",
        )
    try:
        records = [record for _, record in read_records(path)]
    except FileNotFoundError:
        return None
    except ResultsDamaged as error:
        if not path.exists():  # put back by another process in between
            return None
        raise _damaged(path, error.what) from error
    if not records:
        raise _damaged(path, "it is empty")
    return _text_of(path, records)


def _text_of(path: Path, records: list[dict[str, Any]]) -> JournalText:
    header, rest = records[0], records[1:]
    version = header.get("format")
    if header.get("kind") != "tune" or not isinstance(version, int):
        raise _damaged(path, "its first line is not that of a tune")
    if version > FORMAT_VERSION:
        raise ResultsDamaged(
            f"{path} has format {version}, this Torchyard knows up to {FORMAT_VERSION}",
            why=f"Torchyard {header.get('torchyard', 'of a newer version')} tuned this machine",
            hint="restore with that version, or restart the machine and remove the file",
        )
    try:
        settings = tuple(
            decode(Setting, record["setting"], where=str(path), strict=False)
            for record in rest
            if record.get("kind") == "found"
        )
        mode: Mode = "standing" if header["mode"] == "standing" else "session"
        text = JournalText(
            mode=mode,
            boot=str(header["boot"]),
            owner=dict(header["owner"]),
            started=str(header["started"]),
            settings=settings,
            touched=frozenset(
                (str(r["knob"]), str(r["place"])) for r in rest if r.get("kind") == "writing"
            ),
            tuned=any(record.get("kind") == "tuned" for record in rest),
            returned=_returned(rest),
            holder=next((r["owner"] for r in rest if r.get("kind") == "holder"), None),
        )
    except (KeyError, TypeError, ValueError, UsageError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from error
    if len(settings) != header.get("settings"):
        raise _damaged(path, f"{len(settings)} of {header.get('settings')} settings are in it")
    return text


def _returned(records: list[dict[str, Any]]) -> frozenset[tuple[str, str]]:
    last = {
        (str(record["knob"]), str(record["place"])): record["kind"]
        for record in records
        if record.get("kind") in ("restored", "not restored")
    }
    return frozenset(place for place, kind in last.items() if kind == "restored")


def _damaged(path: Path, why: str) -> ResultsDamaged:
    return ResultsDamaged(
        f"{path}: the journal of a tune is damaged",
        why=why,
        hint="put back by hand what its `found` lines say, or restart the machine, which undoes a "
        "tune; then remove the file",
    )

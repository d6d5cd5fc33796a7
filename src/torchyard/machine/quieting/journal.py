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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from torchyard import __version__
from torchyard.core.records import decode, encode
from torchyard.errors import NotAllowed, ResultsDamaged, TorchyardError, UsageError
from torchyard.files.safe_reading import read_records
from torchyard.files.safe_writing import replace_file, to_json_text
from torchyard.machine.model import Mode, QuietRequest, Setting
from torchyard.machine.system.file_tree import FileTree
from torchyard.process.owner import this_process

JOURNAL_VARIABLE: Final = "TORCHYARD_MACHINE_JOURNAL"

_LOCK_FILE: Final = "lock"
_POLL_S: Final = 0.05


class JournalLock:
    """A held lock. Its descriptor may be passed to another process."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def take(cls, folder: Path, *, wait_s: float = 0.0) -> JournalLock | None:
        """Take the folder's lock, creating the folder; None if another process keeps holding it."""
        with journal_errors(folder):
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            # Not readable by others: a process that can open it could hold it and block all quieting.
            descriptor = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return cls(descriptor)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(descriptor)
                    return None
                time.sleep(_POLL_S)
            except OSError as error:
                os.close(descriptor)
                raise _journal_error(folder, error) from error

    def release(self) -> None:
        """Release the lock in this process. Idempotent."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


@contextmanager
def journal_errors(folder: Path) -> Iterator[None]:
    """Raise NotAllowed for a folder in which no journal can be written."""
    try:
        yield
    except (OSError, TorchyardError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError):
            raise
        raise _journal_error(folder, cause) from error


def _journal_error(folder: Path, error: OSError) -> NotAllowed:
    return NotAllowed(
        f"cannot write a journal in {folder}: {error.strerror or error}",
        why="nothing was changed: original values must be on disk before the first write",
        hint=f"free disk space, run as root, or set {JOURNAL_VARIABLE} to another directory",
    )


FORMAT_VERSION: Final = 1
"""Increased when an older Torchyard could no longer restore from the journal."""

JOURNAL_FILE: Final = "tune.jsonl"
RESTORED_FILE: Final = "restored.jsonl"

Event = Literal["writing", "written", "refused", "restored", "not restored"]


def journal_folder(files: FileTree) -> Path:
    """Return the folder of this machine's journal, the same for all users."""
    override = os.environ.get(JOURNAL_VARIABLE)
    return Path(override).absolute() if override else files.path("var/lib/torchyard/machine")


def boot_of(files: FileTree) -> str:
    """Return the boot ID; empty if the kernel does not report it."""
    return files.read("proc/sys/kernel/random/boot_id").text


@dataclass(frozen=True, kw_only=True)
class JournalState:
    """Contents of a journal."""

    mode: Mode
    boot: str
    owner: Mapping[str, Any]
    started: str
    settings: tuple[Setting, ...]
    """In the order of writing."""
    touched: frozenset[tuple[str, str]] = field(default_factory=frozenset)
    """(knob, place) of the settings whose write was started."""
    complete: bool = False
    """Whether all settings were written."""
    returned: frozenset[tuple[str, str]] = field(default_factory=frozenset)
    """(knob, place) of the restored settings."""
    holder: Mapping[str, Any] | None = None
    """The process that holds settings of reach "held"."""

    @property
    def is_standing(self) -> bool:
        """Whether the settings are in force until `restore`."""
        return self.mode == "standing" and self.complete

    @property
    def who(self) -> str:
        """The owner, for messages."""
        return f"process {self.owner.get('pid', 'unknown')}, {self.mode}, since {self.started}"


class Journal:
    """The only writer of a journal; its creator holds the lock."""

    def __init__(self, folder: Path) -> None:
        """Open the existing journal for appending."""
        self._path = folder / JOURNAL_FILE
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        # A kill may have truncated the last line; a line appended to it would be damaged.
        complete_bytes = self._path.read_bytes().rfind(b"\n") + 1
        os.ftruncate(self._descriptor, complete_bytes)
        os.lseek(self._descriptor, 0, os.SEEK_END)

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        mode: Mode,
        request: QuietRequest,
        boot: str,
        settings: Sequence[Setting],
    ) -> Journal:
        """Save all original values; nothing may be written to the machine before this returns."""
        header = {
            "kind": "tune",
            "format": FORMAT_VERSION,
            "torchyard": __version__,
            "started": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            "boot": boot,
            "mode": mode,
            "owner": this_process(),
            "wish": encode(request),
            "settings": len(settings),
        }
        records = ({"kind": "found", "setting": encode(setting)} for setting in settings)
        text = "".join(to_json_text(record) + "\n" for record in (header, *records))
        with journal_errors(folder):
            replace_file(folder / JOURNAL_FILE, text)
            journal = cls(folder)
            # Readable by all, writable only by its owner: a restore as root writes what it says.
            os.fchmod(journal._descriptor, 0o644)
        return journal

    def note(self, event: Event, setting: Setting, reason: str = "") -> None:
        """Record an event of a setting; it survives a kill of this process."""
        extra = {"reason": reason} if reason else {}
        self._append({"kind": event, "knob": setting.knob, "place": setting.place, **extra})

    def mark_complete(self) -> None:
        """Record that all settings were written."""
        self._append({"kind": "tuned"})
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._not_written(error) from error

    def held_by(self, holder: Mapping[str, object]) -> None:
        """Record which process holds settings from now on."""
        self._append({"kind": "holder", "owner": dict(holder)})

    def archive(self) -> None:
        """Move the journal away: everything is restored."""
        self.close()
        self._path.replace(self._path.with_name(RESTORED_FILE))

    def close(self) -> None:
        """Close the file. Idempotent."""
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
            why="a setting is written only after it is recorded in the journal",
            hint="free disk space",
        )


def read_journal(folder: Path) -> JournalState | None:
    """Return the journal of settings in force or interrupted; None if there is none."""
    path = folder / JOURNAL_FILE
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _damaged(path, str(error.strerror)) from error
    is_own = stat.S_ISREG(status.st_mode) and status.st_uid in (0, os.geteuid())
    if not is_own or status.st_mode & 0o022:
        # Its values are written to the machine as root.
        raise NotAllowed(
            f"refusing to use {path}: others than root and this user may write it",
            hint="reboot, which resets the settings, and remove the file",
        )
    try:
        records = [record for _, record in read_records(path)]
    except FileNotFoundError:
        return None
    except ResultsDamaged as error:
        if not path.exists():  # restored by another process meanwhile
            return None
        raise _damaged(path, error.what) from error
    if not records:
        raise _damaged(path, "it is empty")
    return _state_of(path, records)


def _state_of(path: Path, records: list[dict[str, Any]]) -> JournalState:
    header, rest = records[0], records[1:]
    version = header.get("format")
    if header.get("kind") != "tune" or not isinstance(version, int):
        raise _damaged(path, "its first line is not a journal header")
    if version > FORMAT_VERSION:
        raise ResultsDamaged(
            f"{path} has format {version}, this version of Torchyard reads up to {FORMAT_VERSION}",
            why=f"Torchyard {header.get('torchyard', 'of a newer version')} wrote it",
            hint="restore with that version, or reboot and remove the file",
        )
    try:
        settings = tuple(
            decode(Setting, record["setting"], where=str(path), strict=False)
            for record in rest
            if record.get("kind") == "found"
        )
        mode: Mode = "standing" if header["mode"] == "standing" else "session"
        state = JournalState(
            mode=mode,
            boot=str(header["boot"]),
            owner=dict(header["owner"]),
            started=str(header["started"]),
            settings=settings,
            touched=frozenset(
                (str(r["knob"]), str(r["place"])) for r in rest if r.get("kind") == "writing"
            ),
            complete=any(record.get("kind") == "tuned" for record in rest),
            returned=_returned(rest),
            holder=next((r["owner"] for r in rest if r.get("kind") == "holder"), None),
        )
    except (KeyError, TypeError, ValueError, UsageError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from error
    if len(settings) != header.get("settings"):
        raise _damaged(path, f"it has {len(settings)} of {header.get('settings')} settings")
    return state


def _returned(records: list[dict[str, Any]]) -> frozenset[tuple[str, str]]:
    last = {
        (str(record["knob"]), str(record["place"])): record["kind"]
        for record in records
        if record.get("kind") in ("restored", "not restored")
    }
    return frozenset(place for place, kind in last.items() if kind == "restored")


def _damaged(path: Path, why: str) -> ResultsDamaged:
    return ResultsDamaged(
        f"the journal of machine settings is damaged: {path}",
        why=why,
        hint="write the values of its `found` lines back by hand, or reboot, which resets the "
        "settings; then remove the file",
    )

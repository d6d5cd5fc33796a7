"""Write a run folder, which holds everything a run was asked for, observed and found.

    run.json            the request and where it ran; replaced as a whole
    launches.jsonl      one line per launch
    samples.jsonl       one line per block, with its workload
    comparisons.jsonl   one line per comparison; a later line for the same one replaces it
    progress.jsonl      one line per event, oldest first, for readers in other processes
    logs/               output of the workers
    SHA256SUMS          checksums of all of these, written when the run ends

Once a call of `RunWriter` has returned, its data is durable. Progress is worthless once the run
has ended: it is not synced, a failed write ends the progress file and not the run, and readers
treat a missing file as empty.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from torchyard import __version__
from torchyard.core.block import Block
from torchyard.core.comparison import Comparison
from torchyard.core.records import encode
from torchyard.core.study import Study, Workload
from torchyard.errors import TorchyardError, UsageError
from torchyard.files.safe_reading import parse_json, read_part
from torchyard.files.safe_writing import RecordFile, replace_file, to_json_text, write_failed
from torchyard.process.owner import this_process
from torchyard.results.directory import (
    COMPARISONS_FILE,
    END_STATES,
    FORMAT_VERSION,
    LAUNCHES_FILE,
    LOGS_FOLDER,
    METHOD_VERSION,
    PROGRESS_FILE,
    RUN_FILE,
    SAMPLES_FILE,
)
from torchyard.results.integrity import CHECKSUMS_KEY, SUMS_FILE, write_sums

LARGEST_BYTES: Final = 2 << 20
"""Nothing is added beyond this, so that a run of days leaves a folder that is read at once."""
_PAUSE_S: Final = 0.5
_PAUSE_DOUBLES_BYTES: Final = 128 << 10
"""Passing events come many times a second. Each 128 KiB of file doubles the pause between two that
are kept: at 200 bytes an event, 1 MiB lasts for about a day."""
_READ_BYTES: Final = 256 << 10


class ProgressFile:
    """What the one process that runs the bench adds to."""

    def __init__(self, folder: Path, *, now_s: Callable[[], float] = time.monotonic) -> None:
        """Make the file in the run folder; where that fails, nothing is ever added."""
        self._now_s = now_s
        self._size_bytes = 0
        self._next_s = 0.0
        self._file: RecordFile | None = None
        try:
            self._file = RecordFile(folder / PROGRESS_FILE)
        except OSError:
            return

    def add(self, record: Mapping[str, object], *, passing: bool) -> None:
        """Add a line; a passing event is left out when another one was kept just before."""
        if self._file is None or (passing and self._now_s() < self._next_s):
            return
        size_bytes = len(to_json_text(record)) + 1
        if self._size_bytes + size_bytes > LARGEST_BYTES:
            return
        try:
            self._file.append(record)
        except TorchyardError:
            # A disk that is full: the run itself will say so when it has something to lose.
            self.close()
            return
        self._size_bytes += size_bytes
        self._next_s = self._now_s() + _PAUSE_S * 2 ** (self._size_bytes // _PAUSE_DOUBLES_BYTES)

    def close(self) -> None:
        """Give the file back; a second call does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None


class ProgressTail:
    """Reads what was added since the last look."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / PROGRESS_FILE
        self._place_bytes = 0
        self._rest = b""

    def more(self) -> list[dict[str, Any]]:
        """The whole lines that are new; those that are no records are left out."""
        try:
            # A file that somebody else put here may be of any kind and size.
            wanted_bytes = min(_READ_BYTES, max(0, LARGEST_BYTES - self._place_bytes))
            data = read_part(self._path, self._place_bytes, wanted_bytes)
        except OSError:
            return []
        self._place_bytes += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [record for line in lines if (record := _record(line)) is not None]


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = parse_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


class RunWriter:
    """The one process that adds to a run."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        """Claim the folder; `create` is the way to call this."""
        self.folder = folder
        self.logs = folder / LOGS_FOLDER
        self._facts = facts
        # The first of these files is the claim: two processes cannot both make it.
        self._launches = RecordFile(folder / LAUNCHES_FILE)
        self._samples = RecordFile(folder / SAMPLES_FILE)
        self._comparisons = RecordFile(folder / COMPARISONS_FILE)
        self.logs.mkdir()

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        study: Study,
        command: Sequence[str],
        machine: Mapping[str, object],
        revision: str = "",
        notes: Sequence[str] = (),
    ) -> RunWriter:
        """Start a run in a new or empty folder. `revision` is what the user or a CI job named."""
        folder = folder.absolute()
        facts = {
            "format": FORMAT_VERSION,
            "id": folder.name,
            "state": "running",
            "torchyard": __version__,
            "method": METHOD_VERSION,
            "command": list(command),
            "started": _now(),
            "finished": None,
            "owner": this_process(),
            "revision": revision,
            "notes": list(notes),
            "study": encode(study),
            "machine": encode(machine),
            "targets": {},
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise _taken(folder)
            writer = cls(folder, facts)
        except (FileExistsError, NotADirectoryError) as error:
            raise _taken(folder) from error
        except OSError as error:
            raise write_failed(folder, error, kept="what is there") from error
        writer._write_facts()
        return writer

    def add_target(self, name: str, facts: Mapping[str, object]) -> None:
        """Keep what a target said of itself in its handshake."""
        self._facts["targets"][name] = encode(facts)
        self._write_facts()

    def add_launch(self, record: Mapping[str, object]) -> None:
        """Keep one launch, on the disk when this returns."""
        self._launches.append(encode(record))
        self._launches.sync()

    def add_blocks(self, workload: Workload, blocks: Sequence[Block]) -> None:
        """Keep blocks of one workload; they outlive this process when this returns."""
        self._samples.append(
            *({"workload": workload.label, "block": encode(block)} for block in blocks)
        )

    def add_sample_records(self, records: Iterable[Mapping[str, object]]) -> None:
        """Keep blocks that another run has kept, as they are."""
        for record in records:
            self._samples.append(record)

    def add_facts(self, **facts: object) -> None:
        """Keep more in `run.json`, or in place of what is there."""
        self._facts.update(encode(facts))
        self._write_facts()

    def add_comparison(self, comparison: Comparison) -> None:
        """Keep one comparison, on the disk when this returns together with its blocks."""
        self._samples.sync()
        self._comparisons.append(encode(comparison))
        self._comparisons.sync()

    def finish(self, state: str) -> None:
        """Say how the run ended and close it."""
        if state not in END_STATES:
            raise TorchyardError(
                f"a run cannot end as {state!r}", hint=f"one of {', '.join(END_STATES)}"
            )
        files = (self._launches, self._samples, self._comparisons)
        try:
            if self._facts["state"] == "running":
                for file in files:
                    file.sync()
            self._facts["state"] = state
            self._facts["finished"] = _now()
            self._facts[CHECKSUMS_KEY] = SUMS_FILE
            # The checksums first: a kill between the two leaves a run that never ended.
            write_sums(self.folder, self._facts_text())
            self._write_facts()
        finally:
            for file in files:
                file.close()

    def _write_facts(self) -> None:
        replace_file(self.folder / RUN_FILE, self._facts_text())

    def _facts_text(self) -> str:
        return to_json_text(self._facts, indent=1) + "\n"


def _taken(folder: Path) -> UsageError:
    return UsageError(
        f"{folder} is not empty",
        why="a run needs a folder of its own",
        hint="name another folder, or give --replace to remove the earlier run in it",
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

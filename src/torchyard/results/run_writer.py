"""Write a run folder, which contains the request, observations and results of a run.

    run.json            the request and where it ran; replaced as a whole
    launches.jsonl      one line per launch
    samples.jsonl       one line per block, with its workload
    comparisons.jsonl   one line per comparison; a later line for the same one replaces it
    progress.jsonl      one line per event, oldest first, for readers in other processes
    logs/               output of the workers
    SHA256SUMS          checksums of all of these, written when the run ends

When a call of `RunWriter` has returned, its data is durable. Progress is only useful while the run is
running: it is not synced, a failed write ends the progress file but not the run, and readers treat a
missing file as empty.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from torchyard import __version__
from torchyard.core.block import Block
from torchyard.core.comparison import Comparison
from torchyard.core.records import encode
from torchyard.core.study import Study, Workload
from torchyard.errors import TorchyardError, UsageError
from torchyard.files.safe_reading import parse_record, read_part
from torchyard.files.safe_writing import RecordFile, replace_file, to_json_text, write_error
from torchyard.process.owner import this_process
from torchyard.results import directory
from torchyard.results.integrity import CHECKSUMS_KEY, SUMS_FILE, write_sums

LARGEST_BYTES: Final = 2 << 20
"""Maximum size of the progress file, so that it can be read quickly after a run of days."""
_PAUSE_S: Final = 0.5
_PAUSE_DOUBLES_BYTES: Final = 128 << 10
"""Frequent events are rate-limited. The minimum interval doubles every 128 KiB: at 200 bytes per
event, 1 MiB lasts for about a day."""
_READ_BYTES: Final = 256 << 10


class ProgressFile:
    """Writer of the progress file."""

    def __init__(self, folder: Path, *, now_s: Callable[[], float] = time.monotonic) -> None:
        """Create the file in the run folder; if that fails, nothing is written."""
        self._now_s = now_s
        self._size_bytes = 0
        self._next_s = 0.0
        self._file: RecordFile | None = None
        try:
            self._file = RecordFile(folder / directory.PROGRESS_FILE)
        except OSError:
            return

    def add(self, record: Mapping[str, object], *, passing: bool) -> None:
        """Append a record; `passing` events are rate-limited."""
        if self._file is None or (passing and self._now_s() < self._next_s):
            return
        size_bytes = len(to_json_text(record)) + 1
        if self._size_bytes + size_bytes > LARGEST_BYTES:
            return
        try:
            self._file.append(record)
        except TorchyardError:
            # Probably a full disk: the run reports that itself when it writes results.
            self.close()
            return
        self._size_bytes += size_bytes
        self._next_s = self._now_s() + _PAUSE_S * 2 ** (self._size_bytes // _PAUSE_DOUBLES_BYTES)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None


class ProgressTail:
    """Reader of records that were appended since the last call."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / directory.PROGRESS_FILE
        self._offset = 0
        self._rest = b""

    def more(self) -> list[dict[str, Any]]:
        """Return the new complete records; invalid lines are skipped."""
        try:
            # The file is untrusted and may have any size.
            size_bytes = min(_READ_BYTES, max(0, LARGEST_BYTES - self._offset))
            data = read_part(self._path, self._offset, size_bytes)
        except OSError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [record for line in lines if (record := parse_record(line)) is not None]


class RunWriter:
    """Writer of a run folder; used by one process."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        """Claim the folder. Use `create` instead."""
        self.folder = folder
        self.logs = folder / directory.LOGS_FOLDER
        self._facts = facts
        # The first of these files is the claim: two processes cannot both create it.
        self._launches = RecordFile(folder / directory.LAUNCHES_FILE)
        self._samples = RecordFile(folder / directory.SAMPLES_FILE)
        self._comparisons = RecordFile(folder / directory.COMPARISONS_FILE)
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
        """Start a run in a new or empty folder. `revision` is given by the user or a CI job."""
        folder = folder.absolute()
        facts = {
            "format": directory.FORMAT_VERSION,
            "id": folder.name,
            "state": "running",
            "torchyard": __version__,
            "method": directory.METHOD_VERSION,
            "command": list(command),
            "started": directory.utc_timestamp("milliseconds"),
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
                raise _not_empty_error(folder)
            writer = cls(folder, facts)
        except (FileExistsError, NotADirectoryError) as error:
            raise _not_empty_error(folder) from error
        except OSError as error:
            raise write_error(folder, error, kept="existing data") from error
        writer._write_facts()
        return writer

    def add_target(self, name: str, facts: Mapping[str, object]) -> None:
        """Store the facts that a target reported at startup."""
        self._facts["targets"][name] = encode(facts)
        self._write_facts()

    def add_launch(self, record: Mapping[str, object]) -> None:
        """Append a launch; synced to disk on return."""
        self._launches.append(encode(record))
        self._launches.sync()

    def add_blocks(self, workload: Workload, blocks: Sequence[Block]) -> None:
        """Append blocks of one workload; they survive a crash of this process on return."""
        self._samples.append(
            *({"workload": workload.label, "block": encode(block)} for block in blocks)
        )

    def add_sample_records(self, records: Iterable[Mapping[str, object]]) -> None:
        """Append sample records of another run unchanged."""
        for record in records:
            self._samples.append(record)

    def add_facts(self, **facts: object) -> None:
        """Add or replace keys of `run.json`."""
        self._facts.update(encode(facts))
        self._write_facts()

    def add_comparison(self, comparison: Comparison) -> None:
        """Append a comparison; it and its blocks are synced to disk on return."""
        self._samples.sync()
        self._comparisons.append(encode(comparison))
        self._comparisons.sync()

    def finish(self, state: str) -> None:
        """Record the final state and close the run."""
        if state not in directory.END_STATES:
            raise TorchyardError(
                f"invalid final state {state!r}",
                hint=f"valid states: {', '.join(directory.END_STATES)}",
            )
        files = (self._launches, self._samples, self._comparisons)
        try:
            if self._facts["state"] == "running":
                for file in files:
                    file.sync()
            self._facts["state"] = state
            self._facts["finished"] = directory.utc_timestamp("milliseconds")
            self._facts[CHECKSUMS_KEY] = SUMS_FILE
            # The checksums first: if killed in between, the run counts as interrupted.
            write_sums(self.folder, self._facts_text())
            self._write_facts()
        finally:
            for file in files:
                file.close()

    def _write_facts(self) -> None:
        replace_file(self.folder / directory.RUN_FILE, self._facts_text())

    def _facts_text(self) -> str:
        return to_json_text(self._facts, indent=1) + "\n"


def _not_empty_error(folder: Path) -> UsageError:
    return UsageError(
        f"{folder} is not empty",
        why="a run needs an empty folder",
        hint="use another folder, or --replace to delete the earlier run",
    )

"""Writing a run: one folder that holds everything the run was asked, saw and found.

    run.json            what was asked and where it ran; replaced as a whole
    launches.jsonl      one line per launch
    samples.jsonl       one line per block, with its workload
    comparisons.jsonl   one line per comparison; a later line for the same one replaces it
    progress.jsonl      what happens, for whoever watches; written by `progress_file`
    logs/               what the workers printed
    SHA256SUMS          checksums of all of these, written when the run ends

What a call has returned from is kept whatever happens next. Knows nothing of how anything is
measured, estimated or shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torchyard import __version__
from torchyard.core.block import Block
from torchyard.core.comparison import Comparison
from torchyard.core.records import encode
from torchyard.core.study import Study
from torchyard.core.workload import Workload
from torchyard.errors import TorchyardError, UsageError
from torchyard.results.checksums import CHECKSUMS_KEY, SUMS_FILE, write_sums
from torchyard.results.durable import RecordFile, replace_file, to_json_text, write_failed
from torchyard.results.layout import (
    COMPARISONS_FILE,
    END_STATES,
    FORMAT_VERSION,
    LAUNCHES_FILE,
    LOGS_FOLDER,
    METHOD_VERSION,
    RUN_FILE,
    SAMPLES_FILE,
)
from torchyard.results.owner import this_process

__all__ = ["RunWriter"]


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

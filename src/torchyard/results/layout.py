"""The names inside a run folder, its format version and its states.

Writer and reader agree here and nowhere else. Knows nothing of what the records mean. No I/O.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

__all__ = [
    "COMPARISONS_FILE",
    "END_STATES",
    "FIRST_METHOD",
    "FORMAT_VERSION",
    "LAUNCHES_FILE",
    "LOGS_FOLDER",
    "METHOD_VERSION",
    "PROGRESS_FILE",
    "RECORD_FILES",
    "RUN_FILE",
    "SAMPLES_FILE",
    "STATES",
    "State",
]

State = Literal["running", "finished", "interrupted", "failed"]

FORMAT_VERSION: Final = 1
"""Raised when an older Torchyard could no longer read the folder; added keys do not raise it."""

METHOD_VERSION: Final = 2
"""Raised when times of unchanged programs would come out differently: what is timed, flushed,
warmed up or left out. Runs of different methods are not compared."""
FIRST_METHOD: Final = 1
"""Of runs that do not record it."""

STATES: Final[tuple[State, ...]] = get_args(State)
END_STATES: Final[tuple[State, ...]] = ("finished", "interrupted", "failed")

RUN_FILE: Final = "run.json"
LAUNCHES_FILE: Final = "launches.jsonl"
SAMPLES_FILE: Final = "samples.jsonl"
COMPARISONS_FILE: Final = "comparisons.jsonl"
RECORD_FILES: Final = (LAUNCHES_FILE, SAMPLES_FILE, COMPARISONS_FILE)
LOGS_FOLDER: Final = "logs"
PROGRESS_FILE: Final = "progress.jsonl"
"""Not of the record files: it is for whoever watches a run, and may be missing or cut short."""

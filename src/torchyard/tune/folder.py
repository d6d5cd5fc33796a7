"""The folder of a settings race: the request, the state so far, and a run folder for each round.

    race.json       the whole race, replaced after each round
    `heats/NNN/`    an ordinary run folder of one round
    cache/          compiled artifacts, kept until the race ends

A race that was killed resumes from its finished rounds.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Final

from torchyard.core.records import encode
from torchyard.errors import ResultsDamaged, UsageError
from torchyard.files.safe_reading import LARGEST_ROWS_BYTES, read_json, unreadable_error
from torchyard.files.safe_writing import replace_file, to_json_text
from torchyard.results.directory import create_folder, home_folder
from torchyard.results.plausibility import check_format, decode_stored
from torchyard.tune.model import RACE_FORMAT, Race

RACE_FILE: Final = "race.json"
HEATS_FOLDER: Final = "heats"


def races_home() -> Path:
    """Return the default folder of races."""
    return home_folder() / "races"


class RaceFolder:
    """The folder of one race."""

    def __init__(self, folder: Path) -> None:
        """Use `create` or `open` instead."""
        self.folder = folder

    @classmethod
    def create(cls, folder: Path) -> RaceFolder:
        """Create the folder of a new race; it must be empty."""
        return cls(create_folder(folder, what="race", subfolders=(HEATS_FOLDER,)))

    @classmethod
    def open(cls, folder: Path) -> RaceFolder:
        """Open the folder of an existing race."""
        read_race(folder)
        return cls(folder.absolute())

    def round_folder(self, number: int) -> Path:
        """Return the run folder of a round."""
        return self.folder / HEATS_FOLDER / f"{number:03d}"

    @property
    def cache(self) -> Path:
        """Folder of compiled artifacts that rounds share."""
        return self.folder / "cache"

    def drop_cache(self) -> None:
        """Delete the compiled artifacts at the end of the race."""
        shutil.rmtree(self.cache, ignore_errors=True)

    def write(self, race: Race) -> None:
        """Store the current state of the race."""
        replace_file(self.folder / RACE_FILE, to_json_text(encode(race)) + "\n")


def read_race(folder: Path) -> Race:
    """Read the race in a folder."""
    path = folder.absolute() / RACE_FILE
    try:
        record = read_json(path, largest_bytes=LARGEST_ROWS_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(
            f"{folder} is not a race folder",
            why=f"it contains no {RACE_FILE}",
            hint="use the folder that `torchyard tune` printed",
        ) from error
    except OSError as error:
        raise unreadable_error(path, error) from error
    except ValueError as error:
        raise ResultsDamaged(
            f"{path}: not JSON", why=str(error), hint="restore the file from a backup"
        ) from error
    check_format(path, record if isinstance(record, dict) else {}, RACE_FORMAT)
    return _with_times(decode_stored(Race, record, place=path))


def _with_times(race: Race) -> Race:
    """Add the duration of rounds, which earlier versions did not record."""
    heats, before_s = [], 0.0
    for race_round in race.heats:
        heats.append(
            race_round
            if race_round.took_s
            else replace(race_round, took_s=race_round.ended_s - before_s)
        )
        before_s = race_round.ended_s
    return replace(race, heats=tuple(heats))

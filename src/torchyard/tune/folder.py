"""The folder of a settings race: the request, the state so far, and a run folder for each round.

    race.json       the whole race, replaced after each round
    `heats/NNN/`    an ordinary run folder of one round
    cache/          compiled artifacts, kept until the race ends

A race that was killed resumes from its finished rounds. Earlier races of the same workload, and runs
in the index whose candidate has the name of a choice, order the choices of a new race, likely winners
first. Only the order depends on them: a choice is recommended from the launches of the race alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from torchyard.core.records import encode
from torchyard.errors import TorchyardError, UsageError
from torchyard.files.safe_writing import replace_file, to_json_text
from torchyard.results.directory import create_folder, home_folder, read_stored
from torchyard.results.model import RunFilter
from torchyard.results.plausibility import decode_stored
from torchyard.tune.model import DEFAULT_NAME, RACE_FORMAT, Choice, Race

if TYPE_CHECKING:
    from torchyard.results.index.store import Store

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
    absent = UsageError(
        f"{folder} is not a race folder",
        why=f"it contains no {RACE_FILE}",
        hint="use the folder that `torchyard tune` printed",
    )
    record = read_stored(path, what="a race", newest=RACE_FORMAT, absent=absent)
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


MAX_RACES: Final = 20
"""The newest races that are opened."""
_ALIKE: Final = attrgetter("workload", "default.backend", "default.precision", "goal")
"""What two races must have in common."""


def ordered_choices(choices: Sequence[Choice], speedups: Mapping[str, float]) -> list[Choice]:
    """Return the choices, likely winners first; those with long preparation last.

    A known speedup replaces the typical one. Ties keep the order of the space.
    """
    return sorted(choices, key=lambda one: (one.takes_long, -speedups.get(one.name, one.typical)))


def known_speedups(race: Race, *, races: Path, store: Store | None = None) -> dict[str, float]:
    """Return speedups of choices on this workload by name, from `races` and the index."""
    speedups = _from_index(race, store) if store is not None else {}
    return speedups | _from_races(race, races)


def _from_races(race: Race, races: Path) -> dict[str, float]:
    try:
        folders = sorted(path for path in races.iterdir() if (path / RACE_FILE).is_file())
    except OSError:
        return {}
    speedups: dict[str, float] = {}
    for folder in folders[-MAX_RACES:]:
        try:
            earlier = read_race(folder)
        except TorchyardError:
            continue
        if _ALIKE(earlier) != _ALIKE(race):
            continue
        for race_round in earlier.heats:
            if race_round.against == DEFAULT_NAME and race_round.stage != "confirm":
                speedups.update(
                    (one.contender, one.speedup)
                    for one in race_round.found
                    if one.speedup is not None and not one.untrusted
                )
    return speedups


def _from_index(race: Race, store: Store) -> dict[str, float]:
    if race.goal != "latency":
        return {}
    names = {choice.name for choice in race.space.choices}
    query = RunFilter(
        workload=race.workload.label, device=race.workload.device, baseline=race.default.backend
    )
    entries = sorted(store.comparisons(query), key=lambda entry: entry.started)
    return {
        entry.candidate: entry.speedup
        for entry in entries
        if entry.candidate in names and entry.speedup is not None and entry.launches
    }

"""Order the choices of a race by what is known before it: likely winners first.

Earlier races of the same workload come first, then runs in the index whose candidate has the name of
a choice, then the typical speedup of the space file. Only the order depends on this: a choice is
recommended from the launches of the race alone. Read-only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from torchyard.errors import TorchyardError
from torchyard.results.index.store import Store
from torchyard.results.model import RunFilter
from torchyard.tune.folder import RACE_FILE, read_race
from torchyard.tune.model import DEFAULT_NAME, Choice, Race

MAX_RACES: Final = 20
"""The newest races that are opened."""


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
        if not _is_like(earlier, race):
            continue
        for race_round in earlier.heats:
            if race_round.against == DEFAULT_NAME and race_round.stage != "confirm":
                speedups.update(
                    (one.contender, one.speedup)
                    for one in race_round.found
                    if one.speedup is not None and not one.untrusted
                )
    return speedups


def _is_like(earlier: Race, race: Race) -> bool:
    return (earlier.workload, earlier.default.backend, earlier.default.precision, earlier.goal) == (
        race.workload,
        race.default.backend,
        race.default.precision,
        race.goal,
    )


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

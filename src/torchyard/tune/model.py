"""A settings race: choices, contenders, measurements, standings and the result.

A choice is one value of one dimension (for example tcmalloc as the allocator). A contender is a combination of
choices of different dimensions; the one without any is the default. A race round is one
measurement of some contenders against another one, kept as an ordinary run.

The folder of a race:

race.json       the whole race, replaced after each round
`heats/NNN/`    an ordinary run folder of one round
cache/          compiled artifacts, kept until the race ends

A race that was killed resumes from its finished rounds. Earlier races of the same workload, and runs
in the index whose candidate has the name of a choice, order the choices of a new race, likely winners
first. Only the order depends on them: a choice is recommended from the launches of the race alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, get_args

from torchyard.core.comparison import Accuracy, Interval
from torchyard.core.records import encode
from torchyard.core.study import Environment, MeasureSettings, Scalar, Variant, Workload
from torchyard.errors import TorchyardError, UsageError
from torchyard.files.safe_writing import replace_file, to_json_text
from torchyard.results.directory import create_folder, home_folder, read_stored
from torchyard.results.model import RunFilter
from torchyard.results.plausibility import decode_stored

if TYPE_CHECKING:
    from torchyard.results.index.store import Store


RACE_FORMAT: Final = 1
DEFAULT_NAME: Final = "default"

Goal = Literal["latency", "throughput"]
"""`latency`: time of an iteration; `throughput`: iterations per second, also with several processes."""
GOALS: Final[tuple[Goal, ...]] = get_args(Goal)
Stage = Literal["glance", "single", "joined", "shares", "confirm"]
"""Stages of a race. `glance`: screening, one launch of each choice; `single`: choices alone; `joined`:
choices combined; `shares`: each choice removed; `confirm`: the result on new launches."""
STAGE_LABELS: Final[dict[Stage, str]] = {
    "glance": "screening",
    "single": "single settings",
    "joined": "combinations",
    "shares": "contributions",
    "confirm": "confirmation",
}
"""Names of the stages in progress lines and run names."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One value of one dimension: the settings it consists of."""

    dimension: str
    """`allocator`, `threads`, ...: a contender has at most one choice per dimension."""
    name: str
    about: str = ""
    variables: tuple[tuple[str, str], ...] = ()
    preload: tuple[str, ...] = ()
    threads: int | None = None
    cores: str = ""
    memory: str = ""
    instances: int = 1
    """As in `Environment`."""
    backend: str = ""
    options: tuple[tuple[str, Scalar], ...] = ()
    """Variant options, set inside the process."""
    code: str = ""
    """Code that gives a program the same setting, if no environment variable does."""
    changes_results: bool = False
    """Whether results may differ by design, as with a lower precision."""
    takes_long: bool = False
    """Whether preparation takes minutes; such choices are tried last."""
    typical: float = 1.0
    """Typical speedup, which decides the order where nothing is known about the workload."""

    @property
    def sets_process(self) -> bool:
        """Whether it must be set when a process starts."""
        places = self.cores or self.memory or self.instances > 1
        return bool(self.variables or self.preload or self.threads or places)

    def environment(self, before: Environment) -> Environment:
        """Return the environment with this choice applied."""
        new = [library for library in self.preload if library not in before.preload]
        return replace(
            before,
            variables=tuple(sorted((dict(before.variables) | dict(self.variables)).items())),
            preload=(*before.preload, *new),
            threads=self.threads or before.threads,
            cores=self.cores or before.cores,
            memory=self.memory or before.memory,
            instances=max(self.instances, before.instances),
        )


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A choice that is unavailable here, with the reason."""

    dimension: str
    name: str
    why: str
    package: str = ""
    """The package that provides it, if known."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """The search space of a race."""

    name: str
    choices: tuple[Choice, ...]
    missing: tuple[Missing, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A configuration: a combination of choices; without choices, the default."""

    choices: tuple[Choice, ...] = ()

    @property
    def name(self) -> str:
        """Name such as `tcmalloc+one-thread`, or `default`."""
        return "+".join(choice.name for choice in self.choices) or DEFAULT_NAME

    @property
    def changes_results(self) -> bool:
        """Whether any choice changes results."""
        return any(choice.changes_results for choice in self.choices)

    def with_choice(self, choice: Choice) -> Contender:
        """Return a copy with a choice added; it replaces one of the same dimension."""
        others = [one for one in self.choices if one.dimension != choice.dimension]
        ordered = sorted([*others, choice], key=lambda one: (one.dimension, one.name))
        return Contender(choices=tuple(ordered))

    def without(self, choice: Choice) -> Contender:
        """Return a copy without that choice."""
        return Contender(choices=tuple(one for one in self.choices if one != choice))

    def variant(self, default: Variant) -> Variant:
        """Return the default variant with these choices applied."""
        environment, backend, options = default.environment, default.backend, dict(default.options)
        process = []
        for choice in self.choices:
            backend = choice.backend or backend
            options.update(choice.options)
            if choice.sets_process:
                process.append(choice.name)
                environment = choice.environment(environment)
        if process:
            environment = replace(environment, name="+".join(process))
        return replace(
            default,
            name=self.name,
            backend=backend,
            environment=environment,
            options=tuple(sorted(options.items())),
        )


@dataclass(frozen=True, kw_only=True)
class RaceRound:
    """A race round: one measurement of contenders against another one."""

    number: int
    stage: Stage
    against: str
    """The contender that the others are compared with."""
    contenders: tuple[str, ...]
    run: str
    """The run folder, relative to the race folder."""
    ended_s: float = 0.0
    """Time since the start of the race."""
    took_s: float = 0.0
    found: tuple[Standing, ...] = ()
    """Standings from this round and the rounds before it."""
    stopped: bool = False
    """Whether the end of the time budget stopped it; it is measured again if the race is resumed."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Result of a contender against another one after some rounds."""

    contender: str
    against: str = DEFAULT_NAME
    speedup: float | None = None
    interval: Interval | None = None
    p_value: float | None = None
    launches: int = 0
    state: Literal["racing", "out", "failed", "wrong"] = "racing"
    why: str = ""
    accuracy: Accuracy | None = None
    """Result of the accuracy check, for choices that change results."""
    untrusted: str = ""
    """Why its last measurement is untrusted; such a contender is not confirmed."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """Contribution of one choice: the combination compared with itself without it."""

    choice: str
    speedup: float
    interval: Interval | None
    p_adjusted: float | None
    """Adjusted over the choices of the combination (Holm)."""
    kept: bool
    """Whether the choice is significantly faster and stays in the recommendation."""
    untrusted: str = ""
    """Why the numbers are untrusted; such a choice is not kept."""


@dataclass(frozen=True, kw_only=True)
class Race:
    """A settings race with its results."""

    format: int = RACE_FORMAT
    workload: Workload
    default: Variant
    space: Space
    alpha: float
    budget_s: float
    goal: Goal = "latency"
    settings: MeasureSettings = field(default_factory=MeasureSettings)
    import_s: float | None = None
    """Time in which a process of the target started and imported torch, when the race was planned."""
    contenders: tuple[Contender, ...] = ()
    """All measured contenders, in the order of their first round."""
    heats: tuple[RaceRound, ...] = ()
    spare: tuple[RaceRound, ...] = ()
    """Rounds from before a race was resumed that the resumed race has not used yet."""
    shares: tuple[Share, ...] = ()
    winner: Contender | None = None
    """Confirmed on separate launches; None if nothing is significantly faster than the default."""
    undecided: tuple[str, ...] = ()
    """Choices that may or may not be faster, most promising first."""
    untried: tuple[str, ...] = ()
    """Choices that were not tried for lack of time."""
    confirmed: Standing | None = None
    """The proposal against the default on new launches, whether it was confirmed or not."""
    proposed: Contender | None = None
    """The contender that entered the last stage."""
    default_ns: float | None = None
    winner_ns: float | None = None
    elapsed_s: float = 0.0
    state: Literal["running", "finished", "interrupted"] = "running"

    @property
    def notes(self) -> list[str]:
        """Notes on choices that were not tried or not decided."""
        notes = []
        if self.untried:
            notes.append(
                f"not tried, because the time budget was used up: {', '.join(self.untried)}"
            )
        if self.undecided:
            notes.append(f"undecided: {', '.join(self.undecided)}")
        return notes


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
    return decode_stored(Race, record, place=path)


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

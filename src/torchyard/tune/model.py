"""A settings race: choices, contenders, measurements, standings and the result.

A choice is one value of one dimension (tcmalloc as the allocator). A contender is a combination of
choices of different dimensions; the one without any is the default. A race round (`Heat`) is one
measurement of some contenders against another one, kept as an ordinary run. No I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Literal, get_args

from torchyard.core.comparison import Accuracy, Interval
from torchyard.core.study import Environment, MeasureSettings, Scalar, Variant, Workload

__all__ = [
    "DEFAULT_NAME",
    "GOALS",
    "RACE_FORMAT",
    "STAGES",
    "Choice",
    "Contender",
    "Goal",
    "Heat",
    "Missing",
    "Race",
    "Share",
    "Space",
    "Stage",
    "Standing",
]

RACE_FORMAT: Final = 1
DEFAULT_NAME: Final = "default"

Goal = Literal["latency", "throughput"]
"""The time of an iteration; or how many are done in a time, also by several processes."""
GOALS: Final[tuple[Goal, ...]] = get_args(Goal)
Stage = Literal["glance", "single", "joined", "shares", "confirm"]
"""One launch of everything; choices alone; choices together; each left out; the winner, anew."""
STAGES: Final[tuple[Stage, ...]] = get_args(Stage)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One value of one dimension, and what it sets."""

    dimension: str
    """`allocator`, `threads`, ...: a contender has at most one choice of each."""
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
    """Of the variant, set inside the process."""
    code: str = ""
    """What a program writes to get the same, where no variable does it."""
    changes_results: bool = False
    """Whether numbers may come out differently by design, as with a lower precision."""
    takes_long: bool = False
    """Whether it is to be prepared for minutes, and so is tried after the others."""

    @property
    def sets_process(self) -> bool:
        """Whether it is settled when a process is started."""
        places = self.cores or self.memory or self.instances > 1
        return bool(self.variables or self.preload or self.threads or places)

    def environment(self, before: Environment) -> Environment:
        """The environment with this choice made."""
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
    """A choice that cannot be tried here, and what would be needed."""

    dimension: str
    name: str
    why: str
    package: str = ""
    """The package that has it, where one is known."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """What is searched."""

    name: str
    choices: tuple[Choice, ...]
    missing: tuple[Missing, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A combination of choices, none for the default."""

    choices: tuple[Choice, ...] = ()

    @property
    def name(self) -> str:
        """`tcmalloc+one-thread`; the default has a name of its own."""
        return "+".join(choice.name for choice in self.choices) or DEFAULT_NAME

    @property
    def changes_results(self) -> bool:
        """Whether any of its choices does."""
        return any(choice.changes_results for choice in self.choices)

    def with_choice(self, choice: Choice) -> Contender:
        """The same and one more; it takes the place of one of the same dimension."""
        others = [one for one in self.choices if one.dimension != choice.dimension]
        ordered = sorted([*others, choice], key=lambda one: (one.dimension, one.name))
        return Contender(choices=tuple(ordered))

    def without(self, choice: Choice) -> Contender:
        """The same without that choice."""
        return Contender(choices=tuple(one for one in self.choices if one != choice))

    def variant(self, default: Variant) -> Variant:
        """The default variant with these choices made."""
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
class Heat:
    """One measurement: contenders against one of them."""

    number: int
    stage: Stage
    against: str
    """The contender that the others are compared with."""
    contenders: tuple[str, ...]
    run: str
    """The run folder, relative to the race's."""
    ended_s: float = 0.0
    """Since the race began."""
    took_s: float = 0.0
    found: tuple[Standing, ...] = ()
    """As this heat and those before it say."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What is known of a contender against another one after some heats."""

    contender: str
    against: str = DEFAULT_NAME
    speedup: float | None = None
    interval: Interval | None = None
    p_value: float | None = None
    launches: int = 0
    state: Literal["racing", "out", "failed", "wrong"] = "racing"
    why: str = ""
    accuracy: Accuracy | None = None
    """For choices that change results: how much."""
    untrusted: str = ""
    """Why the numbers of its last measurement must not be trusted. Such a contender is not
    confirmed."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one choice of the winner contributes: the winner against the same without it."""

    choice: str
    speedup: float
    interval: Interval | None
    p_adjusted: float | None
    """By Holm over the choices of the winner."""
    kept: bool
    """Only choices that are faster beyond doubt stay in the recommendation."""
    untrusted: str = ""
    """Why the numbers must not be trusted; such a choice is not kept."""


@dataclass(frozen=True, kw_only=True)
class Race:
    """A whole search and what came of it."""

    format: int = RACE_FORMAT
    workload: Workload
    default: Variant
    space: Space
    alpha: float
    budget_s: float
    goal: Goal = "latency"
    settings: MeasureSettings = field(default_factory=MeasureSettings)
    contenders: tuple[Contender, ...] = ()
    """Everything that was measured, in the order of its first heat."""
    heats: tuple[Heat, ...] = ()
    spare: tuple[Heat, ...] = ()
    """Heats from before a race was gone on with that it has not asked for since; they are kept."""
    shares: tuple[Share, ...] = ()
    winner: Contender | None = None
    """Confirmed on launches of its own; None: nothing is faster than the default beyond doubt."""
    undecided: tuple[str, ...] = ()
    """Choices of which it was not seen whether they are faster, the most promising first."""
    untried: tuple[str, ...] = ()
    """Choices that there was no time for at all."""
    confirmed: Standing | None = None
    """The winner against the default on fresh launches; also when that failed to convince."""
    proposed: Contender | None = None
    """What went into the last stage."""
    default_ns: float | None = None
    winner_ns: float | None = None
    elapsed_s: float = 0.0
    state: Literal["running", "finished", "interrupted"] = "running"

    @property
    def notes(self) -> list[str]:
        """What there was no time for, in sentences."""
        said = []
        if self.untried:
            said.append(f"not tried, because the time was used up: {', '.join(self.untried)}")
        if self.undecided:
            said.append(f"undecided, faster or not: {', '.join(self.undecided)}")
        return said

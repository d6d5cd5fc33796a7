"""Race rounds, measured as ordinary bench runs, and the standings computed from them.

When a race is resumed, rounds that already ran are read instead of measured: the rules of the race
keep no state.

Standings pool the launches of each contender against the default and decide which contenders are
dropped. Dropping one wrongly costs a chance; calling one faster wrongly is a false claim. So
dropping uses plain intervals, and the recommendation is based on launches that had no part in the
selection, with Holm's correction for several claims.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import fmean, stdev
from typing import Final

from torchyard.bench.bench_run import run_bench
from torchyard.bench.launch_gate import DeadlineGate
from torchyard.core.comparison import Accuracy, Comparison, Interval, Verdict
from torchyard.core.events import Listener
from torchyard.core.study import Budget, Study
from torchyard.errors import ResultsDamaged
from torchyard.results.directory import replace_run
from torchyard.results.run_reader import Run, read_run
from torchyard.stats.distributions import two_sided_critical, two_sided_p
from torchyard.stats.launches import SD_FLOOR, launch_effects, pair_floor
from torchyard.stats.pairs import pair_blocks
from torchyard.tune.model import STAGE_LABELS, Choice, Contender, Race, RaceFolder, RaceRound, Stage

STOPPED_NOTE: Final = "stopped early: the time budget of the race was used up"
SECONDS_PER_CONTENDER: Final = 0.6
"""Measuring time of a launch per contender: about six blocks, enough for a median."""


@dataclass(frozen=True, kw_only=True)
class RoundOutcome:
    """Result of a round for one contender."""

    contender: Contender
    effects: tuple[float, ...] = ()
    """Log speedup over the baseline of the round, one per launch with clean pairs."""
    pair_floor: float = 0.0
    """Standard deviation between launches that the pairs alone imply."""
    withheld: str = ""
    """Why the verdict must not be *faster*, whatever the launches show."""
    surely_slower: bool = True
    """Whether the upper end of its confidence interval is below 1."""
    failure: str = ""
    wrong: str = ""
    accuracy: Accuracy | None = None
    time_ns: float | None = None
    untrusted: str = ""
    """Why the numbers are untrusted; such a contender stays in the race but is not recommended."""


@dataclass(frozen=True, kw_only=True)
class RoundResult:
    """A finished round."""

    race_round: RaceRound
    outcomes: tuple[RoundOutcome, ...]
    against_ns: float | None = None


class RaceRounds:
    """Measures rounds one after the other and stores them in the race folder."""

    def __init__(
        self,
        folder: RaceFolder,
        race: Race,
        *,
        command: Sequence[str],
        listener: Listener,
        began_s: float | None = None,
    ) -> None:
        """`began_s` is when the race began (`time.monotonic`), including its planning."""
        self._folder = folder
        self._race = race
        self._command = command
        self._listener = listener
        stored = [*race.heats, *race.spare]
        self._next = 1 + max((race_round.number for race_round in stored), default=-1)
        self._stored = [race_round for race_round in stored if not race_round.stopped]
        self._began_s = time.monotonic() if began_s is None else began_s
        self._before_s = 0.0

    @property
    def elapsed_s(self) -> float:
        """Wall time since the race began, and that of rounds before a resume."""
        return self._before_s + time.monotonic() - self._began_s

    def run(
        self,
        stage: Stage,
        against: Contender,
        contenders: Sequence[Contender],
        *,
        launches: int,
        limit_s: float = math.inf,
    ) -> RoundResult:
        """Measure a round, or read it if it was measured before a resume.

        After `limit_s`, the launch in progress is stopped, and earlier launches of the round count.
        """
        names = tuple(one.name for one in contenders)
        stored = self._take_stored(stage, against.name, names)
        number = self._next if stored is None else stored.number
        self._next = max(self._next, number + 1)
        folder = self._folder.round_folder(number)
        if stored is not None:
            try:
                run = read_run(folder)
                if run.state == "finished":
                    self._before_s += stored.took_s
                    return _result(replace(stored, ended_s=self.elapsed_s), run, contenders)
            except ResultsDamaged:
                pass  # incomplete because the process was killed: measure again
        race_round = RaceRound(
            number=number,
            stage=stage,
            against=against.name,
            contenders=names,
            run=str(folder.relative_to(self._folder.folder)),
        )
        started_s = time.monotonic()
        replace_run(folder)
        with DeadlineGate(limit_s, why=STOPPED_NOTE) as gate:
            run_bench(
                self._study(stage, against, contenders, launches),
                folder=folder,
                command=self._command,
                listener=self._listener,
                # All rounds but the confirmation share compiled artifacts: lucky autotuning must not
                # help the winner twice.
                cache=None if stage == "confirm" else self._folder.cache,
                gate=gate,
            )
        race_round = replace(
            race_round,
            ended_s=self.elapsed_s,
            took_s=time.monotonic() - started_s,
            stopped=gate.stopped,
        )
        return _result(race_round, read_run(folder), contenders)

    def _take_stored(self, stage: Stage, against: str, names: tuple[str, ...]) -> RaceRound | None:
        """Return and remove the first stored round with this stage, baseline and contenders."""
        for race_round in self._stored:
            key = (race_round.stage, race_round.against, race_round.contenders)
            if key == (stage, against, names):
                self._stored.remove(race_round)
                return race_round
        return None

    def _study(
        self, stage: Stage, against: Contender, contenders: Sequence[Contender], launches: int
    ) -> Study:
        default = self._race.default
        launch_s = SECONDS_PER_CONTENDER * (len(contenders) + 1)
        return Study(
            name=f"settings race, {STAGE_LABELS[stage]}",
            baseline=against.variant(default),
            candidates=tuple(one.variant(default) for one in contenders),
            workloads=(self._race.workload,),
            budget=Budget(
                # A single launch uses the whole time; several launches use `launch_s` each.
                time_s=launch_s if launches == 1 else max(60.0, 4 * launches * launch_s),
                precision_goal=0.0,
                alpha=self._race.alpha,
                min_launches=launches,
                max_launches=launches,
                launch_s=launch_s,
            ),
            # Results are checked once; later rounds skip the check.
            settings=replace(self._race.settings, check_accuracy=stage in ("glance", "confirm")),
        )


def _result(race_round: RaceRound, run: Run, contenders: Sequence[Contender]) -> RoundResult:
    rows = {row.candidate: row for row in run.comparisons}
    blocks = [block for _, block in run.blocks()]
    outcomes = []
    against_ns = None
    for contender in contenders:
        row = rows.get(contender.name)
        if row is None:
            outcomes.append(RoundOutcome(contender=contender, failure="not measured"))
            continue
        against_ns = row.baseline_metrics.time_ns or against_ns
        paired = pair_blocks(blocks, race_round.against, contender.name)
        interval = row.estimate.interval if row.estimate is not None else None
        failed = row.failure
        outcomes.append(
            RoundOutcome(
                contender=contender,
                effects=tuple(float(one) for one in launch_effects(paired.medians)),
                pair_floor=pair_floor(paired.medians),
                withheld="; ".join(row.estimate.withheld) if row.estimate is not None else "",
                surely_slower=interval is not None and interval.high < 1.0,
                failure=f"{failed.kind} ({failed.phase}): {failed.message}" if failed else "",
                wrong=_wrong(row, contender),
                accuracy=row.accuracy,
                time_ns=row.candidate_metrics.time_ns,
                untrusted="; ".join(row.untrusted),
            )
        )
    return RoundResult(race_round=race_round, outcomes=tuple(outcomes), against_ns=against_ns)


def _wrong(row: Comparison, contender: Contender) -> str:
    """Return why its results are wrong; choices that change results by design are exempt."""
    if row.verdict is not Verdict.WRONG or contender.changes_results:
        return ""
    return row.accuracy.detail if row.accuracy is not None else "wrong results"


LEAST_SD: Final = 0.002
"""Smallest standard deviation between launches assumed during the race, since a few launches may agree by
chance: a fifth of the typical value on a quiet machine."""


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """Pooled launches of a contender against another one."""

    log: float
    """Mean of the log speedups."""
    half_width: float | None
    """Half-width of the interval at the requested level; None below two launches."""
    p_value: float | None
    """Two-sided."""
    launches: int

    @property
    def speedup(self) -> float:
        """Speedup; above 1 is faster than the baseline of the round."""
        return math.exp(self.log)

    @property
    def low(self) -> float:
        """Lower end of the log speedup; minus infinity without an interval."""
        return -math.inf if self.half_width is None else self.log - self.half_width

    @property
    def high(self) -> float:
        """Upper end of the log speedup."""
        return math.inf if self.half_width is None else self.log + self.half_width

    def interval(self, alpha: float) -> Interval | None:
        """Return the interval of the speedup."""
        if self.half_width is None:
            return None
        return Interval(low=math.exp(self.low), high=math.exp(self.high), confidence=1 - alpha)


def pooled(effects: Sequence[float], *, alpha: float, least_sd: float = LEAST_SD) -> Pooled:
    """Pool launches; `effects` are log speedups, one per launch."""
    count = len(effects)
    if not count:
        raise ValueError("no launch to pool")
    log = fmean(effects)
    if count == 1:
        return Pooled(log=log, half_width=None, p_value=None, launches=1)
    error = max(stdev(effects), least_sd, SD_FLOOR) / math.sqrt(count)
    return Pooled(
        log=log,
        half_width=_critical(alpha, count - 1) * error,
        p_value=two_sided_p(log / error, count - 1.0),
        launches=count,
    )


@cache
def _critical(alpha: float, df: int) -> float:
    """Return the cached critical value; a race needs the same few repeatedly."""
    return two_sided_critical(alpha, float(df))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return adjusted p-values that control the family-wise error rate (Holm 1979)."""
    count = len(p_values)
    adjusted = [1.0] * count
    largest = 0.0
    for place, index in enumerate(sorted(range(count), key=lambda one: p_values[one])):
        largest = max(largest, min(1.0, (count - place) * p_values[index]))
        adjusted[index] = largest
    return adjusted


ROUND_SIZE: Final = 5
"""Contenders per round: each is a live process during a launch, so memory sets the limit."""
LOOSE_ALPHA: Final = 0.1
"""Significance level for dropping a contender, or for combining a choice with others."""
EQUIVALENCE_MARGIN: Final = 0.005
"""A contender whose log speedup is within this of 0 is dropped."""
SCREENING_LIMIT: Final = 0.98
"""A contender whose first launch is below this speedup, with an interval below 1, is dropped at once:
launches of one program differ by about one percent."""


@dataclass
class ContenderRecord:
    """Results of one contender against the default."""

    contender: Contender
    effects: list[float] = field(default_factory=list)
    state: str = "racing"
    why: str = ""
    surely_slower: bool = False
    accuracy: Accuracy | None = None

    @property
    def dimension(self) -> str:
        """Dimension of the only choice of a single-choice contender."""
        return self.contender.choices[0].dimension

    @property
    def seen_twice(self) -> bool:
        """Whether there are at least two launches."""
        return len(self.effects) > 1

    def pooled(self) -> Pooled:
        """Return all launches pooled, at the loose level."""
        return pooled(self.effects, alpha=LOOSE_ALPHA)

    def drop(self, why: str) -> None:
        """Remove the contender from the race."""
        self.state, self.why = "out", why


class ContenderPool:
    """Records of all contenders, by name."""

    def __init__(self) -> None:
        self._records: dict[str, ContenderRecord] = {}

    def get(self, name: str) -> ContenderRecord | None:
        """Return the record of a contender."""
        return self._records.get(name)

    def add(self, outcome: RoundOutcome, stage: Stage) -> None:
        """Add the result of a round against the default."""
        name = outcome.contender.name
        record = self._records.setdefault(name, ContenderRecord(contender=outcome.contender))
        record.accuracy = outcome.accuracy or record.accuracy
        record.surely_slower = outcome.surely_slower
        if outcome.failure:
            record.state, record.why = "failed", outcome.failure
        elif outcome.wrong:
            record.state, record.why = "wrong", outcome.wrong
        elif stage != "confirm":
            record.effects.extend(outcome.effects)

    def remove_unmeasured(self, names: Sequence[str]) -> list[str]:
        """Remove contenders without any launch whose round was stopped; return their names."""
        removed = [
            name
            for name in names
            if (record := self._records.get(name)) is not None
            and record.state == "racing"
            and not record.effects
        ]
        for name in removed:
            del self._records[name]
        return removed

    def racing(self) -> list[ContenderRecord]:
        """Return the contenders still in the race, in the order of their first round."""
        return [one for one in self._records.values() if one.state == "racing"]

    def promising(self) -> list[Contender]:
        """Return the contenders still in the race, fastest first, since time may not suffice for all."""
        return [one.contender for one in sorted(self.racing(), key=lambda one: -one.pooled().log)]

    def settled(self) -> bool:
        """Whether one decided contender of each dimension remains."""
        racing = self.racing()
        dimensions = [one.dimension for one in racing]
        decided = all(one.seen_twice and one.pooled().low > 0.0 for one in racing)
        return decided and len(set(dimensions)) == len(dimensions)

    def undecided(self) -> list[str]:
        """Return contenders that may or may not be faster than the default, most promising first."""
        maybe = [one for one in self.racing() if not one.seen_twice or one.pooled().low <= 0.0]
        return [one.contender.name for one in sorted(maybe, key=lambda one: -one.pooled().log)]

    def drop_after_screening(self) -> None:
        """Drop contenders without a clean pair or clearly slower in their first launch."""
        for record in self.racing():
            if not record.effects:
                record.drop("no clean pair in its first launch")
            elif record.effects[0] < math.log(SCREENING_LIMIT) and record.surely_slower:
                record.drop(f"{math.exp(record.effects[0]):.3f}x in its first launch")

    def eliminate(self) -> None:
        """Drop contenders slower than the default or the best of their dimension, or equivalent to the default."""
        racing = [one for one in self.racing() if one.seen_twice]
        best: dict[str, ContenderRecord] = {}
        for record in racing:
            leader = best.get(record.dimension)
            if leader is None or record.pooled().low > leader.pooled().low:
                best[record.dimension] = record
        for record in racing:
            effect, leader = record.pooled(), best[record.dimension]
            if effect.high < 0.0:
                record.drop("slower than the default")
            elif record is not leader and effect.high < leader.pooled().low:
                record.drop(f"behind {leader.contender.name}")
        for record in racing:
            effect = record.pooled()
            equivalent = -EQUIVALENCE_MARGIN < effect.low and effect.high < EQUIVALENCE_MARGIN  # noqa: SIM300
            if record.state == "racing" and equivalent:
                record.drop("as fast as the default")

    def leaders(self) -> list[Choice]:
        """Return the best choice of each dimension that is faster than the default, fastest first."""
        best: dict[str, ContenderRecord] = {}
        for record in self.racing():
            if not record.seen_twice or record.pooled().low <= 0.0:
                continue
            leader = best.get(record.dimension)
            if leader is None or record.pooled().log > leader.pooled().log:
                best[record.dimension] = record
        ordered = sorted(best.values(), key=lambda one: -one.pooled().log)
        return [one.contender.choices[0] for one in ordered]


def rounds_in_order(contenders: Sequence[Contender]) -> list[list[Contender]]:
    """Split contenders into rounds of about equal size, in order."""
    size = -(-len(contenders) // max(1, -(-len(contenders) // ROUND_SIZE)))
    return [list(contenders[at : at + size]) for at in range(0, len(contenders), size)]

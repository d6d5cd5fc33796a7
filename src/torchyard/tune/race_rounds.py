"""Rounds of a race, measured as ordinary bench runs, and the standings that follow from them.

When a race is resumed, rounds that already ran are read instead of measured: the rules of the race
keep no state.

Standings pool the launches of each contender against the default and decide which contenders are
dropped. Dropping one wrongly costs a chance; calling one faster wrongly is a false claim. So
dropping uses plain intervals, and the recommendation rests on launches that had no part in the
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
from torchyard.core.comparison import Accuracy, Comparison, Interval, Verdict
from torchyard.core.events import Listener
from torchyard.core.study import Budget, Study
from torchyard.errors import ResultsDamaged
from torchyard.results.directory import replace_run
from torchyard.results.run_reader import Run, read_run
from torchyard.stats.distributions import two_sided_critical, two_sided_p
from torchyard.stats.launches import SD_FLOOR, launch_effects, pair_floor
from torchyard.stats.pairs import pair_blocks
from torchyard.tune.folder import RaceFolder
from torchyard.tune.model import Choice, Contender, Heat, Race, Stage

SECONDS_EACH: Final = 0.6
"""Of a launch for each contender in it: some six blocks, enough for a median."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a heat says of one contender."""

    contender: Contender
    effects: tuple[float, ...] = ()
    """Log speedup over the one it ran against, one for each launch with clean pairs."""
    pair_floor: float = 0.0
    """Standard deviation between launches that the pairs alone imply."""
    withheld: str = ""
    """Why *faster* must not be said whatever the launches show."""
    surely_slower: bool = True
    """Whether even the upper end of what its own processes showed is below the other's speed."""
    failure: str = ""
    wrong: str = ""
    accuracy: Accuracy | None = None
    time_ns: float | None = None
    untrusted: str = ""
    """Why the numbers must not be trusted: enough to go on racing, too little to recommend."""


@dataclass(frozen=True, kw_only=True)
class HeatResult:
    """A heat that is over."""

    heat: Heat
    outcomes: tuple[Outcome, ...]
    against_ns: float | None = None


class Heats:
    """Measures heats one after the other, and remembers them in the race's folder."""

    def __init__(
        self,
        folder: RaceFolder,
        race: Race,
        *,
        command: Sequence[str],
        listener: Listener,
    ) -> None:
        self._folder = folder
        self._race = race
        self._command = command
        self._listener = listener
        self._known = [*race.heats, *race.spare]
        self._next = 1 + max((heat.number for heat in self._known), default=-1)
        self.elapsed_s = 0.0
        """Of all heats so far, those of an earlier process included."""

    def run(
        self, stage: Stage, against: Contender, contenders: Sequence[Contender], *, launches: int
    ) -> HeatResult:
        """Measure, or read what was measured before; no heat takes the place of another one."""
        names = tuple(one.name for one in contenders)
        known = self._take_known(stage, against.name, names)
        number = self._next if known is None else known.number
        self._next = max(self._next, number + 1)
        folder = self._folder.heat_folder(number)
        if known is not None:
            try:
                run = read_run(folder)
                if run.state == "finished":
                    self.elapsed_s += known.took_s
                    return _result(replace(known, ended_s=self.elapsed_s), run, contenders)
            except ResultsDamaged:
                pass  # a kill came before it was whole: it is measured again
        heat = Heat(
            number=number,
            stage=stage,
            against=against.name,
            contenders=names,
            run=str(folder.relative_to(self._folder.folder)),
        )
        began_s = time.monotonic()
        replace_run(folder)
        run_bench(
            self._study(stage, against, contenders, launches),
            folder=folder,
            command=self._command,
            listener=self._listener,
            # What is compiled once serves all heats but the last: luck in compiling, as in choosing
            # kernels by their time, must not help the winner twice.
            cache=None if stage == "confirm" else self._folder.cache,
        )
        took_s = time.monotonic() - began_s
        self.elapsed_s += took_s
        heat = replace(heat, ended_s=self.elapsed_s, took_s=took_s)
        return _result(heat, read_run(folder), contenders)

    def _take_known(self, stage: Stage, against: str, names: tuple[str, ...]) -> Heat | None:
        """The first heat of that kind that was run before and is not asked for yet."""
        for heat in self._known:
            if (heat.stage, heat.against, heat.contenders) == (stage, against, names):
                self._known.remove(heat)
                return heat
        return None

    def _study(
        self, stage: Stage, against: Contender, contenders: Sequence[Contender], launches: int
    ) -> Study:
        default = self._race.default
        launch_s = SECONDS_EACH * (len(contenders) + 1)
        return Study(
            name=f"{stage} heat",
            baseline=against.variant(default),
            candidates=tuple(one.variant(default) for one in contenders),
            workloads=(self._race.workload,),
            budget=Budget(
                # A single launch takes the whole time; of several, each takes what it is given.
                time_s=launch_s if launches == 1 else max(60.0, 4 * launches * launch_s),
                precision_goal=0.0,
                alpha=self._race.alpha,
                min_launches=launches,
                max_launches=launches,
                launch_s=launch_s,
            ),
            # What was right once stays right: later heats spend no time on it.
            settings=replace(self._race.settings, check_accuracy=stage in ("glance", "confirm")),
        )


def _result(heat: Heat, run: Run, contenders: Sequence[Contender]) -> HeatResult:
    rows = {row.candidate: row for row in run.comparisons}
    blocks = [block for _, block in run.blocks()]
    outcomes = []
    against_ns = None
    for contender in contenders:
        row = rows.get(contender.name)
        if row is None:
            outcomes.append(Outcome(contender=contender, failure="it was not measured"))
            continue
        against_ns = row.baseline_metrics.time_ns or against_ns
        paired = pair_blocks(blocks, heat.against, contender.name)
        outcomes.append(
            Outcome(
                contender=contender,
                effects=tuple(float(one) for one in launch_effects(paired.medians)),
                pair_floor=pair_floor(paired.medians),
                withheld="; ".join(row.estimate.withheld) if row.estimate is not None else "",
                surely_slower=_surely_slower(row),
                failure=_failure(row),
                wrong=_wrong(row, contender),
                accuracy=row.accuracy,
                time_ns=row.candidate_metrics.time_ns,
                untrusted="; ".join(row.untrusted),
            )
        )
    return HeatResult(heat=heat, outcomes=tuple(outcomes), against_ns=against_ns)


def _surely_slower(row: Comparison) -> bool:
    interval = row.estimate.interval if row.estimate is not None else None
    return interval is not None and interval.high < 1.0


def _failure(row: Comparison) -> str:
    if row.failure is None:
        return ""
    return f"{row.failure.kind} ({row.failure.phase}): {row.failure.message}"


def _wrong(row: Comparison, contender: Contender) -> str:
    """Why its results rule it out; what changes them by design is judged by whoever asked for it."""
    if row.verdict is not Verdict.WRONG or contender.changes_results:
        return ""
    return row.accuracy.detail if row.accuracy is not None else "wrong results"


LEAST_SD: Final = 0.002
"""A few launches that happen to agree say little of the spread: it is not taken to be smaller than
this, a fifth of what launches of one program differ by on a quiet machine, while contenders race."""


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """All launches of a contender against another one."""

    log: float
    """Mean of the log speedups."""
    half_width: float | None
    """Of the interval at the level asked for; None below two launches."""
    p_value: float | None
    """Two-sided."""
    launches: int

    @property
    def speedup(self) -> float:
        """Above 1: faster than the other one."""
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
        """Of the speedup."""
        if self.half_width is None:
            return None
        return Interval(low=math.exp(self.low), high=math.exp(self.high), confidence=1 - alpha)


def pooled(effects: Sequence[float], *, alpha: float, least_sd: float = LEAST_SD) -> Pooled:
    """What the launches say together; `effects` are log speedups, one for each launch."""
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
    """A race asks for the same few again and again."""
    return two_sided_critical(alpha, float(df))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values (Holm 1979): claiming those below alpha errs at all with chance alpha."""
    count = len(p_values)
    adjusted = [1.0] * count
    largest = 0.0
    for place, index in enumerate(sorted(range(count), key=lambda one: p_values[one])):
        largest = max(largest, min(1.0, (count - place) * p_values[index]))
        adjusted[index] = largest
    return adjusted


HEAT_SIZE: Final = 5
"""Contenders of a heat: each is a process that lives as long as a launch, so memory sets the limit."""
LOOSE_ALPHA: Final = 0.1
"""Level at which a contender leaves, or a choice is tried together with others."""
NOTHING_TO_WIN: Final = 0.005
"""A contender that is as fast as the default to within this, either way, leaves."""
CLOSE: Final = 0.98
"""A contender whose first launch is slower than this, and whose pairs leave no doubt of that, leaves at
once: launches of one program differ by about one percent, and what helps is not so far off."""


@dataclass
class Runner:
    """What is known of one contender against the default."""

    contender: Contender
    effects: list[float] = field(default_factory=list)
    state: str = "racing"
    why: str = ""
    surely_slower: bool = False
    accuracy: Accuracy | None = None

    @property
    def dimension(self) -> str:
        """Of the only choice of a contender that runs alone."""
        return self.contender.choices[0].dimension

    @property
    def seen_twice(self) -> bool:
        """Whether launches can be compared with each other."""
        return len(self.effects) > 1

    def pooled(self) -> Pooled:
        """All launches so far, at the loose level."""
        return pooled(self.effects, alpha=LOOSE_ALPHA)

    def leave(self, why: str) -> None:
        """Run no more."""
        self.state, self.why = "out", why


class Field:
    """All runners, by the name of their contender."""

    def __init__(self) -> None:
        self._runners: dict[str, Runner] = {}

    def get(self, name: str) -> Runner | None:
        """Who ran under that name."""
        return self._runners.get(name)

    def learn(self, outcome: Outcome, stage: Stage) -> None:
        """What a heat against the default says."""
        name = outcome.contender.name
        runner = self._runners.setdefault(name, Runner(contender=outcome.contender))
        runner.accuracy = outcome.accuracy or runner.accuracy
        runner.surely_slower = outcome.surely_slower
        if outcome.failure:
            runner.state, runner.why = "failed", outcome.failure
        elif outcome.wrong:
            runner.state, runner.why = "wrong", outcome.wrong
        elif stage != "confirm":
            runner.effects.extend(outcome.effects)

    def racing(self) -> list[Runner]:
        """Those left, in the order of their first heat."""
        return [one for one in self._runners.values() if one.state == "racing"]

    def promising(self) -> list[Contender]:
        """Those left, the fastest so far first: the time may not suffice for all."""
        return [one.contender for one in sorted(self.racing(), key=lambda one: -one.pooled().log)]

    def settled(self) -> bool:
        """Whether one contender of each dimension is left, each decided."""
        racing = self.racing()
        dimensions = [one.dimension for one in racing]
        decided = all(one.seen_twice and one.pooled().low > 0.0 for one in racing)
        return decided and len(set(dimensions)) == len(dimensions)

    def undecided(self) -> list[str]:
        """Those left that may be faster than the default or not, the most promising first."""
        maybe = [one for one in self.racing() if not one.seen_twice or one.pooled().low <= 0.0]
        return [one.contender.name for one in sorted(maybe, key=lambda one: -one.pooled().log)]

    def leave_after_glance(self) -> None:
        """Those that showed nothing, or that are plainly slower, leave after one launch."""
        for runner in self.racing():
            if not runner.effects:
                runner.leave("no clean pair in its first launch")
            elif runner.effects[0] < math.log(CLOSE) and runner.surely_slower:
                runner.leave(f"{math.exp(runner.effects[0]):.3f}x in its first launch")

    def eliminate(self) -> None:
        """Those leave that are slower than the default, or than the best of their dimension."""
        racing = [one for one in self.racing() if one.seen_twice]
        best: dict[str, Runner] = {}
        for runner in racing:
            leader = best.get(runner.dimension)
            if leader is None or runner.pooled().low > leader.pooled().low:
                best[runner.dimension] = runner
        for runner in racing:
            found, leader = runner.pooled(), best[runner.dimension]
            if found.high < 0.0:
                runner.leave("slower than the default")
            elif runner is not leader and found.high < leader.pooled().low:
                runner.leave(f"behind {leader.contender.name}")
        for runner in racing:
            found = runner.pooled()
            near = -NOTHING_TO_WIN < found.low and found.high < NOTHING_TO_WIN  # noqa: SIM300
            if runner.state == "racing" and near:
                runner.leave("as fast as the default")

    def leaders(self) -> list[Choice]:
        """The best choice of each dimension that is faster than the default, fastest first."""
        best: dict[str, Runner] = {}
        for runner in self.racing():
            if not runner.seen_twice or runner.pooled().low <= 0.0:
                continue
            leader = best.get(runner.dimension)
            if leader is None or runner.pooled().log > leader.pooled().log:
                best[runner.dimension] = runner
        ordered = sorted(best.values(), key=lambda one: -one.pooled().log)
        return [one.contender.choices[0] for one in ordered]


def glance_heats(contenders: Sequence[Contender]) -> list[list[Contender]]:
    """Heats of about equal size; what takes long has heats of its own, and those come last."""
    long = [one for one in contenders if any(choice.takes_long for choice in one.choices)]
    quick = [one for one in contenders if one not in long]
    count = max(1, -(-len(quick) // HEAT_SIZE))
    heats = [quick[number::count] for number in range(count) if quick[number::count]]
    return heats + [[one] for one in long]


def heats_in_order(contenders: Sequence[Contender]) -> list[list[Contender]]:
    """Heats of about equal size, the first ones first."""
    size = -(-len(contenders) // max(1, -(-len(contenders) // HEAT_SIZE)))
    return [list(contenders[at : at + size]) for at in range(0, len(contenders), size)]

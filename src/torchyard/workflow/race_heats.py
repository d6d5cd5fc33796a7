"""Heats of a race: contenders measured against one of them, as ordinary bench runs.

Everything that ran is asked for again when a race goes on, and is then read instead of measured: the
rules of the race need no memory of their own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from torchyard.core.comparison import Accuracy, Comparison, Verdict
from torchyard.core.events import Listener
from torchyard.core.race import Contender, Heat, Race, Stage
from torchyard.core.study import Budget, Study
from torchyard.errors import ResultsDamaged
from torchyard.measure.pairs import pair_blocks
from torchyard.results.race_folder import RaceFolder
from torchyard.results.run_home import replace_run
from torchyard.results.run_reader import Run, read_run
from torchyard.stats.launches import launch_effects, pair_floor
from torchyard.workflow.bench_run import run_bench

__all__ = ["HeatResult", "Heats", "Outcome"]

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

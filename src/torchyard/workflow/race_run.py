"""A race: from a space of choices to the one combination that is faster beyond doubt, or none.

    glance    every choice alone, one launch: what fails, is wrong or plainly slower leaves
    single    those left, launch after launch; who cannot be the best of its dimension leaves
    joined    the best of each dimension together, one more at a time, as long as it helps
    shares    the combination against itself without each choice: what adds nothing is taken out
    confirm   what is left against the default, on launches that decide nothing else

Leaving is decided loosely, since it can only cost speed. Claims are decided strictly: a choice stays
in the recommendation only if leaving it out is slower after Holm's correction, and the recommendation
is made only if it holds in the last stage, whose launches had no part in finding it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from torchyard.core.comparison import Accuracy
from torchyard.core.race import Choice, Contender, Race, Share, Stage, Standing
from torchyard.results.race_folder import RaceFolder
from torchyard.stats.racing import Pooled, holm, pooled
from torchyard.workflow.race_heats import HeatResult, Outcome

__all__ = ["HeatSource", "RaceListener", "RaceRun"]

RaceListener = Callable[[Race, str], None]
"""Told the race as it stands, and what comes next."""

HEAT_SIZE: Final = 5
"""Contenders of a heat: each is a process that lives as long as a launch, so memory sets the limit."""
DEFAULT: Final = Contender()
LOOSE_ALPHA: Final = 0.1
"""Level at which a contender leaves, or a choice is tried together with others."""
SINGLE_SHARE: Final = 0.55
JOINED_SHARE: Final = 0.75
SHARES_SHARE: Final = 0.85
"""Shares of the time after which no other heat of that stage is begun."""
MOST_SINGLE_ROUNDS: Final = 8
SINGLE_LAUNCHES: Final = 2
JOINED_LAUNCHES: Final = 4
SHARES_LAUNCHES: Final = 5
MOST_SHARES_LAUNCHES: Final = 12
CONFIRM_LAUNCHES: Final = 6
MOST_CONFIRM_LAUNCHES: Final = 24
NOTHING_TO_WIN: Final = 0.005
"""A contender that is as fast as the default to within this, either way, leaves."""
CLOSE: Final = 0.98
"""A contender whose first launch is slower than this, and whose pairs leave no doubt of that, leaves at
once: launches of one program differ by about one percent, and what helps is not so far off."""


@dataclass
class _Runner:
    """What is known of one contender against the default."""

    contender: Contender
    effects: list[float] = field(default_factory=list)
    state: str = "racing"
    why: str = ""
    surely_slower: bool = False
    accuracy: Accuracy | None = None

    def pooled(self, alpha: float = LOOSE_ALPHA) -> Pooled:
        return pooled(self.effects, alpha=alpha)


class HeatSource(Protocol):
    """Where the results of heats come from."""

    elapsed_s: float

    def run(
        self, stage: Stage, against: Contender, contenders: Sequence[Contender], *, launches: int
    ) -> HeatResult:
        """Measure contenders against another one."""


class RaceRun:
    """One race; `race` can be asked at any time."""

    def __init__(
        self, folder: RaceFolder, race: Race, heats: HeatSource, *, listener: RaceListener
    ) -> None:
        """`race` may be one that an earlier process began: what has run is not run again."""
        self._folder = folder
        self._heats = heats
        self._listener = listener
        self._runners: dict[str, _Runner] = {}
        self._launches: list[int] = []
        self.race = replace(race, contenders=(), heats=(), shares=(), state="running")

    def run(self) -> Race:
        """All stages; what is found is on the disk after each heat."""
        try:
            self._glance()
            self._single()
            proposed = self._shares(self._joined())
            self._confirm(proposed)
        except KeyboardInterrupt:
            self._keep(state="interrupted")
            raise
        self._keep(state="finished")
        return self.race

    def _glance(self) -> None:
        alone = [DEFAULT.with_choice(choice) for choice in self.race.space.choices]
        for number, some in enumerate(_heats_of(alone)):
            if number and self._heats.elapsed_s > SINGLE_SHARE * self.race.budget_s:
                left = [one.name for part in list(_heats_of(alone))[number:] for one in part]
                self._note(f"not tried, because the time was used up: {', '.join(left)}")
                break
            self._heat("glance", DEFAULT, some, launches=1)
        for runner in self._racing():
            if not runner.effects:
                _leave(runner, "no clean pair in its first launch")
            elif runner.effects[0] < math.log(CLOSE) and runner.surely_slower:
                _leave(runner, f"{math.exp(runner.effects[0]):.3f}x in its first launch")

    def _single(self) -> None:
        for _ in range(MOST_SINGLE_ROUNDS):
            # The most promising first: the time may not suffice for all.
            racing = sorted(self._racing(), key=lambda one: -one.pooled().log)
            if not racing or self._settled():
                return
            contenders = [one.contender for one in racing]
            for some in _in_order(contenders):
                if self._heats.elapsed_s > SINGLE_SHARE * self.race.budget_s:
                    self._note_left()
                    return
                self._heat("single", DEFAULT, some, launches=SINGLE_LAUNCHES)
                self._eliminate()

    def _note_left(self) -> None:
        left = [one.contender.name for one in self._racing() if len(one.effects) == 1]
        if left:
            self._note(f"seen in one launch only, because the time was used up: {', '.join(left)}")

    def _settled(self) -> bool:
        """Whether one contender of each dimension is left, each decided."""
        racing = [one for one in self._racing() if len(one.effects) > 1]
        dimensions = [one.contender.choices[0].dimension for one in racing]
        decided = all(one.pooled().low > 0.0 for one in racing)
        whole = len(racing) == len(self._racing())
        return whole and decided and len(set(dimensions)) == len(dimensions)

    def _eliminate(self) -> None:
        """Those leave that are slower than the default, or than the best of their dimension."""
        racing = [one for one in self._racing() if len(one.effects) > 1]
        best: dict[str, _Runner] = {}
        for runner in racing:
            dimension = runner.contender.choices[0].dimension
            if dimension not in best or runner.pooled().low > best[dimension].pooled().low:
                best[dimension] = runner
        for runner in racing:
            found = runner.pooled()
            leader = best[runner.contender.choices[0].dimension]
            if found.high < 0.0:
                _leave(runner, "slower than the default")
            elif runner is not leader and found.high < leader.pooled().low:
                _leave(runner, f"behind {leader.contender.name}")
        for runner in racing:
            found = runner.pooled()
            near = -NOTHING_TO_WIN < found.low and found.high < NOTHING_TO_WIN  # noqa: SIM300
            if runner.state == "racing" and near:
                _leave(runner, "as fast as the default")

    def _joined(self) -> Contender:
        """The combination that choices are added to as long as one more makes it faster."""
        current = DEFAULT
        leaders = self._leaders()
        if not leaders:
            return current
        first, *rest = leaders
        current = DEFAULT.with_choice(first)
        while rest and self._heats.elapsed_s < JOINED_SHARE * self.race.budget_s:
            wider = {current.with_choice(choice).name: choice for choice in rest}
            some = [current.with_choice(choice) for choice in rest[:HEAT_SIZE]]
            result = self._heat("joined", current, some, launches=JOINED_LAUNCHES)
            gains = {
                outcome.contender.name: pooled(outcome.effects, alpha=LOOSE_ALPHA)
                for outcome in result.outcomes
                if len(outcome.effects) > 1 and not outcome.failure and not outcome.wrong
            }
            helping = {name: one for name, one in gains.items() if one.low > 0.0}
            if not helping:
                if len(rest) <= HEAT_SIZE:
                    break
                rest = rest[HEAT_SIZE:]
                continue
            name = max(helping, key=lambda one: helping[one].log)
            current = current.with_choice(wider[name])
            rest = [one for one in rest if one.dimension != wider[name].dimension]
        return current

    def _leaders(self) -> list[Choice]:
        """The best choice of each dimension that is faster than the default, fastest first."""
        best: dict[str, _Runner] = {}
        for runner in self._racing():
            if len(runner.effects) < 2 or runner.pooled().low <= 0.0:  # noqa: PLR2004
                continue
            dimension = runner.contender.choices[0].dimension
            if dimension not in best or runner.pooled().log > best[dimension].pooled().log:
                best[dimension] = runner
        ordered = sorted(best.values(), key=lambda one: -one.pooled().log)
        return [one.contender.choices[0] for one in ordered]

    def _shares(self, joined: Contender) -> Contender:
        """The combination without what adds nothing; one choice alone is left to the last stage."""
        if len(joined.choices) < 2:  # noqa: PLR2004
            return joined
        without = [joined.without(choice) for choice in joined.choices]
        # As many launches as fit, fixed before they are looked at: one look, one test each.
        spare_s = SHARES_SHARE * self.race.budget_s - self._heats.elapsed_s
        fitting = int(spare_s / self._launch_s(len(without)))
        launches = max(SHARES_LAUNCHES, min(MOST_SHARES_LAUNCHES, fitting))
        result = self._heat("shares", joined, without, launches=launches)
        found = [
            pooled(outcome.effects, alpha=self.race.alpha) if outcome.effects else None
            for outcome in result.outcomes
        ]
        adjusted = holm(
            [1.0 if one is None or one.p_value is None else one.p_value for one in found]
        )
        shares = []
        for choice, one, p_adjusted in zip(joined.choices, found, adjusted, strict=True):
            kept = one is not None and one.log < 0.0 and p_adjusted <= self.race.alpha
            shares.append(_share(choice, one, p_adjusted, kept=kept, alpha=self.race.alpha))
        self.race = replace(self.race, shares=tuple(shares))
        kept_names = {share.choice for share in shares if share.kept}
        proposed = Contender(
            choices=tuple(choice for choice in joined.choices if choice.name in kept_names)
        )
        if not proposed.choices:
            # Together they may be faster though none is beyond doubt: the strongest alone is tried.
            strongest = min(shares, key=lambda share: -share.speedup)
            proposed = Contender(
                choices=tuple(one for one in joined.choices if one.name == strongest.choice)
            )
        return proposed

    def _confirm(self, proposed: Contender) -> None:
        """Fresh launches of the proposal against the default; their verdict is the race's."""
        if not proposed.choices:
            return
        self.race = replace(self.race, proposed=proposed)
        last = self._heat("confirm", DEFAULT, [proposed], launches=self._confirm_launches())
        (outcome,) = last.outcomes
        effects = outcome.effects
        standing = Standing(contender=proposed.name, launches=len(effects), why=outcome.failure)
        confirmed = False
        if len(effects) > 1 and not outcome.failure and not outcome.wrong:
            found = pooled(effects, alpha=self.race.alpha, least_sd=0.0)
            confirmed = found.low > 0.0
            standing = replace(
                standing,
                speedup=found.speedup,
                interval=found.interval(self.race.alpha),
                p_value=found.p_value,
                accuracy=outcome.accuracy,
            )
        self.race = replace(
            self.race,
            confirmed=standing,
            winner=proposed if confirmed else None,
            default_ns=last.against_ns,
            winner_ns=outcome.time_ns,
        )

    def _confirm_launches(self) -> int:
        """As many as the time that is left allows."""
        left_s = self.race.budget_s - self._heats.elapsed_s
        fitting = int(left_s / self._launch_s(1))
        return max(CONFIRM_LAUNCHES, min(MOST_CONFIRM_LAUNCHES, fitting))

    def _launch_s(self, contenders: int) -> float:
        """What a launch of so many and the one they run against should take, from those so far."""
        took_s, before_s = [], 0.0
        for heat, launches in zip(self.race.heats, self._launches, strict=True):
            if heat.stage != "glance":  # those check and compile as well
                took_s.append((heat.ended_s - before_s) / launches / (len(heat.contenders) + 1))
            before_s = heat.ended_s
        each_s = sum(took_s) / len(took_s) if took_s else 5.0
        return max(0.1, each_s * (contenders + 1))

    def _racing(self) -> list[_Runner]:
        return [one for one in self._runners.values() if one.state == "racing"]

    def _heat(
        self, stage: Stage, against: Contender, some: Sequence[Contender], *, launches: int
    ) -> HeatResult:
        self._listener(self.race, f"{stage}: {', '.join(one.name for one in some)}")
        result = self._heats.run(stage, against, some, launches=launches)
        self._launches.append(launches)
        for outcome in result.outcomes:
            if against == DEFAULT:
                self._learn(outcome, stage)
        names = {one.name for one in self.race.contenders}
        new = [one for one in (against, *some) if one.name not in names]
        heat = replace(result.heat, found=self._standings(against, result, stage))
        self.race = replace(
            self.race,
            contenders=(*self.race.contenders, *dict.fromkeys(new)),
            heats=(*self.race.heats, heat),
            elapsed_s=self._heats.elapsed_s,
        )
        self._keep()
        return result

    def _learn(self, outcome: Outcome, stage: Stage) -> None:
        name = outcome.contender.name
        runner = self._runners.setdefault(name, _Runner(contender=outcome.contender))
        runner.accuracy = outcome.accuracy or runner.accuracy
        runner.surely_slower = outcome.surely_slower
        if outcome.failure:
            runner.state, runner.why = "failed", outcome.failure
        elif outcome.wrong:
            runner.state, runner.why = "wrong", outcome.wrong
        elif stage != "confirm":
            runner.effects.extend(outcome.effects)

    def _standings(
        self, against: Contender, result: HeatResult, stage: Stage
    ) -> tuple[Standing, ...]:
        """Against the default from all heats so far; against others, and at the end, from this one."""
        found = []
        for outcome in result.outcomes:
            runner = self._runners.get(outcome.contender.name)
            together = against == DEFAULT and stage != "confirm" and runner is not None
            effects = runner.effects if together and runner is not None else outcome.effects
            standing = Standing(
                contender=outcome.contender.name,
                against=against.name,
                launches=len(effects),
                accuracy=outcome.accuracy,
            )
            if outcome.failure or outcome.wrong:
                state, why = ("failed", outcome.failure) if outcome.failure else ("wrong", "")
                standing = replace(standing, state=state, why=why or outcome.wrong)  # type: ignore[arg-type]
            elif effects:
                one = pooled(effects, alpha=self.race.alpha)
                standing = replace(
                    standing,
                    speedup=one.speedup,
                    interval=one.interval(self.race.alpha),
                    p_value=one.p_value,
                )
            found.append(standing)
        return tuple(found)

    def _note(self, text: str) -> None:
        self.race = replace(self.race, notes=(*self.race.notes, text))

    def _keep(self, state: str | None = None) -> None:
        if state is not None:
            self.race = replace(self.race, state=state)  # type: ignore[arg-type]
        self._folder.write(self.race)


def _heats_of(contenders: Sequence[Contender]) -> list[list[Contender]]:
    """Heats of about equal size."""
    count = max(1, -(-len(contenders) // HEAT_SIZE))
    return [list(contenders[number::count]) for number in range(count) if contenders[number::count]]


def _in_order(contenders: Sequence[Contender]) -> list[list[Contender]]:
    """Heats of about equal size, the first ones first."""
    size = -(-len(contenders) // max(1, -(-len(contenders) // HEAT_SIZE)))
    return [list(contenders[at : at + size]) for at in range(0, len(contenders), size)]


def _leave(runner: _Runner, why: str) -> None:
    runner.state, runner.why = "out", why


def _share(
    choice: Choice, found: Pooled | None, p_adjusted: float, *, kept: bool, alpha: float
) -> Share:
    """What the choice gives is what leaving it out takes away."""
    if found is None:
        return Share(choice=choice.name, speedup=1.0, interval=None, p_adjusted=None, kept=False)
    turned = replace(found, log=-found.log)
    return Share(
        choice=choice.name,
        speedup=turned.speedup,
        interval=turned.interval(alpha),
        p_adjusted=p_adjusted,
        kept=kept,
    )

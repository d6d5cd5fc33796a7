"""Run a race: from a space of choices to the one combination that is faster beyond doubt, or none.

glance    screening: each choice alone, one launch; failing, wrong or slower ones are dropped
single    the remaining ones, until those that cannot be the best of their dimension are out
joined    the best of each dimension together, adding one at a time as long as it helps
shares    the combination against itself without each choice: a choice that adds nothing is removed
confirm   the result against the default, on launches that decide nothing else

Dropping is decided loosely, since it can only cost speed. Claims are decided strictly: a choice
stays in the recommendation only if omitting it is slower after Holm's correction, and a
recommendation is made only if it holds in the last stage, whose launches had no part in finding it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from torchyard.tune.folder import RaceFolder
from torchyard.tune.model import Choice, Contender, Race, Share, Stage, Standing
from torchyard.tune.race_rounds import (
    HEAT_SIZE,
    LOOSE_ALPHA,
    Field,
    HeatResult,
    Pooled,
    glance_heats,
    heats_in_order,
    holm,
    pooled,
)

__all__ = ["HeatSource", "RaceListener", "RaceRun"]

RaceListener = Callable[[Race, str], None]
"""Told the race as it stands, and what comes next."""

DEFAULT: Final = Contender()
LONG_SHARE: Final = 0.4
SINGLE_SHARE: Final = 0.55
JOINED_SHARE: Final = 0.75
SHARES_SHARE: Final = 0.85
"""Shares of the time after which no other heat of that stage is begun; the first is for glances at
what takes long. The first heat of single choices is always run: without it nothing could be proposed."""
MOST_SINGLE_ROUNDS: Final = 8
SINGLE_LAUNCHES: Final = 2
JOINED_LAUNCHES: Final = 4
SHARES_LAUNCHES: Final = 5
MOST_SHARES_LAUNCHES: Final = 12
CONFIRM_LAUNCHES: Final = 6
MOST_CONFIRM_LAUNCHES: Final = 24


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
        self._field = Field()
        self._launches: list[int] = []
        self._spare = {heat.number: heat for heat in (*race.heats, *race.spare)}
        self.race = replace(
            race,
            contenders=(),
            heats=(),
            shares=(),
            proposed=None,
            confirmed=None,
            winner=None,
            undecided=(),
            untried=(),
            state="running",
        )

    def run(self) -> Race:
        """All stages; what is found is on the disk after each heat."""
        try:
            self._glance()
            self._single()
            self.race = replace(self.race, undecided=tuple(self._field.undecided()))
            proposed = self._shares(self._joined())
            self._confirm(proposed)
        except KeyboardInterrupt:
            self._keep(state="interrupted")
            raise
        self._keep(state="finished")
        self._folder.drop_cache()
        return self.race

    def _glance(self) -> None:
        heats = glance_heats([DEFAULT.with_choice(choice) for choice in self.race.space.choices])
        for number, some in enumerate(heats):
            long = any(choice.takes_long for one in some for choice in one.choices)
            share = LONG_SHARE if long else SINGLE_SHARE
            if number and self._heats.elapsed_s > share * self.race.budget_s:
                left = tuple(one.name for part in heats[number:] for one in part)
                self.race = replace(self.race, untried=left)
                break
            self._heat("glance", DEFAULT, some, launches=1)
        self._field.leave_after_glance()

    def _single(self) -> None:
        begun = False
        for _ in range(MOST_SINGLE_ROUNDS):
            contenders = self._field.promising()
            if not contenders or self._field.settled():
                return
            for some in heats_in_order(contenders):
                # While nobody leads there is nothing to join: that time is for finding one.
                share = SINGLE_SHARE if self._field.leaders() else SHARES_SHARE
                if begun and self._heats.elapsed_s > share * self.race.budget_s:
                    return
                self._heat("single", DEFAULT, some, launches=SINGLE_LAUNCHES)
                self._field.eliminate()
                begun = True

    def _joined(self) -> Contender:
        """The combination that choices are added to as long as one more makes it faster."""
        current = DEFAULT
        leaders = self._field.leaders()
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
        reasons = [outcome.untrusted for outcome in result.outcomes]
        for choice, one, p_adjusted, untrusted in zip(
            joined.choices, found, adjusted, reasons, strict=True
        ):
            faster = one is not None and one.log < 0.0 and p_adjusted <= self.race.alpha
            share = _share(
                choice, one, p_adjusted, kept=faster and not untrusted, alpha=self.race.alpha
            )
            shares.append(replace(share, untrusted=untrusted))
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
            found = pooled(effects, alpha=self.race.alpha, least_sd=outcome.pair_floor)
            confirmed = found.low > 0.0 and not outcome.withheld and not outcome.untrusted
            standing = replace(
                standing,
                why=outcome.withheld,
                speedup=found.speedup,
                interval=found.interval(self.race.alpha),
                p_value=found.p_value,
                accuracy=outcome.accuracy,
                untrusted=outcome.untrusted,
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

    def _heat(
        self, stage: Stage, against: Contender, some: Sequence[Contender], *, launches: int
    ) -> HeatResult:
        self._listener(self.race, f"{stage}: {', '.join(one.name for one in some)}")
        result = self._heats.run(stage, against, some, launches=launches)
        self._launches.append(launches)
        for outcome in result.outcomes:
            if against == DEFAULT:
                self._field.learn(outcome, stage)
        names = {one.name for one in self.race.contenders}
        new = [one for one in (against, *some) if one.name not in names]
        heat = replace(result.heat, found=self._standings(against, result, stage))
        self._spare.pop(heat.number, None)
        self.race = replace(
            self.race,
            contenders=(*self.race.contenders, *dict.fromkeys(new)),
            heats=(*self.race.heats, heat),
            spare=tuple(self._spare.values()),
            elapsed_s=self._heats.elapsed_s,
        )
        self._keep()
        return result

    def _standings(
        self, against: Contender, result: HeatResult, stage: Stage
    ) -> tuple[Standing, ...]:
        """Against the default from all heats so far; against others, and at the end, from this one."""
        found = []
        for outcome in result.outcomes:
            runner = self._field.get(outcome.contender.name)
            together = against == DEFAULT and stage != "confirm" and runner is not None
            effects = runner.effects if together and runner is not None else outcome.effects
            standing = Standing(
                contender=outcome.contender.name,
                against=against.name,
                launches=len(effects),
                accuracy=outcome.accuracy,
                untrusted=outcome.untrusted,
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

    def _keep(self, state: str | None = None) -> None:
        if state is not None:
            self.race = replace(self.race, state=state)  # type: ignore[arg-type]
        self._folder.write(self.race)


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

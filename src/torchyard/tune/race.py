"""Run a race: from a space of choices to one combination that is significantly faster, or none.

`glance`  screening: each choice alone, one launch; failing, wrong or slower ones are dropped
`single`  the remaining ones, until those that cannot be the best of their dimension are out
`joined`  the best of each dimension together, adding one at a time as long as it helps
`shares`  the combination against itself without each choice: a choice that adds nothing is removed
`confirm` the result against the default, on launches that decide nothing else

Dropping is decided loosely, since it can only cost speed. Claims are decided strictly: a choice
stays in the recommendation only if omitting it is slower after Holm's correction, and a
recommendation is made only if it holds in the last stage, whose launches had no part in finding it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Literal, Protocol

from torchyard.tune.model import (
    STAGE_LABELS,
    Choice,
    Contender,
    Race,
    RaceFolder,
    Share,
    Stage,
    Standing,
)
from torchyard.tune.race_rounds import (
    LOOSE_ALPHA,
    ROUND_SIZE,
    ContenderPool,
    Pooled,
    RoundResult,
    holm,
    pooled,
    rounds_in_order,
)
from torchyard.tune.round_times import MIN_CONFIRM_LAUNCHES, RoundTimes

RaceListener = Callable[[Race, str], None]
"""Progress callback: the current race, and a description of the next round."""

DEFAULT: Final = Contender()
LONG_SHARE: Final = 0.4
SINGLE_SHARE: Final = 0.55
JOINED_SHARE: Final = 0.75
SHARES_SHARE: Final = 0.85
"""Shares of the time budget after which no further round of a stage starts; `LONG_SHARE` is for screening
choices with long preparation. In addition, a round starts only if it fits into the remaining time
together with a confirmation; the first one always runs."""
MIN_LIMIT_SHARE: Final = 0.5
CLEAR_LOG: Final = 0.03
"""Log speedup of a favorite whose confirmation must fit before other choices are tried."""
MAX_SINGLE_PASSES: Final = 8
SINGLE_LAUNCHES: Final = 2
JOINED_LAUNCHES: Final = 4
SHARES_LAUNCHES: Final = 5
MAX_SHARES_LAUNCHES: Final = 12
MAX_CONFIRM_LAUNCHES: Final = 24


class RoundSource(Protocol):
    """Source of round results."""

    @property
    def elapsed_s(self) -> float:
        """Time since the race began."""

    def run(
        self,
        stage: Stage,
        against: Contender,
        contenders: Sequence[Contender],
        *,
        launches: int,
        limit_s: float,
    ) -> RoundResult:
        """Measure contenders against another one, for at most `limit_s`."""


class RaceRun:
    """Execution of one race; `race` is its current state."""

    def __init__(
        self,
        folder: RaceFolder,
        race: Race,
        rounds: RoundSource,
        *,
        listener: RaceListener,
        times: RoundTimes | None = None,
    ) -> None:
        """`race` may be a stored race to resume: finished rounds are not repeated."""
        self._folder = folder
        self._rounds = rounds
        self._listener = listener
        self._pool = ContenderPool()
        self._times = RoundTimes() if times is None else times
        self._is_short = False
        """Whether the time did not suffice for a second measurement of single choices."""
        self._spare = {race_round.number: race_round for race_round in (*race.heats, *race.spare)}
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
        """Run all stages; the race is stored after each round."""
        try:
            self._screen()
            self._single()
            self.race = replace(self.race, undecided=tuple(self._pool.undecided()))
            proposed = self._shares(self._joined())
            self._confirm(proposed)
        except KeyboardInterrupt:
            self._keep(state="interrupted")
            raise
        self._keep(state="finished")
        shutil.rmtree(self._folder.cache, ignore_errors=True)
        return self.race

    def _screen(self) -> None:
        """Measure each choice alone, likely winners first, as long as the time suffices."""
        waiting = [DEFAULT.with_choice(choice) for choice in self.race.space.choices]
        untried: list[str] = []
        while waiting:
            group = self._stored_group("glance", waiting) or self._next_group(waiting)
            long = any(choice.takes_long for one in group for choice in one.choices)
            share = LONG_SHARE if long else SINGLE_SHARE
            is_late = self._rounds.elapsed_s > share * self.race.budget_s
            if not group or (self.race.heats and is_late):
                break
            result = self._run_round("glance", DEFAULT, group, launches=1)
            if result.race_round.stopped:
                untried += self._pool.remove_unmeasured([one.name for one in group])
            waiting = [one for one in waiting if one not in group]
        names = {*untried, *(one.name for one in waiting)}
        self.race = replace(
            self.race,
            untried=tuple(one.name for one in self.race.space.choices if one.name in names),
        )
        self._pool.drop_after_screening()

    def _next_group(self, waiting: Sequence[Contender]) -> list[Contender]:
        """Return the next choices to screen that fit; those with long preparation last, alone."""
        quick = [one for one in waiting if not any(choice.takes_long for choice in one.choices)]
        if not quick:
            return next(([one] for one in waiting if self._fits("glance", DEFAULT, [one])), [])
        group: list[Contender] = []
        for one in quick:
            # A compilation may fail or take long: it is alone, so that others do not depend on it.
            if _is_compiled(one) and group:
                continue
            if len(group) < ROUND_SIZE and self._fits("glance", DEFAULT, [*group, one]):
                group.append(one)
            if group and _is_compiled(group[0]):
                break
        if group or self.race.heats:
            return group
        # The first round always runs: without it, nothing is known.
        return [min(quick, key=lambda one: self._times.minimum_s(DEFAULT, one))]

    def _stored_group(self, stage: Stage, waiting: Sequence[Contender]) -> list[Contender]:
        """Return the configurations of the next stored round, if all of them are waiting."""
        by_name = {one.name: one for one in waiting}
        for race_round in self._spare.values():
            names = race_round.contenders
            if race_round.stage == stage and not race_round.stopped and set(names) <= set(by_name):
                return [by_name[name] for name in names]
        return []

    def _fits(
        self, stage: Stage, against: Contender, contenders: Sequence[Contender], launches: int = 1
    ) -> bool:
        """Whether a round, and a confirmation after it, fit into the remaining time."""
        round_s = self._times.round_s(stage, against, contenders, launches=launches)
        return round_s + self._reserve_s(contenders) <= self._remaining_s()

    def _reserve_s(self, contenders: Sequence[Contender]) -> float:
        """Return the time of the shortest confirmation of one of these, or of a clear favorite.

        A favorite whose confirmation does not fit anyway keeps no time from the others.
        """
        reserves_s = [self._confirm_s(one) for one in contenders]
        favorite = next(iter(self._fastest(CLEAR_LOG)), None)
        if favorite is not None and self._confirm_s(favorite) <= self._remaining_s():
            reserves_s.append(self._confirm_s(favorite))
        return max(reserves_s)

    def _confirm_s(self, contender: Contender) -> float:
        return self._times.round_s("confirm", DEFAULT, [contender], launches=MIN_CONFIRM_LAUNCHES)

    def _fastest(self, least_log: float) -> list[Contender]:
        """Return the choices with a launch that are faster than this so far, fastest first."""
        measured = [one for one in self._pool.racing() if one.effects]
        faster = [one for one in measured if one.pooled().log > least_log]
        return [one.contender for one in sorted(faster, key=lambda one: -one.pooled().log)]

    def _remaining_s(self) -> float:
        return self.race.budget_s - self._rounds.elapsed_s

    def _single(self) -> None:
        started = False
        for _ in range(MAX_SINGLE_PASSES):
            contenders = self._pool.promising()
            if not contenders or self._pool.settled():
                return
            for ordered in rounds_in_order(contenders):
                # Without a leader there is nothing to combine, so more time goes to this stage.
                share = SINGLE_SHARE if self._pool.leaders() else SHARES_SHARE
                if started and self._rounds.elapsed_s > share * self.race.budget_s:
                    return
                group = self._stored_group("single", ordered)
                for one in ordered if not group else ():
                    if not self._fits("single", DEFAULT, [*group, one], SINGLE_LAUNCHES):
                        break
                    group.append(one)
                if not group:
                    self._is_short = True
                    return
                self._run_round("single", DEFAULT, group, launches=SINGLE_LAUNCHES)
                self._pool.eliminate()
                started = True

    def _joined(self) -> Contender:
        """Combine leading choices, adding one at a time as long as it helps."""
        current = DEFAULT
        leaders = self._pool.leaders()
        if self._is_short:
            return self._best_so_far()
        if not leaders:
            return current
        first, *remaining = leaders
        current = DEFAULT.with_choice(first)
        while remaining and self._rounds.elapsed_s < JOINED_SHARE * self.race.budget_s:
            choice_by_name = {current.with_choice(choice).name: choice for choice in remaining}
            candidates = [current.with_choice(choice) for choice in remaining[:ROUND_SIZE]]
            if not self._fits_with_shares(current, candidates):
                break
            result = self._run_round("joined", current, candidates, launches=JOINED_LAUNCHES)
            gains = {
                outcome.contender.name: pooled(outcome.effects, alpha=LOOSE_ALPHA)
                for outcome in result.outcomes
                if len(outcome.effects) > 1 and not outcome.failure and not outcome.wrong
            }
            helping = {name: one for name, one in gains.items() if one.low > 0.0}
            if not helping:
                if len(remaining) <= ROUND_SIZE:
                    break
                remaining = remaining[ROUND_SIZE:]
                continue
            name = max(helping, key=lambda one: helping[one].log)
            current = current.with_choice(choice_by_name[name])
            remaining = [
                one for one in remaining if one.dimension != choice_by_name[name].dimension
            ]
        return current

    def _best_so_far(self) -> Contender:
        """Return the choice to confirm if the time did not suffice to find leaders.

        The fastest one whose confirmation fits, or else the fastest.
        """
        faster = self._fastest(0.0)
        fitting = [one for one in faster if self._confirm_launches(one) >= MIN_CONFIRM_LAUNCHES]
        return next(iter((*fitting, *faster)), DEFAULT)

    def _fits_with_shares(self, current: Contender, candidates: Sequence[Contender]) -> bool:
        """Whether combining fits, with the check of each contribution that it requires."""
        without = [current, *(DEFAULT.with_choice(one) for one in current.choices)]
        shares_s = self._times.round_s("shares", candidates[0], without, launches=SHARES_LAUNCHES)
        joined_s = self._times.round_s("joined", current, candidates, launches=JOINED_LAUNCHES)
        return joined_s + shares_s + self._reserve_s(candidates) <= self._remaining_s()

    def _shares(self, joined: Contender) -> Contender:
        """Remove choices that add nothing; a single choice goes directly to confirmation."""
        if len(joined.choices) < 2:  # noqa: PLR2004
            return joined
        without = [joined.without(choice) for choice in joined.choices]
        # The number of launches is fixed in advance: a single analysis, one test per choice.
        remaining_s = min(
            SHARES_SHARE * self.race.budget_s - self._rounds.elapsed_s,
            self._remaining_s() - self._reserve_s([joined]),
        )
        fitting = self._times.launches_within("shares", joined, without, remaining_s)
        launches = max(SHARES_LAUNCHES, min(MAX_SHARES_LAUNCHES, fitting))
        result = self._run_round("shares", joined, without, launches=launches)
        effects = [
            pooled(outcome.effects, alpha=self.race.alpha) if outcome.effects else None
            for outcome in result.outcomes
        ]
        adjusted = holm(
            [
                1.0 if effect is None or effect.p_value is None else effect.p_value
                for effect in effects
            ]
        )
        shares = []
        reasons = [outcome.untrusted for outcome in result.outcomes]
        for choice, effect, p_adjusted, untrusted in zip(
            joined.choices, effects, adjusted, reasons, strict=True
        ):
            faster = effect is not None and effect.log < 0.0 and p_adjusted <= self.race.alpha
            share = _share(
                choice, effect, p_adjusted, kept=faster and not untrusted, alpha=self.race.alpha
            )
            shares.append(replace(share, untrusted=untrusted))
        self.race = replace(self.race, shares=tuple(shares))
        kept_names = {share.choice for share in shares if share.kept}
        proposed = Contender(
            choices=tuple(choice for choice in joined.choices if choice.name in kept_names)
        )
        if not proposed.choices:
            # The combination may be faster although no choice is significant: try the strongest alone.
            strongest = min(shares, key=lambda share: -share.speedup)
            proposed = Contender(
                choices=tuple(
                    effect for effect in joined.choices if effect.name == strongest.choice
                )
            )
        return proposed

    def _confirm(self, proposed: Contender) -> None:
        """Measure the proposal against the default on new launches, which decide the race."""
        if not proposed.choices:
            return
        self.race = replace(self.race, proposed=proposed)
        launches = self._confirm_launches(proposed)
        if launches < MIN_CONFIRM_LAUNCHES - 1:
            return  # the report names the proposal, and more time confirms it
        launches = max(MIN_CONFIRM_LAUNCHES, launches)  # the estimate may be too long
        last = self._run_round("confirm", DEFAULT, [proposed], launches=launches)
        (outcome,) = last.outcomes
        effects = outcome.effects
        standing = Standing(contender=proposed.name, launches=len(effects), why=outcome.failure)
        confirmed = False
        if len(effects) > 1 and not outcome.failure and not outcome.wrong:
            effect = pooled(effects, alpha=self.race.alpha, least_sd=outcome.pair_floor)
            confirmed = effect.low > 0.0 and not outcome.withheld and not outcome.untrusted
            standing = replace(
                standing,
                why=outcome.withheld,
                speedup=effect.speedup,
                interval=effect.interval(self.race.alpha),
                p_value=effect.p_value,
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

    def _confirm_launches(self, proposed: Contender) -> int:
        """Return the number of launches that fit into the remaining time, within limits."""
        fitting = self._times.launches_within("confirm", DEFAULT, [proposed], self._remaining_s())
        return min(MAX_CONFIRM_LAUNCHES, fitting)

    def _limit_s(self, stage: Stage, measured: Sequence[Contender]) -> float:
        """Return the time after which a round is stopped: a confirmation must still fit after it."""
        remaining_s = self._remaining_s()
        if stage == "confirm":
            return remaining_s
        limit_s = remaining_s - self._reserve_s(measured)
        # If a confirmation hardly fits, the round gets the time: estimates may be too long.
        return limit_s if limit_s >= MIN_LIMIT_SHARE * remaining_s else remaining_s

    def _run_round(
        self, stage: Stage, against: Contender, measured: Sequence[Contender], *, launches: int
    ) -> RoundResult:
        self._listener(
            self.race, f"{STAGE_LABELS[stage]}: {', '.join(one.name for one in measured)}"
        )
        limit_s = self._limit_s(stage, measured)
        result = self._rounds.run(stage, against, measured, launches=launches, limit_s=limit_s)
        if not result.race_round.stopped:
            took_s = result.race_round.took_s
            self._times.record(stage, against, measured, launches=launches, took_s=took_s)
        for outcome in result.outcomes:
            if against == DEFAULT:
                self._pool.add(outcome, stage)
        names = {one.name for one in self.race.contenders}
        new = [one for one in (against, *measured) if one.name not in names]
        race_round = replace(result.race_round, found=self._standings(against, result, stage))
        self._spare.pop(race_round.number, None)
        self.race = replace(
            self.race,
            contenders=(*self.race.contenders, *dict.fromkeys(new)),
            heats=(*self.race.heats, race_round),
            spare=tuple(self._spare.values()),
            elapsed_s=self._rounds.elapsed_s,
        )
        self._keep()
        return result

    def _standings(
        self, against: Contender, result: RoundResult, stage: Stage
    ) -> tuple[Standing, ...]:
        """Return standings: against the default from all rounds so far, otherwise from this round."""
        standings = []
        for outcome in result.outcomes:
            record = self._pool.get(outcome.contender.name)
            combine_rounds = against == DEFAULT and stage != "confirm" and record is not None
            effects = record.effects if combine_rounds and record is not None else outcome.effects
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
                effect = pooled(effects, alpha=self.race.alpha)
                standing = replace(
                    standing,
                    speedup=effect.speedup,
                    interval=effect.interval(self.race.alpha),
                    p_value=effect.p_value,
                )
            standings.append(standing)
        return tuple(standings)

    def _keep(self, state: Literal["running", "finished", "interrupted"] = "running") -> None:
        self.race = replace(self.race, state=state)
        self._folder.write(self.race)


def _is_compiled(contender: Contender) -> bool:
    return any(choice.backend for choice in contender.choices)


def _share(
    choice: Choice, effect: Pooled | None, p_adjusted: float, *, kept: bool, alpha: float
) -> Share:
    """Return the contribution of a choice: the inverse of the effect of removing it."""
    if effect is None:
        return Share(choice=choice.name, speedup=1.0, interval=None, p_adjusted=None, kept=False)
    inverted = replace(effect, log=-effect.log)
    return Share(
        choice=choice.name,
        speedup=inverted.speedup,
        interval=inverted.interval(alpha),
        p_adjusted=p_adjusted,
        kept=kept,
    )

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

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from torchyard.tune.folder import RaceFolder
from torchyard.tune.model import STAGE_LABELS, Choice, Contender, Race, Share, Stage, Standing
from torchyard.tune.race_rounds import (
    LOOSE_ALPHA,
    ROUND_SIZE,
    ContenderPool,
    Pooled,
    RoundResult,
    holm,
    pooled,
    rounds_in_order,
    screening_rounds,
)

RaceListener = Callable[[Race, str], None]
"""Progress callback: the current race, and a description of the next round."""

DEFAULT: Final = Contender()
LONG_SHARE: Final = 0.4
SINGLE_SHARE: Final = 0.55
JOINED_SHARE: Final = 0.75
SHARES_SHARE: Final = 0.85
"""Shares of the time budget after which no further round of a stage starts; `LONG_SHARE` is for screening
choices with long preparation. The first round of single choices always runs, since nothing could be
proposed without it."""
MAX_SINGLE_PASSES: Final = 8
SINGLE_LAUNCHES: Final = 2
JOINED_LAUNCHES: Final = 4
SHARES_LAUNCHES: Final = 5
MAX_SHARES_LAUNCHES: Final = 12
CONFIRM_LAUNCHES: Final = 6
MAX_CONFIRM_LAUNCHES: Final = 24


class RoundSource(Protocol):
    """Source of round results."""

    elapsed_s: float

    def run(
        self, stage: Stage, against: Contender, contenders: Sequence[Contender], *, launches: int
    ) -> RoundResult:
        """Measure contenders against another one."""


class RaceRun:
    """Execution of one race; `race` is its current state."""

    def __init__(
        self, folder: RaceFolder, race: Race, rounds: RoundSource, *, listener: RaceListener
    ) -> None:
        """`race` may be a stored race to resume: finished rounds are not repeated."""
        self._folder = folder
        self._rounds = rounds
        self._listener = listener
        self._pool = ContenderPool()
        self._launches: list[int] = []
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
        self._folder.drop_cache()
        return self.race

    def _screen(self) -> None:
        rounds = screening_rounds(
            [DEFAULT.with_choice(choice) for choice in self.race.space.choices]
        )
        for number, contenders in enumerate(rounds):
            long = any(choice.takes_long for one in contenders for choice in one.choices)
            share = LONG_SHARE if long else SINGLE_SHARE
            if number and self._rounds.elapsed_s > share * self.race.budget_s:
                untried_names = tuple(one.name for part in rounds[number:] for one in part)
                self.race = replace(self.race, untried=untried_names)
                break
            self._run_round("glance", DEFAULT, contenders, launches=1)
        self._pool.drop_after_screening()

    def _single(self) -> None:
        started = False
        for _ in range(MAX_SINGLE_PASSES):
            contenders = self._pool.promising()
            if not contenders or self._pool.settled():
                return
            for group in rounds_in_order(contenders):
                # Without a leader there is nothing to combine, so more time goes to this stage.
                share = SINGLE_SHARE if self._pool.leaders() else SHARES_SHARE
                if started and self._rounds.elapsed_s > share * self.race.budget_s:
                    return
                self._run_round("single", DEFAULT, group, launches=SINGLE_LAUNCHES)
                self._pool.eliminate()
                started = True

    def _joined(self) -> Contender:
        """Combine leading choices, adding one at a time as long as it helps."""
        current = DEFAULT
        leaders = self._pool.leaders()
        if not leaders:
            return current
        first, *remaining = leaders
        current = DEFAULT.with_choice(first)
        while remaining and self._rounds.elapsed_s < JOINED_SHARE * self.race.budget_s:
            choice_by_name = {current.with_choice(choice).name: choice for choice in remaining}
            candidates = [current.with_choice(choice) for choice in remaining[:ROUND_SIZE]]
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

    def _shares(self, joined: Contender) -> Contender:
        """Remove choices that add nothing; a single choice goes directly to confirmation."""
        if len(joined.choices) < 2:  # noqa: PLR2004
            return joined
        without = [joined.without(choice) for choice in joined.choices]
        # The number of launches is fixed in advance: a single analysis, one test per choice.
        remaining_s = SHARES_SHARE * self.race.budget_s - self._rounds.elapsed_s
        fitting = int(remaining_s / self._launch_s(len(without)))
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
        last = self._run_round("confirm", DEFAULT, [proposed], launches=self._confirm_launches())
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

    def _confirm_launches(self) -> int:
        """Return the number of launches that fit into the remaining time, within limits."""
        remaining_s = self.race.budget_s - self._rounds.elapsed_s
        fitting = int(remaining_s / self._launch_s(1))
        return max(CONFIRM_LAUNCHES, min(MAX_CONFIRM_LAUNCHES, fitting))

    def _launch_s(self, contenders: int) -> float:
        """Estimate the duration of a launch of that many contenders and their baseline."""
        durations_s, before_s = [], 0.0
        for race_round, launches in zip(self.race.heats, self._launches, strict=True):
            if race_round.stage != "glance":  # screening also checks and compiles
                durations_s.append(
                    (race_round.ended_s - before_s) / launches / (len(race_round.contenders) + 1)
                )
            before_s = race_round.ended_s
        each_s = sum(durations_s) / len(durations_s) if durations_s else 5.0
        return max(0.1, each_s * (contenders + 1))

    def _run_round(
        self, stage: Stage, against: Contender, measured: Sequence[Contender], *, launches: int
    ) -> RoundResult:
        self._listener(
            self.race, f"{STAGE_LABELS[stage]}: {', '.join(one.name for one in measured)}"
        )
        result = self._rounds.run(stage, against, measured, launches=launches)
        self._launches.append(launches)
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

    def _keep(self, state: str | None = None) -> None:
        if state is not None:
            self.race = replace(self.race, state=state)  # type: ignore[arg-type]
        self._folder.write(self.race)


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

"""The rules of a race, on simulated rounds with known speedups."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tune.simulated_rounds import SimulatedRounds, race_of
from torchyard.core.study import Workload
from torchyard.errors import ResultsDamaged, UsageError
from torchyard.tune.model import (
    Choice,
    Contender,
    Race,
    RaceFolder,
    Stage,
    known_speedups,
    ordered_choices,
    read_race,
)
from torchyard.tune.race import RaceRun
from torchyard.tune.race_rounds import RoundResult
from torchyard.tune.report import verdict_line
from torchyard.tune.round_times import RoundTimes
from torchyard.tune.space import with_budget

SPACE = {
    "allocator": ["tc", "je", "mi", "keep"],
    "threads": ["one", "half"],
    "waiting": ["active", "passive"],
    "binding": ["close"],
}


DEFAULT_AND_TC = Contender().with_choice(Choice(dimension="allocator", name="tc"))


def additive(**logs: float) -> Callable[[Contender], float]:
    """A truth in which the effects of choices add up."""

    def truth(contender: Contender) -> float:
        return sum(logs.get(choice.name, 0.0) for choice in contender.choices)

    return truth


def run(folder: Path, rounds: SimulatedRounds, race: Race | None = None) -> Race:
    kept = RaceFolder.create(folder)
    return RaceRun(kept, race or race_of(SPACE), rounds, listener=lambda *_: None).run()


def test_the_best_choices_of_each_dimension_are_found_and_combined(tmp_path: Path) -> None:
    truth = additive(tc=math.log(1.2), je=math.log(1.1), active=math.log(1.08), one=math.log(0.6))
    race = run(tmp_path / "race", SimulatedRounds(truth, random.Random(1)))
    assert race.winner is not None
    assert race.winner.name == "tc+active"
    assert race.confirmed is not None
    assert race.confirmed.interval is not None
    assert race.confirmed.interval.covers(1.2 * 1.08)
    assert {share.choice for share in race.shares if share.kept} == {"tc", "active"}
    assert race.state == "finished"
    assert read_race(tmp_path / "race") == race


def test_a_choice_that_is_much_slower_leaves_after_one_launch(tmp_path: Path) -> None:
    rounds = SimulatedRounds(additive(one=math.log(0.5), tc=0.2), random.Random(2))
    run(tmp_path / "race", rounds)
    assert sum("one" in names for _, _, names in rounds.asked) == 1


def test_the_most_promising_are_measured_before_the_time_is_used_up(tmp_path: Path) -> None:
    names = {f"dimension {number}": [f"n{number}"] for number in range(20)}
    rounds = SimulatedRounds(additive(n19=math.log(1.6), n7=math.log(1.1)), random.Random(11))
    # Screening takes 24 s, each round after it 12 s, and 0.55 of the time is for both.
    race = run(tmp_path / "race", rounds, race_of(names, budget_s=60.0))
    singles = [contenders for stage, _, contenders in rounds.asked if stage == "single"]
    assert len(singles) == 1
    assert {"n19", "n7"} <= set(singles[0])
    assert race.winner is not None
    assert "n19" in race.winner.name
    assert not race.untried
    assert race.undecided
    assert not {"n19", "n7"} & set(race.undecided)


def test_two_choices_that_cancel_each_other_are_not_combined(tmp_path: Path) -> None:
    def truth(contender: Contender) -> float:
        names = {choice.name for choice in contender.choices}
        if {"tc", "active"} <= names:
            return 0.05  # each alone is faster than both together
        return 0.2 * ("tc" in names) + 0.1 * ("active" in names)

    race = run(tmp_path / "race", SimulatedRounds(truth, random.Random(3)))
    assert race.winner is not None
    assert race.winner.name == "tc"


def test_a_failed_configuration_keeps_its_reason_and_the_race_continues(tmp_path: Path) -> None:
    rounds = SimulatedRounds(additive(tc=0.2), random.Random(4), failing=frozenset({"je", "close"}))
    race = run(tmp_path / "race", rounds)
    failed = [one for race_round in race.heats for one in race_round.found if one.state == "failed"]
    assert {one.contender for one in failed} == {"je", "close"}
    assert all("crashed" in one.why for one in failed)
    assert race.winner is not None
    assert race.winner.name == "tc"


def test_nothing_is_recommended_where_nothing_helps(tmp_path: Path) -> None:
    won = 0
    for seed in range(60):
        rounds = SimulatedRounds(additive(), random.Random(seed))
        won += run(tmp_path / str(seed), rounds).winner is not None
    # Five in a hundred would be allowed; most races do not even come to the last stage.
    assert won <= 6


def test_the_gain_of_the_winner_has_no_selection_bias(tmp_path: Path) -> None:
    """The best of eight equal contenders looks faster than it is, until it runs again."""
    names = [f"c{number}" for number in range(8)]
    truth = additive(**dict.fromkeys(names, 0.02))
    covered = races = 0
    gains = []
    for seed in range(30):
        rounds = SimulatedRounds(truth, random.Random(seed))
        race = run(tmp_path / str(seed), rounds, race_of({"one": names}))
        if race.confirmed is not None and race.confirmed.interval is not None:
            races += 1
            covered += race.confirmed.interval.covers(math.exp(0.02))
            gains.append(math.log(race.confirmed.speedup or 1.0))
    assert races > 18
    assert covered / races > 0.8
    assert sum(gains) / len(gains) == pytest.approx(0.02, abs=0.004)


class Stopping(SimulatedRounds):
    """Interrupted before the fourth race_round."""

    def run(
        self,
        stage: Stage,
        against: Contender,
        contenders: Sequence[Contender],
        *,
        launches: int,
        limit_s: float = math.inf,
    ) -> RoundResult:
        if len(self.asked) == 3:
            raise KeyboardInterrupt
        return super().run(stage, against, contenders, launches=launches, limit_s=limit_s)


def test_an_interrupted_race_keeps_its_results(tmp_path: Path) -> None:
    folder = RaceFolder.create(tmp_path / "race")
    rounds = Stopping(additive(tc=0.2), random.Random(5))
    folder.cache.mkdir()
    with pytest.raises(KeyboardInterrupt):
        RaceRun(folder, race_of(SPACE), rounds, listener=lambda *_: None).run()
    assert folder.cache.exists(), "what was compiled serves when the race goes on"
    race = read_race(tmp_path / "race")
    assert race.state == "interrupted"
    assert len(race.heats) == 3
    assert race.winner is None


def test_a_resumed_race_keeps_all_rounds(tmp_path: Path) -> None:
    first = run(tmp_path / "race", SimulatedRounds(additive(tc=0.2), random.Random(5)))
    assert len(first.heats) > 3
    rounds = Stopping(additive(tc=0.2), random.Random(5))
    longer = with_budget(read_race(tmp_path / "race"), 3000.0)
    again = RaceRun(RaceFolder(tmp_path / "race"), longer, rounds, listener=lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        again.run()
    kept = read_race(tmp_path / "race")
    assert len(kept.heats) == 3
    assert [race_round.number for race_round in (*kept.heats, *kept.spare)] == [
        race_round.number for race_round in first.heats
    ]
    with pytest.raises(UsageError, match="current budget of 3000 s"):
        with_budget(kept, 60.0)


def test_settings_not_tried_for_lack_of_time_are_noted(tmp_path: Path) -> None:
    rounds = SimulatedRounds(additive(tc=0.2), random.Random(6))
    race = run(tmp_path / "race", rounds, race_of(SPACE, budget_s=5.0))
    assert race.untried
    (note, *_) = race.notes
    assert note == f"not tried, because the time budget was used up: {', '.join(race.untried)}"


def test_the_best_of_the_screening_is_confirmed_if_the_time_is_short(tmp_path: Path) -> None:
    rounds = SimulatedRounds(additive(je=math.log(1.5)), random.Random(12))
    race = run(tmp_path / "race", rounds, race_of(SPACE, budget_s=14.0))
    stages = [stage for stage, _, _ in rounds.asked]
    assert stages[-1] == "confirm"
    assert set(stages) == {"glance", "confirm"}
    assert rounds.elapsed_s <= 14.0
    assert race.winner is not None
    assert race.winner.name == "je"
    assert race.untried


def test_a_proposal_that_cannot_be_confirmed_in_time_is_named(tmp_path: Path) -> None:
    rounds = SimulatedRounds(additive(tc=math.log(1.5)), random.Random(12))
    race = run(tmp_path / "race", rounds, race_of(SPACE, budget_s=8.0))
    assert rounds.elapsed_s <= 8.0
    assert race.winner is None
    assert verdict_line(race).startswith(
        "no recommendation: the time budget did not suffice to confirm tc"
    )
    longer = with_budget(read_race(tmp_path / "race"), 3000.0)
    rounds = SimulatedRounds(additive(tc=math.log(1.5)), random.Random(12))
    again = RaceRun(RaceFolder(tmp_path / "race"), longer, rounds, listener=lambda *_: None).run()
    assert again.winner is not None
    assert "tc" in again.winner.name
    assert not again.untried


@pytest.mark.parametrize("budget_s", [3.0, 9.0, 17.0, 40.0, 90.0, 240.0])
@pytest.mark.parametrize("truth", [{}, {"tc": 0.4}, {"tc": 0.02, "one": -0.5, "active": 0.03}])
def test_no_race_exceeds_its_budget(
    tmp_path: Path, budget_s: float, truth: dict[str, float]
) -> None:
    for seed in range(3):
        rounds = SimulatedRounds(additive(**truth), random.Random(seed), launch_sd=0.02)
        folder = RaceFolder.create(tmp_path / f"race {seed}")
        race = RaceRun(
            folder,
            race_of(SPACE, budget_s=budget_s),
            rounds,
            listener=lambda *_: None,
            times=RoundTimes(import_s=0.0),
        ).run()
        assert rounds.elapsed_s <= budget_s
        measured = {name for _, _, names in rounds.asked for name in names}
        choices = {choice.name for choice in race.space.choices}
        assert choices - measured <= set(race.untried)
        assert set(race.untried) <= choices


def test_choices_that_are_too_long_for_the_rest_of_the_time_do_not_start(tmp_path: Path) -> None:
    asked = race_of({"compiler": ["compiled", "plain"], "allocator": ["tc"]}, budget_s=20.0)
    compiled, *others = asked.space.choices
    space = replace(asked.space, choices=(replace(compiled, backend="inductor"), *others))
    rounds = SimulatedRounds(additive(), random.Random(1))
    race = RaceRun(
        RaceFolder.create(tmp_path / "race"),
        replace(asked, space=space),
        rounds,
        listener=lambda *_: None,
        # Estimated with a confirmation: 26 s for the compiled one, 20 s for the two others.
        times=RoundTimes(import_s=1.0),
    ).run()
    assert rounds.asked[0] == ("glance", "default", ("plain", "tc"))
    assert rounds.elapsed_s <= race.budget_s


def test_likely_winners_come_first_and_long_compilations_last(tmp_path: Path) -> None:
    plain, typical, long, known = (
        Choice(dimension=name, name=name, variables=((name.upper(), "1"),))
        for name in ("plain", "typical", "long", "known")
    )
    typical = replace(typical, typical=1.3)
    long = replace(long, typical=3.0, takes_long=True)
    choices = [plain, typical, long, known]
    assert ordered_choices(choices, {"known": 1.5}) == [known, typical, plain, long]
    assert ordered_choices(choices, {"typical": 0.5}) == [plain, known, typical, long]
    # The result of an earlier race of the same workload is known to the next one.
    rounds = SimulatedRounds(additive(one=math.log(1.4), tc=math.log(0.9)), random.Random(3))
    run(tmp_path / "races" / "20250101T000000.000Z-0001", rounds)
    speedups = known_speedups(race_of(SPACE), races=tmp_path / "races")
    assert ordered_choices(race_of(SPACE).space.choices, speedups)[0].name == "one"
    other = replace(race_of(SPACE), workload=Workload(suite="kernels", name="softmax"))
    assert known_speedups(other, races=tmp_path / "races") == {}
    assert known_speedups(other, races=tmp_path / "nowhere") == {}


def test_without_a_leader_the_time_for_combining_is_used_for_screening(tmp_path: Path) -> None:
    def single_ended_s(truth: Callable[[Contender], float]) -> float:
        rounds = SimulatedRounds(truth, random.Random(1), launch_sd=0.1)
        race = race_of({"allocator": ["tc", "je"]}, budget_s=40.0)
        completed = run(tmp_path / str(truth(DEFAULT_AND_TC)), rounds, race)
        return max(
            race_round.ended_s for race_round in completed.heats if race_round.stage == "single"
        )

    # Screening takes 3 s and rounds 6 s each; those of single choices end after 22 s, or when only the
    # time for a confirmation is left.
    assert single_ended_s(additive(tc=math.log(2.0), je=math.log(2.0))) == 27.0
    assert single_ended_s(additive()) == 33.0


def test_slow_configurations_are_tried_last_and_alone(tmp_path: Path) -> None:
    race = race_of({"compiler": ["autotuned", "plain"], "allocator": ["tc", "je"]})
    first, *others = race.space.choices
    space = replace(race.space, choices=(replace(first, takes_long=True), *others))
    rounds = SimulatedRounds(additive(), random.Random(13))
    run(tmp_path / "race", rounds, replace(race, space=space))
    glances = [names for stage, _, names in rounds.asked if stage == "glance"]
    assert glances == [("plain", "tc", "je"), ("autotuned",)]

    rounds = SimulatedRounds(additive(), random.Random(13))
    short = run(tmp_path / "short", rounds, replace(race, space=space, budget_s=9.0))
    assert short.untried == ("autotuned",)


def test_more_time_for_a_race_that_left_something_undecided(tmp_path: Path) -> None:
    names = {f"dimension {number}": [f"n{number}"] for number in range(12)}
    truth = additive(n3=math.log(1.03))
    rounds = SimulatedRounds(truth, random.Random(3), launch_sd=0.03)
    first = run(tmp_path / "race", rounds, race_of(names, budget_s=30.0))
    assert first.winner is None
    assert "n3" in first.undecided
    folder = RaceFolder(tmp_path / "race")
    longer = with_budget(read_race(tmp_path / "race"), 3000.0)
    rounds = SimulatedRounds(truth, random.Random(3), launch_sd=0.03)
    again = RaceRun(folder, longer, rounds, listener=lambda *_: None).run()
    assert again.winner is not None
    assert again.winner.name == "n3"
    assert "n3" not in again.undecided
    assert read_race(tmp_path / "race").budget_s == 3000.0


def test_folders_that_hold_no_race(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a race folder"):
        read_race(tmp_path)
    (tmp_path / "race.json").write_text("{")
    with pytest.raises(ResultsDamaged, match="not JSON"):
        read_race(tmp_path)
    (tmp_path / "race.json").write_text('{"format": 99}')
    with pytest.raises(ResultsDamaged, match="newer"):
        read_race(tmp_path)
    (tmp_path / "race.json").write_text('{"format": 1}')
    with pytest.raises(ResultsDamaged, match="not a race"):
        read_race(tmp_path)
    with pytest.raises(UsageError, match="is not empty"):
        RaceFolder.create(tmp_path)

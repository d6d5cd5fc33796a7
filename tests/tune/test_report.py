"""A race as text and as a page."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tune.sample_race import race_without_winner, sample_race
from torchyard.core.comparison import Accuracy, AccuracyStatus, Interval
from torchyard.tune.model import Contender, Race
from torchyard.tune.report import (
    race_page,
    race_spec,
    race_text,
    space_text,
    standings_spec,
    verdict_line,
)

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize(
    ("name", "race"),
    [("race-won.txt", sample_race()), ("race-default-is-best.txt", race_without_winner())],
)
def test_the_text(name: str, race: Race) -> None:
    text = race_text(race)
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_the_space_lists_what_would_be_tried() -> None:
    text = space_text(sample_race())
    assert text.startswith("kernels/mlp inference b4: 4 settings")
    assert "package libjemalloc2" in text


def test_a_race_that_is_not_over_says_so() -> None:
    race = replace(sample_race(), state="interrupted")
    assert verdict_line(race) == "the race is not finished: 2 rounds completed"
    empty = replace(race, state="finished", confirmed=None, winner=None, proposed=None, heats=())
    so_far = "no recommendation: no setting is significantly faster so far\n"
    assert verdict_line(empty).startswith(so_far)
    assert "--resume FOLDER --budget" in verdict_line(empty)
    settled = replace(empty, untried=())
    assert verdict_line(settled) == "the default is best: no setting is faster"
    assert verdict_line(replace(settled, undecided=("x",))).startswith(so_far)
    assert race_page(replace(race, heats=()))


def test_what_changes_results_says_by_how_much() -> None:
    race = sample_race()
    assert race.winner is not None
    assert race.confirmed is not None
    first, second = race.winner.choices
    winner = replace(race.winner, choices=(replace(first, changes_results=True), second))
    checked = Accuracy(
        status=AccuracyStatus.FAIL, max_error=0.02, candidate_rmse=0.003, baseline_rmse=1e-6
    )
    changed = replace(race, winner=winner, confirmed=replace(race.confirmed, accuracy=checked))
    assert (
        "differ by design, by up to 0.02; RMSE against the float64 reference 0.003"
        in verdict_line(changed)
    )


def test_the_page_has_every_section_and_escapes_names() -> None:
    page = race_page(sample_race())
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    for text in ("tcmalloc", "LD_PRELOAD=/lib/libtc.so", "with torch.inference_mode():", "1.280x"):
        assert text in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    assert page.count("<svg") == 2
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")


def test_the_page_of_a_default_that_is_best() -> None:
    page = race_page(race_without_winner())
    assert "the default is best" in page
    assert "How to use it" not in page


def test_a_winner_that_is_set_in_the_program_needs_no_shell() -> None:
    race = sample_race()
    assert race.winner is not None
    inside = Contender(choices=tuple(one for one in race.winner.choices if one.code))
    page = race_page(replace(race, winner=inside))
    assert "In the program:" in page
    assert "In a shell:" not in page


def test_the_interval_of_the_answer_is_shown_whole_and_others_are_cut() -> None:
    race = sample_race()
    assert race.confirmed is not None
    wide = replace(race, confirmed=replace(race.confirmed, interval=Interval(low=0.7, high=9.0)))
    (first, *others) = standings_spec(wide)["layer"][1]["data"]["values"]
    assert (first["low"], first["high"]) == (0.7, 9.0)
    low, high = standings_spec(wide)["layer"][1]["encoding"]["x"]["scale"]["domain"]
    assert low < 0.7
    assert high > 9.0
    assert all(low <= row["low"] <= row["high"] <= high for row in others)


def test_the_charts_show_rounds_in_time_and_the_winner_first() -> None:
    race = sample_race()
    rows = race_spec(race)["layer"][1]["data"]["values"]
    assert [row["contender"] for row in rows if row["minutes"] == 1.0] == [
        "tcmalloc",
        "inference-mode",
    ]
    ends = standings_spec(race)["layer"][1]["data"]["values"]
    assert ends[0]["contender"] == "tcmalloc+inference-mode (confirmation)"

"""Comparison of any two results: what the data support, numbers, facts, and completeness."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.results.simulated_runs import GPT, MACHINE, MATMUL, STUDY, Plan, write_session
from torchyard.core.comparison import Verdict
from torchyard.core.study import Environment, Target, Variant
from torchyard.errors import UsageError
from torchyard.results.compare.compare_sides import compare_sides
from torchyard.results.compare.model import CrossComparison, CrossRow
from torchyard.results.compare.sides import Rules, Side, choose_side
from torchyard.results.run_reader import Run, read_run

RULES = Rules()


def side(run: Run, variant: str | None = None) -> Side:
    return Side(text=run.id, runs=(run,), variant=variant)


def compare(one: Side, other: Side, **rules: Any) -> CrossComparison:
    return compare_sides(one, other, dataclasses.replace(RULES, **rules))


def row_of(found: CrossComparison, label: str = MATMUL.label, variant: str = "fast") -> CrossRow:
    return next(row for row in found.rows if (row.workload, row.other.variant) == (label, variant))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sessions")


@pytest.fixture(scope="module")
def main(runs: Path) -> Run:
    return write_session(runs / "main", Plan())


def test_two_candidates_of_one_run_are_paired_again(main: Run) -> None:
    comparison = compare(side(main, "slow"), side(main, "fast"))

    row = row_of(comparison)
    assert (row.support, row.basis, row.verdict) == ("interleaved", "pairs", Verdict.FASTER)
    assert row.ratio == pytest.approx(math.exp(0.15), rel=0.01)
    assert row.interval is not None
    assert row.interval.covers(math.exp(0.15))
    assert comparison.session_sd == 0.0
    assert [fact.name for fact in comparison.facts] == ["candidate"]


def test_pairing_again_gives_what_the_run_itself_found(main: Run) -> None:
    recorded = next(row for row in main.comparisons if row.candidate == "fast").estimate
    assert recorded is not None
    assert recorded.interval is not None

    row = row_of(compare(side(main, "eager"), side(main, "fast")))

    assert row.ratio == pytest.approx(recorded.speedup)
    assert row.interval is not None
    assert row.interval.low == pytest.approx(recorded.interval.low)
    assert row.interval.high == pytest.approx(recorded.interval.high)


def test_pairing_again_accounts_for_the_interim_analyses_of_the_run(tmp_path: Path) -> None:
    """A candidate leaves when it is decided, so what is left of it was chosen by looking."""
    budget = replace(STUDY.budget, precision_goal=0.02)
    looked = write_session(tmp_path / "looked", Plan(study=replace(STUDY, budget=budget)))
    single = write_session(tmp_path / "single", Plan())

    wide, narrow = (
        row_of(compare(side(run, "slow"), side(run, "fast"))).interval for run in (looked, single)
    )

    assert wide is not None
    assert narrow is not None
    assert math.log(wide.high / wide.low) > 1.02 * math.log(narrow.high / narrow.low)


def test_only_launches_that_both_are_in_are_paired(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write_session(folder, Plan())
    kept = [
        line
        for line in (folder / "samples.jsonl").read_text().splitlines(keepends=True)
        if '"variant": "slow"' not in line or '"launch": 7' not in line
    ]
    (folder / "samples.jsonl").write_text("".join(kept))
    run = read_run(folder)
    assert row_of(compare(side(run, "slow"), side(run, "fast"))).degrees == pytest.approx(
        6.0, rel=0.1
    )
    degrees = row_of(compare(side(run, "eager"), side(run, "fast"))).degrees
    assert degrees == pytest.approx(7.0, rel=0.1)


def test_swapping_the_runs_inverts_the_result(main: Run) -> None:
    for one, other in (("eager", "fast"), ("slow", "fast")):
        there = row_of(compare(side(main, one), side(main, other)), variant=other)
        back = row_of(compare(side(main, other), side(main, one)), variant=one)
        assert there.ratio is not None
        assert back.ratio == pytest.approx(1.0 / there.ratio)
        assert (there.verdict, back.verdict) == (Verdict.FASTER, Verdict.SLOWER)
        assert back.p_value == pytest.approx(there.p_value)


def test_two_runs_with_a_common_baseline_hold_against_drift(main: Run, runs: Path) -> None:
    again = write_session(runs / "again", Plan(seed=2, drift=0.3))

    comparison = compare(side(main), side(again))

    assert {row.support for row in comparison.rows} == {"common baseline"}
    assert {row.verdict for row in comparison.rows} <= {Verdict.SAME, Verdict.UNDECIDED}
    for row in comparison.rows:
        assert row.baseline_shift == pytest.approx(math.expm1(0.3), abs=0.02)
        assert row.interval is not None
        assert row.interval.covers(1.0)
    assert comparison.mean is not None
    assert comparison.mean.interval.covers(1.0)


def test_a_real_change_is_found_through_drift(main: Run, runs: Path) -> None:
    later = write_session(
        runs / "later", Plan(seed=3, drift=-0.2, effects={"fast": 0.12, "slow": 0.05})
    )

    comparison = compare(side(main), side(later))

    assert row_of(comparison).verdict is Verdict.SLOWER
    assert row_of(comparison).ratio == pytest.approx(math.exp(-0.08), rel=0.01)
    assert row_of(comparison, variant="slow").verdict is not Verdict.SLOWER


def test_the_session_spread_widens_the_interval(main: Run, runs: Path) -> None:
    other = write_session(runs / "spread", Plan(seed=4))
    narrow = row_of(compare(side(main), side(other), session_sd=0.0))
    wide = row_of(compare(side(main), side(other), session_sd=0.02))
    assert narrow.log_error is not None
    assert wide.log_error == pytest.approx(math.hypot(narrow.log_error, 0.02 * math.sqrt(2)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"machine": {**MACHINE, "cpu": "Other 7000"}}, "not comparable: machine differs (example"),
        ({"machine": {}}, "not comparable: machine differs (example"),
        (
            {"machine": {**MACHINE, "governor": "powersave"}},
            "not comparable: conditions differ in governor (performance vs powersave)",
        ),
        (
            {"study": replace(STUDY, settings=replace(STUDY.settings, threads=1))},
            "not comparable: conditions differ in setting threads (default vs 1)",
        ),
        (
            {"target": {"torch": "2.8.0"}},
            "not comparable: baseline differs in torch (2.9.0 vs 2.8.0)",
        ),
        (
            {
                "study": replace(
                    STUDY,
                    baseline=replace(
                        STUDY.baseline,
                        environment=Environment(name="default", variables=(("A", "1"),)),
                    ),
                )
            },
            'not comparable: baseline differs in variables (none vs {"A": "1"})',
        ),
        ({"busy": True}, "noisy machine: all pairs were disturbed (B)"),
        ({"launches": 1}, "one launch does not show the process-to-process variation (B)"),
    ],
)
def test_what_the_data_cannot_support_gets_no_verdict(
    main: Run, tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    other = write_session(tmp_path / "other", Plan(effects={"fast": 0.5}, **change))

    comparison = compare(side(main), side(other))

    for row in comparison.rows:
        verdict = Verdict.UNTRUSTED if "noisy" in reason else None
        assert (row.support, row.verdict, row.p_value) == ("not supported", verdict, None)
        assert row.ratio is not None
        assert (row.untrusted or row.reasons)[0].startswith(reason), row.reasons
    assert comparison.mean is None
    assert any(fact.blocks for fact in comparison.facts) is not ("(B)" in reason)


def test_an_unknown_machine_equals_no_other(tmp_path: Path) -> None:
    one = write_session(tmp_path / "one", Plan(machine={}))
    other = write_session(tmp_path / "other", Plan(machine={}, seed=2))
    row = row_of(compare(side(one), side(other)))
    assert (row.verdict, row.reasons[0]) == (None, "not comparable: machine differs (unknown)")


def test_facts_that_change_by_themselves_block_nothing(main: Run, tmp_path: Path) -> None:
    other = write_session(
        tmp_path / "other", Plan(seed=5, machine={**MACHINE, "load": "3.0", "memory": "15 GiB"})
    )
    comparison = compare(side(main), side(other))
    assert row_of(comparison).support == "common baseline"
    assert "load" in [fact.name for fact in comparison.facts]


def test_a_fact_that_only_one_version_records_blocks_nothing(main: Run, tmp_path: Path) -> None:
    other = write_session(tmp_path / "other", Plan(seed=5, machine={**MACHINE, "new fact": "x"}))
    comparison = compare(side(main), side(other))
    assert row_of(comparison).support == "common baseline"
    assert not any(fact.blocks for fact in comparison.facts)


def test_an_interrupted_run_is_an_unplanned_analysis(main: Run, tmp_path: Path) -> None:
    other = write_session(tmp_path / "other", Plan(seed=5))
    row = row_of(compare(side(main), side(replace(other, state="interrupted"))))
    assert row.support == "common baseline"
    assert row.reasons == ("interrupted by the user, which is an unplanned interim analysis (B)",)


def test_the_baseline_of_two_runs_is_not_interleaved(main: Run, tmp_path: Path) -> None:
    other = write_session(tmp_path / "other", Plan(drift=0.1))
    comparison = compare(side(main, "eager"), side(other, "eager"))
    assert {row.verdict for row in comparison.rows} == {None}
    assert comparison.rows[0].reasons == ("not interleaved: eager is the baseline of its run",)
    assert comparison.rows[0].ratio == pytest.approx(math.exp(-0.1), rel=0.01)


def test_what_fails_or_is_wrong_or_absent_is_listed(main: Run, tmp_path: Path) -> None:
    other = write_session(
        tmp_path / "other",
        Plan(
            study=replace(STUDY, candidates=STUDY.candidates[:1]),
            failed=(("gpt", "fast"),),
            wrong=(("matmul", "fast"),),
        ),
    )

    comparison = compare(side(main), side(other))

    assert comparison.rows == ()
    states = {
        (item.workload, item.variants): (item.one, item.other) for item in comparison.unpaired
    }
    assert states == {
        (MATMUL.label, ("fast", "fast")): ("measured", "wrong"),
        (GPT.label, ("fast", "fast")): ("measured", "failed"),
        (MATMUL.label, ("slow", "")): ("measured", "absent"),
        (GPT.label, ("slow", "")): ("measured", "absent"),
    }
    whys = " ".join(item.why for item in comparison.unpaired)
    assert "crashed (signal 11)" in whys
    assert "output 0 is off by 3" in whys


def test_a_failed_candidate_of_the_same_run_is_listed(tmp_path: Path) -> None:
    run = write_session(tmp_path / "run", Plan(failed=(("gpt", "slow"),)))
    comparison = compare(side(run, "slow"), side(run, "fast"))
    assert [row.workload for row in comparison.rows] == [MATMUL.label]
    assert [(item.workload, item.one) for item in comparison.unpaired] == [(GPT.label, "failed")]


def test_untrusted_pairs_of_one_run_get_no_verdict(tmp_path: Path) -> None:
    run = write_session(tmp_path / "run", Plan(busy=True))
    for one in ("slow", "eager"):
        row = row_of(compare(side(run, one), side(run, "fast")))
        assert (row.support, row.verdict) == ("not supported", Verdict.UNTRUSTED)
        assert row.untrusted[0].startswith("noisy machine")
        assert row.interval is not None


def test_false_discoveries_are_held_down_over_the_rows(main: Run, tmp_path: Path) -> None:
    other = write_session(tmp_path / "other", Plan(seed=9, launch_sd=0.02))
    comparison = compare(side(main), side(other))
    adjusted = [row.p_adjusted for row in comparison.rows]
    raw = [row.p_value for row in comparison.rows]
    assert all(
        a is not None and p is not None and a >= p for a, p in zip(adjusted, raw, strict=True)
    )


def test_several_sessions_show_the_variation_between_sessions(main: Run, tmp_path: Path) -> None:
    jumps = (0.15, 0.2, 0.25)
    sessions = tuple(
        write_session(tmp_path / f"s{n}", Plan(seed=20 + n, effects={"fast": jump}))
        for n, jump in enumerate(jumps)
    )
    now = write_session(tmp_path / "now", Plan(seed=30, effects={"fast": 0.14}))
    many = Side(text="baseline:main", runs=sessions)

    row = row_of(compare(many, side(now)))

    assert row.one.sessions == 3
    assert row.verdict is Verdict.UNDECIDED, (
        "sessions of the baseline differ by 5 %, so 6 % is no news"
    )
    assert row_of(compare(side(sessions[1]), side(now))).verdict is Verdict.SLOWER


def test_an_incomparable_session_is_left_out_with_a_note(main: Run, tmp_path: Path) -> None:
    busy = write_session(tmp_path / "busy", Plan(busy=True, effects={"fast": 0.9}))
    now = write_session(tmp_path / "now", Plan(seed=31))
    row = row_of(compare(Side(text="baseline:x", runs=(main, busy)), side(now)))
    assert (row.support, row.one.sessions) == ("common baseline", 1)
    assert row.reasons == ("excluded as untrusted: noisy machine: all pairs were disturbed (A)",)


def test_one_candidate_each_is_compared_whatever_its_name(main: Run, tmp_path: Path) -> None:
    renamed = replace(STUDY.candidates[0], name="faster-still")
    other = write_session(
        tmp_path / "other",
        Plan(study=replace(STUDY, candidates=(renamed,)), effects={"faster-still": 0.3}),
    )
    comparison = compare(side(main, "fast"), side(other))
    assert (comparison.rows[0].one.variant, comparison.rows[0].other.variant) == (
        "fast",
        "faster-still",
    )
    assert comparison.rows[0].verdict is Verdict.FASTER
    with pytest.raises(UsageError, match="no variant in common"):
        compare(side(main), side(other))


def test_a_run_is_not_compared_with_itself(main: Run) -> None:
    with pytest.raises(UsageError) as raised:
        compare(side(main), side(main))
    assert raised.value.hint == "give two of its variants as RUN#VARIANT: eager, fast, slow"


def test_facts_of_several_candidates_are_distinguished(main: Run, tmp_path: Path) -> None:
    tuned = replace(
        STUDY.candidates[0], environment=Environment(name="default", variables=(("A", "1"),))
    )
    other = write_session(
        tmp_path / "other", Plan(study=replace(STUDY, candidates=(tuned, STUDY.candidates[1])))
    )
    facts = {fact.name: (fact.one, fact.other) for fact in compare(side(main), side(other)).facts}
    assert facts["fast variables"] == ("none", '{"A": "1"}')
    assert not any(name.startswith("slow") for name in facts)


def test_sides_are_chosen_by_text(main: Run) -> None:
    def find(text: str) -> Path:
        assert text == "main"
        return main.folder

    one = choose_side("main#fast", find=find)
    other = choose_side("#slow", find=find, beside=one)
    assert (one.variant, other.variant, other.newest.id) == ("fast", "slow", "main")
    assert choose_side(str(main.folder), find=lambda _: main.folder).variant is None
    for text in ("#fast", "main#", "main#fost"):
        with pytest.raises(UsageError):
            choose_side(text, find=find)


def test_another_torch_of_the_candidate_is_what_is_compared(main: Run, tmp_path: Path) -> None:
    there = Target(name="new", python="/opt/new/bin/python")
    study = replace(STUDY, candidates=(Variant(name="fast", target=there, backend="inductor"),))
    folder = tmp_path / "other"
    other = write_session(folder, Plan(study=study, seed=6, effects={"fast": 0.4}))
    text = (folder / "run.json").read_text()
    (folder / "run.json").write_text(
        text.replace('"targets": {', '"targets": {"new+default": {"torch": "2.10.0"}, ')
    )
    other = read_run(folder)
    comparison = compare(side(main), side(other))
    assert row_of(comparison).verdict is Verdict.FASTER
    facts = {fact.name: (fact.one, fact.other) for fact in comparison.facts}
    assert facts["candidate torch"] == ("2.9.0", "2.10.0")
    assert not any(fact.blocks for fact in comparison.facts)

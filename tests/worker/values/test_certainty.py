"""When a finding is proven: every missing or failed test lowers the certainty."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import pytest

from torchyard.values import model
from torchyard.values.model import Certainty, Proof, ProofTest
from torchyard.worker.values.proofs import certainty
from torchyard.worker.values.proofs.certainty import (
    INPUT_DEPENDENT,
    LIKELY,
    NATIVE_OPERATOR,
    NATIVE_PROGRAM,
    POISON,
    PROVEN,
    REFUSED,
    REPLACE,
    SAME_AGAIN,
    SEMANTICS,
    SKIP,
    TESTED,
    UNREAD,
    VALUES_VARIED,
    certainty_of,
    make_test,
)

OWN, RANDOM, EXTREME = "the program's own", "random", "extreme"


def poisons(*inputs: str, names: tuple[str, ...] = ("NaN", "huge")) -> list[dict[str, Any]]:
    return [make_test(POISON, True, inputs=i, poison=p) for i in inputs for p in names]


def rest(*left_out: str) -> list[dict[str, Any]]:
    every = (SAME_AGAIN, NATIVE_OPERATOR, NATIVE_PROGRAM)
    return [make_test(name, True) for name in every if name not in left_out]


def test_poisons_inputs_and_both_native_runs_are_trials_and_no_proof() -> None:
    said, why = certainty_of([*poisons(OWN, RANDOM), *rest()], inside=True)
    assert said == TESTED
    assert "NaN" in why
    assert "4 trials on 2 inputs" in why


def test_skipping_needs_no_poison() -> None:
    skips = [make_test(SKIP, True, inputs=i) for i in (OWN, RANDOM)]
    assert certainty_of([*skips, *rest()], inside=True)[0] == TESTED


@pytest.mark.parametrize("missing", [SAME_AGAIN, NATIVE_OPERATOR, NATIVE_PROGRAM])
def test_each_of_the_other_tests_is_needed(missing: str) -> None:
    said, why = certainty_of([*poisons(OWN, RANDOM), *rest(missing)], inside=True)
    assert said == LIKELY
    assert why


@pytest.mark.parametrize("failed", [SAME_AGAIN, NATIVE_OPERATOR, NATIVE_PROGRAM, UNREAD])
def test_a_failed_test_invalidates_the_proof_with_a_reason(failed: str) -> None:
    tests = [*poisons(OWN, RANDOM), *rest(failed), make_test(failed, False, detail="because")]
    assert certainty_of(tests, inside=True) == (LIKELY, "because")


def test_a_program_level_finding_needs_no_run_of_the_operator_alone() -> None:
    assert certainty_of([*poisons(OWN, RANDOM), *rest(NATIVE_OPERATOR)], inside=False)[0] == TESTED


def test_one_poison_is_not_enough() -> None:
    tests = [*poisons(OWN, RANDOM, names=("NaN",)), *rest()]
    assert certainty_of(tests, inside=True)[0] == LIKELY


def test_one_poison_on_the_second_input_is_not_enough() -> None:
    tests = [*poisons(OWN), *poisons(RANDOM, names=("NaN",)), *rest()]
    assert certainty_of(tests, inside=True)[0] == LIKELY


def test_one_input_is_not_enough_and_what_was_refused_is_the_reason() -> None:
    refused = make_test(REFUSED, False, inputs=RANDOM, detail="it takes no negative numbers")
    said, why = certainty_of([*poisons(OWN), refused, *rest()], inside=True)
    assert (said, why) == (LIKELY, "it takes no negative numbers")


def test_a_refusal_does_no_harm_when_others_are_enough() -> None:
    refused = make_test(REFUSED, False, inputs=RANDOM, detail="no")
    assert certainty_of([*poisons(OWN, EXTREME), refused, *rest()], inside=True)[0] == TESTED


def test_another_input_that_needs_it_makes_it_depend_on_the_input() -> None:
    bad = make_test(POISON, False, inputs=RANDOM, poison="NaN")
    said, why = certainty_of([*poisons(OWN, EXTREME), bad, *rest()], inside=True)
    assert said == INPUT_DEPENDENT
    assert RANDOM in why


def test_integers_that_stayed_leave_a_doubt() -> None:
    kept = make_test(VALUES_VARIED, False, detail="integers stayed")
    tests = [*poisons(OWN, RANDOM), kept, *rest()]
    assert certainty_of(tests, inside=True) == (LIKELY, "integers stayed")


def test_nothing_tested_is_never_more_than_likely() -> None:
    assert certainty_of([], inside=False)[0] == LIKELY
    assert certainty_of(rest(), inside=True)[0] == LIKELY


def test_limits_of_a_proof_are_stated() -> None:
    tests = [
        make_test(REPLACE, True, inputs=OWN),
        make_test(REPLACE, True, inputs=RANDOM, detail="but for the sign of zero"),
        *rest(NATIVE_OPERATOR),
    ]
    said, why = certainty_of(tests, inside=False)
    assert said == TESTED
    assert "but for the sign of zero" in why


KNOWN = make_test(SEMANTICS, True, detail="3 of 3 calls: the copy writes all of it")


def test_semantics_and_the_run_without_profiling_make_a_proof() -> None:
    said, why = certainty_of([KNOWN, *rest(SAME_AGAIN)], inside=True)
    assert said == PROVEN
    assert "every input of these shapes" in why
    assert "the copy writes all of it" in why
    assert certainty_of([KNOWN, make_test(NATIVE_PROGRAM, True)], inside=False)[0] == PROVEN


@pytest.mark.parametrize("missing", [NATIVE_OPERATOR, NATIVE_PROGRAM])
def test_semantics_alone_are_no_proof(missing: str) -> None:
    assert certainty_of([KNOWN, *rest(missing)], inside=True)[0] == LIKELY


def test_some_of_the_calls_are_no_proof_and_are_reported() -> None:
    some = make_test(SEMANTICS, False, detail="6 of 15 calls: the copy writes all of it")
    said, why = certainty_of([*poisons(OWN, RANDOM), some, *rest()], inside=True)
    assert said == TESTED
    assert "6 of 15 calls" in why
    said, why = certainty_of([some, *rest()], inside=True)
    assert said == LIKELY
    assert "6 of 15 calls" in why


def test_a_trial_that_fails_refutes_semantics() -> None:
    bad = make_test(POISON, False, inputs=RANDOM, poison="NaN")
    assert certainty_of([KNOWN, bad, *rest()], inside=True)[0] == INPUT_DEPENDENT


def test_unobserved_reads_invalidate_the_proof() -> None:
    doubt = make_test(UNREAD, False, detail="an extension")
    assert certainty_of([KNOWN, doubt, *rest()], inside=True)[0] == LIKELY


def test_a_needed_write_is_stated_as_an_observation() -> None:
    bad = make_test(SKIP, False, inputs=RANDOM)
    why = certainty_of([bad], inside=False)[1]
    assert why.startswith("a result changed without this work")
    assert RANDOM in why


def test_no_set_of_tests_with_a_failure_is_proven_or_tested() -> None:
    good = [*poisons(OWN, RANDOM), *rest()]
    for left_out in range(len(good)):
        for failed in range(len(good)):
            tests = [
                dict(test, passed=number != failed)
                for number, test in enumerate(good)
                if number != left_out
            ]
            if failed != left_out:
                assert certainty_of(tests, inside=True)[0] not in (PROVEN, TESTED)


def test_the_order_of_tests_does_not_change_the_certainty() -> None:
    tests = [*poisons(OWN, RANDOM)[1:], *rest()]
    words = {certainty_of(list(order), inside=True)[0] for order in itertools.permutations(tests)}
    assert words == {LIKELY}


def test_terms_and_records_are_those_of_the_controller() -> None:
    assert {PROVEN, TESTED, LIKELY, INPUT_DEPENDENT} == {item.value for item in Certainty}
    assert model.SEMANTICS == SEMANTICS
    assert set(make_test(POISON, True)) == set(ProofTest.__dataclass_fields__)


def test_a_proof_of_an_earlier_version_is_what_it_was() -> None:
    old = Proof(certainty=Certainty.PROVEN, tests=(ProofTest(test=POISON, passed=True),))
    assert old.by_current_rules().certainty is Certainty.TESTED
    new = Proof(certainty=Certainty.PROVEN, tests=(ProofTest(test=SEMANTICS, passed=True),))
    assert new.by_current_rules() == new


def test_certainty_needs_no_torch() -> None:
    names = {name for name in vars(certainty) if not name.startswith("_")}
    assert "torch" not in names
    assert certainty.__name__ in sys.modules

"""The accuracy corpus: wrong candidates fail, and correct ones do not."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.worker.accuracy_corpus.accuracy_cases import Case, check_case
from tests.worker.accuracy_corpus.correct_candidates import CORRECT
from tests.worker.accuracy_corpus.wrong_candidates import WRONG

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


def _parameters(cases: list[Case]) -> list[object]:
    """One case of each candidate is in the fast lane; its other models and precisions are slow."""
    candidates: set[str] = set()
    parameters: list[object] = []
    for case in cases:
        slow = case.slow or case.candidate in candidates
        candidates |= set() if slow else {case.candidate}
        parameters.append(
            pytest.param(case, id=case.name, marks=[pytest.mark.slow] if slow else [])
        )
    return parameters


@pytest.mark.parametrize("case", _parameters(WRONG.cases))
def test_wrong_results_fail(case: Case) -> None:
    record = check_case(case)
    assert record["status"] in case.expected, record


@pytest.mark.parametrize("case", _parameters(CORRECT.cases))
def test_correct_results_do_not_fail(case: Case) -> None:
    record = check_case(case)
    assert record["status"] in case.expected, record


def test_corpus_has_the_documented_size() -> None:
    names = [case.name for case in WRONG.cases + CORRECT.cases]
    assert len(set(names)) == len(names)
    assert len({case.candidate for case in WRONG.cases}) >= 40
    assert len(WRONG.cases) >= 100
    assert len(CORRECT.cases) >= 100

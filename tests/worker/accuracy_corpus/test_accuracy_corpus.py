"""The accuracy corpus: wrong candidates fail, and correct ones do not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from tests.worker.accuracy_corpus.accuracy_cases import Case, check_case  # noqa: E402
from tests.worker.accuracy_corpus.correct_candidates import CORRECT  # noqa: E402
from tests.worker.accuracy_corpus.wrong_candidates import WRONG  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _parameters(cases: list[Case]) -> list[object]:
    return [
        pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.slow else [])
        for case in cases
    ]


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

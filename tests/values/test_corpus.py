"""All planted waste is found at its line; clean programs have no findings."""

from __future__ import annotations

from collections import Counter

import pytest

torch = pytest.importorskip("torch")

from tests.values.corpus import CLEAN, PLANTED, Program  # noqa: E402
from tests.values.corpus.known_waste import TRUE_INSIDE  # noqa: E402
from tests.values.corpus.profiling import Outcome, watch  # noqa: E402
from torchyard.values.pattern_texts import pattern_names  # noqa: E402
from torchyard.worker.values.findings import Finding  # noqa: E402
from torchyard.worker.values.surveys.follower import FollowLibrary  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    # Torch says so on CPUs without bfloat16, and goes on.
    pytest.mark.filterwarnings("ignore:mkldnn_matmul failed"),
]


def _described(found: tuple[Finding, ...]) -> list[str]:
    return [f"{one.pattern}: {one.operator} in line {one.place.line}" for one in found]


@pytest.fixture(autouse=True, scope="module")
def _followed() -> None:
    """Programs are watched as on a machine where the follower was compiled before."""
    assert FollowLibrary(high_priority=True).wait(600)


@pytest.fixture(autouse=True)
def _one_thread() -> object:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_the_corpus_is_large_enough() -> None:
    assert len(PLANTED) >= 40
    assert len(CLEAN) >= 25
    assert len({program.name for program in (*PLANTED, *CLEAN)}) == len(PLANTED) + len(CLEAN)
    assert all(program.wastes for program in PLANTED)
    assert not any(program.wastes for program in CLEAN)
    counts = Counter(waste.pattern for program in PLANTED for waste in program.wastes)
    assert set(counts) == set(pattern_names())
    assert min(counts.values()) >= 2, counts


@pytest.mark.parametrize("program", PLANTED, ids=lambda one: one.name)
def test_planted_waste_is_found(program: Program) -> None:
    outcome = watch(program)
    missed = [waste for waste in outcome.missed if not waste.deep]
    assert not missed, _described(outcome.findings)


@pytest.mark.parametrize("program", CLEAN, ids=lambda one: one.name)
def test_clean_programs_are_left_alone(program: Program) -> None:
    assert _described(watch(program).findings) == []


@pytest.mark.slow
@pytest.mark.parametrize("program", PLANTED, ids=lambda one: one.name)
def test_planted_waste_is_found_with_deep_profiling(program: Program) -> None:
    outcome = watch(program, deep=True)
    assert not outcome.missed, _described(outcome.findings)


@pytest.mark.slow
@pytest.mark.parametrize("program", CLEAN, ids=lambda one: one.name)
def test_deep_profiling_adds_only_true_findings(program: Program) -> None:
    found = watch(program, deep=True).findings
    false = tuple(
        one for one in found if (one.pattern, one.path[0] if one.path else "") not in TRUE_INSIDE
    )
    assert _described(false) == []


def test_missed_and_false_findings_are_reported() -> None:
    def zeroed() -> None:
        memory = torch.zeros(4096)
        memory.sum()
        memory.zero_()

    wanted = next(one for one in PLANTED if one.name == "scaled_in_place_by_one")
    outcome = watch(Program(name="other", file=__file__, run=zeroed, wastes=wanted.wastes))
    assert isinstance(outcome, Outcome)
    assert outcome.missed == wanted.wastes
    assert [one.operator for one in outcome.others] == ["aten::zero_"]


def test_expectations_stand_above_their_line() -> None:
    program = next(one for one in PLANTED if one.name == "transformer_of_torch")
    assert [waste.operator for waste in program.wastes] == ["aten::where"]
    deep = next(one for one in PLANTED if one.name == "segmentation_gradient_filled_twice")
    assert [waste.deep for waste in deep.wastes] == [True]

"""Operators that raise while they are followed: the program gets its own exception and continues."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.worker.values.followed_programs import Step, checkpointed, found, profile, transformer  # noqa: E402
from torchyard.worker.values.surveys.follower import FollowLibrary  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    """Where sessions look for it."""
    assert FollowLibrary(high_priority=True).wait(600)


def test_an_operator_that_raises_is_not_the_end() -> None:
    def make() -> Step:
        inner = transformer()

        def step(number: int) -> None:
            if number == 9:
                with pytest.raises(RuntimeError):
                    torch.mm(torch.ones(64, 3), torch.ones(2, 64))
            inner(number)

        return step

    session = profile(make, follow=True)
    assert found(session)
    assert not session.notes


def test_the_program_gets_its_own_exception() -> None:
    """From Python that an operator calls: the error is set while the operator is left."""

    class Own(Exception):
        pass

    def refuse(_tensor: Any) -> Any:
        raise Own("not this one")

    caught: list[str] = []

    def make() -> Step:
        inner = transformer()
        weight = torch.ones(64, requires_grad=True)

        def step(number: int) -> None:
            with torch.autograd.graph.saved_tensors_hooks(refuse, refuse):
                try:
                    weight.exp() if number == 6 else weight.sin()
                except Own as error:
                    caught.append(str(error))
            inner(number)

        return step

    session = profile(make, follow=True)
    assert caught == ["not this one"] * 14
    assert found(session)


def test_the_same_is_found_where_operators_are_left_by_exceptions() -> None:
    python, compiled = (profile(checkpointed, follow=follow) for follow in (False, True))
    assert found(compiled) == found(python)
    counts, expected = (one.mode.counts.as_dict() for one in (compiled, python))
    # The mode does not see an operator that raises before it gets there.
    assert counts.pop("operators") > expected.pop("operators")
    assert counts == expected

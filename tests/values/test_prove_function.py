"""`v.prove(function)`: proofs for the context manager, in the same process."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from torchyard.errors import UsageError
from torchyard.values.context_manager import ValueProfiler
from torchyard.values.model import Certainty, ValueFinding, ValueProfile

pytestmark = pytest.mark.torch


def training() -> Callable[[], None]:
    import torch

    torch.manual_seed(1)
    model = torch.nn.Linear(128, 128)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        torch.nn.functional.mse_loss(model(torch.randn(64, 128)), torch.randn(64, 128)).backward()
        optimizer.step()

    return step


def watched(step: Callable[[], object], *, times: int = 4, **options: Any) -> ValueProfiler:
    values = ValueProfiler(**options)
    with values:
        for _ in range(times):
            step()
    return values


def dead(profile: ValueProfile, operator: str = "") -> ValueFinding:
    (found,) = [
        one
        for one in profile.findings
        if one.pattern == "dead initialisation" and operator in "".join((*one.path, one.operator))
    ]
    return found


@pytest.mark.fresh_process
def test_without_prove_findings_are_at_most_likely() -> None:
    values = watched(training())
    found = dead(values.profile)
    assert found.proof.certainty is Certainty.LIKELY
    assert found.proof.why == "no run of the program without the profiler has confirmed it"


@pytest.mark.fresh_process
def test_prove_confirms_and_times_findings() -> None:
    step = training()
    values = watched(step)
    profile = values.prove(step)
    assert profile is values.profile
    found = dead(profile)
    assert found.proof.certainty is Certainty.TESTED
    assert [test.passed for test in found.proof.tests if test.test == "native program"] == [True]
    assert profile.step_ns is not None
    assert 1e4 < profile.step_ns < 1e10
    if found.worth.unavailable:
        assert found.worth.unavailable.startswith("noisy machine")
    else:
        assert found.worth.per_step_ns is not None
        assert 0 < found.worth.per_step_ns < profile.step_ns
    assert not any("prove" in note for note in profile.notes)


def test_inside_of_operators() -> None:
    step = training()
    values = watched(step, deep=True)
    found = dead(values.prove(step, price=False), "mse_loss_backward")
    assert found.path[0] == "aten::mse_loss_backward"
    assert found.proof.certainty is Certainty.PROVEN
    assert found.worth.per_step_ns is None


@pytest.mark.fresh_process
def test_other_work_proves_nothing() -> None:
    import torch

    values = watched(training())
    profile = values.prove(lambda: torch.ones(10).zero_())
    found = dead(profile)
    assert found.proof.certainty is Certainty.LIKELY
    assert "the function passed to prove() does not run" in found.proof.why
    assert any("passed to prove()" in note for note in profile.notes)


@pytest.mark.fresh_process
def test_operators_missing_from_the_function_are_noted() -> None:
    import torch

    step = training()
    values = ValueProfiler()
    with values:
        torch.randn(5000).cos()
        for _ in range(4):
            step()
    profile = values.prove(step, timed_runs=0)
    assert dead(profile).proof.certainty is Certainty.TESTED
    assert any("does not run 1 of the" in note and "aten::cos" in note for note in profile.notes)


def test_code_without_steps_counts_as_one() -> None:
    import torch

    def work() -> None:
        memory = torch.zeros(100_000)
        memory.zero_()
        for _ in range(3):
            memory.sum()

    values = watched(work, times=1)
    assert values.profile.steps == 1
    profile = values.prove(work)
    (found,) = profile.findings
    assert (found.pattern, found.proof.certainty) == ("redundant write", Certainty.PROVEN)
    if found.worth.unavailable:
        assert found.worth.unavailable.startswith("noisy machine")
    else:
        assert found.worth.share_of_step is not None
        assert 0 < found.worth.share_of_step <= 1


def test_how_often_the_function_is_called() -> None:
    calls: list[int] = []
    step = training()

    def counted() -> None:
        calls.append(1)
        step()

    values = watched(step)
    values.prove(counted, timed_runs=3, price=False)
    assert len(calls) == 4


def test_a_function_that_fails_is_the_users_and_leaves_nothing_behind() -> None:
    import torch
    from torch.autograd import profiler

    before = (signal.getsignal(signal.SIGVTALRM), profiler.profile._prepare_trace)
    values = watched(training())
    found = values.profile

    def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        values.prove(fails)
    assert values.profile is found
    assert (signal.getsignal(signal.SIGVTALRM), profiler.profile._prepare_trace) == before
    assert not torch.autograd._profiler_enabled()


def test_profiles_that_cannot_be_proven_are_rejected() -> None:
    step = training()
    with pytest.raises(UsageError, match="no trials ran"):
        watched(step, prove=False).prove(step)
    with pytest.raises(UsageError, match="flow graph"):
        watched(step, graph=False).prove(step)
    with pytest.raises(UsageError, match="not finished"):
        ValueProfiler().prove(step)
    values = watched(step)
    values._profile = replace(values.profile, state="crashed")
    with pytest.raises(UsageError, match="did not finish"):
        values.prove(step)

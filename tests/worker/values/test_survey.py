"""Surveyed steps give the same counts as fully profiled ones."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from torchyard.worker.values.exchange import Options
from torchyard.worker.values.profiling_session import ProfilingSession
from torchyard.worker.values.scanning.cpu_scan import LAYOUTS, TorchScanner, open_scanner
from torchyard.worker.values.scanning.scanners import Scanners
from torchyard.worker.values.surveys.survey import (
    EARLIER,
    EQUAL,
    FREQUENT,
    NARROW,
    REPEATED,
    SINGLE,
    Survey,
)
from torchyard.worker.values.surveys.survey_calls import align

pytestmark = pytest.mark.torch

Forward = Callable[[int, torch.nn.Module], torch.Tensor]
Counted = dict[tuple[str, str, int], int]


def _session(
    forward: Forward, close_steps: int, steps: int = 10, every: int = 1
) -> ProfilingSession:
    torch.manual_seed(5)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    session = ProfilingSession(Options(close_steps=close_steps, every=every, prove=False))
    session.start()
    try:
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            forward(step, model).square().mean().backward()
            optimizer.step()
    finally:
        session.stop()
    return session


def _counted(session: ProfilingSession) -> Counted:
    return {
        (one.pattern, one.operator, one.place.line): one.count for one in session.findings.all()
    }


def _regular(_step: int, model: torch.nn.Module) -> torch.Tensor:
    given = torch.randn(128, 64)
    return model(given) * 1.0 + torch.zeros(128, 64)


def _other_sizes(step: int, model: torch.nn.Module) -> torch.Tensor:
    given = torch.randn(256 if step % 4 == 0 else 128, 64)
    return model(given) * 1.0


def _other_order(step: int, model: torch.nn.Module) -> torch.Tensor:
    given = torch.randn(128, 64)
    if step % 3 == 0:
        given = given.sigmoid()
    return model(given) * 1.0


def _longer(step: int, model: torch.nn.Module) -> torch.Tensor:
    result = model(torch.randn(128, 64)) * 1.0
    for _ in range(step // 4):
        result = result.tanh()
    return result


@pytest.mark.parametrize("forward", [_regular, _other_sizes, _other_order, _longer])
def test_surveyed_steps_count_what_fully_profiled_ones_count(forward: Forward) -> None:
    closely, surveyed = _session(forward, 0), _session(forward, 3)
    assert _counted(closely)
    assert _counted(surveyed) == _counted(closely)
    assert closely.mode.counts.steps_surveyed == 0
    assert surveyed.mode.counts.steps_surveyed >= 4
    for name in ("operators", "written_bytes", "small_bytes", "not_seen_bytes"):
        assert getattr(surveyed.mode.counts, name) == getattr(closely.mode.counts, name), name


def test_steps_that_are_left_out_are_not_surveyed_either() -> None:
    closely = _session(_regular, 0, steps=12, every=2)
    surveyed = _session(_regular, 2, steps=12, every=2)
    assert _counted(surveyed) == _counted(closely)
    assert surveyed.mode.counts.steps_left_out == closely.mode.counts.steps_left_out
    assert 0 < surveyed.mode.counts.steps_surveyed < 6
    assert surveyed.mode.counts.written_bytes < closely.mode.counts.written_bytes * 1.01


def _later(step: int, model: torch.nn.Module) -> torch.Tensor:
    result = model(torch.randn(128, 64))
    return result * (0.0 if step >= 8 else 1.5)


def test_waste_that_begins_late_is_fully_profiled() -> None:
    session = _session(_later, 3, steps=30)
    assert ("single zero", "aten::mul") in {key[:2] for key in _counted(session)}
    assert session.mode.counts.steps_surveyed > 10


def _stops(step: int, model: torch.nn.Module) -> torch.Tensor:
    given = model(torch.randn(128, 64))
    bias = torch.arange(64.0).sin() * (1.0 if step <= 6 else step)
    return given + bias.expand(128, 64).exp()


def test_what_changes_in_a_surveyed_step_is_not_unchanged() -> None:
    assert "unchanged across steps" in {key[0] for key in _counted(_session(_stops, 3, steps=5))}
    assert "unchanged across steps" not in {
        key[0] for key in _counted(_session(_stops, 3, steps=12))
    }


def _survey() -> Survey:
    return Survey(Scanners(open_scanner() or TorchScanner()), 1 << 20)


def _step(survey: Survey, *tensors: torch.Tensor) -> list[int]:
    for place, tensor in enumerate(tensors):
        survey.add(tensor, (place, 0), LAYOUTS[tensor.dtype])
    (surveyed,) = survey.end_step(1, regular=True, closely=False)
    return surveyed.shows


def test_what_rows_show() -> None:
    survey = _survey()
    drawn = torch.randn(1000)
    zeros = torch.zeros(1000)
    zeros[3] = 0.123
    rows = (
        drawn,
        drawn.clone(),
        torch.full((1000,), 0.1),
        zeros,
        torch.randn(1000).bfloat16().float(),
        torch.arange(1000),
        torch.randn(1000),
    )
    assert _step(survey, *rows) == [EQUAL, EQUAL, SINGLE | FREQUENT, FREQUENT, NARROW, NARROW, 0]
    again = [show | REPEATED | EARLIER for show in (EQUAL, EQUAL, SINGLE | FREQUENT, FREQUENT)]
    assert _step(survey, *rows[:4], torch.randn(1000)) == [*again, 0]


def test_only_what_was_never_seen_is_new() -> None:
    survey = _survey()
    ones = torch.ones(100)

    def new(tensor: torch.Tensor) -> bool:
        survey.add(tensor, (0, 0), LAYOUTS[tensor.dtype])
        (surveyed,) = survey.end_step(1, regular=True, closely=False)
        return surveyed.new

    assert not new(torch.randn(100))
    assert new(ones)
    assert new(ones)  # repeated, too
    assert not new(ones)
    assert not new(torch.randn(100))


def test_an_empty_step_shows_nothing() -> None:
    assert _step(_survey()) == []


A, B, C, D, E, F = (object() for _ in range(6))


def test_the_same() -> None:
    assert align([A, B, C], [A, B, C]) == [0, 1, 2]


def test_one_instead_of_another() -> None:
    assert align([A, B, F, D, E], [A, B, C, D, E]) == [0, 1, 2, 3, 4]


def test_more_and_fewer() -> None:
    assert align([A, F, B, C, D, E], [A, B, C, D, E]) == [0, None, 1, 2, 3, 4]
    assert align([A, C, D, E], [A, B, C, D, E]) == [0, 2, 3, 4]


def test_the_end() -> None:
    assert align([A, B, C, F], [A, B, C]) == [0, 1, 2, None]
    assert align([A, B], [A, B, C, D]) == [0, 1]
    assert align([], [A]) == []
    assert align([A, B], []) == [None, None]


def test_another_program() -> None:
    assert align([D, E, F], [A, B, C]) in ([None] * 3, [0, 1, 2])


def test_a_long_step_with_differences_here_and_there() -> None:
    chance = random.Random(7)
    names = [object() for _ in range(12)]
    before = [chance.choice(names) for _ in range(2000)]
    now: list[object] = []
    expected: list[int | None] = []
    new = object()
    for number, one in enumerate(before):
        if number % 97 == 50:
            now.append(new)
            expected.append(None)
        now.append(new if number % 131 == 60 else one)
        expected.append(number)
    found = align(now, before)
    wrong = sum(one != other for one, other in zip(found, expected, strict=True))
    assert len(found) == len(now)
    assert wrong < 20

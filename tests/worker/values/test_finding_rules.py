"""From observations to findings: one finding per cause, in most calls, after the first step, bounded."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.worker.values.pattern_profiles import names, only, profile_patterns, profile_steps  # noqa: E402
from torchyard.worker.values import findings as findings_module  # noqa: E402
from torchyard.worker.values.exchange import Options  # noqa: E402
from torchyard.worker.values.observation import Storages  # noqa: E402
from torchyard.worker.values.patterns import StorageNotes, plain  # noqa: E402
from torchyard.worker.values.profiling_session import SLOW_SCANNER, ProfilingSession  # noqa: E402
from torchyard.worker.values.scanning.cpu_scan import TorchScanner  # noqa: E402

pytestmark = pytest.mark.torch


def test_one_line_in_twenty_layers_is_one_finding() -> None:
    class Layer(nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return (x - x) + torch.randn(64, 64)

    model = nn.Sequential(*(Layer() for _ in range(20)))
    found = only(profile_patterns(lambda: model(torch.randn(64, 64))), "single zero")
    assert found.count == 20
    assert len(found.modules) == 8  # named at most
    assert found.modules["3"] == 1


def test_two_lines_are_two_findings() -> None:
    def program() -> None:
        numbers = torch.randn(64, 64)
        numbers - numbers
        numbers - numbers

    assert names(profile_patterns(program)) == [("single zero", "sub")] * 2


def test_backward_is_another_cause_than_forward() -> None:
    def program() -> None:
        numbers = torch.rand(64, 64, requires_grad=True)
        (numbers * 0 + torch.randn(64, 64)).exp().sum().backward()

    found = [one for one in profile_patterns(program) if one.pattern == "single zero"]
    assert [one.place.backward for one in found] == [False, True]
    assert len({one.place.line for one in found}) == 1


@pytest.mark.parametrize(("share", "wanted"), [(0.2, False), (0.5, True), (1.0, True)])
def test_a_finding_must_hold_in_most_calls(share: float, wanted: bool) -> None:
    def program() -> None:
        for time in range(20):
            torch.rand(64, 64) * (0.0 if time < share * 20 else 1.5)

    assert bool(profile_patterns(program)) == wanted


def test_the_first_step_is_excluded_from_three_steps_on() -> None:
    state = {"weight": 0.0}

    def step() -> None:
        torch.rand(64, 64) * state["weight"]
        state["weight"] += 0.4

    assert profile_steps(step, steps=1) != []
    state["weight"] = 0.0
    assert profile_steps(step, steps=3) == []


def test_the_number_of_causes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings_module, "_MOST_FINDINGS", 3)
    session = ProfilingSession(Options(prove=False))
    session.start()
    for number in range(6):
        code = "\n" * number + "x - x"
        eval(compile(code, f"file{number}.py", "eval"), {"x": torch.randn(64, 64)})  # noqa: S307
    session.stop()
    assert len(session.findings.all()) == 3
    assert session.findings.left_out == 3


def test_nothing_keeps_tensors_alive() -> None:
    kept: list[Any] = []

    def program() -> None:
        for _ in range(3):
            made = [
                torch.zeros(64, 64),
                torch.randn(64, 64) * 0.0,
                torch.randn(64, 128).clone(),
                (torch.rand(64, 128) < 0.5).float(),
                torch.randn(64, 64).repeat(2, 1, 1),
                torch.zeros(64, 64).add_(torch.randn(64, 64)),
            ]
            kept.extend(weakref.ref(one.untyped_storage()) for one in made)

    storages: list[Any] = []

    def counted() -> None:
        program()
        storages.extend(reference() for reference in kept)

    assert profile_patterns(counted) != []
    assert [one for one in storages if one is not None] == []


def test_marks_are_forgotten_with_the_next_write_and_when_too_many() -> None:
    storages, marks = Storages(), StorageNotes(most=2)
    tensors = [torch.zeros(4) for _ in range(3)]
    states = [storages.of(one, 0) for one in tensors]
    marks.put(states[0], "note")
    assert marks.get(states[0]) == "note"
    states[0].version += 1
    assert marks.get(states[0]) is None
    assert marks.get(states[0], 1) == "note"
    for state in states:
        marks.put(state)
    assert [marks.get(state) for state in states] == [None, True, True]
    marks.clear()
    assert not marks


def test_numbers_for_json() -> None:
    assert [plain(one) for one in (1.5, 3, True, float("nan"), float("-inf"))] == [
        1.5,
        3,
        1,
        "nan",
        "-inf",
    ]


def test_without_a_compiler_the_same_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "torchyard.worker.values.profiling_session.open_scanner", lambda _cache: None
    )
    session = ProfilingSession(Options(prove=False))
    assert session.notes == [SLOW_SCANNER]
    session.start()
    memory = torch.zeros(4096)
    memory.sum()
    memory.zero_()
    session.stop()
    assert [one.pattern for one in session.findings.all()] == ["redundant write"]


def test_both_scanners_find_the_same_in_a_training_step() -> None:
    def program() -> None:
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        mask = (torch.rand(64, 64) < 0.5).float()  # made once, read in every step
        for _ in range(3):
            optimizer.zero_grad(set_to_none=False)
            batch = torch.randn(64, 64)
            (model(batch) * mask + (batch - batch)).square().mean().backward()
            optimizer.step()

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    compiled = profile_patterns(program)
    plainly = profile_patterns(program, scanner=TorchScanner())
    torch.set_num_threads(threads)
    assert {one.pattern for one in compiled} == {
        "heavy type",
        "dead initialisation",
        "single zero",
    }
    wanted = [(one.cause, one.count, one.bytes_wasted) for one in compiled]
    assert [(one.cause, one.count, one.bytes_wasted) for one in plainly] == wanted

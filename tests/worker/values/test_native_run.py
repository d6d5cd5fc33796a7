"""Runs without profiling: observed operators, timed steps, and the program's own profiler."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from torchyard.values.target_run import read_native_run  # noqa: E402
from torchyard.worker.values.pricing import native_run as native_run_module  # noqa: E402
from torchyard.worker.values.pricing.native_run import (  # noqa: E402
    MOST_RECORDED_STEPS,
    GradientTurns,
    NativeRunRecorder,
)
from torchyard.worker.values.program import Ending  # noqa: E402

pytestmark = pytest.mark.torch

LOSS = ["aten::mse_loss_backward", "aten::zeros_like", "aten::zero_"]
FINISHED = Ending(0, "finished")


class Steps:
    """A small training, step by step."""

    def __init__(self) -> None:
        self.net = nn.Linear(8, 8)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def __call__(self) -> None:
        self.optimizer.zero_grad(set_to_none=False)
        F.mse_loss(self.net(torch.randn(4, 8)), torch.randn(4, 8)).backward()
        self.optimizer.step()


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "native.json"


def run(output: Path, steps: int, **plan: Any) -> Any:
    native = NativeRunRecorder({"output": str(output), **plan})
    native.start()
    step = Steps()
    for _ in range(steps):
        step()
    native.stop(FINISHED)
    return read_native_run(output)


def test_recording_ends_when_all_was_seen_and_the_rest_is_timed(output: Path) -> None:
    found = run(output, 5, wanted=[LOSS])
    assert found.steps == 5
    assert found.recorded_steps == 1
    assert found.timed_steps == 3
    assert found.step_ns > 0
    assert found.occurrences(tuple(LOSS)) == 1
    assert not found.recorded_whole


def test_missing_operators_are_not_awaited_forever(output: Path) -> None:
    found = run(output, MOST_RECORDED_STEPS + 3, wanted=[["aten::sort"]])
    assert found.recorded_steps == MOST_RECORDED_STEPS
    assert found.occurrences(("aten::sort",)) == 0
    assert found.occurrences(tuple(LOSS)) == MOST_RECORDED_STEPS
    assert found.timed_steps == 2


def test_without_operators_to_find_all_steps_but_the_first_are_timed(output: Path) -> None:
    found = run(output, 4, wanted=[])
    assert (found.recorded_steps, found.timed_steps) == (0, 3)
    assert found.chains == ()
    assert found.program_ns >= found.step_ns


def test_a_program_without_steps_is_recorded_to_its_end(output: Path) -> None:
    native = NativeRunRecorder({"output": str(output), "wanted": [["aten::cos"], LOSS]})
    native.start()
    torch.randn(10).cos()
    native.stop(FINISHED)
    found = read_native_run(output)
    assert found.recorded_whole
    assert found.occurrences(("aten::cos",)) == 1
    assert found.step_ns is None


def test_hooks_timer_and_profiler_are_gone_afterwards(output: Path) -> None:
    before = signal.getsignal(signal.SIGVTALRM)
    run(output, 3, wanted=[LOSS])
    assert signal.getsignal(signal.SIGVTALRM) == before
    assert signal.getitimer(signal.ITIMER_VIRTUAL)[0] == 0
    assert not torch.autograd._profiler_enabled()
    steps: list[Any] = []
    native = NativeRunRecorder({"output": str(output)})
    native.start()
    native.stop(FINISHED)
    Steps()()
    assert steps == []
    assert read_native_run(output).steps == 0


def test_the_programs_own_profiler_goes_first(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.autograd import profiler

    monkeypatch.setattr(profiler.profile, "_prepare_trace", profiler.profile._prepare_trace)
    native = NativeRunRecorder({"output": str(output), "wanted": [["aten::sort"]]})
    native.start()
    torch.randn(4).cos()
    with profiler.profile() as own:
        torch.randn(4).sin()
    native.stop(FINISHED)
    assert any(event.name == "aten::sin" for event in own.function_events)
    found = read_native_run(output)
    assert found.occurrences(("aten::cos",)) == 1
    assert found.occurrences(("aten::sin",)) == 0
    assert any("profiles itself" in note for note in found.notes)


def test_events_do_not_pile_up(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_run_module, "_HARVEST_EVERY_S", 0.01)
    native = NativeRunRecorder({"output": str(output), "wanted": [["aten::sort"]]})
    harvests: list[int] = []
    harvest = native._harvest

    def counted() -> None:
        harvests.append(1)
        harvest()

    monkeypatch.setattr(native, "_harvest", counted)
    native.start()
    for _ in range(3000):
        torch.ones(10).cos()
    native.stop(FINISHED)
    assert harvests
    assert read_native_run(output).occurrences(("aten::cos",)) == 3000


def test_a_forked_child_writes_nothing(output: Path) -> None:
    native = NativeRunRecorder({"output": str(output)})
    native.start()
    native.leave_child()
    native.stop(FINISHED)
    assert not output.exists()


def test_turns_pair_steps_and_change_no_numbers(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (torch.optim.Optimizer, nn.Module):
        monkeypatch.setattr(kind, "zero_grad", kind.zero_grad)
    torch.manual_seed(1)
    plain = Steps()
    for _ in range(8):
        plain()
    native = NativeRunRecorder({"output": str(output), "turns": True, "seed": 3})
    native.start()
    torch.manual_seed(1)
    step = Steps()
    dropped: list[bool] = []
    for _ in range(8):
        step()
        step.optimizer.zero_grad(set_to_none=False)
        dropped.append(step.net.weight.grad is None)
    native.stop(FINISHED)
    found = read_native_run(output)
    assert len(found.turns_ns) == 3
    assert all(zeroed > 0 and none > 0 for zeroed, none in found.turns_ns)
    assert set(dropped) == {True, False}
    assert torch.equal(plain.net.weight, step.net.weight)


def test_both_orders_come_up_and_pairs_are_put_the_same_way_round() -> None:
    recorded_calls = GradientTurns(seed=0)
    firsts = set()
    for _ in range(40):
        firsts.add(recorded_calls.drops)
        for _ in range(2):
            recorded_calls.step(200 if recorded_calls.drops else 300)
    assert firsts == {True, False}
    assert recorded_calls.pairs_ns == [[300, 200]] * 40


def test_started_by_path_as_by_the_controller(tmp_path: Path) -> None:
    import torchyard.worker

    entry = Path(torchyard.worker.__file__).parent / "values" / "run_program.py"
    script = tmp_path / "script.py"
    script.write_text("import torch\nprint(int(torch.zeros(3).cos().sum()))\n")
    plan = tmp_path / "plan.json"
    plan.write_text(
        json.dumps(
            {"native": True, "output": str(tmp_path / "out.json"), "wanted": [["aten::cos"]]}
        )
    )
    done = subprocess.run(
        [sys.executable, str(entry), str(plan), "--", str(script)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "3"), done.stderr
    assert read_native_run(tmp_path / "out.json").occurrences(("aten::cos",)) == 1

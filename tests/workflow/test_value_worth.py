"""Whole programs from the watch to proofs, prices and gains, by processes of their own."""

from __future__ import annotations

import math
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from torchyard.core.comparison import Comparison, Estimate, Failure, Interval, Verdict
from torchyard.core.study import Budget
from torchyard.core.values import Certainty, Place, ValueFinding, ValueProfile
from torchyard.core.variant import Target
from torchyard.core.workload import Workload
from torchyard.values.prices import upper_bound
from torchyard.values.profile_file import read_profile
from torchyard.values.request import ProfileRequest, WatchOptions
from torchyard.workflow import value_gain
from torchyard.workflow.value_gain import (
    measure_gains,
    measure_set_to_none,
    with_fix,
    zeroed_gradients,
)
from torchyard.workflow.values_run import profile_values

PROGRAM = """
    import torch
    import torch.nn.functional as F

    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = torch.nn.Conv2d(3, 7, 3, padding=1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, wish = torch.randn(2, 3, 24, 24), torch.randn(2, 7, 24, 24)
    classes = torch.randint(0, 7, (2, 24, 24))
    for step in range(8):
        optimizer.zero_grad(set_to_none=False)
        out = net(x)
        loss = F.cross_entropy(out, classes) + F.mse_loss(out, wish)
        loss = loss + F.smooth_l1_loss(out, wish) + F.huber_loss(out, wish)
        loss.backward()
        optimizer.step()
    print("trained", flush=True)
"""


def request_for(folder: Path, text: str, **options: object) -> ProfileRequest:
    script = folder / "train.py"
    script.write_text(textwrap.dedent(text))
    return ProfileRequest(
        target=Target(name="here", python=sys.executable),
        program=(str(script),),
        options=WatchOptions(**{"deep": True, "least_bytes": 256, **options}),  # type: ignore[arg-type]
    )


def finding(**more: object) -> ValueFinding:
    one = ValueFinding(pattern="p", operator="aten::x", place=Place(file="f", line=1))
    return replace(one, **more)  # type: ignore[arg-type]


def profile(*findings: ValueFinding, state: str = "finished") -> ValueProfile:
    return ValueProfile(format=1, state=state, torch="2", findings=findings)  # type: ignore[arg-type]


def row(**more: object) -> Comparison:
    workload = Workload(suite="file", name="pair.py")
    one = Comparison(workload=workload, baseline="a", candidate="b", verdict=Verdict.FASTER)
    return replace(one, **more)  # type: ignore[arg-type]


ESTIMATE = Estimate(
    verdict=Verdict.FASTER,
    speedup=1.25,
    interval=Interval(low=1.2, high=1.3),
    p_value=0.01,
    launches=3,
    pairs=60,
    pairs_dropped=0,
    launch_sd=None,
    pair_sd=None,
    minimum_detectable=None,
    time_needed_s=None,
)


def test_which_findings_have_a_fix() -> None:
    known = profile(
        finding(recipe={"fix": "so"}),
        finding(recipe={"fix": ""}),
        finding(detail="gradient zeroed only to be added to: the result is the new gradient"),
    )
    assert with_fix(known) == [0]
    assert zeroed_gradients(known) == [2]


def test_the_detail_of_zeroed_gradients_is_the_patterns_own() -> None:
    pytest.importorskip("torch")
    from torchyard.worker.values.patterns.dead_initialisation import ADDED_TO_GRADIENT

    assert zeroed_gradients(profile(finding(detail=ADDED_TO_GRADIENT))) == [0]


def test_a_gain_comes_with_its_interval_and_how_it_was_measured() -> None:
    found = value_gain._with_gain(finding(recipe={"fix": "so"}), row(estimate=ESTIMATE)).worth
    assert found.gain == 1.25
    assert found.gain_interval == Interval(low=1.2, high=1.3)
    assert found.method == "gain: in pairs, over 3 launches: so"


def test_a_comparison_that_failed_is_no_gain() -> None:
    failure = Failure(kind="raised", phase="build", variant="a", message="no such operator")
    found = value_gain._with_gain(finding(), row(failure=failure)).worth
    assert found.gain is None
    assert "no such operator" in found.unavailable


def test_nothing_is_run_for_findings_without_a_fix(tmp_path: Path) -> None:
    request = request_for(tmp_path, "raise SystemExit(3)")
    known = profile(finding())
    assert measure_gains(request, tmp_path, known, say=print) == known
    assert measure_set_to_none(request, tmp_path, known, say=print) == known
    crashed = profile(finding(detail="gradient zeroed only to be added to"), state="crashed")
    assert measure_set_to_none(request, tmp_path, crashed, say=print) == crashed


@pytest.mark.torch
def test_a_program_that_crashes_is_not_run_again(tmp_path: Path) -> None:
    text = """
        import pathlib, torch
        count = pathlib.Path(__file__).with_suffix(".count")
        count.write_text(count.read_text() + "x" if count.exists() else "x")
        buffer = torch.zeros(64, 64)
        buffer.copy_(torch.randn(64, 64))
        raise ValueError("on purpose")
    """
    request = request_for(tmp_path, text, deep=False)
    found, path = profile_values(request, folder=tmp_path / "run", say=lambda _: None)
    assert (found.state, found.exit_code) == ("crashed", 1)
    assert (tmp_path / "train.count").read_text() == "x"
    dead = next(f for f in found.findings if f.pattern == "dead initialisation")
    assert dead.proof.certainty is Certainty.LIKELY
    assert "did not finish" in dead.proof.why
    assert read_profile(path) == found


@pytest.mark.torch
@pytest.mark.slow
def test_waste_of_torch_is_found_proven_priced_and_measured(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    request = request_for(tmp_path, PROGRAM)
    said: list[str] = []
    found, path = profile_values(request, folder=tmp_path / "run", say=said.append)
    assert capfd.readouterr().out == "trained\n", "the second run is silent"
    proven = {
        (item.pattern, item.path[0] if item.path else item.operator)
        for item in found.findings
        if item.proof.certainty is Certainty.PROVEN
    }
    tested = {item.operator for item in found.findings if item.proof.certainty is Certainty.TESTED}
    assert "aten::zero_" in tested, "gradients that are zeroed to be added to"
    assert proven >= {
        ("dead initialisation", "aten::mse_loss_backward"),
        ("dead initialisation", "aten::smooth_l1_loss_backward"),
        ("dead initialisation", "aten::huber_loss_backward"),
        ("redundant write", "aten::nll_loss2d_backward"),
    }
    assert found.step_ns
    for item in found.findings:
        assert item.worth.wasted_ns or item.worth.unavailable
    bound = upper_bound(found)
    assert bound is not None
    assert 0 < bound < 0.5
    assert read_profile(path) == found

    losses = [
        n for n in with_fix(found) if found.findings[n].path[:1] == ("aten::mse_loss_backward",)
    ]
    budget = Budget(time_s=3.0, precision_goal=0.0, min_launches=2, max_launches=2)
    gained = measure_gains(
        request, tmp_path / "run", found, say=said.append, chosen=losses, budget=budget
    )
    worth = gained.findings[losses[0]].worth
    assert worth.gain is not None
    assert 0.5 < worth.gain < 5
    assert "into memory that nobody filled" in worth.method
    assert (tmp_path / "run" / "gains").is_dir()

    gained = measure_set_to_none(request, tmp_path / "run", found, say=said.append, launches=2)
    worth = gained.findings[zeroed_gradients(found)[0]].worth
    assert worth.gain is not None
    assert math.isfinite(worth.gain)
    assert "pairs over 2 launches" in worth.method

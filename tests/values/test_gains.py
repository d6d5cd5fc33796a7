"""Complete programs from profiling to proofs, prices and gains, in new processes."""

from __future__ import annotations

import math
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from torchyard.core.comparison import Comparison, Estimate, Failure, Interval, Verdict
from torchyard.core.study import Budget, Target, Workload
from torchyard.values import gains as value_gain
from torchyard.values.gains import (
    measure_gains,
    measure_set_to_none,
    with_fix,
    with_measured_saving,
    zeroed_gradients,
)
from torchyard.values.model import (
    Certainty,
    Place,
    ProfileRequest,
    ProfilingOptions,
    Saving,
    ValueFinding,
    ValueProfile,
    Worth,
    read_profile,
)
from torchyard.values.profiled_run import announcement, profile_program

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
        options=ProfilingOptions(**{"deep": True, "least_bytes": 256, **options}),  # type: ignore[arg-type]
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
    from torchyard.worker.values.patterns.wasted_writes import ADDED_TO_GRADIENT

    assert zeroed_gradients(profile(finding(detail=ADDED_TO_GRADIENT))) == [0]


def test_a_gain_comes_with_its_interval_and_how_it_was_measured() -> None:
    found = value_gain._with_gain(finding(recipe={"fix": "so"}), row(estimate=ESTIMATE)).worth
    assert found.gain == 1.25
    assert found.gain_interval == Interval(low=1.2, high=1.3)
    assert found.method == "gain: in pairs, over 3 launches: so"


def test_an_untrusted_comparison_is_no_gain() -> None:
    noisy = replace(row(estimate=ESTIMATE), untrusted=("noisy machine: 9 of 9 pairs",))
    found = value_gain._with_gain(finding(), noisy).worth
    assert (found.gain, found.gain_interval) == (None, None)
    assert found.unavailable == "gain: untrusted: noisy machine: 9 of 9 pairs"


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
    found, path = profile_program(request, folder=tmp_path / "run", say=lambda _: None)
    assert (found.state, found.exit_code) == ("crashed", 1)
    assert (tmp_path / "train.count").read_text() == "x"
    dead = next(f for f in found.findings if f.pattern == "dead initialisation")
    assert dead.proof.certainty is Certainty.LIKELY
    assert "did not finish" in dead.proof.why
    assert read_profile(path) == found


COUNTED = """
    import pathlib, torch
    count = pathlib.Path(__file__).with_suffix(".count")
    count.write_text(count.read_text() + "x" if count.exists() else "x")
    for _ in range(4):
        x = torch.randn(96, 96)
        (x.exp() + x.exp()).sum().item()
"""


@pytest.mark.torch
def test_a_program_that_is_run_once_says_what_that_leaves_out(tmp_path: Path) -> None:
    request = request_for(tmp_path, COUNTED, deep=False)
    said: list[str] = []
    found, path = profile_program(request, folder=tmp_path / "run", say=said.append, once=True)
    assert (tmp_path / "train.count").read_text() == "x"
    assert not any("run again" in text or "running it again" in text for text in said)
    assert found.findings
    for item in found.findings:
        assert item.proof.certainty is not Certainty.PROVEN
        assert item.proof.why == "unavailable: the program was run only once (--once)"
        assert item.worth.unavailable == "unavailable: the program was run only once (--once)"
        assert item.worth.saving is None
    assert read_profile(path) == found


@pytest.mark.torch
def test_runs_are_announced_before_they_happen(tmp_path: Path) -> None:
    request = request_for(tmp_path, COUNTED, deep=False)
    runs = tmp_path / "train.count"
    said: list[tuple[str, int]] = []
    found, _ = profile_program(
        request,
        folder=tmp_path / "run",
        say=lambda text: said.append((text, len(runs.read_text()) if runs.exists() else 0)),
    )
    announced = next((text, count) for text, count in said if "is now run again" in text)
    assert announced[1] == 1, "only the profiled run came before"
    for word in ("up to three times more", "files it writes", "network", "--once"):
        assert word in announced[0]
    assert len(runs.read_text()) == 4
    (duplicate,) = [one for one in found.findings if one.pattern == "duplicate"]
    assert duplicate.worth.saving is not None or "noisy" in duplicate.worth.unavailable


def test_the_announcement_counts_runs() -> None:
    known = replace(profile(finding()), steps=5)
    assert "once more, " in announcement(known, gains=True)
    zeroed = replace(known, findings=(finding(detail="gradient zeroed only to be added to: x"),))
    assert "and 3 times for --gains" in announcement(zeroed, gains=True)
    assert "gains" not in announcement(zeroed, gains=False)
    assert "up to three times more" in announcement(replace(known, steps=1), gains=False)


def test_whole_steps_with_the_fix_replace_the_estimate() -> None:
    before = Saving(low_ns=1, high_ns=2, low_share=0.1, high_share=0.2, bound_share=0.22)
    faster = with_measured_saving(
        Worth(saving=before), Interval(low=1.02, high=1.25), step_ns=100.0
    ).saving
    assert faster is not None
    assert (faster.low_share, faster.high_share) == pytest.approx((0.0196, 0.2), abs=1e-3)
    assert faster.bound_share == 0.22
    beyond = with_measured_saving(
        Worth(saving=before), Interval(low=1.3, high=2.0), step_ns=100.0
    ).saving
    assert beyond is not None
    assert beyond.bound_share == 0.5, "a bound that a measurement breaks is raised"
    slower = with_measured_saving(Worth(), Interval(low=0.8, high=0.9), step_ns=100.0).saving
    assert slower is not None
    assert (slower.high_share, slower.bound_share) == (0.0, None)


@pytest.mark.torch
@pytest.mark.slow
def test_waste_of_torch_is_found_proven_priced_and_measured(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    request = request_for(tmp_path, PROGRAM)
    said: list[str] = []
    found, path = profile_program(request, folder=tmp_path / "run", say=said.append)
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
        assert item.worth.saving is not None or item.worth.unavailable
        if item.worth.saving is not None:
            saving = item.worth.saving
            assert 0 <= saving.low_share <= saving.high_share <= 1
            assert saving.bound_share is None or saving.high_share <= saving.bound_share
    assert said[1].startswith("the program is now run again, once more")
    assert read_profile(path) == found

    losses = [
        n for n in with_fix(found) if found.findings[n].path[:1] == ("aten::mse_loss_backward",)
    ]
    budget = Budget(time_s=3.0, precision_goal=0.0, min_launches=2, max_launches=2)
    gained = measure_gains(
        request, tmp_path / "run", found, say=said.append, chosen=losses, budget=budget
    )
    worth = gained.findings[losses[0]].worth
    if worth.gain is None:
        assert worth.unavailable.startswith("gain: untrusted: noisy machine")
    else:
        assert 0.2 < worth.gain < 5
        assert "with uninitialized memory" in worth.method
    assert (tmp_path / "run" / "gains").is_dir()

    gained = measure_set_to_none(request, tmp_path / "run", found, say=said.append, launches=2)
    worth = gained.findings[zeroed_gradients(found)[0]].worth
    assert worth.gain is not None
    assert math.isfinite(worth.gain)
    assert "pairs over 2 launches" in worth.method

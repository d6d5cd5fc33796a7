"""Chains of waste: every operator that a fix removes, and no other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from torchyard.worker.values.exchange import Options  # noqa: E402
from torchyard.worker.values.findings import Finding  # noqa: E402
from torchyard.worker.values.pricing.call_graph import CallGraph  # noqa: E402
from torchyard.worker.values.pricing.site_times import SiteTimes  # noqa: E402
from torchyard.worker.values.profiling_session import ProfilingSession  # noqa: E402

pytestmark = pytest.mark.torch

SIZE = 96
"""Of square matrices: large enough to be looked at."""


def findings_of(step: Callable[[], object], *, times: int = 4) -> list[Finding]:
    session = ProfilingSession(Options(prove=False), follow=False)
    session.start()
    try:
        for _ in range(times):
            step()
    finally:
        session.stop()
    return session.findings.all()


def one(step: Callable[[], object], pattern: str, operator: str = "") -> Finding:
    (found,) = [
        finding
        for finding in findings_of(step)
        if finding.pattern == pattern and operator in finding.operator
    ]
    return found


def chain(finding: Finding) -> dict[tuple[str, str], float]:
    """Operator and role -> calls per sighting."""
    found: dict[tuple[str, str], float] = {}
    for call in finding.recipe["calls"]:
        key = (call["operator"].removeprefix("aten::"), call["role"])
        found[key] = found.get(key, 0) + call["calls"] / finding.recipe["sightings"]
    return found


def fresh() -> Any:
    return torch.randn(SIZE, SIZE)


def test_a_duplicate_takes_its_followers_with_it() -> None:
    def work(x: Any) -> Any:
        return (x.t().contiguous() @ x).tanh().sum()

    def step() -> None:
        x = fresh()
        (work(x) + work(x)).item()

    assert chain(one(step, "duplicate", "mm")) == {
        ("mm", "wasted"): 1,
        ("tanh", "wasted"): 1,
        ("sum", "repeated"): 1,
    }
    # A second copy of the same source has a finding of its own.
    assert chain(one(step, "duplicate", "clone"))[("clone", "wasted")] == 1


def test_inputs_that_something_else_reads_stay() -> None:
    def step() -> None:
        x = fresh()
        y = x.exp()
        z = x.exp()  # needed by nobody but its own readers
        shared = x.cos()
        (y + z + shared * 2).sum().item()

    assert chain(one(step, "duplicate")) == {("exp", "wasted"): 1}


def test_what_follows_on_other_inputs_stays() -> None:
    def step() -> None:
        x = fresh()
        first, second = x.exp(), x.exp()
        (first * 2 + second * fresh()).sum().item()

    assert chain(one(step, "duplicate")) == {("exp", "wasted"): 1}


def test_the_backward_of_a_duplicate_goes_with_it() -> None:
    weight = nn.Parameter(fresh())

    def step() -> None:
        x = weight + fresh()
        loss = (x.exp() * fresh()).sum() + (x.exp() * fresh()).sum()
        loss.backward()

    found = chain(one(step, "duplicate", "exp"))
    assert found["exp", "wasted"] == 1
    assert found["mul", "backward"] == 1, "one of the two gradients of exp"


def test_a_guard_takes_its_mask_with_it() -> None:
    def step() -> None:
        x = fresh()
        mask = x > 1e9
        x.masked_fill(mask, 0.0).sum().item()

    assert chain(one(step, "guard that never fires")) == {
        ("masked_fill", "wasted"): 1,
        ("gt", "only for it"): 1,
    }


def test_a_mask_that_is_read_twice_stays() -> None:
    def step() -> None:
        x = fresh()
        mask = x > 1e9
        (x.masked_fill(mask, 0.0).sum() + mask.sum()).item()

    assert chain(one(step, "guard that never fires")) == {("masked_fill", "wasted"): 1}


def test_what_is_built_in_every_step_goes_from_the_first_operator_on() -> None:
    net = nn.Linear(SIZE, SIZE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        places = torch.arange(SIZE)
        mask = (places[:, None] >= places[None, :]).float()
        optimizer.zero_grad()
        (net(fresh()) * mask).sum().backward()
        optimizer.step()

    found = one(step, "unchanged across steps")
    assert set(chain(found)) >= {("arange", "only for it"), ("ge", "only for it")}
    assert ("addmm", "wasted") not in chain(found)


def test_readers_of_a_wide_type_are_affected_as_far_as_it_goes() -> None:
    def step() -> None:
        wide = torch.randint(0, 3, (200, 200)) + 1
        ((wide * 5).float().sum() + wide.float().sum()).item()

    assert chain(one(step, "heavy type", "add")) == {
        ("add", "shrinks"): 1,
        ("mul", "reads"): 1,
        ("_to_copy", "reads"): 2,
    }


def test_zeros_that_are_added_to_take_the_sum_with_them() -> None:
    weight = nn.Parameter(fresh())
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        (weight * fresh()).sum().backward()
        optimizer.step()

    found = chain(one(step, "dead initialisation"))
    assert {name for name, _ in found} == {"zero_", "add_"}


def test_work_inside_of_an_operator_belongs_to_its_call() -> None:
    own, wish = fresh().requires_grad_(), fresh()
    session = ProfilingSession(Options(deep=True), follow=False)
    session.start()
    try:
        for _ in range(3):
            F.mse_loss(own, wish).backward()
    finally:
        session.stop()
    (found,) = [one for one in session.findings.all() if one.path]
    assert chain(found) == {("mse_loss_backward", "inside"): 1}


def test_needless_copies_are_known_by_their_call() -> None:
    def step() -> None:
        fresh().view(-1).clone().view(SIZE, SIZE).exp().sum().item()

    assert chain(one(step, "duplicate", "clone")) == {("clone", "wasted"): 1}


def test_shapes_are_sites_of_their_own() -> None:
    sizes: Iterator[int] = iter([100, 200, 100, 200])

    def step() -> None:
        x = torch.randn(next(sizes), 64)
        (x.exp() + x.exp()).sum().item()

    found = one(step, "duplicate")
    assert {call["shapes"] for call in found.recipe["calls"]} == {
        "float32[100, 64]",
        "float32[200, 64]",
    }


def test_long_programs_are_cut_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchyard.worker.values.pricing.call_graph._WINDOW", 7)

    def step() -> None:
        x = fresh()
        copy = x.clone()
        (copy.exp() + x.exp()).sum().item()

    copied = next(f for f in findings_of(step, times=20) if f.operator == "aten::clone")
    assert copied.recipe["sightings"] == copied.count
    assert not copied.recipe["calls_unknown"]

    def wide() -> None:
        numbers = torch.randint(0, 3, (200, 200)) + 1
        (numbers.float().sum() + numbers.max() + fresh().sum()).item()

    found = next(f for f in findings_of(wide, times=20) if f.pattern == "heavy type")
    assert found.recipe["calls_unknown"], "its readers were forgotten when it was reported"


def test_an_internal_error_does_not_reach_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(CallGraph, "_number", fail)

    def step() -> None:
        x = fresh()
        (x.exp() + x.exp()).sum().item()

    (found, *_) = findings_of(step)
    assert found.recipe["calls_unknown"] == "RuntimeError: on purpose"


def test_sparse_and_nested_results_are_followed_as_far_as_they_have_memory() -> None:
    def step() -> None:
        sparse = torch.eye(SIZE).to_sparse()
        x = fresh()
        ((sparse @ x) + (sparse @ x)).sum().item()
        F.softmax(x, -1)

    assert chain(one(step, "duplicate", "mm"))


def timed(step: Callable[[], object], finding: Finding) -> list[dict[str, Any]]:
    mode = SiteTimes(finding.recipe["calls"])
    with mode:
        for _ in range(20):
            step()
    return mode.as_list()


def test_calls_are_found_again_in_a_run_without_profiling() -> None:
    weight = nn.Parameter(fresh())

    def step() -> None:
        x = weight + fresh()
        ((x.exp() * 3).sum() + (x.exp() * 4).sum()).backward()

    finding = one(step, "duplicate", "exp")
    sites = timed(step, finding)
    wanted = {call["operator"] for call in finding.recipe["calls"]}
    assert {site["operator"] for site in sites if site["calls"]} == wanted
    exact = next(s for s in sites if s["operator"] == "aten::exp" and s["shapes"] != "*")
    assert exact["calls"] == 40, "both calls of the line: which one is wasted cannot be told"
    assert len(exact["cpu_ns"]) == 8
    assert min(exact["cpu_ns"]) > 0
    assert exact["cpu_most_ns"] >= max(exact["cpu_ns"])


def test_the_mode_changes_no_result_and_leaves_no_trace() -> None:
    torch.manual_seed(1)
    x = fresh()
    before = x.exp().sum()
    with SiteTimes([]):
        assert torch.equal(x.exp().sum(), before)
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_python_before_and_after_a_call_is_timed_and_views_are_not() -> None:
    def busy() -> None:
        end_ns = time.thread_time_ns() + 1_000_000
        while time.thread_time_ns() < end_ns:
            pass

    def step() -> None:
        x = fresh()
        first = x.exp()
        busy()
        again = x.t().t().exp()
        (first + again).sum()

    finding = one(step, "duplicate", "exp")
    sites = [site for site in timed(step, finding) if site["shapes"] != "*"]
    exact = next(site for site in sites if site["operator"] == "aten::exp")
    assert 0.9e6 < exact["before_ns"] < 50e6
    assert exact["after_ns"] < exact["before_ns"] / 2

"""Proofs of torch operators: dead fills, needed fills, and undecidable ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812

from tests.worker.values.proof_profiles import (  # noqa: E402
    certainty_if_native,
    findings_of,
    named_tests,
    one,
    watched,
)
from torchyard.worker.values.proofs.certainty import (  # noqa: E402
    INPUT_DEPENDENT,
    LIKELY,
    NATIVE_OPERATOR,
    POISON,
    PROVEN,
    SKIP,
    TESTED,
)

pytestmark = pytest.mark.torch

DEAD, REDUNDANT = "dead initialisation", "redundant write"


def backward_of(function: Callable[..., Any], *shape: int, **named: Any) -> Callable[[], None]:
    own = torch.randn(*shape, requires_grad=True)

    def program() -> None:
        own.grad = None
        function(own, **named).sum().backward()

    return program


def loss(function: Callable[..., Any]) -> Callable[[], None]:
    return backward_of(function, 8, 100, target=torch.randn(8, 100))


@pytest.mark.parametrize("name", ["mse_loss", "smooth_l1_loss", "huber_loss"])
def test_the_zeros_of_loss_gradients_are_dead(name: str) -> None:
    session = watched(loss(getattr(F, name)), times=2)
    finding = one(session, DEAD, f"aten::{name}_backward")
    assert finding.path[0] == f"aten::{name}_backward"
    assert finding.count == 2
    assert finding.bytes_wasted == 2 * 3200
    assert finding.place.backward
    assert finding.proof["certainty"] == LIKELY, "nobody ran the program without the watch yet"
    assert certainty_if_native(finding) == PROVEN
    assert len({test["poison"] for test in named_tests(finding, POISON)}) == 3
    assert len({test["inputs"] for test in named_tests(finding, POISON)}) == 3
    assert all(test["passed"] for test in named_tests(finding, NATIVE_OPERATOR))


def test_the_second_fill_of_a_loss_over_images_is_redundant_and_the_first_is_not_counted_too() -> (
    None
):
    target = torch.randint(0, 7, (2, 12, 12))
    session = watched(backward_of(F.cross_entropy, 2, 7, 12, 12, target=target))
    finding = one(session, REDUNDANT, "aten::nll_loss2d_backward")
    assert certainty_if_native(finding) == PROVEN
    assert len({test["inputs"] for test in named_tests(finding, SKIP)}) == 3
    assert not findings_of(session, DEAD, "aten::nll_loss2d_backward")


@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 1)])
def test_the_zeros_of_average_pooling_in_space_are_dead(kernel: int, stride: int) -> None:
    program = backward_of(F.avg_pool3d, 1, 3, 8, 8, 8, kernel_size=kernel, stride=stride)
    finding = one(watched(program), DEAD, "aten::avg_pool3d_backward")
    assert certainty_if_native(finding) == TESTED


def test_zeros_that_a_gradient_is_added_to_are_needed() -> None:
    pad = backward_of(F.pad, 1, 2, 6, 6, 6, pad=(1,) * 6, mode="replicate")
    index = torch.randint(0, 40, (30,))
    table = torch.randn(40, 16, requires_grad=True)

    def program() -> None:
        pad()
        table.grad = None
        F.embedding(index, table).sum().backward()

    session = watched(program, times=2)
    assert findings_of(session, DEAD) == []
    assert session.proofs is not None
    assert session.proofs.tried >= 2


def test_an_embedding_that_uses_every_row_needs_its_zeros_all_the_same() -> None:
    index = torch.randperm(40)
    table = torch.randn(40, 16, requires_grad=True)
    session = watched(lambda: F.embedding(index, table).sum().backward())
    assert findings_of(session, DEAD) == []


def test_a_scatter_that_happens_to_reach_every_place_depends_on_its_positions() -> None:
    values = torch.randn(64, 32, requires_grad=True)
    order = torch.argsort(torch.randn(64, 32), dim=0)

    def program() -> None:
        values.grad = None
        torch.gather(values, 0, order).sum().backward()

    for finding in findings_of(watched(program, times=2), DEAD):
        assert certainty_if_native(finding) != PROVEN


def test_select_and_slice_keep_the_zeros_that_they_do_not_write() -> None:
    own = torch.randn(40, 32, requires_grad=True)

    def program() -> None:
        (own[3].sum() + own[5:9].sum()).backward()

    session = watched(program)
    assert findings_of(session, DEAD) == []


def test_draws_of_random_numbers_are_not_tried_and_stay_as_they_were() -> None:
    x = torch.ones(64, 64)

    def program() -> Any:
        torch.manual_seed(3)
        first = F.dropout(x, 0.5)
        return torch.cat([first, torch.rand(64, 64)])

    expected = program()
    results: list[Any] = []
    session = watched(lambda: results.append(program()), times=2)
    assert all(torch.equal(expected, result) for result in results)
    for finding in session.findings.all():
        assert finding.proof.get("certainty", LIKELY) == LIKELY


def test_the_zeros_of_a_sampler_are_dead_but_not_tried_with_other_values() -> None:
    """A sampler of gamma numbers would never end with negative parameters."""
    shape, own = torch.full((64, 64), 0.7), torch.Generator()

    def program() -> Any:
        torch.manual_seed(3)
        own.manual_seed(4)
        drawn = torch._standard_gamma(shape), torch._standard_gamma(shape, generator=own)
        return torch.cat([*drawn, torch.rand(64, 64), torch.rand(64, 64, generator=own)])

    expected = program()
    results: list[Any] = []
    session = watched(lambda: results.append(program()), times=2)
    assert all(torch.equal(expected, result) for result in results)
    (finding, *_) = findings_of(session, DEAD, "aten::_standard_gamma")
    assert certainty_if_native(finding) == LIKELY
    assert {test["inputs"] for test in named_tests(finding, POISON)} == {"the program's own"}


def test_a_write_that_depends_on_the_drawn_numbers_is_not_tried() -> None:
    """A dropout that almost never drops anything changes no value, until it does."""
    x = torch.randn(64, 64, requires_grad=True)
    session = watched(lambda: torch.native_dropout(x, 1e-9, True)[0].sum().backward(), times=3)
    finding = one(session, REDUNDANT, "aten::native_dropout")
    assert finding.proof["certainty"] == LIKELY
    assert finding.proof["why"] == "not tested: it draws random numbers"


def test_an_operator_that_differs_each_time_proves_nothing() -> None:
    from torchyard.worker.values.proofs.replay import InnerOperator, StateGuard, run_clean
    from torchyard.worker.values.proofs.trials import NotTestable, Trial, try_fill

    calls: list[int] = []
    library = torch.library.Library("torchyard_test", "FRAGMENT")
    library.define("unsteady(Tensor x) -> Tensor")

    def unsteady(x: Any) -> Any:
        torch.zeros_like(x)
        calls.append(1)
        return x + len(calls) // 5  # the same for the first runs, then no more

    library.impl("unsteady", unsteady, "CPU")
    x = torch.randn(300)
    func = torch.ops.torchyard_test.unsteady.default
    path = ("torchyard_test::unsteady",)
    with StateGuard((x,), {}) as keep:
        trial = Trial(func, (x,), {}, keep, run_clean)
        inside = InnerOperator(1, "aten::zeros_like", path, (300,))
        with pytest.raises(NotTestable, match="not deterministic"):
            try_fill(trial, inside, torch.float32)
    session = watched(lambda: func(x))
    assert findings_of(session, DEAD) == []
    assert session.proofs is not None
    assert session.proofs.tried == 0, "operators outside of torch are not looked into"


def test_operators_that_write_their_arguments_are_tried_on_copies() -> None:
    own, index = torch.randn(50, 20), torch.arange(50)
    buffer = torch.zeros(50, 20)

    def program() -> Any:
        return buffer.index_add_(0, index, own).clone()

    expected = torch.zeros(50, 20).index_add_(0, index, own)
    results: list[Any] = []
    watched(lambda: results.append(program()))
    assert torch.equal(results[0], expected)
    assert torch.equal(buffer, expected)


def test_what_an_operator_raises_in_a_trial_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchyard.worker.values.proofs import trials

    def fail(*_: Any) -> Any:
        raise RuntimeError("from a replay")

    monkeypatch.setattr(trials, "run_poisoned", fail)
    session = watched(loss(F.mse_loss), times=3)
    assert findings_of(session, DEAD) == []
    assert session.proofs is not None
    assert session.proofs.untried == {"RuntimeError: from a replay": 2}
    assert "from a replay" in session.proofs.notes()[0]


def test_an_interrupt_during_a_trial_reaches_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchyard.worker.values.proofs import trials

    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(trials, "run_poisoned", interrupt)
    with pytest.raises(KeyboardInterrupt):
        watched(loss(F.mse_loss))


def test_an_operator_that_takes_no_other_values_is_at_most_likely() -> None:
    own = torch.rand(40, 40, requires_grad=True)
    target = torch.rand(40, 40)
    session = watched(lambda: F.binary_cross_entropy(own, target).backward())
    for finding in findings_of(session, DEAD):
        assert finding.proof["certainty"] in (LIKELY, INPUT_DEPENDENT)


def test_too_little_memory_is_reported_and_nothing_is_tried() -> None:
    session = watched(loss(F.mse_loss), memory_bytes=1000)
    assert findings_of(session, DEAD) == []
    assert session.proofs is not None
    assert session.proofs.tried == 0
    assert any("memory" in why for why in session.proofs.untried)
    assert session.result("finished")["counts"]["not_tried"] > 0


def test_nothing_is_tried_where_proofs_are_off() -> None:
    session = watched(loss(F.mse_loss), prove=False)
    assert session.proofs is None
    assert findings_of(session, DEAD) == []


def test_integer_memory_is_not_poisoned() -> None:
    index = torch.randint(0, 500, (200,))
    session = watched(lambda: torch.bincount(index, minlength=500))
    assert findings_of(session, DEAD) == []
    assert session.proofs is not None
    assert any("integer" in why for why in session.proofs.untried)


def test_another_mode_of_the_program_sees_no_trial() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    program = loss(F.mse_loss)
    with FlopCounterMode(display=False) as counter:
        session = watched(program)
    assert session.proofs is not None
    assert session.proofs.tried == 0
    assert any("mode" in why for why in session.proofs.untried)
    assert counter.get_total_flops() == 0


def test_each_cause_is_tried_twice_at_most() -> None:
    session = watched(loss(F.mse_loss), times=5)
    finding = one(session, DEAD)
    assert finding.count == 5
    assert session.proofs is not None
    assert session.proofs.tried == 2
    assert len(named_tests(finding, NATIVE_OPERATOR)) == 2

"""Replays: one inner operator changed, everything else as recorded."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torchyard.worker.values.proofs import replay  # noqa: E402
from torchyard.worker.values.proofs.trial_inputs import own_call, poisons_for, same_results  # noqa: E402
from torchyard.worker.values.redispatch import NativeEvents, count_chain  # noqa: E402

pytestmark = pytest.mark.torch

aten = torch.ops.aten
BACKWARD = aten.mse_loss_backward.default


def loss_call() -> Any:
    return own_call(BACKWARD, (torch.ones(()), torch.randn(50), torch.randn(50), 1), {})


def chains_of(call: Any) -> dict[tuple[str, ...], int]:
    chains: dict[tuple[str, ...], int] = {}
    with replay.StateGuard(call.args, call.kwargs) as keep:
        replay.run_clean(call, keep, chains)
    return chains


def fill_of(call: Any) -> replay.InnerOperator:
    """The zero_ inside: its number is its place in the order in which operators began."""
    path = ("aten::mse_loss_backward", "aten::zeros_like")
    number = list(chains_of(call)).index((*path, "aten::zero_"))
    return replay.InnerOperator(number, "aten::zero_", path, (50,))


def test_a_clean_replay_is_the_operator() -> None:
    call = loss_call()
    with replay.StateGuard(call.args, call.kwargs) as keep:
        assert same_results(replay.run_clean(call, keep), replay.run_native(call, keep))
        assert same_results(replay.run_native(call, keep), [call.func(*call.args)])


def test_poison_in_a_dead_fill_changes_nothing() -> None:
    call = loss_call()
    inside = fill_of(call)
    with replay.StateGuard(call.args, call.kwargs) as keep:
        clean = replay.run_clean(call, keep)
        for poison in poisons_for(torch.float32).values():
            assert same_results(clean, replay.run_poisoned(call, keep, inside, poison))


def test_poison_in_a_needed_fill_shows() -> None:
    call = own_call(aten.select_backward.default, (torch.randn(5), [4, 5], 0, 1), {})
    chains = list(chains_of(call))
    number = next(n for n, chain in enumerate(chains) if chain[-1] == "aten::zero_")
    inside = replay.InnerOperator(number, "aten::zero_", chains[number][:-1], (4, 5))
    with replay.StateGuard(call.args, call.kwargs) as keep:
        clean = replay.run_clean(call, keep)
        for poison in poisons_for(torch.float32).values():
            assert not same_results(clean, replay.run_poisoned(call, keep, inside, poison))


def test_a_missing_event_invalidates_the_replay() -> None:
    call = loss_call()
    inside = fill_of(call)
    poison = poisons_for(torch.float32)["NaN"]
    wrong = [
        inside._replace(number=999),
        inside._replace(name="aten::fill_"),
        inside._replace(path=("aten::other",)),
        inside._replace(shape=(51,)),
        inside._replace(position=3),
    ]
    with replay.StateGuard(call.args, call.kwargs) as keep:
        for other in wrong:
            with pytest.raises(replay.ReplayFailed):
                replay.run_poisoned(call, keep, other, poison)


def test_leaving_out_a_needed_write_shows() -> None:
    call = own_call(aten.full.default, ([64], 3.0), {})
    chains = list(chains_of(call))
    number = next(n for n, chain in enumerate(chains) if chain[-1] == "aten::fill_")
    inside = replay.InnerOperator(number, "aten::fill_", chains[number][:-1], (64,))
    with replay.StateGuard(call.args, call.kwargs) as keep:
        assert not same_results(
            replay.run_clean(call, keep), replay.run_skipped(call, keep, inside)
        )


def test_which_operators_can_be_left_out() -> None:
    assert replay.can_skip(aten.fill_.Scalar)
    assert replay.can_skip(aten.add.out)
    assert not replay.can_skip(aten.add.Tensor)
    assert not replay.can_skip(aten._foreach_zero_.default)
    assert not replay.can_skip(aten.native_batch_norm.out)
    assert not replay.can_skip(aten.resize_.default)
    buffer = torch.ones(2)
    assert replay.left_out(aten.fill_.Scalar, (buffer, 1.0), {}) is buffer
    out = torch.ones(2)
    assert replay.left_out(aten.add.out, (buffer, buffer), {"out": out}) is out


def test_random_numbers_are_the_programs_again_afterwards() -> None:
    torch.manual_seed(5)
    random.seed(5)
    expected = (torch.rand(3).tolist(), random.random())
    torch.manual_seed(5)
    random.seed(5)
    own = torch.Generator().manual_seed(7)
    before = own.get_state()
    call = own_call(aten.bernoulli_.float, (torch.empty(10), 0.5), {"generator": own})
    with replay.StateGuard(call.args, call.kwargs) as keep:
        one = replay.run_native(call, keep)[0].clone()
        two = replay.run_native(call, keep)[0].clone()
        torch.rand(10)
        random.random()
    assert torch.equal(one, two)
    assert torch.equal(own.get_state(), before)
    assert (torch.rand(3).tolist(), random.random()) == expected


def test_a_replay_makes_no_gradient_graph_and_no_output(capsys: pytest.CaptureFixture[str]) -> None:
    call = own_call(aten.mul.Tensor, (torch.ones(2, requires_grad=True), 2.0), {})
    filters = list(warnings.filters)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with replay.StateGuard(call.args, call.kwargs) as keep:
            result = replay.run_native(call, keep)[0]
            warnings.warn("from a replay", stacklevel=1)
    assert result.grad_fn is None
    assert torch.is_grad_enabled()
    assert warnings.filters == filters
    assert capsys.readouterr().err == ""


def test_state_comes_back_when_a_replay_raises() -> None:
    state = torch.get_rng_state()
    shown = warnings.showwarning

    def fail() -> None:
        with replay.StateGuard((), {}):
            torch.rand(3)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.equal(state, torch.get_rng_state())
    assert warnings.showwarning is shown
    assert torch.is_grad_enabled()


def test_moments_at_which_nothing_is_replayed() -> None:
    assert replay.replay_blocker() is None
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        assert "mode" in str(replay.replay_blocker())
    with NativeEvents():
        assert "profiler" in str(replay.replay_blocker())
    said = []

    def ask(x: Any) -> Any:
        said.append(replay.replay_blocker())
        return x

    torch.func.vmap(ask)(torch.ones(2))
    assert "transform" in str(said[0])
    assert replay.replay_blocker() is None


def test_events_give_chains_of_operators() -> None:
    call = loss_call()
    with NativeEvents() as events:
        call.func(*call.args)
    chain = ("aten::mse_loss_backward", "aten::zeros_like", "aten::zero_")
    assert events.chains[chain] == 1
    assert count_chain(events.chains, chain[1:]) == 1
    assert count_chain(events.chains, ("aten::sort",)) == 0
    assert count_chain({("MulBackward0", *chain): 2, chain: 1}, chain) == 3


def test_events_can_be_recorded_again_and_add_up() -> None:
    events = NativeEvents()
    for _ in range(2):
        with events:
            torch.ones(3).sort()
    assert count_chain(events.chains, ("aten::sort",)) >= 2
    events.stop()

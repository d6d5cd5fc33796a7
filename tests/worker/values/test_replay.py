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


from torchyard.worker.values.operators import operator_of  # noqa: E402
from torchyard.worker.values.proofs.trial_inputs import (  # noqa: E402
    EXTREME,
    OTHERS,
    OWN,
    RANDOM,
    CannotCopy,
    free_integers,
    integers_in,
    other_call,
    same_bits,
    size_to_copy,
)


def test_what_is_only_read_is_not_copied() -> None:
    one, two = torch.ones(3), torch.ones(3)
    call = own_call(aten.add.Tensor, (one, two), {"alpha": 2})
    assert call.args[0].data_ptr() == one.data_ptr()
    assert call.kwargs == {"alpha": 2}
    assert call.written == []


def test_what_is_written_is_a_copy_with_the_same_values() -> None:
    buffer = torch.arange(4.0)
    call = own_call(aten.add_.Tensor, (buffer, torch.ones(4)), {})
    call.func(*call.args)
    assert buffer.tolist() == [0, 1, 2, 3]
    assert call.written[0].tolist() == [1, 2, 3, 4]


def test_shared_memory_stays_shared_in_the_copy() -> None:
    base = torch.arange(10.0)
    call = own_call(aten.add_.Tensor, (base[0:4], base[4:8]), {})
    assert call.args[0].untyped_storage()._cdata == call.args[1].untyped_storage()._cdata
    assert call.args[1].data_ptr() - call.args[0].data_ptr() == 16
    call.func(*call.args)
    assert call.args[0].tolist() == [4, 6, 8, 10]
    assert base.tolist() == list(range(10))


def test_only_the_part_in_use_is_copied() -> None:
    huge = torch.zeros(1_000_000)
    view = huge[999_990:]
    assert size_to_copy(aten.zero_.default, (view,), {}, everything=True) <= 64
    call = own_call(aten.zero_.default, (view,), {})
    assert call.args[0].untyped_storage().nbytes() <= 64


def test_lists_of_tensors_are_copied_one_by_one() -> None:
    given = [torch.ones(2), torch.ones(3)]
    call = own_call(aten._foreach_zero_.default, (given,), {})
    call.func(*call.args)
    assert [tensor.sum().item() for tensor in given] == [2, 3]
    assert [tensor.sum().item() for tensor in call.written] == [0, 0]


@pytest.mark.parametrize("kind", OTHERS)
def test_other_values_keep_the_form(kind: str) -> None:
    own = torch.randn(6, 4).t()[::2]
    call = other_call(aten.mul.Tensor, (own, own), {}, kind)
    assert call.varied
    made = call.args[0]
    assert (made.shape, made.stride(), made.dtype) == (own.shape, own.stride(), own.dtype)
    assert not same_bits(made, own)
    assert torch.isfinite(made).all()
    assert made.data_ptr() == call.args[1].data_ptr()


def test_extreme_values_hold_zeros_of_both_signs_and_large_numbers() -> None:
    call = other_call(aten.mul.Tensor, (torch.randn(1000), 2.0), {}, EXTREME)
    made = call.args[0]
    zeros = made[made == 0]
    assert (torch.signbit(zeros)).any()
    assert (~torch.signbit(zeros)).any()
    assert made.abs().max() > 1e6
    assert (made < 0).any()


def test_other_values_are_the_same_every_time() -> None:
    own = torch.randn(50)
    for kind in OTHERS:
        one = other_call(aten.neg.default, (own,), {}, kind).args[0]
        two = other_call(aten.neg.default, (own,), {}, kind).args[0]
        assert same_bits(one, two)


def test_positions_stay_in_their_range_and_become_equal() -> None:
    index = torch.tensor([3, 1, 2])
    source = torch.randn(5)
    random = other_call(aten.index_select.default, (source, 0, index), {}, RANDOM)
    assert random.integers_kept
    assert random.args[2].tolist() == [3, 1, 2]
    extreme = other_call(aten.index_select.default, (source, 0, index), {}, EXTREME)
    assert not extreme.integers_kept
    assert extreme.args[2].tolist() == [1, 1, 1]


def test_integers_of_pointwise_operators_are_plain_numbers() -> None:
    assert free_integers(aten.add.Tensor, operator_of(aten.add.Tensor))
    assert free_integers(aten.copy_.default, operator_of(aten.copy_.default))
    assert not free_integers(aten.gather.default, operator_of(aten.gather.default))
    one = torch.arange(100)
    call = other_call(aten.add.Tensor, (one, one.clone()), {}, RANDOM)
    assert call.varied
    assert not call.integers_kept
    assert call.args[0].tolist() != call.args[1].tolist()


def test_masks_become_other_masks() -> None:
    mask = torch.zeros(100, dtype=torch.bool)
    call = other_call(aten.masked_fill_.Scalar, (torch.ones(100), mask, 0.0), {}, RANDOM)
    assert 10 < int(call.args[1].sum()) < 90


def test_samples_that_are_turned_into_positions_stay() -> None:
    samples = torch.rand(1, 1, 2)
    args = (torch.randn(1, 1, 8, 8), [2, 2], [4, 4], samples)
    call = other_call(aten.fractional_max_pool2d.default, args, {}, EXTREME)
    assert same_bits(call.args[3], samples)


def test_nothing_to_vary_is_no_other_input() -> None:
    assert not other_call(aten.zeros.default, ([3],), {}, RANDOM).varied


def test_tensors_of_no_plain_memory_are_refused() -> None:
    for bad in (torch.eye(3).to_sparse(), torch.empty(3, device="meta")):
        with pytest.raises(CannotCopy):
            own_call(aten.neg.default, (bad,), {})
    conjugated = torch.tensor([1 + 1j]).conj()
    with pytest.raises(CannotCopy):
        other_call(aten.neg.default, (conjugated,), {}, RANDOM)


def test_subclasses_are_refused_and_parameters_are_not() -> None:
    kind: Any = type("Mine", (torch.Tensor,), {})
    with pytest.raises(CannotCopy, match="Mine"):
        own_call(aten.neg.default, (torch.ones(2).as_subclass(kind),), {})
    parameter = torch.nn.Parameter(torch.ones(2))
    made = own_call(aten.neg.default, (parameter,), {}).args[0]
    assert not made.requires_grad


def test_integers_are_distinguished_from_the_rest() -> None:
    assert integers_in((torch.arange(2),), {})
    assert not integers_in((torch.ones(2), torch.ones(2, dtype=torch.bool)), {})
    assert OWN not in OTHERS

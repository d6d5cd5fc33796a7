"""Candidates with wrong results: each must fail the accuracy check."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import tests.worker.accuracy_corpus.corpus_models as m
from tests.worker.accuracy_corpus.accuracy_cases import Registry

WRONG = Registry(__file__, ("fail",))
LOW = ("bfloat16", "float16", "amp")


def _changed(module: Any, change: Any) -> Any:
    """A candidate that changes a copy of the (first) output."""

    def call(*args: Any) -> Any:
        output = module(*args)
        if isinstance(output, tuple):
            return (change(output[0].clone()), *output[1:])
        return change(output.clone())

    return call


def _put(tensor: Any, place: Any, value: Any) -> Any:
    tensor[place] = value
    return tensor


def _copied(module: Any, change: Any) -> Any:
    """A candidate that runs a changed copy of the module."""
    other = copy.deepcopy(module)
    with torch.no_grad():
        change(other)
    return other


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, change: Any) -> Any:
        ctx.change = change
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return ctx.change(gradient), None


# ---- whole tensors


def zeros(module: Any) -> Any:
    return _changed(module, lambda t: t * 0)


def times_3(module: Any) -> Any:
    return _changed(module, lambda t: 3 * t)


def times_1019(module: Any) -> Any:
    return _changed(module, lambda t: 1.019 * t)


def times_1001(module: Any) -> Any:
    return _changed(module, lambda t: 1.001 * t)


def times_100001(module: Any) -> Any:
    return _changed(module, lambda t: 1.00001 * t)


def one_row(module: Any) -> Any:
    return _changed(module, lambda t: _put(t, 17, 0))


def one_column(module: Any) -> Any:
    return _changed(module, lambda t: _put(t, (slice(None), 3), 0))


def one_row_scaled(module: Any) -> Any:
    return _changed(module, lambda t: _put(t, 17, 1.05 * t[17]))


def hundred_of_million(module: Any) -> Any:
    return _changed(
        module, lambda t: t.view(-1).index_fill(0, torch.arange(100) * 9973, 0).view_as(t)
    )


def one_element_1_percent(module: Any) -> Any:
    def change(t: Any) -> Any:
        place = divmod(int(t.abs().flatten().kthvalue(t.numel() // 2).indices), t.shape[1])
        return _put(t, place, 1.01 * t[place])

    return _changed(module, change)


def transposed(module: Any) -> Any:
    return _changed(module, lambda t: t.t().contiguous())


def wrong_strides(module: Any) -> Any:
    """The memory of the transpose read as if it were not."""
    return _changed(module, lambda t: t.t().contiguous().as_strided(t.shape, t.stride()))


def rolled(module: Any) -> Any:
    return _changed(module, lambda t: t.roll(1, 0))


def offset(module: Any) -> Any:
    return _changed(module, lambda t: t + 0.001)


def half_of_channels(module: Any) -> Any:
    return _changed(module, lambda t: _put(t, (slice(None), slice(None, None, 2)), 0))


def negative(module: Any) -> Any:
    return _changed(module, torch.neg)


def nan_in_one_place(module: Any) -> Any:
    return _changed(module, lambda t: _put(t, (3, 3), math.nan))


def inf_in_one_place(module: Any) -> Any:
    return _changed(module, lambda t: _put(t, (3, 3), math.inf))


def last_block_stale(module: Any) -> Any:
    """The tail of a tiled loop is not written."""
    return _changed(module, lambda t: _put(t, slice(t.shape[0] - t.shape[0] % 48, None), 0.01))


for name in ("zeros", "times_3", "times_1019", "times_1001", "one_row", "one_row_scaled", "rolled"):
    WRONG.add(name, m.mlp)
    WRONG.add(name, m.linear, exact=False)
for name in ("one_column", "half_of_channels", "negative", "nan_in_one_place", "inf_in_one_place"):
    WRONG.add(name, m.mlp)
WRONG.add("times_100001", m.linear)
WRONG.add("transposed", m.linear)
WRONG.add("wrong_strides", m.linear)
WRONG.add("offset", m.mlp)
WRONG.add("last_block_stale", m.mlp)
WRONG.add("one_element_1_percent", m.million, slow=True)
WRONG.add("one_element_1_percent", m.linear, exact=False)
WRONG.add("hundred_of_million", m.million, slow=True)
for low in LOW:
    for name in ("zeros", "times_3", "times_1019", "one_row", "half_of_channels", "rolled"):
        WRONG.add(name, m.mlp, precision=low)
    WRONG.add("hundred_of_million", m.million, precision=low, slow=True)
    WRONG.add("zeros", m.linear, precision=low, exact=False)
    WRONG.add("times_3", m.linear, precision=low, exact=False)
    WRONG.add("times_1019", m.linear, precision=low, exact=False)
    WRONG.add("one_row", m.linear, precision=low, exact=False)
WRONG.add("times_1001", m.scalar)
WRONG.add("zeros", m.convnet, mode="training", precision="amp")
WRONG.add("one_row", m.million, exact=False, slow=True)


def zeros_if_short(module: Any) -> Any:
    """An eager model that is broken in bfloat16, and so is all that is compared in bfloat16."""

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: Any) -> Any:
            y = self.inner(x)
            return torch.zeros_like(y) if y.dtype is torch.bfloat16 else y

    return Broken()


def broken_in_bfloat16() -> Any:
    built = m.mlp()
    built.module = zeros_if_short(built.module)
    return built


for exact in (True, False):
    WRONG.add("eager", broken_in_bfloat16, precision="bfloat16", exact=exact)
    WRONG.add("aot_eager", broken_in_bfloat16, precision="amp", exact=exact)


# ---- columns and numbers of other sizes


@WRONG.on(m.mixed_sizes)
def small_column(module: Any) -> Any:
    return _changed(module, lambda t: _put(t, (slice(None), 7), 0))


@WRONG.on(m.small_vector)
def small_number(module: Any) -> Any:
    return _changed(module, lambda t: _put(t, 3, 0.99 * t[3]))


# ---- models computed otherwise


@WRONG.on(m.mlp)
def stale_weights(module: Any) -> Any:
    """Weights from before a step of 0.1 %."""
    return _copied(module, lambda other: other[2].weight.mul_(0.999))


@WRONG.on(m.mlp)
@WRONG.on(m.mlp, precision="bfloat16")
def missing_bias(module: Any) -> Any:
    return _copied(module, lambda other: other[4].bias.zero_())


@WRONG.on(m.layer_norm)
def wrong_eps(module: Any) -> Any:
    return _copied(module, lambda other: setattr(other[0], "eps", 1e-3))


@WRONG.on(m.attention)
@WRONG.on(m.attention, precision="bfloat16")
def missing_scale(module: Any) -> Any:
    def call(x: Any) -> Any:
        query, key, value = module.heads(x)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=1.0)
        return module.out(mixed.transpose(1, 2).reshape(x.shape))

    return call


@WRONG.on(m.attention)
@WRONG.on(m.attention, precision="amp")
def wrong_mask(module: Any) -> Any:
    """Each place sees one later place, too."""

    def call(x: Any) -> Any:
        query, key, value = module.heads(x)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(1)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return module.out(mixed.transpose(1, 2).reshape(x.shape))

    return call


@WRONG.on(m.mlp, expected=("fail", "less-accurate"))
def tanh_gelu(module: Any) -> Any:
    """The approximation instead of the function: its error of 5e-5 is spread like rounding."""
    return _copied(module, lambda other: setattr(other[3], "approximate", "tanh"))


@WRONG.on(m.lstm)
def hidden_not_carried(module: Any) -> Any:
    def call(x: Any) -> Any:
        first, _ = module(x[:6])
        second, state = module(x[6:])
        return torch.cat([first, second]), state

    return call


@WRONG.on(m.convnet, mode="training")
def evaluated_statistics(module: Any) -> Any:
    """Normalises with the running statistics in training."""
    return copy.deepcopy(module).eval()


@WRONG.on(m.large_logits)
def softmax_along_rows(module: Any) -> Any:
    return lambda x: torch.softmax(100 * module.first(x), dim=0)


@WRONG.on(m.long_sum)
def last_terms_left_out(module: Any) -> Any:
    return lambda x: module(x[:, :-64])


@WRONG.on(m.long_sum, expected=("fail", "less-accurate"))
def summed_in_bfloat16(module: Any) -> Any:
    return lambda x: (x.bfloat16().sum(-1).float(), x.bfloat16().abs().mean(-1).float())


@WRONG.on(m.upsample)
def nearest(module: Any) -> Any:
    return lambda x: module[1](F.interpolate(x, scale_factor=2, mode="nearest"))


# ---- gradients, buffers, parameters


def _with_gradient(module: Any, change: Any) -> Any:
    return lambda *args: _Backward.apply(module(*args), change)


@WRONG.on(m.mlp, mode="training")
@WRONG.on(m.mlp, mode="training", precision="bfloat16")
def gradient_of_other_sign(module: Any) -> Any:
    return _with_gradient(module, torch.neg)


@WRONG.on(m.mlp, mode="training")
def gradient_scaled(module: Any) -> Any:
    return _with_gradient(module, lambda gradient: 1.001 * gradient)


@WRONG.on(m.convnet, mode="training")
@WRONG.on(m.convnet, mode="training", precision="amp")
def one_sign_of_gradient(module: Any) -> Any:
    return _with_gradient(module, lambda gradient: _put(gradient.clone(), 0, -gradient[0]))


@WRONG.on(m.tiny_gradients, mode="training")
def tiny_gradient_halved(module: Any) -> Any:
    def call(x: Any) -> Any:
        large, tiny = module(x)
        return large, _Backward.apply(tiny, lambda gradient: gradient * 0.5)

    return call


@WRONG.on(m.convnet, mode="training")
def statistics_not_updated(module: Any) -> Any:
    def call(x: Any) -> Any:
        layers = [part for part in module.modules() if isinstance(part, nn.BatchNorm2d)]
        kept = [layer.momentum for layer in layers]
        for layer in layers:
            layer.momentum = 0.0
        output = module(x)
        for layer, momentum in zip(layers, kept, strict=True):
            layer.momentum = momentum
        return output

    return call


@WRONG.on(m.mlp, mode="training", step=True)
@WRONG.on(m.mlp_adam, mode="training", step=True)
def detached_layer(module: Any) -> Any:
    def call(x: Any) -> Any:
        hidden = module[1](module[0](x)).detach()
        return module[4](module[3](module[2](hidden)))

    return call


# ---- other kinds of results


@WRONG.on(m.mlp)
def wrong_type(module: Any) -> Any:
    return lambda x: module(x).double()


@WRONG.on(m.mlp)
def half_type(module: Any) -> Any:
    return lambda x: module(x).bfloat16()


@WRONG.on(m.mlp)
def wrong_shape(module: Any) -> Any:
    return lambda x: module(x).unsqueeze(0)


@WRONG.on(m.counts)
def off_by_one(module: Any) -> Any:
    return _changed(module, lambda t: _put(t, 5, t[5] + 1))


@WRONG.on(m.counts)
def one_boolean(module: Any) -> Any:
    def call(x: Any) -> Any:
        count, mask = module(x)
        return count, _put(mask.clone(), 7, ~mask[7])

    return call


@WRONG.on(m.counts)
def narrower_integers(module: Any) -> Any:
    return lambda x: (module(x)[0].int(), module(x)[1])


@WRONG.on(m.indices)
@WRONG.on(m.indices, precision="bfloat16")
def wrong_index(module: Any) -> Any:
    def call(x: Any) -> Any:
        logits, top, best, positive = module(x)
        return logits, top, _put(best.clone(), slice(0, 8), logits.argmin(-1)[:8]), positive

    return call


@WRONG.on(m.indices)
def one_wrong_index(module: Any) -> Any:
    def call(x: Any) -> Any:
        logits, top, best, positive = module(x)
        clear = (top[:, 0] != top[:, 4]) & (logits.max(-1).values > 2 * logits.median(-1).values)
        row = int(clear.nonzero()[0])
        return logits, _put(top.clone(), (row, 0), logits[row].argmin()), best, positive

    return call


@WRONG.on(m.waves)
def conjugate(module: Any) -> Any:
    return lambda x: module(x).conj()


@WRONG.on(m.sparse)
def missing_entries(module: Any) -> Any:
    def call(x: Any) -> Any:
        whole = module(x).coalesce()
        return torch.sparse_coo_tensor(whole.indices()[:, 1:], whole.values()[1:], whole.shape)

    return call


@WRONG.on(m.empty)
def not_empty(module: Any) -> Any:
    return lambda x: (x[:1], x * 2)


@WRONG.on(m.logs)
def other_infinity(module: Any) -> Any:
    return lambda x: (module(x)[0], -module(x)[1])


@WRONG.on(m.logs)
def finite_instead(module: Any) -> Any:
    return lambda x: (module(x)[0].clamp(min=-100), module(x)[1])


@WRONG.on(m.in_place)
def in_place_forgotten(module: Any) -> Any:
    def call(x: Any) -> Any:
        y = module(x).clone()
        y[:, 0] = ((x * 0.37 + 1.7 * x) * 0.3).relu()[:, 0]
        return y

    return call


@WRONG.on(m.embedding, mode="training")
def repeated_rows_overwritten(module: Any) -> Any:
    """The gradient of a row is that of its last use."""

    class Last(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, weight: Any, x: Any) -> Any:
            ctx.save_for_backward(weight, x)
            return F.embedding(x, weight)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            weight, x = ctx.saved_tensors
            result = torch.zeros_like(weight)
            result[x.flatten()] = gradient.reshape(-1, weight.shape[1])
            return result, None

    return lambda x: module[1](Last.apply(module[0].weight, x))


@WRONG.on(m.dropout, mode="training")
def never_drops(module: Any) -> Any:
    return lambda x: module[2](module[0](x))


@WRONG.on(m.dropout, mode="training")
def drops_without_scale(module: Any) -> Any:
    def call(x: Any) -> Any:
        hidden = module[0](x)
        return module[2](hidden * (torch.rand_like(hidden) < 0.5))

    return call

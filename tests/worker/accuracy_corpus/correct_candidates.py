"""Candidates that differ only in rounding: none may be called wrong."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

import tests.worker.accuracy_corpus.corpus_models as m
from tests.worker.accuracy_corpus.accuracy_cases import Registry

CORRECT = Registry(__file__, ("pass",))
ROUGH = ("pass", "less-accurate")
LOW = ("bfloat16", "float16", "amp")


def same(module: Any) -> Any:
    return module.forward


def flipped_batch(module: Any) -> Any:
    """Every sum over the batch is in another order."""
    return lambda x: module(x.flip(0)).flip(0)


def flipped_batch_of_two(module: Any) -> Any:
    return lambda x: tuple(part.flip(0) for part in module(x.flip(0)))


def other_order(module: Any) -> Any:
    """Products of matrices with their inner dimension in another order, in pieces."""
    plain = F.linear

    def product(x: Any, weight: Any, bias: Any = None) -> Any:
        total = 0
        for part in torch.arange(x.shape[-1]).flip(0).split(max(1, x.shape[-1] // 7)):
            total = total + plain(x[..., part], weight[:, part])
        return total if bias is None else total + bias

    def call(*args: Any) -> Any:
        F.linear = product  # type: ignore[assignment]
        try:
            return module(*args)
        finally:
            F.linear = plain

    return call


def in_float64(module: Any) -> Any:
    """More accurate than the baseline."""
    other = copy.deepcopy(module).double()
    return lambda x: other(x.double()).float()


def ten_bits(module: Any) -> Any:
    """TF32 in software: operands of products lose thirteen bits."""

    def cut(x: Any) -> Any:
        return x + (
            ((x.detach().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32) - x.detach()
        )

    plain = F.linear

    def product(x: Any, weight: Any, bias: Any = None) -> Any:
        return plain(cut(x), cut(weight), bias)

    def call(*args: Any) -> Any:
        F.linear = product  # type: ignore[assignment]
        try:
            return module(*args)
        finally:
            F.linear = plain

    return call


def as_double_conv(module: Any) -> Any:
    """Another algorithm for convolutions: products of unfolded images."""
    plain = F.conv2d

    def unfolded(x: Any, weight: Any, bias: Any) -> Any:
        size = weight.shape[-1]
        columns = F.unfold(x, size)
        flat = weight.flatten(1) @ columns
        runner = x.shape[-1] - size + 1
        return flat.unflatten(-1, (runner, runner)) + bias[:, None, None]

    def call(x: Any) -> Any:
        def forward(self: Any, inner: Any) -> Any:
            return unfolded(inner, self.weight, self.bias)

        kept = torch.nn.Conv2d.forward
        torch.nn.Conv2d.forward = forward
        try:
            return module(x)
        finally:
            torch.nn.Conv2d.forward = kept

    assert plain is F.conv2d
    return call


def naive_norm(module: Any) -> Any:
    """The variance as the mean of squares less the square of the mean."""

    def call(x: Any) -> Any:
        layer = module[0] if isinstance(module, torch.nn.Sequential) else module
        mean = x.mean(-1, keepdim=True)
        variance = ((x - mean) ** 2).mean(-1, keepdim=True)
        y = (x - mean) * torch.rsqrt(variance + layer.eps) * layer.weight + layer.bias
        return module[1](y) if layer is not module else y

    return call


def plain_attention(module: Any) -> Any:
    def call(x: Any) -> Any:
        query, key, value = module.heads(x)
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        mixed = torch.softmax(scores.masked_fill(later, -torch.inf), -1) @ value
        return module.out(mixed.transpose(1, 2).reshape(x.shape))

    return call


def online_attention(module: Any) -> Any:
    """As fused kernels do: piece by piece, with a running maximum."""

    def call(x: Any) -> Any:
        query, key, value = module.heads(x)
        query = query / query.shape[-1] ** 0.5
        length = x.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        top = torch.full_like(query[..., :1], -torch.inf)
        total, mixed = torch.zeros_like(top), torch.zeros_like(query)
        for start in range(0, length, 8):
            part = slice(start, start + 8)
            scores = (query @ key[..., part, :].transpose(-1, -2)).masked_fill(
                later[:, part], -torch.inf
            )
            new = torch.maximum(top, scores.amax(-1, keepdim=True))
            weights, decay = torch.exp(scores - new), torch.exp(top - new)
            total = total * decay + weights.sum(-1, keepdim=True)
            mixed = mixed * decay + weights @ value[..., part, :]
            top = new
        return module.out((mixed / total).transpose(1, 2).reshape(x.shape))

    return call


def unrolled_lstm(module: Any) -> Any:
    def call(x: Any) -> Any:
        outputs, hidden, cells = x, [], []
        for layer in range(2):
            weights = [getattr(module, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh")]
            biases = [getattr(module, f"{name}_l{layer}") for name in ("bias_ih", "bias_hh")]
            state = cell = torch.zeros(x.shape[1], 32, dtype=x.dtype)
            steps = []
            for step in outputs:
                gates = step @ weights[0].t() + state @ weights[1].t() + (biases[0] + biases[1])
                enter, forget, new, out = gates.chunk(4, 1)
                cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(new)
                state = torch.sigmoid(out) * torch.tanh(cell)
                steps.append(state)
            outputs = torch.stack(steps)
            hidden.append(state)
            cells.append(cell)
        return outputs, (torch.stack(hidden), torch.stack(cells))

    return call


def one_hot_embedding(module: Any) -> Any:
    def call(x: Any) -> Any:
        table = module[0].weight
        return module[1](F.one_hot(x, table.shape[0]).to(table.dtype) @ table)

    return call


def step_by_step(module: Any) -> Any:
    """One partial sum per hundred terms, then one after the other."""

    def one(x: Any) -> Any:
        total = torch.zeros(x.shape[0])
        for part in x.flip(-1).split(100, dim=-1):
            total = total + part.cumsum(-1)[:, -1]
        return total

    return lambda x: (one(x), one(x.abs()) / x.shape[-1])


def direct_fourier(module: Any) -> Any:
    def call(x: Any) -> Any:
        numbers = torch.arange(x.shape[-1])
        turns = (numbers[:, None] * numbers) % x.shape[-1]
        matrix = torch.exp(-2j * torch.pi * turns.double() / x.shape[-1]).to(torch.complex64)
        return (x.to(torch.complex64) @ matrix) * module.by

    return call


def other_ties(module: Any) -> Any:
    def call(x: Any) -> Any:
        rounded = x.round()
        found = rounded.flip(-1).topk(3)
        return x.shape[-1] - 1 - found.indices, found.values

    return call


def by_inverse(module: Any) -> Any:
    return lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b)


def reassociated(module: Any) -> Any:
    return lambda x: _first_column((x * ((0.37 + 1.7) * 0.3)).relu())


def _first_column(y: Any) -> Any:
    y[:, 0] = 5.0
    return y


def tree_cumsum(module: Any) -> Any:
    def call(x: Any) -> Any:
        total, width = x.clone(), 1
        while width < x.shape[-1]:
            total = torch.cat([total[:, :width], total[:, width:] + total[:, :-width]], -1)
            width *= 2
        return total, module(x)[1]

    return call


def separately(module: Any) -> Any:
    """A batch in two halves."""
    return lambda x: torch.cat([module(half) for half in x.chunk(2)])


def own_random_numbers(module: Any) -> Any:
    """Draws in another order, as compilers do."""

    def call(x: Any) -> Any:
        torch.rand(5)
        return module(x)

    return call


for model in (m.mlp, m.linear, m.deep, m.layer_norm, m.constant_input, m.cancellation):
    CORRECT.add("other_order", model)
for model in (m.mlp, m.deep, m.constant_input, m.transformer, m.attention, m.large_logits):
    CORRECT.add("other_order", model, mode="training")
for model in (m.mlp, m.convnet, m.batch_norm, m.pooled, m.grouped_conv, m.layer_norm):
    CORRECT.add("flipped_batch", model, mode="training")
CORRECT.add("flipped_batch", m.embedding, mode="training")
CORRECT.add("flipped_batch", m.convnet, mode="training", step=True)
CORRECT.add("flipped_batch", m.mlp_adam, mode="training", step=True)
CORRECT.add("other_order", m.mlp_adam, mode="training", step=True)
CORRECT.add("as_double_conv", m.convnet, mode="training")
CORRECT.add("as_double_conv", m.convnet)
CORRECT.add("in_float64", m.mlp)
CORRECT.add("ten_bits", m.mlp, expected=("less-accurate",))
CORRECT.add("ten_bits", m.mlp, options=(("matmul-precision", "high"),))
CORRECT.add(
    "ten_bits",
    m.deep,
    mode="training",
    options=(("matmul-precision", "high"),),
    expected=ROUGH,
)
CORRECT.add("naive_norm", m.layer_norm)
CORRECT.add("naive_norm", m.flat_rows)
for model in (m.attention,):
    CORRECT.add("plain_attention", model)
    CORRECT.add("plain_attention", model, mode="training")
    CORRECT.add("online_attention", model)
    CORRECT.add("online_attention", model, precision="bfloat16")
    CORRECT.add("plain_attention", model, precision="float16")
CORRECT.add("unrolled_lstm", m.lstm)
CORRECT.add("unrolled_lstm", m.lstm, mode="training")
CORRECT.add("unrolled_lstm", m.lstm, precision="bfloat16")
CORRECT.add("one_hot_embedding", m.embedding, mode="training")
CORRECT.add("step_by_step", m.long_sum)
CORRECT.add("direct_fourier", m.waves)
CORRECT.add("other_ties", m.ties)
CORRECT.add("by_inverse", m.inverse)
CORRECT.add("reassociated", m.in_place)
CORRECT.add("tree_cumsum", m.cumulative)
CORRECT.add("separately", m.mlp)
CORRECT.add("separately", m.mlp, exact=False)
CORRECT.add("other_order", m.mlp, exact=False)
CORRECT.add("other_order", m.deep, exact=False, mode="training")
CORRECT.add("flipped_batch", m.convnet, exact=False, mode="training")
CORRECT.add("flipped_batch", m.million, exact=False)
CORRECT.add("other_order", m.million)
CORRECT.add("other_order", m.scalar)
CORRECT.add("other_order", m.mixed_sizes)
CORRECT.add("other_order", m.small_vector)
CORRECT.add("other_order", m.indices)
CORRECT.add("other_order", m.tiny_gradients, mode="training")
for model in (m.sparse, m.counts, m.empty, m.in_place, m.logs, m.upsample, m.gru, m.embedding_bag):
    CORRECT.add("aot_eager", model)
CORRECT.add("aot_eager", m.sparse_gradient, mode="training")
for low in LOW:
    for model in (m.mlp, m.convnet, m.layer_norm, m.attention, m.indices, m.constant_input):
        CORRECT.add("eager", model, precision=low)
    for model in (m.mlp, m.convnet, m.attention, m.constant_input, m.transformer, m.linear):
        CORRECT.add("eager", model, precision=low, mode="training")
    if low != "float16":  # whose 1e-8 is zero: Adam divides by it
        CORRECT.add("eager", m.mlp_adam, precision=low, mode="training", step=True)
    CORRECT.add("eager", m.mlp, precision=low, exact=False)
    CORRECT.add("eager", m.deep, precision=low, mode="training", slow=low != "bfloat16")
    CORRECT.add("other_order", m.mlp, precision=low)
    CORRECT.add("eager", m.lstm, precision=low)
    CORRECT.add("eager", m.large_logits, precision=low)
CORRECT.add("other_order", m.mlp, precision="bfloat16", baseline_precision="bfloat16")
CORRECT.add("eager", m.mlp, precision="float32", baseline_precision="bfloat16")
CORRECT.add("same", m.dropout, mode="training")
CORRECT.add("eager", m.dropout, mode="training", precision="bfloat16", expected=(*ROUGH, "random"))
CORRECT.add("other_order", m.dropout, mode="training")
CORRECT.add("own_random_numbers", m.dropout, mode="training", expected=("random",))
CORRECT.add("own_random_numbers", m.noise_layer, mode="training", expected=("random",))
CORRECT.add("other_order", m.noise_layer, mode="training")
for model in (m.mlp, m.convnet, m.attention, m.layer_norm, m.lstm, m.embedding, m.dropout):
    CORRECT.add("inductor", model, mode="training", slow=True)
for model in (m.long_sum, m.cancellation, m.large_logits, m.flat_rows, m.indices, m.cumulative):
    CORRECT.add("inductor", model, slow=True)
for low in ("bfloat16", "amp"):
    CORRECT.add("inductor", m.convnet, mode="training", precision=low, slow=True)
    CORRECT.add("inductor", m.transformer, mode="training", precision=low, slow=True)
CORRECT.add("inductor", m.mlp, mode="training", precision="float16", slow=True)
CORRECT.add("inductor", m.noise_layer, mode="training", slow=True)

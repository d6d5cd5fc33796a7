"""Programs with planted waste that no constant of the price model was tuned on, for `value_prices.py`.

    python benchmarks/value_price_held_out.py NAME [--fixed]

Same form as `value_price_programs.py`. Several are adversarial: Python around the wasted call, large
intermediate results, waste in every layer, results that are mostly allocation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from value_price_programs import Program, run_named

PROGRAMS: Final[dict[str, Program]] = {}
TWO_THREADS: Final = frozenset({"conv_features_two_threads"})


def program(function: Program) -> Program:
    """Register a program under its name."""
    PROGRAMS[function.__name__] = function
    return function


def described(x: Tensor) -> Tensor:
    """Return a scaled tensor after a good deal of Python."""
    settings = {f"option_{number}": number * 0.5 for number in range(40)}
    total = sum(value for name, value in sorted(settings.items()) if name.startswith("option"))
    return x * (total / 300.0)  # waste


@program
def python_around_a_small_operator(fixed: bool) -> Iterator[None]:
    x = torch.randn(4096)
    for _ in range(800):
        x = x + 0.001
        one = described(x)
        two = one if fixed else described(x)
        x = x + 1e-6 * (one - two)
    x.sum().item()
    yield


@program
def dictionary_of_small_tensors(fixed: bool) -> Iterator[None]:
    batch = {f"field_{number}": torch.randn(4096) for number in range(24)}
    for _ in range(40):
        batch = {name: value + 0.01 for name, value in batch.items()}
        first = {name: value.sub(0.5).div(2.0) for name, value in batch.items()}
        again = first
        if not fixed:
            again = {name: value.sub(0.5).div(2.0) for name, value in batch.items()}  # waste
        sum(first[name].sum() + again[name].sum() for name in batch).item()
        yield


def convolutions() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()
    )


def conv_features(fixed: bool) -> Iterator[None]:
    net, images = convolutions().eval(), torch.randn(4, 3, 48, 48)
    with torch.no_grad():
        for _ in range(16):
            images = images * 0.999
            features = net(images)
            again = features if fixed else net(images)  # waste
            (features.mean() + again.amax()).item()
            yield


@program
def conv_features_twice(fixed: bool) -> Iterator[None]:
    return conv_features(fixed)


@program
def conv_features_two_threads(fixed: bool) -> Iterator[None]:
    return conv_features(fixed)


@program
def conv_stem_twice_in_training(fixed: bool) -> Iterator[None]:
    stem, head = convolutions(), nn.Conv2d(16, 4, 3)
    optimizer = torch.optim.Adam([*stem.parameters(), *head.parameters()], lr=1e-4)
    images = torch.randn(4, 3, 32, 32)
    for _ in range(16):
        main = stem(images)
        auxiliary = main if fixed else stem(images)  # waste
        loss = head(main).pow(2).mean() + 0.1 * auxiliary.abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


@program
def frozen_embedding(fixed: bool) -> Iterator[None]:
    table, head = nn.Embedding(5000, 128), nn.Linear(128, 32)
    table.requires_grad_(False)
    optimizer = torch.optim.SGD(head.parameters(), lr=1e-3)
    tokens = torch.randint(0, 5000, (32, 64))

    def embedded() -> Tensor:
        return F.layer_norm(table(tokens), (128,))  # waste

    kept = embedded()
    for _ in range(30):
        loss = head(kept if fixed else embedded()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


def padding_mask(lengths: Tensor, size: int) -> Tensor:
    keep = torch.arange(size)[None, :] < lengths[:, None]  # waste
    mask = torch.zeros(lengths.numel(), 1, 1, size)  # waste
    mask = mask.masked_fill(~keep[:, None, None, :], -1e9)  # waste
    return mask.expand(-1, 4, size, size).contiguous()  # waste


@program
def attention_mask_in_every_layer(fixed: bool) -> Iterator[None]:
    lengths = torch.tensor([96, 80, 64, 33])
    layers = nn.ModuleList([nn.Linear(64, 192) for _ in range(4)])
    x = torch.randn(4, 96, 64)
    with torch.no_grad():
        for _ in range(12):
            h, mask = x, padding_mask(lengths, 96)
            for layer in layers:
                if not fixed:
                    mask = padding_mask(lengths, 96)
                q, k, v = (
                    part.view(4, 96, 4, 16).transpose(1, 2) for part in layer(h).chunk(3, -1)
                )
                h = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
                h = h.transpose(1, 2).reshape(4, 96, 64)
            x = x * 0.999 + 1e-3 * h
            x.sum().item()
            yield


@program
def weights_converted_each_step(fixed: bool) -> Iterator[None]:
    weight, x = torch.randn(768, 768), torch.randn(32, 768, dtype=torch.float64)
    kept = weight.double()
    for _ in range(20):
        x = x * 0.999
        wide = kept if fixed else weight.double()  # waste
        (x @ wide).sum().item()
        yield


@program
def gather_with_rebuilt_index(fixed: bool) -> Iterator[None]:
    x = torch.randn(512, 256)
    order = torch.randperm(256)

    def index() -> Tensor:
        return order[None, :].expand(512, 256).contiguous()  # waste

    kept = index()
    for _ in range(30):
        x = x * 0.999 + 0.001
        picked = x.gather(1, kept if fixed else index())
        picked.tanh().sum().item()
        yield


@program
def scatter_into_filled_memory(fixed: bool) -> Iterator[None]:
    x, order = torch.randn(512, 512), torch.randperm(512)
    for _ in range(30):
        x = x * 0.999
        out = torch.empty(512, 512) if fixed else torch.full((512, 512), -1.0)  # waste
        out.copy_(x)
        out.index_copy_(0, order[:16], x[:16])
        out.exp().sum().item()
        yield


@program
def transposed_copy_twice(fixed: bool) -> Iterator[None]:
    x = torch.randn(1024, 384)
    for _ in range(24):
        x = x * 0.999
        one = x.t().contiguous()
        two = one if fixed else x.t().contiguous()  # waste
        (one.amax(0) + two.amin(0)).sum().item()
        yield


@program
def large_chain(fixed: bool) -> Iterator[None]:
    x = torch.randn(2 << 20)

    def chain() -> Tensor:
        y = x.mul(0.5).add(1.0)  # waste
        return y.sigmoid().mul(y).sub(x)  # waste

    for _ in range(5):
        x = x + 0.01
        one = chain()
        two = one if fixed else chain()
        (one.sum() + two.mean()).item()
        del one, two
        yield


@program
def projection_in_every_time_step(fixed: bool) -> Iterator[None]:
    cell, context = nn.GRUCell(64, 64), torch.randn(64, 256)
    project = nn.Linear(256, 64)
    optimizer = torch.optim.SGD([*cell.parameters(), *project.parameters()], lr=1e-3)
    for _ in range(12):
        state, given = torch.zeros(64, 64), project(context)
        for number in range(8):
            given = given if fixed or not number else project(context)  # waste
            state = cell(given, state)
        optimizer.zero_grad()
        state.pow(2).mean().backward()
        optimizer.step()
        yield


def positions(length: int, width: int) -> Tensor:
    place = torch.arange(length).float()[:, None]  # waste
    rate = torch.exp(torch.arange(0, width, 2).float() * (-math.log(1e4) / width))  # waste
    return torch.cat([torch.sin(place * rate), torch.cos(place * rate)], -1)  # waste


@program
def positions_in_every_forward(fixed: bool) -> Iterator[None]:
    net = nn.Linear(128, 128)
    optimizer, x = torch.optim.SGD(net.parameters(), lr=1e-3), torch.randn(4, 256, 128)
    kept = positions(256, 128)
    for _ in range(24):
        loss = net(x + (kept if fixed else positions(256, 128))).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


@program
def filled_piece_by_piece(fixed: bool) -> Iterator[None]:
    parts = [torch.randn(256, 256) for _ in range(4)]
    for _ in range(30):
        whole = torch.empty(1024, 256) if fixed else torch.zeros(1024, 256)  # waste
        for number, part in enumerate(parts):
            whole[256 * number : 256 * (number + 1)] = part
        parts[0] = parts[0] * 0.999
        whole.sum().item()
        yield


@program
def targets_encoded_each_step(fixed: bool) -> Iterator[None]:
    net, classes = nn.Linear(64, 200), torch.randint(0, 200, (512,))
    optimizer, x = torch.optim.SGD(net.parameters(), lr=1e-2), torch.randn(512, 64)

    def encoded() -> Tensor:
        return F.one_hot(classes, 200).float()  # waste

    kept = encoded()
    for _ in range(30):
        loss = (net(x).softmax(-1) - (kept if fixed else encoded())).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


@program
def probabilities_for_loss_and_metrics(fixed: bool) -> Iterator[None]:
    net, classes = nn.Linear(64, 1000), torch.randint(0, 1000, (256,))
    optimizer, x = torch.optim.SGD(net.parameters(), lr=1e-2), torch.randn(256, 64)
    for _ in range(24):
        logits = net(x)
        logs = F.log_softmax(logits, -1)
        loss = F.nll_loss(logs, classes)
        with torch.no_grad():
            again = logs if fixed else F.log_softmax(logits, -1)  # waste
            (again.exp() * again).sum(-1).mean().item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


@program
def relu_after_relu(fixed: bool) -> Iterator[None]:
    one, two = nn.Linear(256, 512), nn.Linear(512, 64)
    optimizer = torch.optim.SGD([*one.parameters(), *two.parameters()], lr=1e-3)
    x = torch.randn(512, 256)
    for _ in range(20):
        hidden = one(x).relu()
        hidden = hidden if fixed else hidden.clamp_min(0.0)  # waste
        loss = two(hidden).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


@program
def buffers_copied_though_unchanged(fixed: bool) -> Iterator[None]:
    source = [torch.randn(256, 256) for _ in range(8)]
    target = [tensor.clone() for tensor in source]
    x = torch.randn(32, 256)
    for _ in range(30):
        if not fixed:
            for one, other in zip(target, source, strict=True):
                one.copy_(other)  # waste
        y = x
        for one in target[:2]:
            y = (y @ one).tanh()
        y.sum().item()
        yield


def configured(x: Tensor) -> Tensor:
    """Return a scaled tensor after far more Python than torch."""
    settings = {f"option_{number}": number * 0.5 for number in range(400)}
    total = sum(value for name, value in sorted(settings.items()) if name.startswith("option"))
    return x * (total / 30000.0)  # waste


@program
def mostly_python(fixed: bool) -> Iterator[None]:
    x = torch.randn(4096)
    for _ in range(200):
        x = x + 0.001
        one = configured(x)
        two = one if fixed else configured(x)
        x = x + 1e-6 * (one - two)
    x.sum().item()
    yield


if __name__ == "__main__":
    run_named(PROGRAMS, TWO_THREADS)

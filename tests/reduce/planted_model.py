"""Random models with one operator that a backend makes slow, wrong, or use more memory."""

from __future__ import annotations

import random

STEPS = 12
OPERATORS = {
    "relu": "torch.relu(x)",
    "gelu": "F.gelu(x)",
    "tanh": "torch.tanh(x)",
    "sigmoid": "torch.sigmoid(x)",
    "softmax": "torch.softmax(x, -1)",
    "layer_norm": "F.layer_norm(x, (64,))",
    "linear": "F.linear(x, self.weight)",
    "matmul": "torch.matmul(x, self.weight)",
    "cumsum": "torch.cumsum(x, -1)",
    "sort": "torch.sort(x, -1)[0]",
    "flip": "torch.flip(x, (0,))",
    "roll": "torch.roll(x, 3, 1)",
    "conv1d": "F.conv1d(x.unsqueeze(1), self.kernel, padding=1).squeeze(1)",
    "abs": "x.abs()",
    "chunk": "torch.cat(x.chunk(2, -1)[::-1], -1)",
    "clamp": "x.clamp(-2, 2)",
}
MODEL = """
import time

import torch
import torch.nn.functional as F
from torch._dynamo import register_backend


@register_backend(name={backend!r})
def planted(graph_module, inputs):
    class Planted(torch.fx.Interpreter):
        def run_node(self, n):
            value = super().run_node(n)
            name = getattr(n.target, "__name__", str(n.target))
            return {effect}(value, {seconds}) if name in {planted!r} else value

    interpreter = Planted(graph_module)
    return lambda *args: interpreter.run(*args)


def slow(value, seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return value


def wrong(value, _):
    if isinstance(value, torch.Tensor):
        return value + 0.05 * torch.cos(37.0 * value) if value.is_floating_point() else value
    return tuple(wrong(one, _) for one in value)


def memory(value, _):
    torch.ones(1 << 18)
    return value


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(64, 64) / 8)
        self.kernel = torch.nn.Parameter(torch.randn(1, 1, 3) / 3)

    def forward(self, x):
{steps}
        return x


def net():
    return Net().eval(), (torch.randn({shape}),), lambda output: output.square().mean()
"""


def model_text(seed: int, effect: str = "slow", *, backend: str) -> tuple[str, str]:
    """Return a model file and the planted operator; the effect is slow, wrong or memory."""
    chance = random.Random(f"model/{seed}")
    planted = chance.choice(list(OPERATORS))
    others = [one for one in OPERATORS if one != planted]
    steps = [chance.choice(others) for _ in range(STEPS - 1)]
    steps.insert(chance.randrange(STEPS), planted)
    text = MODEL.format(
        backend=backend,
        planted=(planted,),
        effect=effect,
        seconds=chance.uniform(0.0005, 0.003),
        shape="32, 64",
        steps="\n".join(f"        x = {OPERATORS[one]}" for one in steps),
    )
    return text, planted


LAYERS = """

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(64)
        self.project = torch.nn.Linear(64, 192)
        self.up = torch.nn.Linear(64, 128)
        self.down = torch.nn.Linear(128, 64)

    def forward(self, x):
{layer}
        return x


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range({repetitions}))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
{steps}
        return x


def net():
    return Net().eval(), (torch.randn(8, 16, 64),), lambda output: output.square().mean()
"""
STYLES = {
    "residual": "y = x * 0.9\ny = {}\nx = x + y",
    "attention": "q, k, v = (one.view(8, 16, 4, 16).transpose(1, 2) for one in "
    "self.project(self.norm(x)).chunk(3, -1))\ny = F.scaled_dot_product_attention(q, k, v)\ny = {}\n"
    "x = x + y.transpose(1, 2).reshape(8, 16, 64)",
    "perceptron": "y = F.silu(self.up(self.norm(x)))\ny = {}\nx = x + self.down(y)",
    "branches": "a, b = x.chunk(2, -1)\ny = a.transpose(0, 1)\ny = {}\n"
    "x = torch.cat((b.relu(), y.transpose(0, 1)), -1)",
    "strided": "y = x.permute(2, 0, 1)[::2]\ny = {}\nx = x + y.permute(1, 2, 0).repeat(1, 1, 2)",
    "half": "y = x.bfloat16()\ny = {}\nx = x + y.float()",
    "in place": "y = x.clone()\ny.mul_(0.5)\ny[:, 0].zero_()\ny = {}\nx = y.add_(x)",
}
"""Lines of a module, with a place for an operator."""
PLANTABLE = {
    "gelu": "F.gelu(y)",
    "tanh": "torch.tanh(y)",
    "sigmoid": "torch.sigmoid(y)",
    "softmax": "torch.softmax(y, -1)",
    "cumsum": "torch.cumsum(y, -1)",
    "sort": "torch.sort(y, -1)[0]",
    "flip": "torch.flip(y, (0,))",
    "roll": "torch.roll(y, 3, 1)",
    "abs": "y.abs()",
    "clamp": "y.clamp(-2, 2)",
}
"""Operators that no style has."""


def layered_model_text(
    seed: int, effect: str = "slow", *, backend: str
) -> tuple[str, tuple[str, ...]]:
    """Return a model of repeated layers, with residual connections, views and in-place operators.

    One operator is planted in the layers or after them, or one in each.
    """
    chance = random.Random(f"layered/{seed}")
    both = chance.sample(list(PLANTABLE), 2)
    in_layer, after = chance.choice([(True, False), (False, True), (True, True)])
    styles = chance.sample(list(STYLES), 3)

    def lines(names: list[str], operator: str | None) -> str:
        place = chance.randrange(len(names)) if operator else -1
        texts = [
            STYLES[name].format(PLANTABLE[operator] if operator and number == place else "y + 1")
            for number, name in enumerate(names)
        ]
        return "\n".join(f"        {line}" for line in "\n".join(texts).splitlines())

    planted = tuple(one for one, used in zip(both, (in_layer, after), strict=True) if used)
    head, _, _ = MODEL.partition("class Net(")
    functional = ["residual", "branches", "strided", "half", "in place"]
    text = head.format(
        backend=backend,
        planted=planted,
        effect=effect,
        seconds=chance.uniform(0.0005, 0.001),
    ).rstrip() + LAYERS.format(
        layer=lines(styles, both[0] if in_layer else None),
        repetitions=chance.randrange(2, 5),
        steps=lines(chance.sample(functional, 2), both[1] if after else None),
    )
    return text, planted

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
            return value if name != {planted!r} else {effect}(value, {seconds})

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
    return Net().eval(), (torch.randn(32, 64),), lambda output: output.square().mean()
"""


def model_text(seed: int, effect: str = "slow") -> tuple[str, str]:
    """Return a model file and the planted operator; the effect is slow, wrong or memory."""
    chance = random.Random(f"model/{seed}")
    planted = chance.choice(list(OPERATORS))
    others = [one for one in OPERATORS if one != planted]
    steps = [chance.choice(others) for _ in range(STEPS - 1)]
    steps.insert(chance.randrange(STEPS), planted)
    text = MODEL.format(
        backend=f"planted_{seed}",
        planted=planted,
        effect=effect,
        seconds=chance.uniform(0.0005, 0.003),
        steps="\n".join(f"        x = {OPERATORS[one]}" for one in steps),
    )
    return text, planted

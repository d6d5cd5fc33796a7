"""Random models with one operator that a backend makes slow."""

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
    class Slow(torch.fx.Interpreter):
        def run_node(self, n):
            name = getattr(n.target, "__name__", str(n.target))
            if name == {planted!r}:
                end = time.thread_time() + {seconds}
                while time.thread_time() < end:
                    pass
            return super().run_node(n)

    slow = Slow(graph_module)
    return lambda *args: slow.run(*args)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(64, 64) / 8)
        self.kernel = torch.nn.Parameter(torch.randn(1, 1, 3) / 3)

    def forward(self, x):
{steps}
        return x


def net():
    return Net().eval(), (torch.randn(32, 64),)
"""


def model_text(seed: int) -> tuple[str, str]:
    """Return a model file and the planted operator."""
    chance = random.Random(f"model/{seed}")
    planted = chance.choice(list(OPERATORS))
    others = [one for one in OPERATORS if one != planted]
    steps = [chance.choice(others) for _ in range(STEPS - 1)]
    steps.insert(chance.randrange(STEPS), planted)
    text = MODEL.format(
        backend=f"planted_{seed}",
        planted=planted,
        seconds=chance.uniform(0.0005, 0.003),
        steps="\n".join(f"        x = {OPERATORS[one]}" for one in steps),
    )
    return text, planted

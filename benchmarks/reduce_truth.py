"""How often `torchyard reduce` finds a planted slow operator, on random models.

Run as `python -m benchmarks.reduce_truth [MODELS]`. Each model is a chain of 12 random operators, one
of which takes 0.5 to 3 ms longer in the candidate: a backend that runs the graph operator by operator.
A reduction is right if at most 3 operators remain and the planted one is among them.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from torchyard.bench.request import Request, SpecText
from torchyard.bench.study_assembly import assemble
from torchyard.bench.workload_text import choose_workload
from torchyard.errors import TorchyardError
from torchyard.reduce.session import reduce_comparison

STEPS = 12
MOST_LEFT = 3
SECONDS = 120.0
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


@register_backend
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
        planted=planted,
        seconds=chance.uniform(0.0005, 0.003),
        steps="\n".join(f"        x = {OPERATORS[one]}" for one in steps),
    )
    return text, planted


def reduce_one(seed: int) -> tuple[bool, str]:
    """Return whether the reduction of a model is right, and a line about it."""
    text, planted = model_text(seed)
    with TemporaryDirectory() as folder:
        (Path(folder) / "model.py").write_text(text, encoding="utf-8")

        def spec(text: str) -> SpecText:
            return SpecText(text=text, where="benchmark", folder=Path(folder))

        study = assemble(
            Request(
                workloads=(choose_workload(spec("model.py:net")),),
                baseline=spec("eager"),
                candidates=(spec("dynamo:planted"),),
                settings={"threads": 1},
            ),
            here=sys.executable,
        )
        try:
            result = reduce_comparison(
                study.workloads[0],
                study.baseline,
                study.candidates[0],
                study.settings,
                seconds=SECONDS,
                name="reduced.py",
                listener=lambda _: None,
            )
        except TorchyardError as error:
            return False, f"{seed:3} {planted:<11} {error.what}"
    names = [one.rpartition(".")[2] for one in result.operators]
    right = len(names) <= MOST_LEFT and planted in names
    before, took = result.operators_before, result.elapsed_s
    return right, f"{seed:3} {planted:<11} {before:3} -> {', '.join(names)}  {took:.0f} s"


def main() -> None:
    models = int(sys.argv[1]) if len(sys.argv) > 1 else 24
    right = 0
    for seed in range(models):
        is_right, line = reduce_one(seed)
        right += is_right
        print(f"{'right' if is_right else 'wrong'} {line}", flush=True)
    print(f"{right} of {models} models: at most {MOST_LEFT} operators with the planted one")


if __name__ == "__main__":
    main()

"""Check a candidate against eager code, with a model and wrong backends from temporary files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.worker.in_process_service import make_service, variant, write_file

NET = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(16, 64)
            self.second = nn.Linear(64, 4)

        def forward(self, x):
            hidden = torch.relu(self.first(x))
            return self.second(hidden), hidden

        def example_inputs(self):
            return (torch.randn(8, 16),)

        def loss(self, output):
            return output[0].square().mean()
"""

BACKENDS = """
    import torch

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 1.01

    def right(module):
        return lambda x: module(x)

    def scaled(module):
        return lambda x: (module(x)[0] * 1.01, module(x)[1])

    def shifted(module):
        return lambda x: (module(x)[0] + 0.01, module(x)[1])

    def gradient(module):
        return lambda x: (Wrong.apply(module(x)[0]), module(x)[1])

    def not_a_number(module):
        def call(x):
            output, hidden = module(x)
            output = output.clone()
            output[0, 0] = float("nan")
            return output, hidden
        return call

    def all_nan(module):
        return lambda x: (module(x)[0] * float("nan"), module(x)[1])

    def shape(module):
        return lambda x: (module(x)[0][:-1], module(x)[1])

    def missing(module):
        return lambda x: module(x)[:1]

    def nothing(module):
        return lambda x: None

    def whole(module):
        return lambda x: (module(x)[0].long(), module(x)[1])

    def one_element(module):
        def call(x):
            output, hidden = module(x)
            hidden = hidden.clone()
            hidden[3, 7] += 0.5
            return output, hidden
        return call
"""


def check_accuracy(
    folder: Path,
    code: str,
    backend: str,
    *,
    mode: str = "inference",
    precision: str = "float32",
    step: bool = False,
) -> dict[str, Any]:
    if backend.isidentifier() and backend not in {"eager", "inductor", "aot_eager"}:
        backend = write_file(folder, "backends.py", BACKENDS) + ":" + backend
    candidate = variant("candidate", backend, precision)
    service = make_service(code, variant("baseline"), candidate, mode=mode, step=step)
    path = str(folder / "reference.pt")
    service.reference("baseline", path)
    judgement: dict[str, Any] = service.judge("candidate", path)
    return judgement

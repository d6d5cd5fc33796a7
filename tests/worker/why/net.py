"""A small program whose operators have known modules and lines."""

from __future__ import annotations

from pathlib import Path

from tests.worker.in_process_service import write_file

NET = """
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(32)
            self.up = nn.Linear(32, 32)

        def forward(self, x):
            h = self.norm(x)  # norm
            return x + torch.sigmoid(self.up(h))  # add

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Block(), Block()])

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return torch.sort(x)[0].mean()  # mean

        def example_inputs(self):
            return (torch.randn(8, 32),)

        def loss(self, output):
            return output
"""
PROGRAM = (
    NET
    + """
    def same(module):
        return lambda *inputs: module(*inputs)

    def slower(module):
        import time
        def call(*inputs):
            time.sleep(0.02)
            return module(*inputs)
        return call

    def copied(module):
        import copy
        return copy.deepcopy(module)
"""
)


def write_net(folder: Path) -> str:
    return write_file(folder, "net.py", PROGRAM)

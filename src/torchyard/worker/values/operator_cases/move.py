"""Operators that move values and do not compute."""

from typing import Any, List

import torch

from torchyard.worker.values.operator_cases import Case, case
from torchyard.worker.values.operator_cases.inputs import Draw


def _table(draw: Draw) -> List[Any]:
    return [draw.learned(256, 256)]


def _two(draw: Draw) -> List[Any]:
    return [draw.learned(256, 256), draw.learned(256, 256)]


CASES: List[Case] = [
    case("cat", lambda x, y: torch.cat([x, y]), _two),
    case("cat.columns", lambda x, y: torch.cat([x, y], 1), _two),
    case("stack", lambda x, y: torch.stack([x, y]), _two),
    case("hstack", lambda x, y: torch.hstack([x, y]), _two),
    case("block_diag", "block_diag", _two),
    case("repeat", lambda x: x.repeat(2, 2), _table),
    case("repeat_interleave", lambda x: torch.repeat_interleave(x, 3, 0), _table),
    case(
        "repeat_interleave.counts",
        lambda x, n: torch.repeat_interleave(x, n, 0),
        lambda d: [d.learned(256, 256), d.integers_from(1, 4, 256)],
    ),
    case("tile", lambda x: torch.tile(x, (2, 1)), _table),
    case("roll", "roll", _table, shifts=3, dims=0),
    case("flip", "flip", _table, dims=(0, 1)),
    case("rot90", "rot90", _table),
    case("contiguous", lambda x: x.t().contiguous(), _table),
    case("clone", "clone", _table),
    case("reshape.copy", lambda x: x.t().reshape(-1), _table),
    case("expand.backward", lambda x: x.expand(64, 256, 64), lambda d: [d.learned(1, 256, 64)]),
    case("as_strided", lambda x: torch.as_strided(x, (128, 256), (256, 1)), _table),
    case("tensor_unfold", lambda x: x.unfold(1, 32, 16), _table),
    case("to.half", lambda x: x.to(torch.float16), _table),
    case("to.bfloat16", lambda x: x.to(torch.bfloat16), _table),
    case("to.double", lambda x: x.to(torch.float64), _table),
    case(
        "meshgrid",
        lambda x, y: torch.meshgrid(x, y, indexing="ij"),
        lambda d: [d.learned(256), d.learned(256)],
    ),
    case("cartesian_prod", "cartesian_prod", lambda d: [d.learned(256), d.learned(256)]),
    case("combinations", "combinations", lambda d: [d.learned(256)]),
    case("vander", "vander", lambda d: [d.between(-1.0, 1.0, 256)], N=64),
    case(
        "pad_sequence",
        lambda *parts: torch.nn.utils.rnn.pad_sequence(parts, batch_first=True),
        lambda d: [d.learned(length, 64) for length in (300, 200, 150, 80)],
    ),
]

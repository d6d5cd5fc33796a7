"""Embeddings and bags of them: zeros that gradients are summed into are needed."""

from typing import Any, List

import torch

from torchyard.worker.values.operator_cases import Case, case
from torchyard.worker.values.operator_cases.inputs import Draw

_F = "nn.functional."


def _words(draw: Draw) -> List[Any]:
    return [draw.integers(500, 16, 32), draw.learned(500, 64)]


def _bag(mode: str, **options: Any) -> Case:
    return case("embedding_bag." + mode, _F + "embedding_bag", _words, mode=mode, **options)


CASES: List[Case] = [
    case("embedding", _F + "embedding", _words),
    case("embedding.padding", _F + "embedding", _words, padding_idx=3),
    case("embedding.by_frequency", _F + "embedding", _words, scale_grad_by_freq=True),
    case("embedding.sparse", _F + "embedding", _words, sparse=True),
    case("embedding.all_rows", _F + "embedding", lambda d: [d.order(512), d.learned(512, 64)]),
    _bag("sum"),
    _bag("mean"),
    _bag("max"),
    case("embedding_bag.padding", _F + "embedding_bag", _words, mode="sum", padding_idx=3),
    case(
        "embedding_bag.offsets",
        lambda i, w, at: torch.nn.functional.embedding_bag(i, w, at, mode="sum"),
        lambda d: [d.integers(500, 512), d.learned(500, 64), d.order(32).sort().values * 16],
    ),
    case(
        "embedding_bag.weights",
        lambda i, w, s: torch.nn.functional.embedding_bag(i, w, mode="sum", per_sample_weights=s),
        lambda d: [*_words(d), d.learned(16, 32)],
    ),
]

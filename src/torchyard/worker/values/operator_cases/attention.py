"""Attention, whole and in parts."""

from typing import Any, List

import torch

from torchyard.worker.values.operator_cases import Case, case
from torchyard.worker.values.operator_cases.inputs import Draw

_SDPA = "nn.functional.scaled_dot_product_attention"


def _heads(draw: Draw) -> List[Any]:
    return [draw.learned(2, 4, 128, 32) for _ in range(3)]


def _module(draw: Draw) -> List[Any]:
    module = torch.nn.MultiheadAttention(64, 4, batch_first=True)
    return [draw.on_device(module), draw.learned(4, 64, 64)]


def _layer(draw: Draw) -> List[Any]:
    module = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return [draw.on_device(module), draw.learned(4, 64, 64)]


def _decoder(draw: Draw) -> List[Any]:
    module = torch.nn.TransformerDecoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return [draw.on_device(module), draw.learned(4, 64, 64), draw.learned(4, 64, 64)]


CASES: List[Case] = [
    case("attention", _SDPA, _heads),
    case("attention.causal", _SDPA, _heads, is_causal=True),
    case("attention.scale", _SDPA, _heads, scale=0.5),
    case("attention.bool_mask", _SDPA, lambda d: [*_heads(d), d.bools(2, 1, 128, 128)]),
    case("attention.float_mask", _SDPA, lambda d: [*_heads(d), d.floats(2, 1, 128, 128)]),
    case("attention.learned_mask", _SDPA, lambda d: [*_heads(d), d.learned(2, 4, 128, 128)]),
    case(
        "attention.grouped",
        _SDPA,
        lambda d: [d.learned(2, 4, 128, 32), d.learned(2, 2, 128, 32), d.learned(2, 2, 128, 32)],
        enable_gqa=True,
    ),
    case("attention.math", "_scaled_dot_product_attention_math", _heads),
    case("multi_head_attention", lambda m, x: m(x, x, x, need_weights=False)[0], _module),
    case("multi_head_attention.weights", lambda m, x: m(x, x, x), _module),
    case("transformer_encoder_layer", lambda m, x: m(x), _layer),
    case("transformer_decoder_layer", lambda m, x, y: m(x, y), _decoder),
]

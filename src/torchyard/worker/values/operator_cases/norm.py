"""Normalisation, softmax and dropout-like operators that are not random."""

from typing import Any, List

import torch

from torchyard.worker.values.operator_cases import Case, case
from torchyard.worker.values.operator_cases.inputs import Draw

_F = "nn.functional."


def _image(draw: Draw) -> List[Any]:
    return [draw.learned(4, 16, 32, 32)]


def _with_statistics(draw: Draw) -> List[Any]:
    return [
        draw.learned(4, 16, 32, 32),
        draw.floats(16),
        draw.between(0.5, 1.5, 16),
        draw.learned(16),
        draw.learned(16),
    ]


def _table(draw: Draw) -> List[Any]:
    return [draw.learned(256, 256)]


CASES: List[Case] = [
    case("batch_norm.training", _F + "batch_norm", _with_statistics, training=True),
    case("batch_norm.inference", _F + "batch_norm", _with_statistics, training=False),
    case(
        "batch_norm.plain",
        lambda x: torch.nn.functional.batch_norm(x, None, None, training=True),
        _image,
    ),
    case(
        "batch_norm.1d",
        lambda x, w, b: torch.nn.functional.batch_norm(x, None, None, w, b, training=True),
        lambda d: [d.learned(512, 128), d.learned(128), d.learned(128)],
    ),
    case("instance_norm", _F + "instance_norm", _image),
    case(
        "instance_norm.affine",
        lambda x, w, b: torch.nn.functional.instance_norm(x, weight=w, bias=b),
        lambda d: [*_image(d), d.learned(16), d.learned(16)],
    ),
    case("group_norm", _F + "group_norm", _image, num_groups=4),
    case(
        "group_norm.affine",
        lambda x, w, b: torch.nn.functional.group_norm(x, 4, w, b),
        lambda d: [*_image(d), d.learned(16), d.learned(16)],
    ),
    case("layer_norm", _F + "layer_norm", _table, normalized_shape=(256,)),
    case(
        "layer_norm.affine",
        lambda x, w, b: torch.nn.functional.layer_norm(x, (256,), w, b),
        lambda d: [*_table(d), d.learned(256), d.learned(256)],
    ),
    case(
        "rms_norm",
        lambda x, w: torch.nn.functional.rms_norm(x, (256,), w),
        lambda d: [*_table(d), d.learned(256)],
    ),
    case("local_response_norm", _F + "local_response_norm", _image, size=5),
    case("normalize", _F + "normalize", _table),
    case("normalize.p1", _F + "normalize", _table, p=1.0),
    case("renorm", "renorm", _table, p=2, dim=0, maxnorm=5.0),
    case("softmax", _F + "softmax", _table, dim=1),
    case("softmax.first", _F + "softmax", _table, dim=0),
    case("log_softmax", _F + "log_softmax", _table, dim=1),
    case("log_softmax.first", _F + "log_softmax", _table, dim=0),
    case("softmin", _F + "softmin", _table, dim=1),
    case("safe_softmax", "_safe_softmax", _table, dim=1),
    case("cosine_similarity", _F + "cosine_similarity", lambda d: [*_table(d), *_table(d)]),
    case("pairwise_distance", _F + "pairwise_distance", lambda d: [*_table(d), *_table(d)]),
    case("cdist", "cdist", lambda d: [d.learned(256, 32), d.learned(256, 32)]),
    case("cdist.p1", "cdist", lambda d: [d.learned(128, 16), d.learned(128, 16)], p=1.0),
    case("pdist", _F + "pdist", lambda d: [d.learned(256, 16)]),
]

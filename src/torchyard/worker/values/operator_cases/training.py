"""Losses with their gradients, and optimiser steps.

Many losses fill a gradient before they write it. Optimiser steps are operators over lists of
tensors, without backward.
"""

from typing import Any, Callable, List

import torch

from torchyard.worker.values.operator_cases import Case, Draw, case

_F = "nn.functional."


def _pair(draw: Draw) -> List[object]:
    return [draw.learned(1024, 512), draw.floats(1024, 512)]


def _classes(draw: Draw) -> List[object]:
    return [draw.learned(512, 128), draw.integers(128, 512)]


def _image_classes(draw: Draw) -> List[object]:
    return [draw.learned(4, 16, 96, 96), draw.integers(16, 4, 96, 96)]


def _probabilities(draw: Draw) -> List[object]:
    return [draw.learned_between(0.05, 0.95, 512, 128), draw.between(0.0, 1.0, 512, 128)]


def _labels(draw: Draw) -> List[object]:
    """The first labels of each row count; a -1 ends them."""
    labels = draw.integers(128, 256, 128)
    labels[:, 3:] = -1
    return [draw.learned(256, 128), labels]


def _rows(draw: Draw) -> List[object]:
    return [draw.learned(512, 128), draw.learned(512, 128), draw.signs(512)]


LOSS_CASES: List[Case] = [
    case("mse_loss", _F + "mse_loss", _pair),
    case("mse_loss.sum", _F + "mse_loss", _pair, reduction="sum"),
    case("mse_loss.none", _F + "mse_loss", _pair, reduction="none"),
    case("l1_loss", _F + "l1_loss", _pair),
    case("l1_loss.none", _F + "l1_loss", _pair, reduction="none"),
    case("smooth_l1_loss", _F + "smooth_l1_loss", _pair),
    case("smooth_l1_loss.none", _F + "smooth_l1_loss", _pair, reduction="none"),
    case("huber_loss", _F + "huber_loss", _pair),
    case("huber_loss.none", _F + "huber_loss", _pair, reduction="none", delta=0.5),
    case("nll_loss", _F + "nll_loss", _classes),
    case("nll_loss.none", _F + "nll_loss", _classes, reduction="none"),
    case("nll_loss.ignore_index", _F + "nll_loss", _classes, ignore_index=3),
    case(
        "nll_loss.weight",
        _F + "nll_loss",
        lambda d: [*_classes(d), d.between(0.1, 1.0, 128)],
    ),
    case("nll_loss2d", _F + "nll_loss", _image_classes),
    case("nll_loss2d.none", _F + "nll_loss", _image_classes, reduction="none"),
    case("nll_loss2d.ignore_index", _F + "nll_loss", _image_classes, ignore_index=3),
    case("cross_entropy", _F + "cross_entropy", _classes),
    case("cross_entropy.smoothing", _F + "cross_entropy", _classes, label_smoothing=0.1),
    case("cross_entropy.image", _F + "cross_entropy", _image_classes),
    case(
        "cross_entropy.probabilities",
        _F + "cross_entropy",
        lambda d: [d.learned(512, 128), d.floats(512, 128).softmax(1)],
    ),
    case("kl_div", _F + "kl_div", _pair, reduction="batchmean"),
    case("kl_div.log_target", _F + "kl_div", _pair, reduction="sum", log_target=True),
    case("poisson_nll_loss", _F + "poisson_nll_loss", _pair),
    case("poisson_nll_loss.full", _F + "poisson_nll_loss", _probabilities, full=True),
    case(
        "gaussian_nll_loss",
        _F + "gaussian_nll_loss",
        lambda d: [*_pair(d), d.learned_between(0.1, 1.0, 1024, 512)],
    ),
    case("binary_cross_entropy", _F + "binary_cross_entropy", _probabilities),
    case(
        "binary_cross_entropy.none", _F + "binary_cross_entropy", _probabilities, reduction="none"
    ),
    case(
        "binary_cross_entropy_with_logits",
        _F + "binary_cross_entropy_with_logits",
        lambda d: [d.learned(512, 128), d.between(0.0, 1.0, 512, 128)],
    ),
    case(
        "soft_margin_loss",
        _F + "soft_margin_loss",
        lambda d: [d.learned(512, 128), d.signs(512, 128)],
    ),
    case(
        "hinge_embedding_loss",
        _F + "hinge_embedding_loss",
        lambda d: [d.learned(512, 128), d.signs(512, 128)],
    ),
    case("multi_margin_loss", _F + "multi_margin_loss", _classes),
    case("multi_margin_loss.none", _F + "multi_margin_loss", _classes, reduction="none", p=2),
    case("multilabel_margin_loss", _F + "multilabel_margin_loss", _labels),
    case("multilabel_margin_loss.none", _F + "multilabel_margin_loss", _labels, reduction="none"),
    case(
        "multilabel_soft_margin_loss",
        _F + "multilabel_soft_margin_loss",
        lambda d: [d.learned(512, 128), d.bools(512, 128).float()],
    ),
    case("cosine_embedding_loss", _F + "cosine_embedding_loss", _rows),
    case(
        "margin_ranking_loss",
        _F + "margin_ranking_loss",
        lambda d: [d.learned(65536), d.learned(65536), d.signs(65536)],
    ),
    case(
        "triplet_margin_loss",
        _F + "triplet_margin_loss",
        lambda d: [d.learned(512, 128), d.learned(512, 128), d.learned(512, 128)],
    ),
    case(
        "ctc_loss",
        _F + "ctc_loss",
        lambda d: [
            d.floats(40, 16, 32).log_softmax(2).requires_grad_(),
            d.integers_from(1, 32, 16, 12),
            d.integers_from(40, 41, 16),
            d.integers_from(6, 13, 16),
        ],
    ),
]


def _parameters(draw: Draw) -> List[Any]:
    parameters = [draw.floats(256, 128).requires_grad_() for _ in range(2)]
    for parameter in parameters:
        parameter.grad = draw.floats(256, 128)
    return parameters


def _step(kind: str, **options: Any) -> Callable[..., Any]:
    def step(*parameters: Any) -> Any:
        optimiser = getattr(torch.optim, kind)(list(parameters), lr=0.01, **options)
        optimiser.step()
        optimiser.step()

    return step


OPTIMISER_CASES: List[Case] = [
    case("sgd", _step("SGD"), _parameters),
    case("sgd.momentum", _step("SGD", momentum=0.9), _parameters),
    case("adam", _step("Adam"), _parameters),
    case("adamw", _step("AdamW"), _parameters),
    case("adagrad", _step("Adagrad"), _parameters),
    case("rmsprop", _step("RMSprop"), _parameters),
    case(
        "clip_grad_norm",
        lambda *p: torch.nn.utils.clip_grad_norm_(p, 1.0),
        _parameters,
    ),
]

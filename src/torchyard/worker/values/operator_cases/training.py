"""Losses with their gradients, and optimiser steps.

Many losses fill a gradient before they write it. Optimiser steps are operators over lists of
tensors, without backward.
"""

from typing import Any, Callable, List

import torch

from torchyard.worker.values.operator_cases import Case, Draw, case, function_case, learned

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
    function_case("mse_loss", _pair),
    function_case("mse_loss.sum", _pair, reduction="sum"),
    function_case("mse_loss.none", _pair, reduction="none"),
    function_case("l1_loss", _pair),
    function_case("l1_loss.none", _pair, reduction="none"),
    function_case("smooth_l1_loss", _pair),
    function_case("smooth_l1_loss.none", _pair, reduction="none"),
    function_case("huber_loss", _pair),
    function_case("huber_loss.none", _pair, reduction="none", delta=0.5),
    function_case("nll_loss", _classes),
    function_case("nll_loss.none", _classes, reduction="none"),
    function_case("nll_loss.ignore_index", _classes, ignore_index=3),
    function_case("nll_loss.weight", lambda d: [*_classes(d), d.between(0.1, 1.0, 128)]),
    case("nll_loss2d", _F + "nll_loss", _image_classes),
    case("nll_loss2d.none", _F + "nll_loss", _image_classes, reduction="none"),
    case("nll_loss2d.ignore_index", _F + "nll_loss", _image_classes, ignore_index=3),
    function_case("cross_entropy", _classes),
    function_case("cross_entropy.smoothing", _classes, label_smoothing=0.1),
    function_case("cross_entropy.image", _image_classes),
    function_case(
        "cross_entropy.probabilities",
        lambda d: [d.learned(512, 128), d.floats(512, 128).softmax(1)],
    ),
    function_case("kl_div", _pair, reduction="batchmean"),
    function_case("kl_div.log_target", _pair, reduction="sum", log_target=True),
    function_case("poisson_nll_loss", _pair),
    function_case("poisson_nll_loss.full", _probabilities, full=True),
    function_case(
        "gaussian_nll_loss", lambda d: [*_pair(d), d.learned_between(0.1, 1.0, 1024, 512)]
    ),
    function_case("binary_cross_entropy", _probabilities),
    function_case("binary_cross_entropy.none", _probabilities, reduction="none"),
    function_case(
        "binary_cross_entropy_with_logits",
        lambda d: [d.learned(512, 128), d.between(0.0, 1.0, 512, 128)],
    ),
    function_case("soft_margin_loss", lambda d: [d.learned(512, 128), d.signs(512, 128)]),
    function_case("hinge_embedding_loss", lambda d: [d.learned(512, 128), d.signs(512, 128)]),
    function_case("multi_margin_loss", _classes),
    function_case("multi_margin_loss.none", _classes, reduction="none", p=2),
    function_case("multilabel_margin_loss", _labels),
    function_case("multilabel_margin_loss.none", _labels, reduction="none"),
    function_case(
        "multilabel_soft_margin_loss", lambda d: [d.learned(512, 128), d.bools(512, 128).float()]
    ),
    function_case("cosine_embedding_loss", _rows),
    function_case(
        "margin_ranking_loss", lambda d: [d.learned(65536), d.learned(65536), d.signs(65536)]
    ),
    function_case("triplet_margin_loss", learned((512, 128), (512, 128), (512, 128))),
    function_case(
        "ctc_loss",
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
    case("clip_grad_norm", lambda *p: torch.nn.utils.clip_grad_norm_(p, 1.0), _parameters),
]

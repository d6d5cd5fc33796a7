"""Steps of optimisers: operators over lists of tensors. They have no backward."""

from typing import Any, Callable, List

import torch

from torchyard.worker.values.operator_cases import Case, case
from torchyard.worker.values.operator_cases.inputs import Draw


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


CASES: List[Case] = [
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

"""Kernels that perform one optimizer step with fixed gradients."""

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import nn
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from torchyard.worker.suites.choices import Choices, require
from torchyard.worker.suites.kernels.kernel import Kernel, need_torch
from torchyard.worker.workload import Traffic


def smallest_divisor(parameters: List[Any]) -> float:
    """Return Adam's epsilon: the default one is zero in float16, which would divide by zero."""
    return 1e-4 if parameters[0].dtype is torch.float16 else 1e-8


# Not in torch 2.0.
_is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None)


class OptimizerStep(nn.Module):
    """Parameters of a stack of linear layers, fixed gradients, and an optimiser's state as buffers."""

    def __init__(self, layers: int, width: int, state: Tuple[str, ...]) -> None:
        super().__init__()
        network = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
        self.count = 0
        self.elements = 0
        for parameter in network.parameters():
            # The gradient is fixed, so these parameters need no differentiation.
            fixed = nn.Parameter(parameter.detach().clone(), requires_grad=False)
            self.register_parameter(f"parameter_{self.count}", fixed)
            self.register_buffer(f"gradient_{self.count}", torch.randn_like(fixed))
            for kind in state:
                start = torch.zeros(()) if kind == "step" else torch.zeros_like(fixed)
                self.register_buffer(f"{kind}_{self.count}", start)
            self.count += 1
            self.elements += fixed.numel()

    def all(self, kind: str) -> List[Any]:
        """Return the tensors of one kind, in order."""
        return [getattr(self, f"{kind}_{index}") for index in range(self.count)]

    def step(self) -> None:
        """Perform one optimizer step."""
        raise NotImplementedError

    def forward(self) -> Tuple[Any, ...]:
        """Perform one step; return the parameters after it."""
        with torch.no_grad():
            self.step()
        return tuple(self.all("parameter"))


class SgdStep(OptimizerStep):
    """SGD, optionally with momentum."""

    def __init__(self, choices: Choices, momentum: float) -> None:
        state = ("momentum",) if momentum else ()
        super().__init__(choices["layers"], choices["width"], state)
        self.momentum = momentum
        self.foreach, self.fused = bool(choices["foreach"]), bool(choices["fused"])

    def step(self) -> None:
        """Perform one optimizer step."""
        nothing: List[Optional[Any]] = [None] * self.count
        sgd(
            self.all("parameter"),
            self.all("gradient"),
            self.all("momentum") if self.momentum else nothing,
            foreach=self.foreach,
            fused=self.fused,
            weight_decay=0.0,
            momentum=self.momentum,
            lr=1e-4,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )


class AdamStep(OptimizerStep):
    """Adam, or AdamW; without `foreach` and `fused`, torch chooses the implementation."""

    def __init__(self, choices: Choices, function: Callable[..., None], decay: float) -> None:
        super().__init__(choices["layers"], choices["width"], ("mean", "square", "step"))
        self.function = function
        self.decay = decay
        self.form: Dict[str, bool] = {
            key: bool(choices[key]) for key in ("foreach", "fused") if key in choices.parameters
        }

    def step(self) -> None:
        """Perform one optimizer step."""
        form = self.form
        if form:
            # As torch sets it when it compiles an optimizer: step counters are then tensors.
            compiling = _is_compiling is not None and _is_compiling()
            form = dict(form, capturable=bool(compiling))
        self.function(
            self.all("parameter"),
            self.all("gradient"),
            self.all("mean"),
            self.all("square"),
            [],
            self.all("step"),
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=1e-4,
            weight_decay=self.decay,
            eps=smallest_divisor(self.all("parameter")),
            maximize=False,
            **form,
        )


def _check(choices: Choices) -> None:
    require(
        choices.batch_size is None,
        choices.label,
        "an optimizer step has no batch size",
        "remove the batch size; layers and width set the amount of work",
    )
    if "fused" in choices.parameters:
        both = choices["foreach"] and choices["fused"]
        require(not both, choices.label, "foreach and fused are both 1", "give one of them 1")
        if choices["fused"]:
            need_torch(2, 4, choices.label, "fused optimisers on every device")


def _stepped(
    make: Callable[[Choices], OptimizerStep], crossings: int, flops: Optional[float] = None
) -> Callable[[Choices], Kernel]:
    """Return the builder of a step; an element crosses memory `crossings` times and takes `flops`, where exact."""

    def build(choices: Choices) -> Kernel:
        _check(choices)
        module = make(choices)
        counters = sum(1 for name, _ in module.named_buffers() if name.startswith("step"))
        traffic = Traffic(crossings * module.elements + 2 * counters)
        operations = None if flops is None else flops * module.elements
        return Kernel(module, (), module.elements, operations, loss=None, traffic=traffic)

    return build


def _adamw(choices: Choices) -> OptimizerStep:
    return AdamStep(choices, adamw, 1e-2)


BUILDERS: Dict[str, Callable[[Choices], Kernel]] = {
    # Adam reads parameter, gradient and both means, and writes all but the gradient.
    "optimizer-step": _stepped(_adamw, 7),
    # Reads parameter and gradient, writes the parameter: one product, one difference.
    "sgd-step": _stepped(lambda choices: SgdStep(choices, 0.0), 3, 2.0),
    # Reads parameter, gradient and momentum, writes parameter and momentum.
    "momentum-step": _stepped(lambda choices: SgdStep(choices, 0.9), 5, 4.0),
    "adam-step": _stepped(lambda choices: AdamStep(choices, adam, 0.0), 7),
    "adamw-step": _stepped(_adamw, 7),
}

"""The suite `kernels`: one operator or one small chain each, with shapes as parameters.

Each is an ``nn.Module``, so that training and compilation treat kernels and models alike. An
operator without weights takes its operands as inputs in inference, where a compiler that folds
constants would otherwise compute the answer once and for all; in training the operands are the
parameters, so that the backward pass is the whole one. Loss: the sum of the output, and where
that does not depend on the operands, the mean of its squares or cubes.
"""

from typing import Any, Callable, Dict, List, Optional

from torchyard.worker import catalog
from torchyard.worker.suites import training as losses
from torchyard.worker.suites.choices import Choices, choose
from torchyard.worker.suites.kernels import convolutions, grids, optimizers, products, rows
from torchyard.worker.suites.kernels.kernel import Kernel, traffic_of, with_trained_operands
from torchyard.worker.workload import Built, map_tensors

# A sum has no minimum: a larger rate would let the weights run away during a long measurement.
LEARNING_RATE = 1e-6

FAMILIES = (
    products,
    convolutions,
    rows,
    grids,
    optimizers,
)
_BUILDERS: Dict[str, Callable[[Choices], Kernel]] = {}
for _family in FAMILIES:
    _BUILDERS.update(_family.BUILDERS)


def names() -> List[str]:
    """All kernels."""
    return [entry.name for entry in catalog.KERNELS]


def build(
    name: str, mode: str, batch_size: Optional[int], parameters: Dict[str, Any], device: Any
) -> Built:
    """Make one kernel; it is drawn on the CPU, so that every device gets the same numbers."""
    choices = choose("kernels", name, mode, batch_size, parameters)
    kernel = _BUILDERS[name](choices)
    training = mode == "training"
    if training and kernel.operands_train:
        kernel = with_trained_operands(kernel)
    loss = kernel.loss
    return Built(
        kernel.module.to(device),
        map_tensors(kernel.args, lambda tensor: tensor.to(device)),
        loss=loss.of if loss else None,
        loss_said=loss.said if loss else "",
        optimizer=losses.sgd(LEARNING_RATE) if loss else None,
        flops=kernel.flops,
        mutates=loss is None,
        traffic=traffic_of(kernel, training),
    )

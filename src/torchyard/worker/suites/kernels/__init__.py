"""The suite `kernels`: one operator or one small chain each, with shapes as parameters.

In inference the operands of an operator without weights are inputs, since constant folding could otherwise compute
the result at compile time; in training they are parameters, so that the backward pass is complete. Loss: the sum of
the output, or, where that does not depend on the operands, the mean of its squares or cubes.
"""

from typing import Any, Callable, Dict, List, Optional

from torchyard.worker import catalog
from torchyard.worker.suites import training as losses
from torchyard.worker.suites.choices import Choices, choose
from torchyard.worker.suites.kernels import memory_bound, optimizers, products
from torchyard.worker.suites.kernels.kernel import Kernel, traffic_of, with_trained_operands
from torchyard.worker.workload import BuiltWorkload, map_tensors

# A sum has no minimum: with a larger rate the weights would diverge during a long measurement.
LEARNING_RATE = 1e-6

_BUILDERS: Dict[str, Callable[[Choices], Kernel]] = {
    **products.BUILDERS,
    **memory_bound.BUILDERS,
    **optimizers.BUILDERS,
}


def names() -> List[str]:
    """Return the names of all kernels."""
    return [entry.name for entry in catalog.KERNELS]


def build(
    name: str, mode: str, batch_size: Optional[int], parameters: Dict[str, Any], device: Any
) -> BuiltWorkload:
    """Build one kernel; random numbers come from the CPU, so that every device gets the same ones."""
    choices = choose("kernels", name, mode, batch_size, parameters)
    kernel = _BUILDERS[name](choices)
    training = mode == "training"
    if training and kernel.operands_train:
        kernel = with_trained_operands(kernel)
    loss = kernel.loss
    return BuiltWorkload(
        kernel.module.to(device),
        map_tensors(kernel.args, lambda tensor: tensor.to(device)),
        loss=loss.of if loss else None,
        loss_name=loss.name if loss else "",
        optimizer=losses.sgd(LEARNING_RATE) if loss else None,
        flops=kernel.flops,
        mutates=loss is None,
        traffic=traffic_of(kernel, training),
    )

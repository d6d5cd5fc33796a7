"""Eager code that rounds at random: how far rounding alone can move results. Runs inside the target.

One eager run is one sample of how a model rounds. A rectifier whose input is nearly zero opens in one
run and stays shut in the next, and a gradient jumps; a compiler that adds in another order then looks
wrong where eager code had luck. So before a candidate is called wrong, eager code is run a few times
with every operand moved at random, by no more than rounding may move it, and the furthest that it gets
from the float64 reference is what the candidate may be compared with.
"""

from typing import Any, Dict, List

import torch

from torchyard.worker.side import Side
from torchyard.worker.tensor_distance import Results, rms_between, shapes_of, to_plain

RUNS = 4
TF32_STEP = 2.0**-10
"""The most that cutting a number down to the ten bits of TF32 takes from it, relative to it.

Units may cut instead of rounding to the nearest. Then errors have a sign, and add up from layer to
layer where no normalisation takes them out again: to percents of the gradients of a deep network.
"""


def furthest(side: Side, seed: int, exact: Results, tf32: bool, on: Any) -> Dict[str, List[float]]:
    """For each tensor, its largest distance from the reference over a few runs of eager code.

    `side` is eager. `tf32` says that convolutions may round their operands to that.
    """
    found = {group: [0.0] * len(tensors) for group, tensors in exact.items()}
    for number in range(RUNS):
        with _mode(side.device, seed + number, tf32):
            results = to_plain(side.results(seed)[0], side.device)
        if shapes_of(results) != shapes_of(exact):
            continue
        for group, tensors in results.items():
            for index, tensor in enumerate(tensors):
                if tensor.is_floating_point():
                    gap = rms_between(tensor, exact[group][index], on)
                    found[group][index] = max(found[group][index], gap)
    return found


def _mode(device: str, seed: int, tf32: bool) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    generator = torch.Generator(device).manual_seed(seed)

    class RandomRounding(TorchDispatchMode):
        """Moves the operands of all that computes; what only views, copies or fills is left alone."""

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if not _computes(func):
                return func(*args, **kwargs)
            cut = tf32 and "convolution" in func.__name__
            return func(
                *(_moved(one, cut, generator) for one in args),
                **{name: _moved(one, cut, generator) for name, one in kwargs.items()},
            )

    return RandomRounding()


def _computes(function: Any) -> bool:
    schema = function._schema
    if schema.is_mutable or any(returned.alias_info is not None for returned in schema.returns):
        return False
    return function.__name__.split(".")[0] not in (
        "clone",
        "_to_copy",
        "detach",
        "_local_scalar_dense",
    )


def _moved(argument: Any, cut: bool, generator: Any) -> Any:
    if isinstance(argument, (list, tuple)):
        return type(argument)(_moved(one, cut, generator) for one in argument)
    if not isinstance(argument, torch.Tensor) or not argument.is_floating_point():
        return argument
    if argument.layout is not torch.strided or argument.device.type != generator.device.type:
        return argument
    chance = torch.rand(argument.shape, generator=generator, device=argument.device)
    if cut and argument.dtype is torch.float32:
        return argument * (1 - TF32_STEP * chance)
    # In float32, because the numbers near 1 of a short format are further apart than its steps.
    moved = argument.float() if argument.element_size() < 4 else argument
    step = torch.finfo(argument.dtype).eps
    return (moved * (1 + step * (2 * chance - 1))).to(argument.dtype)

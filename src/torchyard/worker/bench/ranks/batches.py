"""The batches of the other ranks, which rank 0 needs for the reference."""

from dataclasses import replace
from typing import Any, Callable, List

import torch

from torchyard.worker.bench.inputs import ALL, InputDraws
from torchyard.worker.workload import BuiltWorkload, flatten, map_tensors

FIRST_DRAW = 1 << 32
"""Above the draws of blocks, which have 31 bits."""


def with_other_ranks(
    built: BuiltWorkload, ranks: int, seed: int, build: Callable[[], BuiltWorkload]
) -> BuiltWorkload:
    """Return the workload with the inputs and losses of the other ranks.

    Each rank builds the workload with its own seed. Where that gives the same inputs, as for inputs that
    are read from a file, the values are drawn anew: with equal batches, gradients that are not
    averaged over the ranks would look correct.
    """
    others: List[BuiltWorkload] = []
    for rank in range(1, ranks):
        torch.manual_seed(seed + rank)
        other = with_own_inputs(build())
        tensors = _inputs(other)
        if _same(tensors, _inputs(built)):
            draws = InputDraws(tensors)
            draws.apply(0, ALL)
            draws.apply(FIRST_DRAW + rank, ALL)
        others.append(BuiltWorkload(None, other.args, other.kwargs, other.loss))
    torch.manual_seed(seed)
    return replace(built, others=tuple(others))


def with_own_inputs(built: BuiltWorkload) -> BuiltWorkload:
    """Return the workload with copies of its inputs.

    Targets of a loss may be a view of the inputs, such as tokens shifted by one. Inputs are written by draws
    and move in memory at different times in different ranks, so such targets would differ between them.
    """

    def copied(tensor: Any) -> Any:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)

    return replace(
        built, args=map_tensors(built.args, copied), kwargs=map_tensors(built.kwargs, copied)
    )


def _inputs(built: BuiltWorkload) -> List[Any]:
    return flatten(built.args) + flatten(built.kwargs)


def _same(tensors: List[Any], others: List[Any]) -> bool:
    return len(tensors) == len(others) and all(
        one.shape == other.shape and one.dtype is other.dtype and torch.equal(one, other)
        for one, other in zip(tensors, others)
        if one.layout is torch.strided
    )

"""Structured: a computed tensor that a few numbers describe.

Constant along a dimension, so that it is the `expand` of something smaller; or a line, so that it
is `arange`. Masks, gradients (those of sums are constant by nature) and what was put together or
asked for as such (`cat`, `arange`) are no findings, and neither is what follows from an input that
is structured in the same way.
"""

from typing import Any, List, Tuple

import torch

from torchyard.worker.values.evidence import evidence_of
from torchyard.worker.values.observation import Observation
from torchyard.worker.values.patterns import WORTH_A_LOOK_BYTES, Pattern
from torchyard.worker.values.peek import first_three

ASKED_FOR = frozenset({"aten::cat", "aten::stack"})
_MOST_BLOCKS = 4096
"""Blocks of an outer dimension that are looked at one by one."""


class Structured(Pattern):
    """Results that are an expand or a line."""

    name = "structured"

    def observe(self, seen: Observation) -> None:
        """Look for a dimension along which nothing changes, then for a line."""
        if seen.size_bytes < WORTH_A_LOOK_BYTES or not seen.computed or seen.in_backward:
            return
        if seen.dtype is torch.bool or seen.operator.name in ASKED_FOR or seen.single:
            return
        tensor = seen.tensor
        if not tensor.is_contiguous():
            return
        shape = tuple(tensor.shape)
        constant = self._constant_dimensions(seen, shape)
        if constant:
            self._expand(seen, shape, constant)
        elif _like_a_line(seen) and not any(_line(given) for given, _ in seen.inputs):
            self._report(seen, 1.0, "a line: each element is the one before plus a constant")

    def _expand(self, seen: Observation, shape: Tuple[int, ...], constant: List[int]) -> None:
        if self._follows(seen, constant):
            return
        small = tuple(1 if dim in constant else size for dim, size in enumerate(shape))
        copies = 1
        for dim in constant:
            copies *= shape[dim]
        where = ", ".join(str(dim) for dim in constant)
        self._report(
            seen,
            1 - 1 / copies,
            "constant along dimension %s: an expand of %s" % (where, list(small)),
        )

    def _report(self, seen: Observation, share: float, detail: str) -> None:
        self.findings.add(
            self.name,
            seen,
            int(seen.size_bytes * share),
            detail=detail,
            evidence=lambda: evidence_of(seen),
            every_time=True,
        )

    def _constant_dimensions(self, seen: Observation, shape: Tuple[int, ...]) -> List[int]:
        found: List[int] = []
        first, bits = seen.scan.first_bits, seen.layout.bits
        inner, per_number = 1, seen.layout.per_number
        for dim in range(len(shape) - 1, -1, -1):
            size = shape[dim]
            # The element that lies next to the first along this dimension mostly ends it.
            if (
                size > 1
                and self.scanner.element(seen.tensor, inner * per_number, bits) == first
                and self._constant(seen.tensor, dim)
            ):
                found.insert(0, dim)
            inner *= size
        return found

    def _constant(self, tensor: torch.Tensor, dim: int) -> bool:
        """Whether nothing changes along a dimension of a contiguous tensor."""
        shape, width = tensor.shape, tensor.element_size()
        inner = 1
        for size in shape[dim + 1 :]:
            inner *= size
        block = inner * shape[dim]
        count = tensor.numel()
        if inner == 1:
            return self.scanner.constant_runs(tensor, block)
        # Most tensors differ at once, so that this is over with the first block.
        if not self.scanner.repeats(tensor, 0, block * width, inner * width):
            return False
        blocks = count // block
        if blocks > _MOST_BLOCKS:
            rows = tensor.reshape(blocks, shape[dim], inner)
            return torch.equal(rows[:, 1:], rows[:, :1].expand_as(rows[:, 1:]))
        return all(
            self.scanner.repeats(tensor, at * block * width, block * width, inner * width)
            for at in range(1, blocks)
        )

    def _follows(self, seen: Observation, constant: List[int]) -> bool:
        """Whether an input lies in memory that is constant along the same dimensions."""
        rank = seen.tensor.dim()
        for given, state in seen.inputs:
            if not self.scanner.can_scan(given) or not given.is_contiguous() or given.numel() < 2:
                continue
            if self._single(given, state) and given.numel() * 2 >= seen.tensor.shape[constant[0]]:
                return True
            if given.numel() * given.element_size() < WORTH_A_LOOK_BYTES:
                continue
            offset = rank - given.dim()
            if all(
                dim - offset >= 0
                and given.shape[dim - offset] == seen.tensor.shape[dim]
                and self._constant(given, dim - offset)
                for dim in constant
            ):
                return True
        return False

    def _single(self, given: torch.Tensor, state: Any) -> bool:
        if state.fill is not None:
            return True
        return self.scanner.constant_runs(given, given.numel())


def _like_a_line(seen: Observation) -> bool:
    return seen.scan.count > 2 and seen.layout.per_number == 1 and _line(seen.tensor)


def _line(tensor: torch.Tensor) -> bool:
    """Whether it is first + place * step: quick to say no, exact for yes."""
    if not tensor.is_contiguous():
        return False
    three = first_three(tensor)
    if three is None:
        return False
    first, step = three[0], three[1] - three[0]
    # NaN is not equal to itself, so that it ends here, too.
    if not step or three[2] - three[1] != step:
        return False
    flat = tensor.detach().reshape(-1)
    kind = torch.float64 if tensor.is_floating_point() else torch.int64
    line = torch.arange(flat.numel(), dtype=kind, device=flat.device) * step + first
    return torch.equal(line.to(tensor.dtype), flat)

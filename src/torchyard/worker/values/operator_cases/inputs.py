"""Where the values of cases come from: seeded, the same on every device, as plain as can be."""

from typing import Any, Optional

import torch


class Draw:
    """Draws tensors. Values are drawn on the CPU, so that every device gets the same ones."""

    def __init__(self, device: str, seed: int) -> None:
        self.device = torch.device(device)
        self._source = torch.Generator()
        self._source.manual_seed(seed)
        torch.manual_seed(seed)  # modules draw their weights from here

    def floats(self, *shape: int, dtype: Optional[torch.dtype] = None) -> torch.Tensor:
        """Normal numbers."""
        return self._given(torch.randn(shape, generator=self._source), dtype)

    def learned(self, *shape: int, dtype: Optional[torch.dtype] = None) -> torch.Tensor:
        """Normal numbers that need a gradient."""
        return self.floats(*shape, dtype=dtype).requires_grad_()

    def between(self, low: float, high: float, *shape: int) -> torch.Tensor:
        """Uniform numbers."""
        return self._given(torch.rand(shape, generator=self._source) * (high - low) + low)

    def learned_between(self, low: float, high: float, *shape: int) -> torch.Tensor:
        """Uniform numbers that need a gradient."""
        return self.between(low, high, *shape).requires_grad_()

    def integers(self, below: int, *shape: int) -> torch.Tensor:
        """From zero on."""
        return self._given(torch.randint(0, below, shape, generator=self._source))

    def integers_from(self, low: int, below: int, *shape: int) -> torch.Tensor:
        """From `low` on."""
        return self._given(torch.randint(low, below, shape, generator=self._source))

    def bools(self, *shape: int) -> torch.Tensor:
        """About as many true as false."""
        return self._given(torch.randint(0, 2, shape, generator=self._source).bool())

    def signs(self, *shape: int) -> torch.Tensor:
        """Minus one and one, as floats."""
        return self._given(torch.randint(0, 2, shape, generator=self._source) * 2.0 - 1.0)

    def order(self, count: int) -> torch.Tensor:
        """Every number below `count` once."""
        return self._given(torch.randperm(count, generator=self._source))

    def complexes(self, *shape: int) -> torch.Tensor:
        """Complex normal numbers that need a gradient."""
        parts = torch.randn((*shape, 2), generator=self._source)
        return self._given(torch.view_as_complex(parts)).requires_grad_()

    def spread(self, size: int) -> torch.Tensor:
        """A symmetric positive matrix, far from singular, that needs a gradient."""
        some = torch.randn((size, size), generator=self._source)
        return self._given(some @ some.t() / size + torch.eye(size)).requires_grad_()

    def on_device(self, module: Any) -> Any:
        """A module of torch."""
        return module.to(self.device)

    def _given(self, tensor: torch.Tensor, dtype: Optional[torch.dtype] = None) -> torch.Tensor:
        return tensor.to(device=self.device, dtype=dtype or tensor.dtype)

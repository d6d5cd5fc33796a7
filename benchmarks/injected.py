"""Backends that run a chain of layers with an exact number of layers more.

A hundred layers and two more is two percent more work: a slowdown of known size for calibration.
`plus_0` is the baseline: the same Python code with no layer more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn import functional


def _longer(module: Any, extra: int) -> Callable[[Any], Any]:
    weights = list(module.weights)
    count = module.count + extra

    def forward(values: Any) -> Any:
        for index in range(count):
            values = functional.relu(weights[index % len(weights)](values))
        return values

    return forward


def plus_0(module: Any) -> Callable[[Any], Any]:
    """No layer more."""
    return _longer(module, 0)


def plus_1(module: Any) -> Callable[[Any], Any]:
    """One layer more."""
    return _longer(module, 1)


def plus_2(module: Any) -> Callable[[Any], Any]:
    """Two layers more."""
    return _longer(module, 2)


def plus_3(module: Any) -> Callable[[Any], Any]:
    """Three layers more."""
    return _longer(module, 3)

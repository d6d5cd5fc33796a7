"""Building PyTorch and its companions from recipes: sources, environments, steps, checks, records."""

from __future__ import annotations

from typing import Final

__all__ = ["BUILD_PREFIX"]

BUILD_PREFIX: Final = "build:"
"""Before the name of a build, where the path of an interpreter could stand."""

"""Finds wasted work by values: runs programs under the watch, proves and prices what was found.

The package can be called: `with torchyard.values() as v:` watches one's own code.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from torchyard.values.context import Values

__all__ = ["Values"]


class _CallableModule(ModuleType):
    def __call__(self, **options: Any) -> Values:
        """A watch for a `with` block; options as in `WatchOptions`."""
        return Values(**options)


sys.modules[__name__].__class__ = _CallableModule

"""A callback after the import of a module that takes long to import, and that not every program needs."""

import sys
from importlib.util import find_spec
from typing import Any, Callable


class AfterImport:
    """Calls back after a module was imported, until removed."""

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self._name = name
        self._callback = callback

    def find_spec(self, name: str, *_: Any) -> Any:
        """Return the usual loader of the module, with the callback behind it."""
        if name != self._name:
            return None
        self.remove()
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            self._callback()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def remove(self) -> None:
        """Stop waiting."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

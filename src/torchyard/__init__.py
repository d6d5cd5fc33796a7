"""Torchyard: take PyTorch from source to a number you can trust, and find out why it is that number."""

TYPE_CHECKING = False  # importing typing would triple the time of `import torchyard`
if TYPE_CHECKING:
    from typing import Any

    from torchyard.api import Comparison, Measurement, Run, Sweep, compare, measure, read_run, sweep
    from torchyard.values.context_manager import ValueProfiler

__all__ = [
    "Comparison",
    "Measurement",
    "Run",
    "Sweep",
    "__version__",
    "compare",
    "measure",
    "profile_values",
    "read_run",
    "sweep",
]
__version__ = "0.1.0"


def profile_values(**options: "Any") -> "ValueProfiler":
    """Return a context manager that finds wasted work in the code of its `with` block.

    Options are the fields of `torchyard.values.model.ProfilingOptions`, for example `deep=True`.
    """
    # Imported here, because importing Torchyard must stay cheap.
    from torchyard.values.context_manager import ValueProfiler

    return ValueProfiler(**options)


def __getattr__(name: str) -> object:
    """Import the Python API on first use.

    `torchyard.sweep` and the deprecated `torchyard.values` are packages that can be called: importing
    one of their modules makes the package an attribute of `torchyard`.
    """
    from importlib import import_module

    if name in ("sweep", "values"):
        return import_module(f"torchyard.{name}")
    if name in __all__:
        return getattr(import_module("torchyard.api"), name)
    raise AttributeError(f"module 'torchyard' has no attribute {name!r}")

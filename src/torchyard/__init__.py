"""Torchyard: take PyTorch from source to a number you can trust, and find out why it is that number."""

TYPE_CHECKING = False  # importing typing would triple the time of `import torchyard`
if TYPE_CHECKING:
    from typing import Any

    from torchyard.values.context_manager import ValueProfiler

__version__ = "0.1.0"


def profile_values(**options: "Any") -> "ValueProfiler":
    """Return a context manager that finds wasted work in the code of its `with` block.

    Options are the fields of `torchyard.values.model.ProfilingOptions`, for example `deep=True`.
    """
    # Imported here, because importing Torchyard must stay cheap.
    from torchyard.values.context_manager import ValueProfiler

    return ValueProfiler(**options)


def __getattr__(name: str) -> object:
    """Import `torchyard.values` on first use, for the deprecated `torchyard.values()`."""
    if name == "values":
        from importlib import import_module

        return import_module("torchyard.values")
    raise AttributeError(f"module 'torchyard' has no attribute {name!r}")

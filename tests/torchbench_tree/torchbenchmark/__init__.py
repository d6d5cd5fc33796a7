"""The entry points of the tree."""

import importlib
from pathlib import Path

HERE = Path(__file__).parent


class ModelNotFoundError(RuntimeError):
    """No model has that name."""


def load_model_by_name(name):
    """The class of a model; None, with a printed word, when a package is missing."""
    if not (HERE / "models" / name).is_dir():
        raise ModelNotFoundError(name)
    try:
        return importlib.import_module(f"torchbenchmark.models.{name}").Model
    except ModuleNotFoundError as error:
        print(f"no module {error.name}, {name} is skipped")
        return None

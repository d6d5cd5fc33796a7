"""The suite `models`: five small networks of common kinds, written here without extra packages.

Sized so that one inference takes some milliseconds on one slow core. No dropout, so that two
backends can be held against each other. This module knows the list; each network has its own file.
"""

import importlib
from typing import Any, Dict, List, Optional

from torchyard.worker import catalog
from torchyard.worker.built import Built
from torchyard.worker.suites.choices import choose

MODULES: Dict[str, str] = {
    "resnet": "models_resnet",
    "transformer-encoder": "models_encoder",
    "unet": "models_unet",
    "lstm": "models_lstm",
    "gpt": "models_gpt",
}


def names() -> List[str]:
    """All models."""
    return [entry.name for entry in catalog.MODELS]


def build(
    name: str, mode: str, batch_size: Optional[int], parameters: Dict[str, Any], device: Any
) -> Built:
    """Make one model; it is drawn on the CPU, so that every device gets the same numbers."""
    choices = choose("models", name, mode, batch_size, parameters)
    module = importlib.import_module("torchyard.worker.suites." + MODULES[name])
    built: Built = module.make(choices, device)
    built.module.to(device)
    return built

"""The suites and their workloads, as data: no torch, so that the controller can list them.

An entry has the name of a workload, its modes, default batch size and parameters, and a one-line
description. The suites read their defaults from here, so that listing and build agree. Suites that
accept any name have a list instead: the workloads of the whole suite.
"""

from typing import Dict, List, Optional

from torchyard.worker.catalog.built_in import KERNELS, MODELS
from torchyard.worker.catalog.entry import BOTH, Entry, ListedWorkload
from torchyard.worker.catalog.huggingface_models import HUGGINGFACE
from torchyard.worker.catalog.image_models import TIMM, TORCHVISION

__all__ = [
    "BOTH",
    "KERNELS",
    "LISTS",
    "MODELS",
    "OPEN_SUITES",
    "SUITES",
    "Entry",
    "ListedWorkload",
    "entry_of",
]

SUITES: Dict[str, List[Entry]] = {"kernels": KERNELS, "models": MODELS}
OPEN_SUITES: Dict[str, str] = {
    "huggingface": "any transformers model class, such as BertForMaskedLM, with random weights",
    "timm": "any timm model name, with random weights",
    "torchvision": "any torchvision classification, detection or segmentation model",
    "torchbench": "a model of a pytorch/benchmark checkout, such as resnet50:path=FOLDER",
    "file": "a Python file, given by path",
    "script": "a whole program, for `torchyard tune --program`",
}
# The workloads of a whole suite, for the suites that accept any name.
LISTS: Dict[str, List[ListedWorkload]] = {
    "huggingface": HUGGINGFACE,
    "timm": TIMM,
    "torchvision": TORCHVISION,
}


def entry_of(suite: str, name: str) -> Optional[Entry]:
    """Return the built-in workload of that name, or None."""
    for entry in SUITES.get(suite, []):
        if entry.name == name:
            return entry
    return None

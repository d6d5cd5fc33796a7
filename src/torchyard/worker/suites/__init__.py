"""The workload suites: loaded only when asked for, because each may need a package of its own.

A suite is a sibling module with the interface that `torchyard.worker.workload` describes. This module
knows their names and nothing of what is in them.
"""

import importlib
from typing import Any, Dict, List, Optional

from torchyard.worker import catalog
from torchyard.worker.suites.choices import is_whole, nearest
from torchyard.worker.workload import Built, CannotBuild

MODULES: Dict[str, str] = {
    "kernels": "kernels.suite",
    "models": "models",
    "huggingface": "huggingface.suite",
    "timm": "timm_suite",
    "torchvision": "torchvision_suite",
    "torchbench": "torchbench.suite",
    "file": "user_file",
    "script": "script",
}
MODES = ("inference", "training")


def load(suite: str) -> Any:
    """The module of a suite; torch is imported here at the latest."""
    if suite not in MODULES:
        raise CannotBuild(
            f"there is no suite {suite!r}{nearest(suite, MODULES)}",
            hint="suites: " + ", ".join(MODULES),
        )
    return importlib.import_module("torchyard.worker.suites." + MODULES[suite])


def names(suite: str) -> List[str]:
    """The workloads of a suite that can be listed; suites that take any name list what they know."""
    found = load(suite).names()
    return list(found)


def build(
    suite: str,
    name: str,
    mode: str = "inference",
    batch_size: Optional[int] = None,
    parameters: Optional[Dict[str, Any]] = None,
    device: Any = "cpu",
) -> Built:
    """Make one workload, with everything of it on `device` and the module in the mode's state."""
    module = load(suite)
    if mode not in MODES:
        raise CannotBuild(
            f"there is no mode {mode!r}{nearest(mode, MODES)}",
            hint="modes: " + ", ".join(MODES),
        )
    if batch_size is not None and not is_whole(batch_size):
        raise CannotBuild(
            f"the batch size of {suite}/{name} is {batch_size!r}",
            hint="give a whole number from 1 up, or none for the default",
        )
    built: Built = module.build(name, mode, batch_size, dict(parameters or {}), device)
    if mode == "training" and built.loss is None:
        raise CannotBuild(f"{suite}/{name} offers no training", hint="use the mode inference")
    built.module.train(mode == "training")
    if built.batch_size is None:
        entry = catalog.entry_of(suite, name)
        usual = entry.batch_size if entry is not None else None
        built.batch_size = usual if batch_size is None else batch_size
    return built

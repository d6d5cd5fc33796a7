"""The workload suites: loaded on demand, because each may need its own package.

A suite is a module with the functions `names` and `build`; see `torchyard.worker.workload`.
"""

import importlib
from typing import Any, Dict, List, Optional

from torchyard.worker import catalog
from torchyard.worker.suites.choices import is_whole, nearest
from torchyard.worker.workload import BuiltWorkload, CannotBuild

MODULES: Dict[str, str] = {
    "kernels": "kernels",
    "models": "models",
    "huggingface": "huggingface_suite",
    "timm": "timm_suite",
    "torchvision": "torchvision_suite",
    "torchbench": "torchbench.suite",
    "file": "user_file",
    "script": "script",
}
MODES = ("inference", "training")


def load(suite: str) -> Any:
    """Return the module of a suite; imports torch."""
    if suite not in MODULES:
        raise CannotBuild(
            f"there is no suite {suite!r}{nearest(suite, MODULES)}",
            hint="suites: " + ", ".join(MODULES),
        )
    return importlib.import_module("torchyard.worker.suites." + MODULES[suite])


def names(suite: str) -> List[str]:
    """Return the workloads of a suite; suites that accept any name return the known ones."""
    return list(load(suite).names())


def build(
    suite: str,
    name: str,
    mode: str = "inference",
    batch_size: Optional[int] = None,
    parameters: Optional[Dict[str, Any]] = None,
    device: Any = "cpu",
) -> BuiltWorkload:
    """Build one workload on `device`, with the module in the training state of the mode."""
    module = load(suite)
    if mode not in MODES:
        raise CannotBuild(
            f"there is no mode {mode!r}{nearest(mode, MODES)}",
            hint="modes: " + ", ".join(MODES),
        )
    if batch_size is not None and not is_whole(batch_size):
        raise CannotBuild(
            f"invalid batch size of {suite}/{name}: {batch_size!r}",
            hint="give a positive integer, or omit it for the default",
        )
    built: BuiltWorkload = module.build(name, mode, batch_size, dict(parameters or {}), device)
    if mode == "training" and built.loss is None:
        raise CannotBuild(f"{suite}/{name} does not support training", hint="use mode inference")
    built.module.train(mode == "training")
    if built.batch_size is None:
        entry = catalog.entry_of(suite, name)
        usual = entry.batch_size if entry is not None else None
        built.batch_size = usual if batch_size is None else batch_size
    return built

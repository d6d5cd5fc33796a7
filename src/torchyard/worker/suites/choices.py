"""Check the batch size and parameters that a user chose for a workload.

The default batch size depends on the device and its memory.
"""

import difflib
import importlib
import os
from typing import Any, Dict, Iterable, List, Optional

from torchyard.worker import catalog
from torchyard.worker.catalog.entry import ListedWorkload
from torchyard.worker.workload import CannotBuild

GPU_MEMORY_BYTES = 40e9
CPU_CORES = 32


def batch_size_for(listed: Optional[ListedWorkload], device: Any, otherwise: int) -> int:
    """Return the listed batch size scaled to this device; `otherwise` when not listed."""
    import torch

    if listed is None:
        return otherwise
    on_gpu = torch.device(device).type != "cpu"
    first, second = listed.gpu_batch_size, listed.cpu_batch_size
    if not on_gpu:
        first, second = second, first
    return share_of(first or second or otherwise, _relative_size(device))


def share_of(batch_size: int, part: float) -> int:
    """Return that fraction of a batch size as a power of two, at least 1; all of it from 1 up."""
    if part >= 1:
        return batch_size
    share = 1
    while 2 * share <= batch_size * part:
        share *= 2
    return share


def _relative_size(device: Any) -> float:
    """Return the size of the device relative to those that the lists are for."""
    from torchyard.worker.devices import device_of

    hardware = device_of(str(device))
    if hardware.is_host:
        return (os.cpu_count() or 1) / CPU_CORES
    return (hardware.total_bytes() or GPU_MEMORY_BYTES) / GPU_MEMORY_BYTES


# Parameters that may be smaller than 1. All others are sizes and counts.
SWITCHES = ("causal", "foreach", "fused", "ones")
MINIMUM = {"extra_layers": 0, "pad": 0, **dict.fromkeys(SWITCHES, 0)}
MAXIMUM = dict.fromkeys(SWITCHES, 1)


class Choices:
    """Checked choices for one built-in workload. `batch_size` None: no batch dimension."""

    def __init__(self, label: str, batch_size: Optional[int], parameters: Dict[str, int]) -> None:
        self.label = label
        self.batch_size = batch_size
        self.parameters = parameters

    def __getitem__(self, key: str) -> int:
        """Return the value of a parameter."""
        return self.parameters[key]

    @property
    def rows(self) -> int:
        """The batch size of a workload that always has one."""
        return self.batch_size or 1


def choose(
    suite: str, name: str, mode: str, batch_size: Optional[int], given: Dict[str, Any]
) -> Choices:
    """Merge the given parameters with the catalogue's defaults; raise CannotBuild for invalid ones."""
    entry = catalog.entry_of(suite, name)
    if entry is None:
        valid = [each.name for each in catalog.SUITES[suite]]
        raise CannotBuild(
            f"the suite {suite} has no workload {name!r}{nearest(name, valid)}",
            hint="workloads: " + ", ".join(valid),
        )
    label = f"{suite}/{name}"
    if mode not in entry.modes:
        raise CannotBuild(
            f"{label} does not support {mode}", hint="use mode " + " or ".join(entry.modes)
        )
    parameters = dict(entry.parameters)
    for key, value in given.items():
        if key not in parameters:
            raise unknown_parameter(label, key, entry.parameters)
        parameters[key] = _whole_number(label, key, value)
    return Choices(label, entry.batch_size if batch_size is None else batch_size, parameters)


def _whole_number(label: str, key: str, value: Any) -> int:
    low, high = MINIMUM.get(key, 1), MAXIMUM.get(key)
    valid = f"from {low} to {high}" if high is not None else f"of at least {low}"
    if not is_whole(value, low) or (high is not None and value > high):
        raise CannotBuild(
            f"invalid parameter {key} of {label}: {value!r}",
            hint=f"give {key} an integer {valid}",
        )
    return int(value)


def is_whole(value: Any, low: int = 1) -> bool:
    """Whether the value is an integer of at least `low`; booleans are not integers here."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def require_whole(label: str, key: str, value: Any, low: int = 1) -> None:
    """Raise CannotBuild unless a parameter is None or an integer of at least `low`."""
    if value is not None and not is_whole(value, low):
        raise CannotBuild(
            f"invalid parameter {key} of {label}: {value!r}",
            hint="give a positive integer" if low == 1 else f"give an integer of at least {low}",
        )


def import_package(name: str, hint: str) -> Any:
    """Import a package of the target; raise CannotBuild if that fails."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # a torchvision built for another torch raises RuntimeError
        raise CannotBuild(f"{name} cannot be imported in the target: {error}", hint=hint) from error


def version_of(package: Any) -> str:
    """Return the version of a package."""
    return str(getattr(package, "__version__", "of unknown version"))


def unknown_parameter(label: str, key: str, valid: Iterable[str]) -> CannotBuild:
    """Return the error for a parameter that the workload does not have."""
    names = list(valid)
    listing = "its parameters: " + ", ".join(names) if names else "it has no parameters"
    return CannotBuild(f"{label} has no parameter {key!r}{nearest(key, names)}", hint=listing)


def require(good: bool, label: str, message: str, hint: str) -> None:
    """Raise CannotBuild for an invalid combination of parameters."""
    if not good:
        raise CannotBuild(f"{label}: {message}", hint=hint)


def nearest(word: str, valid: Iterable[str]) -> str:
    """Return `; did you mean ...?`, or an empty string without a close match."""
    close = close_matches(word, valid)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def close_matches(word: str, valid: Iterable[str]) -> List[str]:
    """Return up to three valid words that are similar to the given one, ignoring case."""
    originals = {each.lower(): each for each in valid}
    matches = difflib.get_close_matches(str(word).lower(), list(originals), n=3, cutoff=0.6)
    return [originals[each] for each in matches]

"""The choices of a user for a workload, checked: entry, batch size and parameters.

Without a batch size, the default depends on the device and its memory.
"""

import difflib
import os
from typing import Any, Dict, Iterable, List, Optional

from torchyard.worker import catalog
from torchyard.worker.catalog.entry import Listed
from torchyard.worker.workload import CannotBuild

GPU_MEMORY_BYTES = 40e9
CPU_CORES = 32


def batch_size_for(listed: Optional[Listed], device: Any, otherwise: int) -> int:
    """The list's number for this device; `otherwise` for what is not listed."""
    import torch  # the controller imports this module without torch

    if listed is None:
        return otherwise
    on_gpu = torch.device(device).type != "cpu"
    first, second = listed.gpu_batch_size, listed.cpu_batch_size
    if not on_gpu:
        first, second = second, first
    return share_of(first or second or otherwise, _part_of_a_large_one(device))


def share_of(batch_size: int, part: float) -> int:
    """That part of a batch size as a power of two, at least 1; the whole where `part` is 1 up."""
    if part >= 1:
        return batch_size
    share = 1
    while 2 * share <= batch_size * part:
        share *= 2
    return share


def _part_of_a_large_one(device: Any) -> float:
    """How large the device is, beside those that the lists are for."""
    import torch

    place = torch.device(device)
    if place.type == "cuda":
        memory_bytes = torch.cuda.get_device_properties(place).total_memory
        return float(memory_bytes) / GPU_MEMORY_BYTES
    if place.type == "cpu":
        return (os.cpu_count() or 1) / CPU_CORES
    return 1.0


# Parameters that may be smaller than 1. All others are sizes and counts.
SWITCHES = ("causal", "foreach", "fused", "ones")
MINIMUM = {"extra_layers": 0, "pad": 0, **dict.fromkeys(SWITCHES, 0)}
MAXIMUM = dict.fromkeys(SWITCHES, 1)


class Choices:
    """The checked wishes for one built-in workload. `batch_size` None: no batch dimension."""

    def __init__(self, label: str, batch_size: Optional[int], parameters: Dict[str, int]) -> None:
        self.label = label
        self.batch_size = batch_size
        self.parameters = parameters

    def __getitem__(self, key: str) -> int:
        """The value of a parameter."""
        return self.parameters[key]

    @property
    def rows(self) -> int:
        """The batch size of a workload that always has one."""
        return self.batch_size or 1


def choose(
    suite: str, name: str, mode: str, batch_size: Optional[int], given: Dict[str, Any]
) -> Choices:
    """Join what was given with the catalogue's defaults, or say what is wrong with it."""
    entry = catalog.entry_of(suite, name)
    if entry is None:
        known = [each.name for each in catalog.SUITES[suite]]
        raise CannotBuild(
            f"the suite {suite} has no workload {name!r}{nearest(name, known)}",
            hint="workloads: " + ", ".join(known),
        )
    label = f"{suite}/{name}"
    if mode not in entry.modes:
        raise CannotBuild(
            f"{label} offers no {mode}", hint="use the mode " + " or ".join(entry.modes)
        )
    parameters = dict(entry.parameters)
    for key, value in given.items():
        if key not in parameters:
            raise unknown_parameter(label, key, entry.parameters)
        parameters[key] = _whole_number(label, key, value)
    return Choices(label, entry.batch_size if batch_size is None else batch_size, parameters)


def _whole_number(label: str, key: str, value: Any) -> int:
    low, high = MINIMUM.get(key, 1), MAXIMUM.get(key)
    wanted = f"from {low} to {high}" if high is not None else f"from {low} up"
    if not is_whole(value, low) or (high is not None and value > high):
        raise CannotBuild(
            f"the parameter {key} of {label} is {value!r}",
            hint=f"give {key} a whole number {wanted}",
        )
    return int(value)


def is_whole(value: Any, low: int = 1) -> bool:
    """Whether it is a whole number from `low` up; True is none, though Python counts it as 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def unknown_parameter(label: str, key: str, known: Iterable[str]) -> CannotBuild:
    """The complaint about a parameter that the workload does not have."""
    names = list(known)
    listing = "its parameters: " + ", ".join(names) if names else "it takes no parameters"
    return CannotBuild(f"{label} has no parameter {key!r}{nearest(key, names)}", hint=listing)


def require(good: bool, label: str, message: str, hint: str) -> None:
    """Refuse a combination of parameters that each are good alone."""
    if not good:
        raise CannotBuild(f"{label}: {message}", hint=hint)


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean ...?`, or nothing when no known word is near."""
    near = near_words(word, known)
    either = " or ".join(near)
    return f"; did you mean {either}?" if near else ""


def near_words(word: str, known: Iterable[str]) -> List[str]:
    """Up to three known words that look like the given one; case does not matter."""
    originals = {each.lower(): each for each in known}
    found = difflib.get_close_matches(str(word).lower(), list(originals), n=3, cutoff=0.6)
    return [originals[each] for each in found]

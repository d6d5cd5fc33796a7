"""The record types of the catalogue. No torch, so that the controller can import them."""

from typing import Dict, NamedTuple, Optional, Tuple


class Entry(NamedTuple):
    """One built-in workload. `batch_size` None: no batch dimension by default."""

    name: str
    modes: Tuple[str, ...]
    about: str
    batch_size: Optional[int]
    parameters: Dict[str, int]


class ListedWorkload(NamedTuple):
    """One workload in the list of a suite that accepts any name.

    modes            modes in a run of the whole suite; any mode can be requested by name
    gpu_batch_size   for a large GPU; None: not in the suite on GPUs
    cpu_batch_size   for a large server; None: not in the suite on CPUs
    """

    name: str
    modes: Tuple[str, ...]
    about: str
    gpu_batch_size: Optional[int]
    cpu_batch_size: Optional[int]


BOTH = ("inference", "training")

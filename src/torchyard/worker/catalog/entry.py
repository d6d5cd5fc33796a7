"""What the catalogue says about one workload: the forms, and no workload.

No torch, so that the yard can read it too.
"""

from typing import Dict, NamedTuple, Optional, Tuple


class Entry(NamedTuple):
    """One built-in workload. `batch_size` None: there is no batch unless one is asked for."""

    name: str
    modes: Tuple[str, ...]
    about: str
    batch_size: Optional[int]
    parameters: Dict[str, int]


class Listed(NamedTuple):
    """One workload of a suite that takes any name: what the suite holds when it is run whole.

    modes            what a whole suite runs; who names the workload may ask for any mode
    gpu_batch_size   for a large GPU; None: not among those that the suite runs on GPUs
    cpu_batch_size   for a large server; None: not among those that the suite runs on CPUs
    """

    name: str
    modes: Tuple[str, ...]
    about: str
    gpu_batch_size: Optional[int]
    cpu_batch_size: Optional[int]


BOTH = ("inference", "training")

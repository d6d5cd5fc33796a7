"""What the catalogue says about one workload: the form, and no workload.

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


BOTH = ("inference", "training")

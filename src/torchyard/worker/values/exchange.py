"""Exchange with the controller: options in, counts and the result file out.

The counts also report what was not examined: nothing is skipped silently. The result file is written
atomically.
"""

import json
import os
import tempfile
from typing import Any, Dict, NamedTuple

KERNEL_PREFIX = "inductor::"
"""Operators of findings about generated kernels begin with it: `inductor::KERNEL (SOURCE OPERATORS)`."""


class Options(NamedTuple):
    """Options of value profiling."""

    deep: bool = False
    """Also profile inside C++ operators."""
    every: int = 1
    """Profile every n-th step."""
    first_steps: int = 0
    """Number of steps to skip at the start: they allocate and warm up."""
    close_steps: int = 3
    """Number of steps to observe closely; the others are surveyed, and observed closely again if something
    new appears. 0 observes all steps closely."""
    last_step: int = 0
    """Last step to profile; 0 for no limit."""
    least_bytes: int = 4096
    """Smaller tensors are only counted."""
    most_bytes: int = 0
    """Larger tensors are sampled; 0 for no limit."""
    memory_bytes: int = 256 << 20
    """Extra memory for copies of memory to be overwritten and for proofs."""
    device_memory_bytes: int = 4 << 30
    """GPU memory whose release may be delayed until it is scanned in a batch."""
    prove: bool = True
    graph: bool = True
    approximate: bool = False
    """Also report approximate patterns: hints, never proofs."""


def options_from(data: Dict[str, Any]) -> Options:
    """Create options from JSON; unknown keys raise TypeError."""
    return Options(**data)


class Counts:
    """Totals of one profile."""

    def __init__(self) -> None:
        self.operators = 0
        self.written_bytes = 0
        self.small_bytes = 0
        """In tensors below the minimum size."""
        self.not_seen_bytes = 0
        """In unsupported dtypes or layouts."""
        self.not_compared_bytes = 0
        """Overwritten while the memory for copies was full."""
        self.not_strided = 0
        """Tensors without strided memory (sparse, nested and others)."""
        self.not_deep = 0
        """Operators whose internals could not be observed."""
        self.steps_left_out = 0
        self.steps_surveyed = 0
        """Scanned without evaluating patterns."""

    def as_dict(self) -> Dict[str, int]:
        """For JSON."""
        return dict(vars(self))


def write_result(path: str, data: Dict[str, Any]) -> None:
    """Write the file atomically; do nothing for the null device, which forked children use."""
    if path == os.devnull:
        return
    folder = os.path.dirname(os.path.abspath(path))
    descriptor, name = tempfile.mkstemp(dir=folder, prefix=".result-")
    with os.fdopen(descriptor, "w") as file:
        json.dump(data, file, default=str)
    os.replace(name, path)

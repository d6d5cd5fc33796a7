"""What the profiler exchanges with the controller: options in, counts and the result file out.

The counts also say what was left out: nothing is skipped silently. A reader sees the result file
completely or not at all.
"""

import json
import os
import tempfile
from typing import Any, Dict, NamedTuple


class Options(NamedTuple):
    """How a program is looked at."""

    deep: bool = False
    """Also inside operators written in C++."""
    every: int = 1
    """Look at each n-th step only; 1 looks at all."""
    first_steps: int = 0
    """Leave these out: they allocate and warm up."""
    close_steps: int = 3
    """Look closely at so many steps, and again when something new shows; survey the others. 0 looks
    closely at all."""
    last_step: int = 0
    """Stop looking after this step; 0 never stops."""
    least_bytes: int = 4096
    """Smaller tensors are counted and not looked at."""
    most_bytes: int = 0
    """Larger tensors are sampled; 0 looks at all of each."""
    memory_bytes: int = 256 << 20
    """Extra memory for copies of what is about to be overwritten and for proofs."""
    device_memory_bytes: int = 4 << 30
    """Memory of a GPU that is kept a little longer, until it is scanned together with other."""
    prove: bool = True
    graph: bool = True
    approximate: bool = False
    """Patterns that hold only nearly, too: an opinion, never a proof."""


def options_from(data: Dict[str, Any]) -> Options:
    """From JSON; keys that are not known are a mistake of ours and raise."""
    return Options(**data)


class Counts:
    """Totals of one profile."""

    __slots__ = (
        "not_compared_bytes",
        "not_deep",
        "not_seen_bytes",
        "not_strided",
        "operators",
        "small_bytes",
        "steps_left_out",
        "steps_surveyed",
        "written_bytes",
    )

    def __init__(self) -> None:
        self.operators = 0
        self.written_bytes = 0
        self.small_bytes = 0
        """In tensors below the least size."""
        self.not_seen_bytes = 0
        """In dtypes or layouts that are not looked into."""
        self.not_compared_bytes = 0
        """Overwritten while the memory for copies was full."""
        self.not_strided = 0
        """Sparse, nested and other tensors without plain memory."""
        self.not_deep = 0
        """Operators that could not be followed inside."""
        self.steps_left_out = 0
        self.steps_surveyed = 0
        """Scanned without asking the patterns."""

    def as_dict(self) -> Dict[str, int]:
        """For JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def write_result(path: str, data: Dict[str, Any]) -> None:
    """Put it in place; nothing for the null device, which a forked child writes to."""
    if path == os.devnull:
        return
    folder = os.path.dirname(os.path.abspath(path))
    descriptor, name = tempfile.mkstemp(dir=folder, prefix=".result-")
    with os.fdopen(descriptor, "w") as file:
        json.dump(data, file, default=str)
    os.replace(name, path)

"""What the user asked of the profiler. Plain data that travels as JSON."""

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

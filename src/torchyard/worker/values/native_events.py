"""Operators as they run when nobody looks inside: torch's own record of events, without values.

Any dispatch mode makes torch take other ways in places (formulas of autograd that are safe for
subclasses), so what the watch saw must be seen here, too. Uses the small profiler that torch keeps
for compatibility: it starts in a millisecond and prints nothing.
"""

from typing import Any, Dict, List, Optional, Tuple

import torch

Chain = Tuple[str, ...]
"""Names of operators, each inside the one before."""
Chains = Dict[Chain, int]


def why_unavailable() -> Optional[str]:
    """Why this torch cannot record events now; None when it can."""
    try:
        from torch.autograd import profiler_legacy
    except ImportError:
        return "this torch has no profiler_legacy"
    if torch.autograd._profiler_enabled():
        return "another profiler is on"
    return None if hasattr(profiler_legacy, "profile") else "this torch has no profiler_legacy"


class NativeEvents:
    """Counts chains of operators between `start` and `stop`."""

    def __init__(self) -> None:
        self.chains: Chains = {}
        self.on = False

    def start(self) -> None:
        """Begin to record; raises RuntimeError when another profiler is on."""
        from torch.autograd import profiler_legacy

        config = profiler_legacy.profile(enabled=True).config()
        torch.autograd._enable_profiler_legacy(config)
        self.on = True

    def stop(self) -> None:
        """End, and add what was recorded."""
        if not self.on:
            return
        self.on = False
        for events in torch.autograd._disable_profiler_legacy():
            self._add(events)

    def __enter__(self) -> "NativeEvents":
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def _add(self, events: Any) -> None:
        """Events of one thread: an operator begins with a push and ends with a pop."""
        chain: List[str] = []
        for event in events:
            kind = event.kind()
            if kind == "push":
                chain.append(event.name())
                key = tuple(chain)
                self.chains[key] = self.chains.get(key, 0) + 1
            elif kind == "pop" and chain:
                chain.pop()


def times_seen(chains: Chains, wanted: Chain) -> int:
    """How often a chain was seen at the end of a longer one: around it are autograd and wrappers."""
    return sum(count for chain, count in chains.items() if chain[-len(wanted) :] == wanted)

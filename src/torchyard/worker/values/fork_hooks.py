"""Functions that run after a fork and can be removed.

`os.register_at_fork` keeps what it is given until the process ends. A profile that registered its own
methods would stay in memory with everything it refers to, so one pair of functions is registered per
process and calls whatever is installed at the time of the fork.
"""

import os
from typing import Callable, List

_installed: List["ForkHooks"] = []
_registered: List[bool] = []


class ForkHooks:
    """Two functions that run after a fork, one in each process, until `remove`."""

    def __init__(self, in_parent: Callable[[], None], in_child: Callable[[], None]) -> None:
        self.in_parent = in_parent
        self.in_child = in_child
        _installed.append(self)
        if not _registered:
            _registered.append(True)
            os.register_at_fork(after_in_parent=_after_in_parent, after_in_child=_after_in_child)

    def remove(self) -> None:
        """Run no more; a second call does nothing."""
        if self in _installed:
            _installed.remove(self)


def _after_in_parent() -> None:
    for hooks in _installed[:]:
        hooks.in_parent()


def _after_in_child() -> None:
    for hooks in _installed[:]:
        hooks.in_child()

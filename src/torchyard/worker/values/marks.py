"""Memory that a pattern remembers something of, until it is written again. Bounded."""

from collections import OrderedDict
from typing import Any, Optional, Tuple

from torchyard.worker.values.observation import Observation
from torchyard.worker.values.storages import StorageState

_MOST = 4096


class Marks:
    """A note on the present content of storages; the oldest are forgotten first."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._notes: "OrderedDict[int, Tuple[StorageState, int, Any]]" = OrderedDict()

    def put(self, state: StorageState, note: Any = True) -> None:
        """Remember something of what a storage holds now."""
        # The state keeps the identity of its storage from being used again.
        self._notes[state.key] = (state, state.version, note)
        self._notes.move_to_end(state.key)
        if len(self._notes) > self._most:
            self._notes.popitem(last=False)

    def get(self, state: StorageState, writes_ago: int = 0) -> Optional[Any]:
        """What was noted, if the storage was not written since (but for the last few writes)."""
        found = self._notes.get(state.key)
        if found is None or found[0] is not state or found[1] < state.version - writes_ago:
            return None
        return found[2]

    def any_of(self, seen: Observation) -> Optional[Any]:
        """What was noted of an input of an operator, or of what it wrote over."""
        if not self._notes:
            return None
        for _, state in seen.inputs:
            found = self.get(state, 1 if state is seen.state else 0)
            if found is not None:
                return found
        return None

    def clear(self) -> None:
        """Forget everything."""
        self._notes.clear()

    def __bool__(self) -> bool:
        return bool(self._notes)

"""CUDA graphs: nothing can be read while one is captured, and its replays run without Python."""

from functools import partial
from typing import Any, Callable, List

import torch

from torchyard.worker.values.dispatch_mode import ValueMode

CUDA_GRAPHS = "CUDA graphs replay them without Python"


class CudaGraphs:
    """Pauses observation while a graph is captured, and discards the state of all memory with each replay, until `remove`."""

    def __init__(self, mode: ValueMode) -> None:
        self._mode = mode
        self._was_off: List[bool] = []
        self._removals: List[Callable[[], None]] = []
        self.replays = 0

    def install(self) -> None:
        """Replace the methods of torch's class; torch without it has no CUDA graphs."""
        graph = getattr(torch.cuda, "CUDAGraph", None)
        for name, method in (
            ("capture_begin", self._begin),
            ("capture_end", self._end),
            ("replay", self._replay),
        ):
            original = getattr(graph, "__dict__", {}).get(name)
            if original is not None:
                setattr(graph, name, _replaced(original, method))
                self._removals.append(partial(setattr, graph, name, original))

    def remove(self) -> None:
        """Restore torch."""
        for removal in self._removals:
            removal()
        self._removals.clear()

    def notes(self) -> List[str]:
        """Return that replayed graphs were not examined."""
        text = "operators in CUDA graphs were not examined: %s, here %d times"
        return [text % (CUDA_GRAPHS, self.replays)] if self.replays else []

    def _begin(self, original: Any, graph: Any, args: Any, kwargs: Any) -> Any:
        self._mode.interrupt_survey()
        result = original(graph, *args, **kwargs)
        self._was_off.append(self._mode.off)
        self._mode.off = True
        return result

    def _end(self, original: Any, graph: Any, args: Any, kwargs: Any) -> Any:
        try:
            return original(graph, *args, **kwargs)
        finally:
            if self._was_off:
                self._mode.off = self._was_off.pop()

    def _replay(self, original: Any, graph: Any, args: Any, kwargs: Any) -> Any:
        self.replays += 1
        try:
            return original(graph, *args, **kwargs)
        finally:
            self._mode.storages.epoch += 1  # it reads and writes memory that the mode knows


def _replaced(original: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(graph: Any, *args: Any, **kwargs: Any) -> Any:
        return method(original, graph, args, kwargs)

    return call

"""Says which compiled functions a profile could not look into.

A compiled function runs as generated kernels, which no dispatch mode sees; of its operators only
calls of libraries (such as matrix products) come through. The eager program can be profiled
instead, on request.
"""

import os
import sys
from typing import Any, List

import torch

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


class CompileNotes:
    """Adds a note for each place that calls torch.compile, until removed."""

    def __init__(self, notes: List[str]) -> None:
        self._notes = notes
        self.seen = False
        """Whether anything was compiled."""
        self._compile = getattr(torch, "compile", None)
        if self._compile is not None:
            torch.compile = self._noted

    def remove(self) -> None:
        """Leave torch as it was."""
        if self._compile is not None:
            torch.compile = self._compile

    def _noted(self, *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(_TORCH):
            frame = frame.f_back
        place = "%s:%d" % (frame.f_code.co_filename, frame.f_lineno)
        disabled = os.environ.get("TORCHDYNAMO_DISABLE") == "1"
        if not disabled:
            self.seen = True
            text = (
                "torch.compile at %s: what is compiled there runs as generated kernels and is not "
                "seen; --eager profiles the eager program instead" % place
            )
            if text not in self._notes:
                self._notes.append(text)
        return self._compile(*args, **kwargs) if self._compile is not None else None

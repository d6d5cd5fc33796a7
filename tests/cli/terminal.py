"""A pseudo-terminal for tests."""

from __future__ import annotations

import os
import threading


class Terminal:
    """Programs write to `side`. The kernel hands it on in pieces, and a moment later."""

    def __init__(self) -> None:
        self._main, self.side = os.openpty()
        self._pieces: list[bytes] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            while piece := os.read(self._main, 65536):
                self._pieces.append(piece)
        except OSError:  # the end of a terminal: nobody has its other side open
            pass

    def close(self) -> str:
        """Return everything that was shown. The writer must have ended."""
        os.close(self.side)
        self._reader.join(timeout=60)
        assert not self._reader.is_alive(), "somebody still has the terminal open"
        os.close(self._main)
        return b"".join(self._pieces).decode()

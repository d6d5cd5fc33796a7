"""What the commands of `torchyard results` share: the store, opened and fresh, and progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from torchyard.cli.output import talk

if TYPE_CHECKING:
    from torchyard.results.index.store import Store

__all__ = ["counted", "fresh_store"]

_QUIET_S: Final = 1.0
"""Work shorter than this shows no progress."""
_LINE_EVERY_S: Final = 10.0


@contextmanager
def fresh_store() -> Iterator[Store]:
    """The store of the runs' home, up to date with its folders."""
    from torchyard.results.index.store import Store

    with Store.open() as store:
        refreshed = store.refresh(counted("reading run folders"))
        for warning in refreshed.warnings:
            talk(f"warning: {warning}")
        yield store


def counted(what: str) -> Callable[[int, int], None]:
    """Progress on stderr: one line that changes on a terminal, a line now and then elsewhere."""
    began = time.monotonic()
    said = began if sys.stderr.isatty() else began + _LINE_EVERY_S - _QUIET_S

    def count(number: int, total: int) -> None:
        nonlocal said
        now = time.monotonic()
        if now - began < _QUIET_S:
            return
        if sys.stderr.isatty():
            end = "\n" if number >= total else ""
            sys.stderr.write(f"\r\x1b[K{what}: {number} of {total}{end}")
            sys.stderr.flush()
        elif now - said >= _LINE_EVERY_S:
            said = now
            talk(f"{what}: {number} of {total}")

    return count

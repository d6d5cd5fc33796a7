"""The stack of dispatch modes of this thread: which is on top, and how to get below the others."""

from typing import Any, Callable, List, Optional

from torch.utils import _python_dispatch


def topmost_mode() -> Optional[Any]:
    """The mode that sees operators first."""
    return _python_dispatch._get_current_dispatch_mode()


def put_below(enter: Callable[[], Any]) -> None:
    """Enter a mode below all that are there, as if it had been entered before them."""
    others: List[Any] = []
    while topmost_mode() is not None:
        others.append(_python_dispatch._pop_mode())
    try:
        enter()
    finally:
        for mode in reversed(others):
            _python_dispatch._push_mode(mode)

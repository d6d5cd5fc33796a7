"""A dispatch mode that can step aside: out of the stack of modes while something else sees operators.

It comes back below whatever modes the program has put there in the meantime, as if it had never gone.
"""

from typing import Any, Callable, List, Optional

from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode


def topmost_mode() -> Optional[Any]:
    """The mode that sees operators first."""
    return _python_dispatch._get_current_dispatch_mode()


class AsideMode(TorchDispatchMode):
    """In the stack from `with` on, but for the times when it is aside."""

    def __init__(self) -> None:
        super().__init__()
        self._aside = False

    @property
    def can_step_aside(self) -> bool:
        """Whether nothing of the program's lies above it."""
        return self._aside or topmost_mode() is self

    def be_aside(self, aside: bool) -> None:
        """Get out of the stack, or in again."""
        if aside and not self._aside:
            super().__exit__(None, None, None)
        elif self._aside and not aside:
            _put_below(super().__enter__)
        self._aside = aside

    def pause(self) -> None:
        """See nothing until `resume`."""
        if not self._aside:
            super().__exit__(None, None, None)

    def resume(self) -> None:
        """Go on as before `pause`."""
        if not self._aside:
            super().__enter__()

    def __exit__(self, *about: Any) -> None:
        """Leave the stack for good, if it is there."""
        if self._aside:
            self._aside = False
        else:
            super().__exit__(*about)


def _put_below(enter: Callable[[], Any]) -> None:
    """Enter a mode below all that are there."""
    others: List[Any] = []
    while topmost_mode() is not None:
        others.append(_python_dispatch._pop_mode())
    try:
        enter()
    finally:
        for mode in reversed(others):
            _python_dispatch._push_mode(mode)

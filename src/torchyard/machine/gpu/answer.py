"""An answer of a GPU's library, or why there is none.

NVML knows more questions than any one card answers, and names change between releases: every
question may end in "Not Supported", and that is an answer, too. Knows no single question.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

__all__ = ["FUNCTION_NOT_FOUND", "NOTHING_FOUND", "NO_PERMISSION", "Answer", "ask"]

NO_PERMISSION: Final = 4
NOTHING_FOUND: Final = 6
FUNCTION_NOT_FOUND: Final = 13
"""Numbers of NVML's errors; they are part of its interface."""

Value = TypeVar("Value")
Other = TypeVar("Other")


@dataclass(frozen=True, kw_only=True)
class Answer(Generic[Value]):
    """A value that was read, or why not."""

    value: Value | None = None
    because: str = ""
    """Empty exactly when there is a value."""
    code: int | None = None
    """NVML's number of the error, where it was one."""

    def map(self, change: Callable[[Value], Other]) -> Answer[Other]:
        """The same answer in another form; no answer stays none."""
        if self.value is None:
            return Answer(because=self.because, code=self.code)
        return Answer(value=change(self.value))


def ask(nvml: Any, *question: str, of: tuple[Any, ...] = ()) -> Answer[Any]:
    """Call the first function that this library and this driver know.

    Several names are one question under its newer and older names: the newer may be missing in the
    Python package (AttributeError) or in the driver ("Function Not Found").
    """
    because = "nothing was asked"
    code: int | None = None
    for name in question:
        function = getattr(nvml, name, None)
        if function is None:
            because = f"{name} is not in this release of nvidia-ml-py"
            continue
        try:
            return Answer(value=function(*of))
        except Exception as error:  # noqa: BLE001 - NVML raises its own family of errors
            because = f"NVML says {str(error).strip().rstrip('.') or type(error).__name__}"
            code = getattr(error, "value", None)
            if code != FUNCTION_NOT_FOUND:
                break
    return Answer(because=because, code=code)

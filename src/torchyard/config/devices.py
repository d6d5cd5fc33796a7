"""Which devices can be measured on: the processor and CUDA devices by their index.

Others submit work and return at once. Until there is an interface that waits for them, their times
would only be those of submission.
"""

from __future__ import annotations

import re
from typing import Final

from torchyard.errors import UsageError

__all__ = ["check_device"]

_DEVICE: Final = re.compile(r"cpu|cuda(?::(?:0|[1-9][0-9]{0,2}))?")
_HINT: Final = "use cpu, cuda or cuda:N, such as cuda:1"


def check_device(text: str, *, where: str) -> str:
    """The device itself; UsageError for anything but cpu, cuda and cuda:N."""
    if _DEVICE.fullmatch(text):
        return text
    kind = text.strip().lower().partition(":")[0]
    why = "it is empty" if not text.strip() else ""
    if kind in {"cpu", "cuda"}:
        why = (
            "a processor has no index" if kind == "cpu" and ":" in text else "the name is not exact"
        )
    elif kind in {"gpu", "rocm", "hip", "nvidia", "amd"}:
        why = "torch calls GPUs of NVIDIA and AMD cuda"
    elif kind:
        why = f"times on {kind!r} would be those of submission only"
    raise UsageError(f"{where}: cannot measure on the device {text!r}", why=why, hint=_HINT)

"""Who called the operator that is being looked at: whether it was a part of torch's own Python code.

For patterns, and only after everything else said yes: walking frames takes time.
"""

import os
import sys
from types import FrameType
from typing import Optional

import torch

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


def called_by_torch(part: str) -> bool:
    """Whether a function of `torch.<part>` is among the callers, such as `optim`."""
    folder = os.path.join(_TORCH, part) + os.sep
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(folder):
            return True
        frame = frame.f_back
    return False

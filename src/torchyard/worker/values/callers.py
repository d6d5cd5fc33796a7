"""Who called the operator that is being looked at: whether it was a part of torch's own Python code.

For patterns, and only after everything else said yes: walking frames takes time.
"""

import os
import sys
from types import CodeType, FrameType
from typing import Optional

import torch

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_OF_DISPATCH = tuple(
    os.path.join(_TORCH, *parts)
    for parts in (("_ops.py",), ("_compile.py",), ("_dynamo", "eval_frame.py"))
)
"""Files of torch whose functions call a dispatch mode, and say nothing of who called the operator."""


def called_by_torch(part: str) -> bool:
    """Whether a function of `torch.<part>` is among the callers, such as `optim`."""
    folder = os.path.join(_TORCH, part) + os.sep
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(folder):
            return True
        frame = frame.f_back
    return False


def calling_frame(dispatch: CodeType) -> Optional[FrameType]:
    """The frame that called the outermost operator; `dispatch` is the code that operators come to."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and frame.f_code is not dispatch:
        frame = frame.f_back
    while frame is not None and _passes_on(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _passes_on(file: str) -> bool:
    return file.startswith(_OURS) or file in _OF_DISPATCH

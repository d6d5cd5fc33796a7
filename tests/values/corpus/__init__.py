"""Small programs with planted waste, and clean ones out of ordinary model code.

Each is a plain function. What is planted stands in a comment on its line:

    mask = mask.float()  # waste: heavy type, aten::_to_copy

`PLANTED` and `CLEAN` list them all; `corpus.watching` runs one under the watch.
"""

from __future__ import annotations

from corpus.program import Program, Waste
from corpus.register import CLEAN, PLANTED

__all__ = ["CLEAN", "PLANTED", "Program", "Waste"]

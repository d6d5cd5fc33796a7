"""Small programs with planted waste, and clean ones out of ordinary model code.

Each is a plain function. What is planted stands in a comment above its line:

    # waste: heavy type, aten::_to_copy
    mask = mask.float()

`PLANTED` and `CLEAN` list them all; `profiling` profiles one of them.
"""

from __future__ import annotations

from tests.values.corpus.program import Program, Waste
from tests.values.corpus.register import CLEAN, PLANTED

__all__ = ["CLEAN", "PLANTED", "Program", "Waste"]

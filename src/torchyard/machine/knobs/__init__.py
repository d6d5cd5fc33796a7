"""Every knob, by name. Adding one: a module with a KNOB, a line here, its order in `knob_order.py`."""

from __future__ import annotations

from typing import Final

from torchyard.machine.knob import Knob
from torchyard.machine.knobs import aslr

__all__ = ["KNOBS"]

KNOBS: Final[dict[str, Knob]] = {knob.name: knob for knob in (aslr.KNOB,)}

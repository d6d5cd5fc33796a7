"""Every knob, by name. Adding one: a module with a KNOB, a line here, its order in `knob_order.py`."""

from __future__ import annotations

from typing import Final

from torchyard.machine.knob import Knob

__all__ = ["KNOBS"]

KNOBS: Final[dict[str, Knob]] = {}

"""Read what AMD's driver files do not contain, with the Python package `amdsmi`: throttling and energy.

The package belongs to ROCm and is optional. Field names are those of its releases 6 and 7: metrics that a
card does not have are "N/A". Never run on a card.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import Any, Final

from torchyard.machine.system.file_tree import Answer

_POWER, _CURRENT, _THERMAL = "power cap", "current limit", "hardware thermal"
_SLOWDOWN: Final = "hardware slowdown"
_BITS: Final = {
    **dict.fromkeys(range(8), _POWER),
    **dict.fromkeys(range(16, 24), _CURRENT),
    **dict.fromkeys(range(32, 46), _THERMAL),
    **dict.fromkeys((46, 47), _SLOWDOWN),
    56: _POWER,
}
"""Bits of `indep_throttle_status`, as in the kernel's amdgpu_smu.h, in the words used for NVIDIA."""
_RESIDENCIES: Final = {
    "prochot_residency_acc": _SLOWDOWN,
    "ppt_residency_acc": _POWER,
    "socket_thm_residency_acc": _THERMAL,
    "vr_thm_residency_acc": _THERMAL,
    "hbm_thm_residency_acc": _THERMAL,
}
"""Counters of MI300 that grow while the clock is held; such cards have no status bits."""
_INSTALL: Final = "the Python package amdsmi of ROCm is not installed"


class AmdSmi:
    """One card, through the initialized module `amdsmi`."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library = library
        self._handle = handle
        self._residencies: dict[str, int] = {}

    def throttle_reasons(self) -> Answer[tuple[str, ...]]:
        """Return what lowers the clock now, or has since the last call on cards that count it."""
        try:
            metrics = self._library.amdsmi_get_gpu_metrics_info(self._handle)
        except Exception as error:  # noqa: BLE001 - the library raises its own family of errors
            return Answer(because=f"AMD SMI reports {str(error).strip() or type(error).__name__}")
        counters = {
            name: value for name in _RESIDENCIES if isinstance(value := metrics.get(name), int)
        }
        bits = metrics.get("indep_throttle_status")
        before, self._residencies = self._residencies, counters
        if counters:
            grown = (name for name, value in counters.items() if value > before.get(name, value))
            return Answer(value=tuple(dict.fromkeys(_RESIDENCIES[name] for name in grown)))
        if not isinstance(bits, int):
            return Answer(because="AMD SMI has no throttle status of this card")
        reasons = (reason for bit, reason in _BITS.items() if bits >> bit & 1)
        return Answer(value=tuple(dict.fromkeys(reasons)))

    def energy_j(self) -> Answer[float]:
        """Return the energy counter; it is called `power` in older releases."""
        try:
            count = self._library.amdsmi_get_energy_count(self._handle)
            ticks = count.get("energy_accumulator", count.get("power"))
            return Answer(value=float(ticks) * float(count["counter_resolution"]) / 1e6)
        except Exception as error:  # noqa: BLE001 - its own errors, and "N/A"
            return Answer(because=f"AMD SMI has no energy counter of this card: {error}")

    def close(self) -> None:
        """Shut the library down."""
        with suppress(Exception):  # a driver that was unloaded needs no shutdown
            self._library.amdsmi_shut_down()


def open_amd_smi(address: str) -> Answer[AmdSmi]:
    """Return the card at this PCI address, or why AMD SMI cannot read it; never raises."""
    try:
        library = importlib.import_module("amdsmi")
        library.amdsmi_init()
    except ImportError:
        return Answer(because=_INSTALL)
    except Exception as error:  # noqa: BLE001 - KeyError without the library of ROCm, or its own errors
        return Answer(because=f"AMD SMI cannot be initialized: {error}")
    with suppress(Exception):
        for handle in library.amdsmi_get_processor_handles():
            if str(library.amdsmi_get_gpu_device_bdf(handle)).lower() == address:
                return Answer(value=AmdSmi(library, handle))
    with suppress(Exception):
        library.amdsmi_shut_down()
    return Answer(because=f"AMD SMI does not list the card at {address}")

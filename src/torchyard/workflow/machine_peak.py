"""The peak of this machine: one that is kept and not too old, or one that is measured now.

Joins `measure` with `results`. Whoever needs a peak asks here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torchyard.core.events import Listener, ignore_events
from torchyard.core.roofline import MachinePeak
from torchyard.machine.run_facts import read_facts
from torchyard.measure.peaks import PeakWish, machine_of, measure_peak
from torchyard.measure.targets import inspect_target
from torchyard.process.trouble import WorkerTrouble
from torchyard.results.peak_files import (
    LASTS_DAYS,
    age_days,
    find_peak,
    peak_path,
    write_peak,
)

__all__ = ["KeptPeak", "peak_of_machine"]


@dataclass(frozen=True, kw_only=True)
class KeptPeak:
    """A peak, where it lies, and whether it was measured just now."""

    peak: MachinePeak
    path: Path
    fresh: bool


def peak_of_machine(
    wish: PeakWish, *, measure: bool = False, listener: Listener = ignore_events
) -> KeptPeak:
    """The kept one of the same torch when it is not too old; `measure` always measures."""
    if not measure and (kept := _kept(wish)) is not None:
        return KeptPeak(peak=kept, path=peak_path(kept), fresh=False)
    peak = measure_peak(wish, listener=listener)
    return KeptPeak(peak=peak, path=write_peak(peak), fresh=True)


def _kept(wish: PeakWish) -> MachinePeak | None:
    try:
        hello = inspect_target(wish.target)
    except WorkerTrouble:
        return None  # measuring meets the same trouble, and says what it means for a peak
    torch = str(hello.get("torch", ""))
    machine = machine_of(read_facts(), hello, wish.device)
    peak = find_peak(machine, wish.device, wish.precision, wish.threads_used, torch_version=torch)
    if peak is None or peak.torch_version != torch or age_days(peak) > LASTS_DAYS:
        return None
    return peak

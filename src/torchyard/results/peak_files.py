"""Measured peaks as JSON files in the home folder.

There is one for each machine, device, precision, number of threads and torch. Names of machines and versions come from outside, so file
names are made of plain letters and a digest. A file that cannot be read is as good as none: a peak
is measured again in seconds.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from torchyard.core.records import decode, encode
from torchyard.core.roofline import MachinePeak
from torchyard.errors import TorchyardError
from torchyard.results.bounded_read import read_json
from torchyard.results.durable import replace_file, to_json_text, write_failed
from torchyard.results.run_home import home_folder

__all__ = [
    "FORMAT",
    "LASTS_DAYS",
    "age_days",
    "find_peak",
    "peak_path",
    "peaks_home",
    "read_peaks",
    "same_device",
    "write_peak",
]

FORMAT: Final = 1
"""Raised when an older Torchyard would misread a file."""
LASTS_DAYS: Final = 30.0
"""A peak is used that long before it is measured again: drivers, cooling and neighbours change."""


def peaks_home() -> Path:
    """The folder of peaks."""
    return home_folder() / "peaks"


def peak_path(peak: MachinePeak) -> Path:
    """Where this peak is kept; a later one of the same replaces it."""
    keys = (
        peak.machine,
        same_device(peak.device),
        peak.precision,
        str(peak.threads),
        peak.torch_version,
    )
    digest = hashlib.sha256("\n".join(keys).encode("utf-8", "replace")).hexdigest()[:8]
    slug = re.sub(r"[^a-z0-9]+", "-", "-".join(keys[:3]).lower()).strip("-")[:60]
    return peaks_home() / f"{slug}-{digest}.json"


def same_device(device: str) -> str:
    """`cuda` and `cuda:0` are one device."""
    return f"{device}:0" if device == "cuda" else device


def write_peak(peak: MachinePeak) -> Path:
    """Keep it; a reader sees all of it or what was there before."""
    path = peak_path(peak)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_failed(path.parent, error, kept="what is there") from error
    document = {"format": FORMAT, "peak": encode(peak)}
    replace_file(path, to_json_text(document, indent=1) + "\n")
    return path


def read_peaks() -> list[MachinePeak]:
    """Every peak that can be read, the newest first."""
    try:
        paths = sorted(peaks_home().glob("*.json"))
    except OSError:
        return []
    found = [peak for path in paths if (peak := _read(path)) is not None]
    return sorted(found, key=lambda peak: peak.measured, reverse=True)


def find_peak(
    machine: str, device: str, precision: str, threads: int, *, torch_version: str = ""
) -> MachinePeak | None:
    """The peak of that machine, device, precision and number of threads.

    Of the same torch where there is one, else the newest: the machine is the same.
    """
    wanted = (machine, same_device(device), precision, threads)
    found = [
        peak
        for peak in read_peaks()
        if (peak.machine, same_device(peak.device), peak.precision, peak.threads) == wanted
    ]
    alike = [peak for peak in found if peak.torch_version == torch_version]
    return next(iter(alike or found), None)


def age_days(peak: MachinePeak, now: datetime | None = None) -> float:
    """How long ago it was measured; infinite when its date cannot be read."""
    try:
        measured = datetime.fromisoformat(peak.measured)
    except ValueError:
        return float("inf")
    if measured.tzinfo is None:
        measured = measured.replace(tzinfo=UTC)
    return ((now or datetime.now(UTC)) - measured).total_seconds() / 86400


def _read(path: Path) -> MachinePeak | None:
    try:
        document = read_json(path)
        if not isinstance(document, dict) or int(document.get("format", 0)) > FORMAT:
            return None
        peak = decode(MachinePeak, document.get("peak"), where="peak", strict=False)
    except (OSError, ValueError, TypeError, RecursionError, TorchyardError):
        return None
    usable = peak.flops_per_second > 0 and peak.bytes_per_second > 0
    return peak if usable else None

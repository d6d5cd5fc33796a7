"""Measure and store the peak of a machine: the best rates of matrix products and memory streams.

This module chooses sizes; a worker in the target measures one at a time. It is started like a
worker of `torchyard bench`, with the same threads, so that shares of the peak refer to what a run
could reach. Peaks are JSON files in the results directory, one for each machine, device,
precision, number of threads and torch version. Names come from outside, so file names consist of
plain letters and a digest. A file that cannot be read counts as missing: a peak is measured again
in seconds. `peak_of_machine` returns a kept peak that is recent enough, or measures one.
"""

from __future__ import annotations

import hashlib
import random
import re
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from torchyard.bench.launch import draw_launch, launch_specs
from torchyard.bench.target_checks import check_seen, inspect_target
from torchyard.core.events import Event, Listener, ignore_events
from torchyard.core.records import decode, encode
from torchyard.core.roofline import MachinePeak, ProductRate, StreamRate
from torchyard.core.study import MeasureSettings, Precision, Target, Variant
from torchyard.core.units import format_bytes
from torchyard.core.variant_parts import indexed_device
from torchyard.errors import MissingTool, TorchyardError, WorkerFailed
from torchyard.files.safe_reading import read_json
from torchyard.files.safe_writing import replace_file, to_json_text, write_error
from torchyard.machine.facts import read_facts
from torchyard.machine.identity import machine_name
from torchyard.machine.system.cores import available_cores
from torchyard.process.ending import MISSING_TARGET, WorkerFailure
from torchyard.process.worker_process import WorkerGroup, WorkerProcess
from torchyard.results.directory import home_folder

FORMAT: Final = 1
"""Incremented when an older Torchyard would misread a file."""
MAX_AGE_DAYS: Final = 30.0
"""Age at which a peak is measured again, since drivers, cooling and other tenants change."""


def peaks_home() -> Path:
    """Return the folder of stored peaks."""
    return home_folder() / "peaks"


def peak_path(peak: MachinePeak) -> Path:
    """Return the path of this peak; a later one with the same key replaces it."""
    keys = (
        peak.machine,
        indexed_device(peak.device),
        peak.precision,
        str(peak.threads),
        peak.torch_version,
    )
    digest = hashlib.sha256("\n".join(keys).encode("utf-8", "replace")).hexdigest()[:8]
    slug = re.sub(r"[^a-z0-9]+", "-", "-".join(keys[:3]).lower()).strip("-")[:60]
    return peaks_home() / f"{slug}-{digest}.json"


def write_peak(peak: MachinePeak) -> Path:
    """Store a peak atomically."""
    path = peak_path(peak)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(path.parent, error, kept="existing data") from error
    document = {"format": FORMAT, "peak": encode(peak)}
    replace_file(path, to_json_text(document, indent=1) + "\n")
    return path


def read_peaks() -> list[MachinePeak]:
    """Return every readable peak, newest first."""
    try:
        paths = sorted(peaks_home().glob("*.json"))
    except OSError:
        return []
    peaks = [peak for path in paths if (peak := _read(path)) is not None]
    return sorted(peaks, key=lambda peak: peak.measured, reverse=True)


def find_peak(
    machine: str, device: str, precision: str, threads: int, *, torch_version: str = ""
) -> MachinePeak | None:
    """Return the peak of that machine, device, precision and number of threads.

    Prefers the same torch version; otherwise the newest peak.
    """
    key = (machine, indexed_device(device), precision, threads)
    matching = [
        peak
        for peak in read_peaks()
        if (peak.machine, indexed_device(peak.device), peak.precision, peak.threads) == key
    ]
    same_torch = [peak for peak in matching if peak.torch_version == torch_version]
    return next(iter(same_torch or matching), None)


def age_days(peak: MachinePeak, now: datetime | None = None) -> float:
    """Return the age of a peak; infinite if its date is invalid."""
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


CPU_SIZES: Final = (128, 256, 512, 768, 1024, 1536, 2048, 4096)
CUDA_SIZES: Final = (512, 1024, 2048, 4096, 8192, 16384)
"""Sizes of square matrices; rates rise with size until caches are used well, then stay."""
ROUNDS: Final = 3
"""Number of passes over all sizes, so that a short disturbance rarely affects all runs of one size."""
PRODUCT_S: Final = 0.2
STREAM_S: Final = 0.05
MEMORY_STREAM_S: Final = 0.2
SMALLEST_SET_BYTES: Final = 2**18
MEMORY_SET_BYTES: Final = {"cpu": 2**27, "cuda": 2**31}
"""Minimum size of arrays that measure memory; four times the last-level cache if that is more."""
CACHES: Final = 4
LARGEST_SHARE: Final = 4
"""Arrays use at most 1/4 of the free memory."""
ANSWER_LIMIT_S: Final = 120.0
BYTES_PER_ELEMENT: Final = 3 * 4
"""Three matrices of float32, in which they are generated."""


@dataclass(frozen=True, kw_only=True)
class PeakRequest:
    """What to measure the peak of."""

    target: Target = field(default_factory=lambda: Target(name="here", python=sys.executable))
    device: str = "cpu"
    precision: Precision = "float32"
    threads: int | None = None
    """None: one per usable core, as in `torchyard bench`."""
    duration_factor: float = 1.0
    """Factor on the measuring time of every size."""
    longest_call_s: float = 1.5
    """Products that are expected to take longer are skipped."""

    @property
    def kind(self) -> str:
        """`cpu` or `cuda`."""
        return self.device.partition(":")[0]

    @property
    def threads_used(self) -> int:
        """Number of threads; 0 on a GPU."""
        return 0 if self.kind != "cpu" else self.threads or available_cores()


def measure_peak(request: PeakRequest, *, listener: Listener = ignore_events) -> MachinePeak:
    """Measure the peak; takes about fifteen seconds."""
    facts = read_facts()
    started, started_s = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torchyard-peak-") as name, WorkerGroup() as group:
        try:
            worker = _start(request, group, Path(name))
            hello = worker.ask("hello", limit_s=ANSWER_LIMIT_S)
            check_seen(request.device, hello)
            measurement = _PeakMeasurement(request, worker, listener)
            products, streams, memory, notes = measurement.products(), *measurement.streams()
        except WorkerFailure as trouble:
            raise _failed(trouble, request) from trouble
    return MachinePeak(
        machine=machine_of(facts, hello, request.device),
        device=request.device,
        precision=request.precision,
        threads=request.threads_used,
        flops_per_second=max(one.flops_per_second for one in products),
        bytes_per_second=memory,
        products=tuple(products),
        streams=tuple(streams),
        torch_version=str(hello.get("torch", "")),
        measured=started,
        duration_s=round(time.monotonic() - started_s, 1),
        load=facts.get("load", ""),
        notes=tuple(notes),
    )


def machine_of(facts: dict[str, str], hello: dict[str, Any], device: str) -> str:
    """Return the machine name of a run with a workload on that device."""
    return machine_name(
        {
            "machine": facts,
            "targets": {"target": hello},
            "study": {"workloads": [{"device": device}]},
        }
    )


class _PeakMeasurement:
    """Measurements in one worker, with progress."""

    def __init__(self, request: PeakRequest, worker: WorkerProcess, listener: Listener) -> None:
        self._request = request
        self._worker = worker
        self._listener = listener
        limits = worker.ask("peak", limit_s=ANSWER_LIMIT_S, what="limits", device=request.device)
        self._free_bytes = int(limits["free_bytes"]) // LARGEST_SHARE
        self._cache_bytes = int(limits["last_cache_bytes"])

    def products(self) -> list[ProductRate]:
        """Return the best rates of matrix products, for all sizes that are fast enough and fit."""
        sizes = CPU_SIZES if self._request.kind == "cpu" else CUDA_SIZES
        best: dict[int, float] = {}
        for turn in range(ROUNDS):
            for place, size in enumerate(sizes):
                if best and not self._affordable(size, max(best.values())):
                    break
                fraction = (turn + place / len(sizes)) / ROUNDS
                self._say(f"products of {size} x {size}", fraction / 2)
                rate = float(self._ask("product", size, PRODUCT_S)["flops_per_second"])
                best[size] = max(rate, best.get(size, 0.0))
        return [ProductRate(size=size, flops_per_second=rate) for size, rate in best.items()]

    def _affordable(self, size: int, rate: float) -> bool:
        return 2.0 * size**3 / rate <= self._request.longest_call_s and (
            size * size * BYTES_PER_ELEMENT <= self._free_bytes
        )

    def streams(self) -> tuple[list[StreamRate], float, list[str]]:
        """Return the best rates of all sizes, the memory rate, and notes."""
        target_bytes = max(
            CACHES * self._cache_bytes, MEMORY_SET_BYTES.get(self._request.kind, 2**28)
        )
        largest_bytes = min(target_bytes, self._free_bytes)
        sizes = []
        size = SMALLEST_SET_BYTES
        while size * 2 < largest_bytes:
            sizes.append(size)
            size *= 2
        sizes.append(largest_bytes)
        best: dict[tuple[int, str], float] = {}
        for turn in range(ROUNDS):
            for place, size in enumerate(sizes):
                fraction = (turn + place / len(sizes)) / ROUNDS
                self._say(f"arrays of {format_bytes(size)}", 0.5 + fraction / 2)
                for kind in ("copy", "triad"):
                    seconds = MEMORY_STREAM_S if size == largest_bytes else STREAM_S
                    rate = float(self._ask(kind, size, seconds)["bytes_per_second"])
                    best[size, kind] = max(rate, best.get((size, kind), 0.0))
        rates = [
            StreamRate(kind=kind, working_set_bytes=size, bytes_per_second=rate)
            for (size, kind), rate in best.items()
        ]
        memory = max(
            one.bytes_per_second for one in rates if one.working_set_bytes == largest_bytes
        )
        notes = (
            [
                "too little free memory for arrays larger than the caches: the rate may be that of a cache"
            ]
            if largest_bytes < target_bytes
            else []
        )
        return rates, memory, notes

    def _ask(self, what: str, size: int, seconds: float) -> dict[str, Any]:
        return self._worker.ask(
            "peak",
            limit_s=ANSWER_LIMIT_S,
            what=what,
            device=self._request.device,
            precision=self._request.precision,
            size=size,
            seconds=seconds * self._request.duration_factor,
        )

    def _say(self, text: str, fraction: float) -> None:
        self._listener(Event(kind="launch", text=text, fraction=fraction))


def _start(request: PeakRequest, group: WorkerGroup, folder: Path) -> WorkerProcess:
    variant = Variant(name="peak", target=request.target)
    settings = MeasureSettings(threads=request.threads)
    groups = {variant.process_key: [variant]}
    specs = launch_specs(groups, settings, draw_launch(random.Random(0)), folder / "cache", folder)
    (spec,) = specs[variant.process_key]
    return group.start(spec, log_path=folder / "worker.log")


def _failed(trouble: WorkerFailure, request: PeakRequest) -> Exception:
    if trouble.kind in MISSING_TARGET:
        return MissingTool(
            f"measuring a peak needs a working torch in {request.target.python}",
            why=trouble.what,
            hint="name another interpreter: --target PYTHON or --target build:NAME",
        )
    return WorkerFailed(
        f"the peak could not be measured: {trouble.what}", why=trouble.why, hint=trouble.hint
    )


@dataclass(frozen=True, kw_only=True)
class StoredPeak:
    """A peak, its path, and whether it was measured just now."""

    peak: MachinePeak
    path: Path
    fresh: bool


def peak_of_machine(
    request: PeakRequest, *, measure: bool = False, listener: Listener = ignore_events
) -> StoredPeak:
    """Return a recent stored peak of the same torch, or measure one; `measure` always measures."""
    if not measure and (stored := _stored_peak(request)) is not None:
        return StoredPeak(peak=stored, path=peak_path(stored), fresh=False)
    peak = measure_peak(request, listener=listener)
    return StoredPeak(peak=peak, path=write_peak(peak), fresh=True)


def _stored_peak(request: PeakRequest) -> MachinePeak | None:
    try:
        hello = inspect_target(request.target)
    except WorkerFailure:
        return None  # measuring fails in the same way and reports it
    torch = str(hello.get("torch", ""))
    machine = machine_of(read_facts(), hello, request.device)
    peak = find_peak(
        machine, request.device, request.precision, request.threads_used, torch_version=torch
    )
    if peak is None or peak.torch_version != torch or age_days(peak) > MAX_AGE_DAYS:
        return None
    return peak

"""Measure and keep the peak of a machine: the best rates of matrix products and memory streams.

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
from torchyard.errors import MissingTool, TorchyardError, WorkerFailed
from torchyard.files.safe_reading import read_json
from torchyard.files.safe_writing import replace_file, to_json_text, write_failed
from torchyard.machine.facts.run_facts import read_facts
from torchyard.machine.identity import machine_name
from torchyard.machine.system.cores import available_cores
from torchyard.process.ending import WorkerTrouble
from torchyard.process.worker_process import WorkerGroup, WorkerProcess
from torchyard.results.directory import home_folder

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


CPU_SIZES: Final = (128, 256, 512, 768, 1024, 1536, 2048, 4096)
CUDA_SIZES: Final = (512, 1024, 2048, 4096, 8192, 16384)
"""Of square matrices. Rates rise with size until the caches are used well, and then stay."""
ROUNDS: Final = 3
"""Every size is measured so often, with the others in between: who disturbs one rarely meets all."""
PRODUCT_S: Final = 0.2
STREAM_S: Final = 0.05
MEMORY_STREAM_S: Final = 0.2
SMALLEST_SET_BYTES: Final = 2**18
MEMORY_SET_BYTES: Final = {"cpu": 2**27, "cuda": 2**31}
"""At least so large are arrays that stand for memory; four times the last cache where that is more."""
CACHES: Final = 4
LARGEST_SHARE: Final = 4
"""Arrays take no more than one part in so many of the free memory."""
ANSWER_LIMIT_S: Final = 120.0
BYTES_OF_ALL: Final = 3 * 4
"""Three matrices of float32, which is what they are drawn in."""


@dataclass(frozen=True, kw_only=True)
class PeakWish:
    """Of what the peak is wanted."""

    target: Target = field(default_factory=lambda: Target(name="here", python=sys.executable))
    device: str = "cpu"
    precision: Precision = "float32"
    threads: int | None = None
    """None: one for each core that may be used, as in `torchyard bench`."""
    patience: float = 1.0
    """How much longer than usual every size is measured."""
    longest_call_s: float = 1.5
    """A product that is expected to take longer is left out: rates do not rise forever."""

    @property
    def kind(self) -> str:
        """`cpu` or `cuda`."""
        return self.device.partition(":")[0]

    @property
    def threads_used(self) -> int:
        """0 where threads do not matter."""
        return 0 if self.kind != "cpu" else self.threads or available_cores()


def measure_peak(wish: PeakWish, *, listener: Listener = ignore_events) -> MachinePeak:
    """Measure it now; takes about fifteen seconds."""
    facts = read_facts()
    started, began = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torchyard-peak-") as name, WorkerGroup() as group:
        try:
            worker = _start(wish, group, Path(name))
            hello = worker.ask("hello", limit_s=ANSWER_LIMIT_S)
            check_seen(wish.device, hello)
            asking = _Asking(wish, worker, listener)
            products, streams, memory, notes = asking.products(), *asking.streams()
        except WorkerTrouble as trouble:
            raise _failed(trouble, wish) from trouble
    return MachinePeak(
        machine=machine_of(facts, hello, wish.device),
        device=wish.device,
        precision=wish.precision,
        threads=wish.threads_used,
        flops_per_second=max(one.flops_per_second for one in products),
        bytes_per_second=memory,
        products=tuple(products),
        streams=tuple(streams),
        torch_version=str(hello.get("torch", "")),
        measured=started,
        duration_s=round(time.monotonic() - began, 1),
        load=facts.get("load", ""),
        notes=tuple(notes),
    )


def machine_of(facts: dict[str, str], hello: dict[str, Any], device: str) -> str:
    """The name that a run with a workload on that device would have."""
    return machine_name(
        {
            "machine": facts,
            "targets": {"target": hello},
            "study": {"workloads": [{"device": device}]},
        }
    )


class _Asking:
    """The questions to one worker, with progress."""

    def __init__(self, wish: PeakWish, worker: WorkerProcess, listener: Listener) -> None:
        self._wish = wish
        self._worker = worker
        self._listener = listener
        limits = worker.ask("peak", limit_s=ANSWER_LIMIT_S, what="limits", device=wish.device)
        self._free_bytes = int(limits["free_bytes"]) // LARGEST_SHARE
        self._cache_bytes = int(limits["last_cache_bytes"])

    def products(self) -> list[ProductRate]:
        """Best rates of matrix products, of all sizes that are affordable."""
        sizes = CPU_SIZES if self._wish.kind == "cpu" else CUDA_SIZES
        best: dict[int, float] = {}
        for turn in range(ROUNDS):
            for place, size in enumerate(sizes):
                if best and not self._affordable(size, max(best.values())):
                    break
                done = (turn + place / len(sizes)) / ROUNDS
                self._say(f"products of {size} x {size}", done / 2)
                rate = float(self._ask("product", size, PRODUCT_S)["flops_per_second"])
                best[size] = max(rate, best.get(size, 0.0))
        return [ProductRate(size=size, flops_per_second=rate) for size, rate in best.items()]

    def _affordable(self, size: int, rate: float) -> bool:
        return 2.0 * size**3 / rate <= self._wish.longest_call_s and (
            size * size * BYTES_OF_ALL <= self._free_bytes
        )

    def streams(self) -> tuple[list[StreamRate], float, list[str]]:
        """Best rates of all sizes, the rate of memory, and what is to be said of it."""
        wanted = max(CACHES * self._cache_bytes, MEMORY_SET_BYTES[self._wish.kind])
        largest = min(wanted, self._free_bytes)
        sizes = []
        size = SMALLEST_SET_BYTES
        while size * 2 < largest:
            sizes.append(size)
            size *= 2
        sizes.append(largest)
        best: dict[tuple[int, str], float] = {}
        for turn in range(ROUNDS):
            for place, size in enumerate(sizes):
                done = (turn + place / len(sizes)) / ROUNDS
                self._say(f"arrays of {format_bytes(size)}", 0.5 + done / 2)
                for kind in ("copy", "triad"):
                    seconds = MEMORY_STREAM_S if size == largest else STREAM_S
                    rate = float(self._ask(kind, size, seconds)["bytes_per_second"])
                    best[size, kind] = max(rate, best.get((size, kind), 0.0))
        found = [
            StreamRate(kind=kind, working_set_bytes=size, bytes_per_second=rate)
            for (size, kind), rate in best.items()
        ]
        memory = max(one.bytes_per_second for one in found if one.working_set_bytes == largest)
        notes = (
            ["too little memory is free for arrays beyond the caches: the rate may be a cache's"]
            if largest < wanted
            else []
        )
        return found, memory, notes

    def _ask(self, what: str, size: int, seconds: float) -> dict[str, Any]:
        return self._worker.ask(
            "peak",
            limit_s=ANSWER_LIMIT_S,
            what=what,
            device=self._wish.device,
            precision=self._wish.precision,
            size=size,
            seconds=seconds * self._wish.patience,
        )

    def _say(self, text: str, fraction: float) -> None:
        self._listener(Event(kind="launch", text=text, fraction=fraction))


def _start(wish: PeakWish, group: WorkerGroup, folder: Path) -> WorkerProcess:
    variant = Variant(name="peak", target=wish.target)
    settings = MeasureSettings(threads=wish.threads)
    groups = {variant.process_key: [variant]}
    specs = launch_specs(groups, settings, draw_launch(random.Random(0)), folder / "cache", folder)
    (spec,) = specs[variant.process_key]
    return group.start(spec, log_path=folder / "worker.log")


def _failed(trouble: WorkerTrouble, wish: PeakWish) -> Exception:
    if trouble.kind in ("no-torch", "no-python"):
        return MissingTool(
            f"a peak is measured with torch, and {wish.target.python} has none that works",
            why=trouble.what,
            hint="name another interpreter: --target PYTHON or --target build:NAME",
        )
    return WorkerFailed(
        f"the peak could not be measured: {trouble.what}", why=trouble.why, hint=trouble.hint
    )


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

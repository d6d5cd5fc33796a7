"""Search for the largest batch size that fits, each size in fresh processes.

On the CPU, a worker may use up to the memory limit, or its share of most of the available memory;
on a GPU, the device reports when it is full. Sizes are doubled from 1 until one does not fit, then
bisected; a size smaller than one that fits is assumed to fit.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from torchyard.bench.launch import LaunchProcesses, VariantFailed, draw_launch
from torchyard.bench.preparation import PreparationState, check_accuracy
from torchyard.bench.rounds import choose_reseat
from torchyard.core.comparison import Failure
from torchyard.core.records import encode
from torchyard.core.short_names import short_label
from torchyard.core.study import MeasureSettings, Study, Variant, Workload
from torchyard.core.units import format_bytes, format_duration
from torchyard.errors import StepFailed, UsageError
from torchyard.machine.facts.isolation import read_limits
from torchyard.process.tree import peak_resident_bytes, sweep_orphans

Outcome = Literal["fits", "too-large", "refused"]
"""`refused`: failed for a reason other than memory (for example batch norm in training with one
image); a larger batch may work."""

OUT_OF_MEMORY: Final = "out-of-memory"
_REFUSED_UP_TO: Final = 4
"""The search ends if none of 1, 2 and 4 runs."""
_PARTS: Final = 8
"""Resolution of the result: a multiple of 1/8 of the power of two below it."""
_NEAR_BEST_SHARE: Final = 0.95


@dataclass(frozen=True, kw_only=True)
class BatchTry:
    """One size tried with one variant, or with all together, in fresh processes."""

    batch_size: int
    variant: str
    fits: bool
    kind: str = ""
    """Failure kind: `out-of-memory`, `raised`, `timeout`, ..."""
    reason: str = ""
    hint: str = ""
    iteration_ns: float | None = None
    peak_memory_bytes: int | None = None
    """Peak of tensors allocated during one iteration."""
    used_bytes: int | None = None
    """Peak resident memory of the process on the host, to which a memory limit applies."""
    left_bytes: int | None = None
    """Free memory of the device while the worker held its memory."""
    duration_s: float = 0.0

    @property
    def samples_per_second(self) -> float | None:
        """Throughput, from the time of one iteration after warming up."""
        return self.batch_size / self.iteration_ns * 1e9 if self.iteration_ns else None


@dataclass(frozen=True, kw_only=True)
class BatchSearch:
    """Result of a search."""

    workload: Workload
    variants: tuple[str, ...]
    tries: tuple[BatchTry, ...]
    most: int
    """The largest size allowed."""
    memory_limit_bytes: int | None = None
    """Host memory limit of one worker."""

    @property
    def batch_size(self) -> int | None:
        """The largest size that fits with every variant; None if 1 does not fit."""
        return max(
            (n for n, outcome in outcomes_of(self.tries).items() if outcome == "fits"), default=None
        )

    @property
    def multiple(self) -> int:
        """Resolution: the result is the largest multiple of this that fits."""
        size = self.batch_size
        return 1 if size is None or size == self.most else multiple_at(size)

    @property
    def obstacle(self) -> BatchTry | None:
        """The failure at the next larger size tried; None if the largest allowed size fits."""
        above = [
            one for one in self.tries if not one.fits and one.batch_size > (self.batch_size or 0)
        ]
        return min(above, key=lambda one: one.batch_size, default=None)


def outcomes_of(tries: Sequence[BatchTry]) -> dict[int, Outcome]:
    """Return the outcome of each size; a size fits if it fits with every variant."""
    outcomes: dict[int, Outcome] = {}
    for one in tries:
        outcome: Outcome = "fits" if one.fits else "refused"
        if one.kind == OUT_OF_MEMORY:
            outcome = "too-large"
        if outcomes.get(one.batch_size, "fits") == "fits":
            outcomes[one.batch_size] = outcome
    return outcomes


def multiple_at(batch_size: int) -> int:
    """Return the resolution of the search near a size."""
    return max(1, (1 << (batch_size.bit_length() - 1)) // _PARTS)


def next_size(outcomes: Mapping[int, Outcome], *, largest: int) -> int | None:
    """Return the size to try next; None when the search is over."""
    if not outcomes:
        return 1
    fitting = [size for size, outcome in outcomes.items() if outcome == "fits"]
    if not fitting:
        size = max(outcomes)
        again = outcomes[size] == "refused" and size < _REFUSED_UP_TO and 2 * size <= largest
        return 2 * size if again else None
    low = max(fitting)
    above = [size for size, outcome in outcomes.items() if outcome != "fits" and size > low]
    if not above:
        return min(2 * low, largest) if low < largest else None
    high, step = min(above), multiple_at(low)
    middle = low + max(step, (high - low) // 2 // step * step)
    return middle if middle < high else None


def size_that_pays(search: BatchSearch, variant: str) -> int | None:
    """Return the smallest size within 5 % of the best throughput; None if unknown."""
    largest = search.batch_size or 0
    rates = {
        one.batch_size: one.samples_per_second
        for one in search.tries
        if one.variant == variant
        and one.fits
        and one.batch_size <= largest
        and one.samples_per_second is not None
    }
    best = max(rates.values(), default=None)
    return (
        None
        if best is None
        else min(n for n, rate in rates.items() if rate >= _NEAR_BEST_SHARE * best)
    )


_HEADINGS = ("batch", "variant", "iteration", "samples/s", "tensors", "process", "left")


def search_text(search: BatchSearch) -> str:
    """Return the table of tries and the result."""
    lines = [short_label(search.workload), "", tries_text(search.tries), "", *result_lines(search)]
    return "\n".join(lines)


def tries_text(tries: Sequence[BatchTry]) -> str:
    """Return one line per try, smallest size first."""
    ordered = sorted(tries, key=lambda one: one.batch_size)
    rows = [_HEADINGS, *map(_cells, ordered)]
    full_rows = [row for row in rows if len(row) == len(_HEADINGS)]
    widths = [max(len(row[column]) for row in full_rows) for column in range(len(_HEADINGS))]
    widths[1] = max(len(row[1]) for row in rows)
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column == 1 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        if len(row) < len(_HEADINGS):
            cells[-1] = row[-1]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def try_line(one: BatchTry) -> str:
    """Return one try as a progress line."""
    _, variant, *rest = _cells(one)
    if not one.fits:
        return f"batch size {one.batch_size}, {variant}: {rest[0]}"
    return f"batch size {one.batch_size}, {variant}: {rest[1]} samples/s, {rest[2]} of tensors"


def result_lines(search: BatchSearch) -> list[str]:
    """Return the result, what limits it, and where larger batches stop paying off."""
    size, obstacle = search.batch_size, search.obstacle
    if size is None:
        return ["a batch size of 1 does not fit"]
    result = f"largest batch size: {size}"
    if obstacle is None:
        return [f"{result}, the largest size allowed", *_payoff_lines(search)]
    resolution = f", a multiple of {search.multiple}" if search.multiple > 1 else ""
    result += f"{resolution}; {obstacle.batch_size} does not fit with {obstacle.variant}"
    return [f"{result} ({obstacle.kind})", *_payoff_lines(search)]


def search_json(search: BatchSearch) -> dict[str, Any]:
    """Return the search as plain values for JSON."""
    return {
        "workload": encode(search.workload),
        "variants": list(search.variants),
        "batch_size": search.batch_size,
        "multiple": search.multiple,
        "most": search.most,
        "memory_limit_bytes": search.memory_limit_bytes,
        "pays_up_to": {name: size_that_pays(search, name) for name in search.variants},
        "tries": [
            {**encode(one), "samples_per_second": one.samples_per_second} for one in search.tries
        ],
    }


def _payoff_lines(search: BatchSearch) -> list[str]:
    lines = []
    for variant in search.variants:
        size = size_that_pays(search, variant)
        if size is not None and size != search.batch_size:
            lines.append(
                f"{variant}: sizes above {size} stop paying off (95 % of the best throughput)"
            )
    return lines


def _cells(one: BatchTry) -> tuple[str, ...]:
    if not one.fits:
        return str(one.batch_size), one.variant, f"does not fit: {one.reason or one.kind}"
    rate = one.samples_per_second
    return (
        str(one.batch_size),
        one.variant,
        "unknown" if one.iteration_ns is None else format_duration(one.iteration_ns),
        "unknown" if rate is None else f"{rate:.3g}" if rate < 1000 else f"{rate:.0f}",  # noqa: PLR2004
        *(
            "unknown" if size is None else format_bytes(size)
            for size in (one.peak_memory_bytes, one.used_bytes, one.left_bytes)
        ),
    )


LARGEST_TRIED: Final = 1024
"""Default of the largest size to try."""
OnTry = Callable[[BatchTry], None]
"""Progress callback, called after each try."""

_SHARE_OF_MEMORY: Final = 0.8
"""Of the available memory; the rest is for the controller, the page cache and other processes."""
_WARM_UP_S: Final = 2.0
_UNRELATED_TO_SIZE: Final = frozenset(
    {"no-python", "no-torch", "no-start", "protocol", "interrupted"}
)
"""Failure kinds that no other batch size can fix."""


def find_batch_size(
    workload: Workload,
    variants: Sequence[Variant],
    settings: MeasureSettings,
    *,
    largest: int = LARGEST_TRIED,
    together: bool = False,
    on_try: OnTry | None = None,
) -> BatchSearch:
    """Try sizes until the largest that fits with every variant is known.

    With `together`, variants run as in a bench run: in shared processes, with the accuracy check and
    with relocated data, which need additional memory. Otherwise each variant has its own process.
    """
    sweep_orphans()
    groups = [tuple(variants)] if together else [(variant,) for variant in variants]
    settings = _limited(settings, workload, workload.ranks * max(map(_processes, groups)))
    tries: list[BatchTry] = []
    with tempfile.TemporaryDirectory(prefix="torchyard-") as folder:
        while (size := next_size(outcomes_of(tries), largest=largest)) is not None:
            for group in groups:
                sized = replace(workload, batch_size=size)
                tries.append(_try(sized, group, settings, Path(folder)))
                if on_try is not None:
                    on_try(tries[-1])
                if not tries[-1].fits:
                    break  # a size must fit with every variant
    search = BatchSearch(
        workload=workload,
        variants=tuple(variant.name for variant in variants),
        tries=tuple(tries),
        most=largest,
        memory_limit_bytes=settings.memory_limit_bytes,
    )
    if search.batch_size is None and "too-large" not in outcomes_of(tries).values():
        last = tries[-1]
        raise StepFailed(
            f"{workload.label} fails with every batch size tried, from 1 to {last.batch_size}",
            why=f"{last.variant}: {last.reason}",
            hint=last.hint or "use the default batch size of the workload",
        )
    return search


def with_largest_batches(
    study: Study, *, largest: int = LARGEST_TRIED, told: OnTry | None = None
) -> tuple[Study, tuple[str, ...]]:
    """Return the study with the largest batch size that fits for each workload, and notes.

    A workload without a batch size, or for which a batch of 1 does not fit, is not changed, with a
    note.
    """
    workloads, notes = [], []
    for workload in study.workloads:
        why = "a batch size of 1 does not fit"
        try:
            search = find_batch_size(
                workload,
                study.variants,
                study.settings,
                largest=largest,
                together=True,
                on_try=told,
            )
        except (StepFailed, UsageError) as error:
            search, why = None, f"{error.what}: {error.why}"
        size = search.batch_size if search is not None else None
        if search is None or size is None:
            workloads.append(workload)
            notes.append(f"{workload.label}: batch size not searched, because {why}")
            continue
        workloads.append(replace(workload, batch_size=size))
        resolution = f", a multiple of {search.multiple}" if search.multiple > 1 else ""
        bound = "the largest allowed" if search.obstacle is None else "the largest that fits"
        notes.append(f"{workload.label}: batch size {size}, {bound}{resolution}")
    return replace(study, workloads=tuple(dict.fromkeys(workloads))), tuple(notes)


def _limited(settings: MeasureSettings, workload: Workload, processes: int) -> MeasureSettings:
    """Set a memory limit on the CPU, where the kernel would otherwise kill some process.

    Parallel processes share the available memory equally.
    """
    if settings.memory_limit_bytes is not None or workload.device != "cpu":
        return settings
    limits = read_limits()
    if not limits.total_mib:
        return settings
    share = _SHARE_OF_MEMORY / processes
    return replace(settings, memory_limit_bytes=int((limits.available_mib << 20) * share))


def _processes(group: Sequence[Variant]) -> int:
    """Return how many processes a launch of these variants has with one rank."""
    environments = {variant.process_key: variant.environment for variant in group}
    return sum(environment.instances for environment in environments.values())


def _try(
    workload: Workload, group: Sequence[Variant], settings: MeasureSettings, folder: Path
) -> BatchTry:
    size = workload.batch_size or 1
    started = time.monotonic()
    result = BatchTry(batch_size=size, variant=" and ".join(v.name for v in group), fits=True)
    try:
        with LaunchProcesses(
            workload,
            group,
            settings,
            draw=draw_launch(random.Random(f"{settings.seed}/{size}")),
            log_folder=folder / "logs",
            scratch=folder,
        ) as processes:
            _check_size(processes, size)
            result = _measured(result, processes, folder / f"reference-{size}.pt")
    except VariantFailed as failed:
        if failed.failure.kind in _UNRELATED_TO_SIZE:
            failed.log = ""  # the log is deleted with the folder; its tail is in the failure
            raise
        result = _failed(result, failed.failure, group)
    (folder / f"reference-{size}.pt").unlink(missing_ok=True)
    limit = settings.memory_limit_bytes
    if result.fits and limit is not None and (result.used_bytes or 0) > limit:
        # It exceeded the limit between two polls of the controller; another run may be killed.
        reason = (
            f"used {format_bytes(result.used_bytes or 0)}, above the limit of {format_bytes(limit)}"
        )
        result = replace(result, fits=False, kind="out-of-memory", reason=reason)
    return replace(result, duration_s=time.monotonic() - started)


def _measured(result: BatchTry, processes: LaunchProcesses, reference: Path) -> BatchTry:
    """Prepare all variants as a launch does, and measure time and memory."""
    baseline, *others = processes.variants
    if others and processes.settings.check_accuracy:
        for candidate in others:
            check_accuracy(processes, baseline, candidate, reference, PreparationState())
    slowest_ns = 0.0
    for variant in processes.variants:
        warmed = _ask(processes, variant, "warm", variant=variant.name, seconds=_WARM_UP_S)
        slowest_ns = max(slowest_ns, float(warmed["iteration_ns"]))
    method = choose_reseat(processes.settings.reseat, processes.variants, processes.workload.device)
    if others and method != "off":
        for one in processes.one_variant_per_process():
            _ask(processes, one, "reseat", seed=processes.settings.seed, method=method)
    used = _used_bytes(processes)
    free = _ask(processes, baseline, "peak", what="limits", device=processes.workload.device)[
        "free_bytes"
    ]
    answers = [_ask(processes, one, "measure", variant=one.name) for one in processes.variants]
    peaks = [answer.get("peak_memory_bytes") for answer in answers]
    measured = [int(peak) for peak in peaks if peak is not None]
    return replace(
        result,
        iteration_ns=slowest_ns,
        used_bytes=used,
        left_bytes=int(free),
        peak_memory_bytes=max(measured, default=None),
    )


def _ask(
    processes: LaunchProcesses, variant: Variant, verb: str, /, **fields: object
) -> dict[str, Any]:
    return processes.ask(
        variant, verb, phase=verb, limit_s=processes.settings.step_limit_s, **fields
    )


def _used_bytes(processes: LaunchProcesses) -> int | None:
    """Return the largest peak memory of any process; the limit applies to each."""
    pids = [hello.get("pid") for hello in processes.hellos.values()]
    peaks = [peak_resident_bytes(pid) for pid in pids if isinstance(pid, int)]
    return max((peak for peak in peaks if peak is not None), default=None)


def _check_size(processes: LaunchProcesses, size: int) -> None:
    for built in processes.built.values():
        actual = built.get("batch_size")
        if actual is not None and actual != size:
            raise UsageError(
                f"{processes.workload.suite}/{processes.workload.name} has a fixed batch size",
                why=f"requested {size}, but it used {actual}",
                hint="leave the batch size of this workload at its default",
            )


def _failed(result: BatchTry, failure: Failure, group: Sequence[Variant]) -> BatchTry:
    reason = " ".join(failure.message.split())
    for variant in group:  # drop the name of the process
        reason = reason.removeprefix("+".join(variant.process_key) + ": ")
    return replace(
        result,
        fits=False,
        variant=failure.variant or result.variant,
        kind=failure.kind,
        reason=reason,
        hint=failure.hint,
    )

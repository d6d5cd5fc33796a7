"""Search for the largest batch size that fits, each size in fresh processes.

On the CPU, a worker may use up to the memory limit, or its share of most of the available memory;
on a GPU, the device reports when it is full.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from torchyard.bench.batch_sizes import BatchSearch, BatchTry, next_size, outcomes_of
from torchyard.bench.launch import Crew, VariantFailed, draw_launch
from torchyard.bench.preparation import Knowledge, check_accuracy
from torchyard.bench.rounds import choose_reseat
from torchyard.core.comparison import Failure
from torchyard.core.study import MeasureSettings, Study, Variant, Workload
from torchyard.core.units import format_bytes
from torchyard.errors import StepFailed, UsageError
from torchyard.machine.limits import read_limits
from torchyard.process.tree import peak_resident_bytes, sweep_orphans

__all__ = ["MOST", "Told", "find_batch_size", "with_largest_batches"]

MOST: Final = 1024
"""The largest size that is tried when nothing else is said."""
Told = Callable[[BatchTry], None]
"""Hears of each try when it is over."""

_SHARE_OF_MEMORY: Final = 0.8
"""Of what is available: the rest is for the yard, the file cache and whoever comes meanwhile."""
_WARM_UP_S: Final = 2.0
_NOT_THE_BATCH: Final = frozenset({"no-python", "no-torch", "no-start", "protocol", "interrupted"})
"""Kinds of failure that no other size would mend."""


def find_batch_size(
    workload: Workload,
    variants: Sequence[Variant],
    settings: MeasureSettings,
    *,
    most: int = MOST,
    together: bool = False,
    told: Told | None = None,
) -> BatchSearch:
    """Try sizes until the largest that fits with every variant is known.

    `together`: as a bench run has them, in shared processes, with the accuracy check and with data
    that is moved, which take memory of their own; else each variant has a process to itself, so that
    each is seen alone.
    """
    sweep_orphans()
    groups = [tuple(variants)] if together else [(variant,) for variant in variants]
    settings = _limited(settings, workload, max(map(_processes, groups)))
    tries: list[BatchTry] = []
    with tempfile.TemporaryDirectory(prefix="torchyard-") as folder:
        while (size := next_size(outcomes_of(tries), most=most)) is not None:
            for group in groups:
                sized = replace(workload, batch_size=size)
                tries.append(_try(sized, group, settings, Path(folder)))
                if told is not None:
                    told(tries[-1])
                if not tries[-1].fits:
                    break  # the others cannot make the size fit any more
    found = BatchSearch(
        workload=workload,
        variants=tuple(variant.name for variant in variants),
        tries=tuple(tries),
        most=most,
        memory_limit_bytes=settings.memory_limit_bytes,
    )
    if found.batch_size is None and "too-large" not in outcomes_of(tries).values():
        last = tries[-1]
        raise StepFailed(
            f"{workload.label} runs with no batch size that was tried, from 1 to {last.batch_size}",
            why=f"{last.variant}: {last.reason}",
            hint=last.hint or "leave the batch size to the workload",
        )
    return found


def with_largest_batches(
    study: Study, *, most: int = MOST, told: Told | None = None
) -> tuple[Study, tuple[str, ...]]:
    """The study with the largest batch of each workload that a run of it can hold, and notes.

    A workload that has no batch, or whose smallest does not fit, stays as it is, and a note says so.
    """
    workloads, notes = [], []
    for workload in study.workloads:
        why = "not even a batch size of 1 fits"
        try:
            found = find_batch_size(
                workload, study.variants, study.settings, most=most, together=True, told=told
            )
        except (StepFailed, UsageError) as error:
            found, why = None, f"{error.what}: {error.why}"
        size = found.batch_size if found is not None else None
        if found is None or size is None:
            workloads.append(workload)
            notes.append(f"{workload.label}: batch size not searched, because {why}")
            continue
        workloads.append(replace(workload, batch_size=size))
        fine = f", a multiple of {found.multiple}" if found.multiple > 1 else ""
        bound = "the largest allowed" if found.obstacle is None else "the largest that fits"
        notes.append(f"{workload.label}: batch size {size}, {bound}{fine}")
    return replace(study, workloads=tuple(dict.fromkeys(workloads))), tuple(notes)


def _limited(settings: MeasureSettings, workload: Workload, processes: int) -> MeasureSettings:
    """Without a limit a search on the CPU would end with the kernel killing something.

    Processes that live side by side share what there is; each is held to its own limit.
    """
    if settings.memory_limit_bytes is not None or workload.device != "cpu":
        return settings
    limits = read_limits()
    if not limits.total_mib:
        return settings
    share = _SHARE_OF_MEMORY / processes
    return replace(settings, memory_limit_bytes=int((limits.available_mib << 20) * share))


def _processes(group: Sequence[Variant]) -> int:
    """How many processes a crew of these variants has."""
    environments = {variant.process_key: variant.environment for variant in group}
    return sum(environment.instances for environment in environments.values())


def _try(
    workload: Workload, group: Sequence[Variant], settings: MeasureSettings, folder: Path
) -> BatchTry:
    size = workload.batch_size or 1
    began = time.monotonic()
    come = BatchTry(batch_size=size, variant=" and ".join(v.name for v in group), fits=True)
    try:
        with Crew(
            workload,
            group,
            settings,
            draw=draw_launch(random.Random(f"{settings.seed}/{size}")),
            log_folder=folder / "logs",
            scratch=folder,
        ) as crew:
            _check_size(crew, size)
            come = _measured(come, crew, folder / f"reference-{size}.pt")
    except VariantFailed as failed:
        if failed.failure.kind in _NOT_THE_BATCH:
            failed.log = ""  # it goes with the folder; its last lines are in the failure
            raise
        come = _failed(come, failed.failure, group)
    (folder / f"reference-{size}.pt").unlink(missing_ok=True)
    limit = settings.memory_limit_bytes
    if come.fits and limit is not None and (come.used_bytes or 0) > limit:
        # Between two looks of the yard it held more for a moment; the next time it may be seen.
        reason = (
            f"held {format_bytes(come.used_bytes or 0)} of the {format_bytes(limit)} it may use"
        )
        come = replace(come, fits=False, kind="out-of-memory", reason=reason)
    return replace(come, duration_s=time.monotonic() - began)


def _measured(come: BatchTry, crew: Crew, reference: Path) -> BatchTry:
    """Everything that a launch prepares, with all variants of the crew."""
    baseline, *others = crew.variants
    if others and crew.settings.check_accuracy:
        for candidate in others:
            check_accuracy(crew, baseline, candidate, reference, Knowledge())
    slowest_ns = 0.0
    for variant in crew.variants:
        warmed = _ask(crew, variant, "warm", variant=variant.name, seconds=_WARM_UP_S)
        slowest_ns = max(slowest_ns, float(warmed["iteration_ns"]))
    method = choose_reseat(crew.settings.reseat, crew.variants, crew.workload.device)
    if others and method != "off":
        for one in crew.one_variant_per_process():
            _ask(crew, one, "reseat", seed=crew.settings.seed, method=method)
    used = _used_bytes(crew)
    left = _ask(crew, baseline, "peak", what="limits", device=crew.workload.device)["free_bytes"]
    answers = [_ask(crew, one, "measure", variant=one.name) for one in crew.variants]
    peaks = [answer.get("peak_memory_bytes") for answer in answers]
    known = [int(peak) for peak in peaks if peak is not None]
    return replace(
        come,
        iteration_ns=slowest_ns,
        used_bytes=used,
        left_bytes=int(left),
        peak_memory_bytes=max(known, default=None),
    )


def _ask(crew: Crew, who: Variant, verb: str, **fields: object) -> dict[str, Any]:
    return crew.ask(who, verb, phase=verb, limit_s=crew.settings.step_limit_s, **fields)


def _used_bytes(crew: Crew) -> int | None:
    """The most that any process of the crew has held; each has the limit for itself."""
    pids = [hello.get("pid") for hello in crew.hellos.values()]
    found = [peak_resident_bytes(pid) for pid in pids if isinstance(pid, int)]
    return max((peak for peak in found if peak is not None), default=None)


def _check_size(crew: Crew, size: int) -> None:
    for built in crew.built.values():
        own = built.get("batch_size")
        if own is not None and own != size:
            raise UsageError(
                f"{crew.workload.suite}/{crew.workload.name} has a batch size of its own",
                why=f"asked for {size}, it took {own}",
                hint="there is nothing to search for this workload",
            )


def _failed(come: BatchTry, failure: Failure, group: Sequence[Variant]) -> BatchTry:
    reason = " ".join(failure.message.split())
    for variant in group:  # the name of its process, which the table does not know
        reason = reason.removeprefix("+".join(variant.process_key) + ": ")
    return replace(
        come,
        fits=False,
        variant=failure.variant or come.variant,
        kind=failure.kind,
        reason=reason,
        hint=failure.hint,
    )

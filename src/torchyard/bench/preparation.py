"""Before timing: check accuracy, compile, warm up, and measure memory and energy.

Done in the first launch with the processes that are then timed; a later launch only warms up.
Accuracy is checked before timing: a candidate with wrong results is never reported as faster.

The length of a block (calls per sample, samples per block, untimed calls before it) follows from
the iteration time seen in warm-up, so that reading the clock and exchanging messages cost less than
half a percent of the block.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from torchyard.bench.launch import LaunchProcesses, VariantFailed
from torchyard.core.comparison import Accuracy, AccuracyStatus, VariantMetrics
from torchyard.core.records import decode
from torchyard.core.roofline import MachinePeak
from torchyard.core.study import SCRIPT_SUITE, Variant
from torchyard.core.units import format_duration
from torchyard.machine.guards.gpu_guard import GpuGuard
from torchyard.presentation.wording import data_wait_text
from torchyard.process.timing_turn import paused_s
from torchyard.stats.distributions import median_interval
from torchyard.worker.bench.backend_names import uses_inductor

CLOCK_COST_NS: Final = 420.0
"""Two clock reads and one iteration of the Python loop: 419-442 ns on a Neoverse-N1 core."""
CLOCK_SHARE: Final = 0.0025
"""Largest share of a sample that reading the clock may take."""
MAX_SAMPLES: Final = 1000
PRIME_SHARE: Final = 0.1
"""A block starts with an untimed call if that costs at most this share of the block."""


@dataclass(frozen=True, kw_only=True)
class BlockPlan:
    """Calls per sample, samples, and untimed calls before one block."""

    inner: int
    samples: int
    prime: int

    @property
    def iterations(self) -> int:
        """Number of timed calls."""
        return self.inner * self.samples


def plan_block(iteration_ns: float, *, block_s: float, training: bool) -> BlockPlan:
    """Plan a block for this iteration time; in training each call is one sample, since gradients are cleared."""
    block_ns = block_s * 1e9
    iteration_ns = max(iteration_ns, 1.0)
    inner = 1
    if not training:
        inner = max(1, round(CLOCK_COST_NS / CLOCK_SHARE / iteration_ns))
        if iteration_ns * MAX_SAMPLES * inner < block_ns:
            inner = max(inner, round(block_ns / MAX_SAMPLES / iteration_ns))
    samples = max(1, min(MAX_SAMPLES, round(block_ns / (iteration_ns * inner))))
    return BlockPlan(
        inner=inner,
        samples=samples,
        prime=1 if iteration_ns <= PRIME_SHARE * block_ns else 0,
    )


SCRIPT_STEPS: Final = 5
SCRIPT_BLOCK_S: Final = 5.0
"""A block of a script has this many steps, unless it would last longer than this."""


def plan_script_block(iteration_ns: float, *, block_s: float, least_steps: int) -> BlockPlan:
    """Plan a block of a script: one sample, the mean of its steps.

    Data loaders deliver in groups of their processes, so a block has at least one step for each of them.
    """
    iteration_s = max(iteration_ns, 1.0) / 1e9
    least = min(max(SCRIPT_STEPS, least_steps), round(SCRIPT_BLOCK_S / iteration_s))
    steps = max(1, least, round(block_s / iteration_s))
    return BlockPlan(inner=steps, samples=1, prime=1 if iteration_s <= PRIME_SHARE * block_s else 0)


FIRST_WARM_UP_LIMIT_S: Final = 8.0
LATER_WARM_UP_LIMIT_S: Final = 3.0
"""Shorter, because later launches have a block plan and their warm-up counts as measuring time."""
ENERGY_RUN_S: Final = 1.0
_COMMUNICATION_ALPHA: Final = 0.05
_REASONS_SHOWN: Final = 3
_COMPILED_BEFORE: Final = "the same graph was compiled earlier and taken from the cache"


@dataclass
class PreparationState:
    """Results of preparation so far, by name of the variant."""

    accuracy: dict[str, Accuracy] = field(default_factory=dict)
    metrics: dict[str, VariantMetrics] = field(default_factory=dict)
    plans: dict[str, BlockPlan] = field(default_factory=dict)
    iteration_ns: dict[str, float] = field(default_factory=dict)
    first_calls_s: dict[str, list[float]] = field(default_factory=dict)
    cached: set[str] = field(default_factory=set)
    """Variants whose compiled code was already in the caches at their first launch."""
    notes: list[tuple[str, str]] = field(default_factory=list)
    """Pairs of variant name and text."""
    untrusted: list[tuple[Variant, str]] = field(default_factory=list)
    """Reasons not to trust the numbers of a variant."""
    peaks: dict[str, MachinePeak] = field(default_factory=dict)
    """Measured peak of the device, where known."""
    varied: str = "none"
    """Which inputs blocks and checks may vary, as in `worker.input_draws`."""
    comparable: set[str] = field(default_factory=set)
    """Names of variants whose results of timed calls can be compared with eager code."""
    accepted: dict[str, Any] = field(default_factory=dict)
    """Deviation from eager code of the results that passed, for the checks of timed calls."""
    checked_calls: int = 0
    """Number of timed calls whose results were compared."""
    check_s: float = 0.0
    """Time of these comparisons, outside of the timed blocks."""

    @property
    def is_checked(self) -> bool:
        """Whether results were checked, so that blocks vary their inputs and keep results."""
        return bool(self.accuracy)

    def add_failure(self, variant: Variant, text: str) -> None:
        """Record a wrong result found during or after timing."""
        accuracy = self.accuracy[variant.name]
        self.accuracy[variant.name] = replace(accuracy, status=AccuracyStatus.FAIL, detail=text)
        self.comparable.discard(variant.name)

    def add_findings(self, variant: Variant, answer: Mapping[str, Any]) -> None:
        """Add notes and reasons not to trust the numbers, without duplicates."""
        for text in answer.get("notes") or ():
            if (variant.name, str(text)) not in self.notes:
                self.notes.append((variant.name, str(text)))
        for text in answer.get("untrusted") or ():
            if (variant, str(text)) not in self.untrusted:
                self.untrusted.append((variant, str(text)))

    def notes_about(self, *variants: Variant) -> list[str]:
        """Return the notes about these variants."""
        names = {variant.name for variant in variants}
        return [f"{name} {text}" for name, text in self.notes if name in names]

    def metrics_of(self, variant: Variant) -> VariantMetrics:
        """Return metrics with compile times: cold from the first launch, warm from later ones."""
        metrics = self.metrics.get(variant.name, VariantMetrics())
        calls = self.first_calls_s.get(variant.name, [])
        if variant.backend == "eager" or not calls:
            return metrics
        iteration_s = self.iteration_ns.get(variant.name, 0.0) / 1e9
        if variant.name in self.cached:
            return replace(
                metrics,
                compile_warm_s=max(0.0, median(calls) - iteration_s),
                unavailable=(*metrics.unavailable, ("compile_cold_s", _COMPILED_BEFORE)),
            )
        warm = median(calls[1:]) if len(calls) > 1 else None
        return replace(
            metrics,
            compile_cold_s=max(0.0, calls[0] - iteration_s),
            compile_warm_s=None if warm is None else max(0.0, warm - iteration_s),
        )


def check_accuracy(
    processes: LaunchProcesses,
    baseline: Variant,
    candidate: Variant,
    reference: Path,
    prepared: PreparationState,
    *,
    last: bool = False,
) -> None:
    """Check the candidate's results; the baseline computes the reference first if it is missing.

    If all variants share one process, the reference stays in memory; a file would copy it to the CPU
    and back. It is dropped after the `last` candidate, before timing starts.
    """
    keep = not processes.several_processes
    if not (processes.has_reference if keep else reference.exists()):
        answer = processes.ask(
            baseline,
            "reference",
            phase="check",
            variant=baseline.name,
            path=str(reference.absolute()),
            limit_bytes=processes.settings.memory_limit_bytes,
            keep=keep,
        )
        processes.has_reference = keep
        prepared.varied = str(answer["varied"])
    record = processes.ask(
        candidate,
        "judge",
        phase="check",
        variant=candidate.name,
        path=str(reference.absolute()),
        last=last,
    )
    prepared.accuracy[candidate.name] = decode(Accuracy, record, where="accuracy", strict=False)
    prepared.accepted[candidate.name] = record.get("accepted")
    prepared.add_findings(candidate, record)
    if record.get("comparable"):
        prepared.comparable.add(candidate.name)
    if prepared.varied == "none" and candidate.name in prepared.comparable:
        text = "was checked with one set of input values only: the workload accepts no others"
        prepared.notes.append((candidate.name, text))


def verify_block(
    processes: LaunchProcesses, variant: Variant, prepared: PreparationState, where: str
) -> None:
    """Check results kept in the variant's latest block; a wrong one fails the candidate."""
    answer = processes.ask(
        variant,
        "verify",
        phase="check",
        variant=variant.name,
        accepted=prepared.accepted.get(variant.name),
        settle=processes.several_processes,
    )
    prepared.checked_calls += int(answer["checked"])
    prepared.check_s += float(answer["seconds"])
    _take_failure(variant, answer, prepared, where)


def recheck(
    processes: LaunchProcesses, variant: Variant, prepared: PreparationState, *, launch: int
) -> None:
    """Check a candidate again after the last block of a launch; a failure keeps the launch's blocks."""
    try:
        answer = processes.ask(
            variant,
            "recheck",
            phase="check",
            variant=variant.name,
            varied=prepared.varied,
            accepted=prepared.accepted.get(variant.name),
            values=variant.name in prepared.comparable,
            more=launch == 0,
        )
    except VariantFailed as failed:
        text = f"could not be checked after the last block: {failed.failure.message}"
        prepared.add_findings(variant, {"untrusted": [text]})
        if not failed.process_alive:
            raise
        return
    prepared.check_s += float(answer["seconds"])
    prepared.add_findings(variant, answer)
    _take_failure(variant, answer, prepared, f"launch {launch + 1}, after the last block")


def _take_failure(
    variant: Variant, answer: Mapping[str, Any], prepared: PreparationState, where: str
) -> None:
    failure = answer.get("failure")
    if failure is not None:
        call = failure.get("call")
        place = where if call is None else f"{where}, call {call}"
        prepared.add_failure(variant, f"{place}: {failure['text']}")


def compile_variant(processes: LaunchProcesses, variant: Variant) -> None:
    """Make the first call, in which backends compile, unless the accuracy check did."""
    processes.ask(variant, "warm", phase="warm-up", variant=variant.name, seconds=0.0)


def warm_up(processes: LaunchProcesses, variant: Variant, prepared: PreparationState) -> None:
    """Run until the iteration time is stable; plan the blocks in the first launch."""
    is_planned = variant.name in prepared.plans
    answer = processes.ask(
        variant,
        "warm",
        phase="warm-up",
        variant=variant.name,
        seconds=LATER_WARM_UP_LIMIT_S if is_planned else FIRST_WARM_UP_LIMIT_S,
    )
    began_s, first_call_s = float(answer["first_call_began_s"]), float(answer["first_call_s"])
    first_call_s -= paused_s(began_s, began_s + first_call_s)
    prepared.first_calls_s.setdefault(variant.name, []).append(first_call_s)
    if not is_planned:
        if answer.get("cached_graphs"):
            prepared.cached.add(variant.name)
        if "max-autotune" in variant.backend:
            text = "was autotuned once: all launches share the chosen kernels"
            prepared.notes.append((variant.name, text))
        note_shared_caches(processes, variant, prepared)
        iteration_ns = float(answer["iteration_ns"])
        prepared.iteration_ns[variant.name] = iteration_ns
        block_s = processes.settings.block_s
        if processes.workload.suite == SCRIPT_SUITE:
            plan = plan_script_block(
                iteration_ns, block_s=block_s, least_steps=int(answer["workers"])
            )
        else:
            training = processes.workload.mode == "training"
            plan = plan_block(iteration_ns, block_s=block_s, training=training)
        prepared.plans[variant.name] = plan
        if not answer["stable"]:
            text = f"had not reached a steady state after {answer['warm_up_s']:.0f} s of warm-up"
            prepared.notes.append((variant.name, text))


def note_shared_caches(
    processes: LaunchProcesses, variant: Variant, prepared: PreparationState
) -> None:
    """Note that a variant was compiled after another one in the same process, with filled caches."""
    if not uses_inductor(variant.backend):
        return
    for earlier in processes.variants[: processes.variants.index(variant)]:
        if earlier.process_key == variant.process_key and uses_inductor(earlier.backend):
            text = f"was compiled after {earlier.name} in one process, so not from empty caches"
            prepared.notes.append((variant.name, text))
            return


def measure_metrics(
    processes: LaunchProcesses, variant: Variant, prepared: PreparationState
) -> None:
    """Measure peak memory, graphs and operations; record why where unavailable."""
    try:
        answer = processes.ask(variant, "measure", phase="metrics", variant=variant.name)
    except VariantFailed as failed:
        if not failed.process_alive:
            raise
        answer = {"unavailable": [["peak_memory_bytes", failed.failure.message]]}
    _note_recompiles(variant, answer, prepared)
    prepared.add_findings(variant, answer)
    waits = data_wait_text(float(answer.get("data_share") or 0.0), "a step")
    if waits:
        prepared.notes.append((variant.name, f"waits for data: {waits}"))
    note_communication(variant, answer.get("communication"), prepared)
    built = processes.built[variant.process_key]
    unavailable = [tuple(map(str, item)) for item in answer.get("unavailable", [])]
    if answer.get("flops") is None:
        unavailable.append(("flops", str(answer.get("flops_why_not", "not measured"))))
    prepared.metrics[variant.name] = VariantMetrics(
        peak_memory_bytes=answer.get("peak_memory_bytes"),
        memory_method=str(answer.get("memory_method", "")),
        graph_breaks=_counted(answer.get("graph_breaks", [])),
        graphs=answer.get("graphs"),
        recompiles=answer.get("recompiles"),
        recompile_reasons=_counted(answer.get("recompile_reasons", [])),
        flops=answer.get("flops"),
        batch_size=built.get("batch_size"),
        loss=str(built.get("loss", "")),
        moved_bytes=answer.get("moved_bytes"),
        torch_version=str(processes.hellos[variant.process_key].get("torch", "")),
        unavailable=tuple((item[0], item[1]) for item in unavailable),
    )


def measure_energy(
    processes: LaunchProcesses, variant: Variant, prepared: PreparationState, gpu: GpuGuard
) -> None:
    """Measure the energy of one iteration over consecutive blocks.

    The timed blocks are not used: they alternate between variants, and the GPU's counter advances in
    steps, so that energy of one variant could be attributed to another.
    """
    metrics = prepared.metrics[variant.name]
    before = gpu.read_energy_j()
    if before.value is None:
        reason = ("energy_j", before.because or "no energy counter")
        prepared.metrics[variant.name] = replace(
            metrics, unavailable=(*metrics.unavailable, reason)
        )
        return
    plan = prepared.plans[variant.name]
    iterations = 0
    started = time.monotonic()
    while time.monotonic() - started < ENERGY_RUN_S:
        answer = processes.ask(
            variant,
            "block",
            phase="metrics",
            variant=variant.name,
            inner=plan.inner,
            samples=plan.samples,
            prime=0,
            settle=False,
            flush_l2=False,  # flushing is not part of the iteration
        )
        iterations += int(answer["inner"]) * len(answer["samples_ns"])
    after = gpu.read_energy_j()
    if after.value is None or not iterations:
        return
    energy_j = (after.value - before.value) / iterations
    prepared.metrics[variant.name] = replace(metrics, energy_j=energy_j)


def _note_recompiles(variant: Variant, answer: dict[str, Any], prepared: PreparationState) -> None:
    """Note recompilations and their reasons, or the batch sizes tried without one."""
    tried = [str(size) for size in answer.get("tried_batches", [])]
    recompilations = _counted(answer.get("recompile_reasons", []))
    if recompilations:
        reasons = "; ".join(
            f"{reason} ({count})" for reason, count in recompilations[:_REASONS_SHOWN]
        )
        more = len(recompilations) - _REASONS_SHOWN
        reasons += f" and {more} more" if more > 0 else ""
        prepared.notes.append((variant.name, f"was recompiled: {reasons}"))
    elif tried:
        text = f"was not recompiled for batch size {' and '.join(tried)}"
        prepared.notes.append((variant.name, text))


def note_communication(
    variant: Variant, answer: Mapping[str, Any] | None, prepared: PreparationState
) -> None:
    """Note the time of communication between ranks that computation does not hide, or why it is unknown."""
    if answer is None:
        return
    if "pairs" not in answer:
        text = f"has unknown exposed communication: {answer['why_not']}"
        prepared.notes.append((variant.name, text))
        return
    differences = [float(on) - float(off) for on, off in answer["pairs"]]
    iteration_ns = median(float(on) for on, _ in answer["pairs"])
    bounds = median_interval(differences, _COMMUNICATION_ALPHA)
    interval = "" if bounds is None else f" [{', '.join(map(format_duration, bounds))}]"
    time = f"{format_duration(median(differences))}{interval} of {format_duration(iteration_ns)}"
    how = f"first launch, {len(differences)} pairs with and without it, not checked for noise"
    text = f"spends {time} on exposed communication ({how})"
    if bounds is None or bounds[0] <= 0:
        text = f"has undecided exposed communication: {time} ({how})"
    prepared.notes.append((variant.name, text))


def _counted(reasons: list[Any]) -> tuple[tuple[str, int], ...]:
    return tuple((str(reason), int(count)) for reason, count in reasons)

"""Before timing: check accuracy, compile, warm up, and measure memory and energy.

Done in the first launch with the processes that are then timed; a later launch only warms up.
Accuracy comes before time: a candidate with wrong results is never reported as faster.

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

from torchyard.bench.launch import Crew, VariantFailed
from torchyard.core.comparison import Accuracy, AccuracyStatus, VariantMetrics
from torchyard.core.records import decode
from torchyard.core.roofline import MachinePeak
from torchyard.core.study import Variant
from torchyard.machine.guards.gpu_guard import GpuGuard
from torchyard.worker.bench.backend_names import uses_inductor

CLOCK_COST_NS: Final = 420.0
"""Two looks at the clock and one turn of the loop in Python: 419-442 ns on a Neoverse-N1 core."""
CLOCK_SHARE: Final = 0.0025
MAX_SAMPLES: Final = 1000
PRIME_SHARE: Final = 0.1
"""An untimed first call is taken when it costs at most this share of the block."""


@dataclass(frozen=True, kw_only=True)
class BlockPlan:
    """What the worker is asked to do for one block."""

    inner: int
    samples: int
    prime: int

    @property
    def iterations(self) -> int:
        """Timed calls."""
        return self.inner * self.samples


def plan_block(iteration_ns: float, *, block_s: float, training: bool) -> BlockPlan:
    """The plan for an iteration of this length; training drops gradients after every call."""
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


FIRST_WARM_UP_LIMIT_S: Final = 8.0
LATER_WARM_UP_LIMIT_S: Final = 3.0
"""Later launches know what they warm up to, and their warm-up is paid from the measuring time."""
ENERGY_STRETCH_S: Final = 1.0
_REASONS_SAID: Final = 3


@dataclass
class Knowledge:
    """What is known of each variant so far, by name."""

    accuracy: dict[str, Accuracy] = field(default_factory=dict)
    metrics: dict[str, VariantMetrics] = field(default_factory=dict)
    plans: dict[str, BlockPlan] = field(default_factory=dict)
    iteration_ns: dict[str, float] = field(default_factory=dict)
    first_calls_s: dict[str, list[float]] = field(default_factory=dict)
    notes: list[tuple[str, str]] = field(default_factory=list)
    """Of which variant, and what."""
    untrusted: list[tuple[Variant, str]] = field(default_factory=list)
    """Why the numbers of a variant must not be trusted."""
    peaks: dict[str, MachinePeak] = field(default_factory=dict)
    """What the device reaches at most, where that was measured before."""
    varied: str = "none"
    """What of the inputs blocks and checks may vary, as in `worker.input_draws`."""
    comparable: set[str] = field(default_factory=set)
    """Names of variants whose timed calls have results that can be compared with eager code."""
    accepted: dict[str, Any] = field(default_factory=dict)
    """How far the results that were judged right are from eager code, for the checks of timed calls."""
    checked_calls: int = 0
    """Timed calls whose results were compared."""
    check_s: float = 0.0
    """Time that these comparisons took, outside of the timed blocks."""

    @property
    def is_checked(self) -> bool:
        """Whether results were judged, so that blocks vary their inputs and keep results."""
        return bool(self.accuracy)

    def is_comparable(self, variant: Variant) -> bool:
        """Whether results of the variant's timed calls can be compared with eager code."""
        return variant.name in self.comparable

    def add_failure(self, variant: Variant, text: str) -> None:
        """A check during or after timing found a wrong result."""
        known = self.accuracy[variant.name]
        self.accuracy[variant.name] = replace(known, status=AccuracyStatus.FAIL, detail=text)
        self.comparable.discard(variant.name)

    def add_findings(self, variant: Variant, answer: Mapping[str, Any]) -> None:
        """Notes and reasons not to trust the numbers, each once."""
        for text in answer.get("notes") or ():
            if (variant.name, str(text)) not in self.notes:
                self.notes.append((variant.name, str(text)))
        for text in answer.get("untrusted") or ():
            if (variant, str(text)) not in self.untrusted:
                self.untrusted.append((variant, str(text)))

    def notes_about(self, *variants: Variant) -> list[str]:
        """What is to be said of these variants."""
        names = {variant.name for variant in variants}
        return [f"{name} {text}" for name, text in self.notes if name in names]

    def metrics_of(self, variant: Variant) -> VariantMetrics:
        """Metrics with compile times: the first launch had empty caches, later ones had not."""
        known = self.metrics.get(variant.name, VariantMetrics())
        calls = self.first_calls_s.get(variant.name, [])
        if variant.backend == "eager" or not calls:
            return known
        iteration_s = self.iteration_ns.get(variant.name, 0.0) / 1e9
        warm = median(calls[1:]) if len(calls) > 1 else None
        return replace(
            known,
            compile_cold_s=max(0.0, calls[0] - iteration_s),
            compile_warm_s=None if warm is None else max(0.0, warm - iteration_s),
        )


def check_accuracy(
    crew: Crew,
    baseline: Variant,
    candidate: Variant,
    reference: Path,
    knowledge: Knowledge,
    *,
    last: bool = False,
) -> None:
    """Judge the candidate; the baseline makes the reference first if it is not there yet.

    One process keeps it to itself: through a file it would be copied to the CPU and back. After the
    `last` candidate it is dropped, before time is taken.
    """
    limit_s = crew.settings.step_limit_s
    keep = not crew.several_processes
    if not (crew.has_reference if keep else reference.exists()):
        answer = crew.ask(
            baseline,
            "reference",
            phase="check",
            limit_s=limit_s,
            variant=baseline.name,
            path=str(reference.absolute()),
            limit_bytes=crew.settings.memory_limit_bytes,
            keep=keep,
        )
        crew.has_reference = keep
        knowledge.varied = str(answer["varied"])
    record = crew.ask(
        candidate,
        "judge",
        phase="check",
        limit_s=limit_s,
        variant=candidate.name,
        path=str(reference.absolute()),
        last=last,
    )
    knowledge.accuracy[candidate.name] = decode(Accuracy, record, where="accuracy", strict=False)
    knowledge.accepted[candidate.name] = record.get("accepted")
    knowledge.add_findings(candidate, record)
    if record.get("comparable"):
        knowledge.comparable.add(candidate.name)
    if knowledge.varied == "none" and knowledge.is_comparable(candidate):
        text = "was checked on one set of input values only: the workload does not accept others"
        knowledge.notes.append((candidate.name, text))


def verify_block(crew: Crew, variant: Variant, knowledge: Knowledge, where: str) -> None:
    """Compare results that were kept in the variant's latest block; a wrong one fails the candidate."""
    answer = crew.ask(
        variant,
        "verify",
        phase="check",
        limit_s=crew.settings.step_limit_s,
        variant=variant.name,
        accepted=knowledge.accepted.get(variant.name),
        settle=crew.several_processes,
    )
    knowledge.checked_calls += int(answer["checked"])
    knowledge.check_s += float(answer["seconds"])
    _take_failure(variant, answer, knowledge, where)


def recheck(crew: Crew, variant: Variant, knowledge: Knowledge, *, launch: int) -> None:
    """Check a candidate after the last block of a launch. It never costs the launch its numbers."""
    try:
        answer = crew.ask(
            variant,
            "recheck",
            phase="check",
            limit_s=crew.settings.step_limit_s,
            variant=variant.name,
            varied=knowledge.varied,
            accepted=knowledge.accepted.get(variant.name),
            values=knowledge.is_comparable(variant),
            more=launch == 0,
        )
    except VariantFailed as failed:
        text = f"could not be checked after the last block: {failed.failure.message}"
        knowledge.add_findings(variant, {"untrusted": [text]})
        if not failed.process_alive:
            raise
        return
    knowledge.check_s += float(answer["seconds"])
    knowledge.add_findings(variant, answer)
    _take_failure(variant, answer, knowledge, f"launch {launch + 1}, after the last block")


def _take_failure(
    variant: Variant, answer: Mapping[str, Any], knowledge: Knowledge, where: str
) -> None:
    failure = answer.get("failure")
    if failure is not None:
        call = failure.get("call")
        place = where if call is None else f"{where}, call {call}"
        knowledge.add_failure(variant, f"{place}: {failure['text']}")


def compile_side(crew: Crew, variant: Variant) -> None:
    """The first call, in which backends compile; a side that was checked has had it."""
    crew.ask(
        variant,
        "warm",
        phase="warm-up",
        limit_s=crew.settings.step_limit_s,
        variant=variant.name,
        seconds=0.0,
    )


def warm_up(crew: Crew, variant: Variant, knowledge: Knowledge) -> None:
    """Run until stable, and choose the length of blocks once."""
    known = variant.name in knowledge.plans
    answer = crew.ask(
        variant,
        "warm",
        phase="warm-up",
        limit_s=crew.settings.step_limit_s,
        variant=variant.name,
        seconds=LATER_WARM_UP_LIMIT_S if known else FIRST_WARM_UP_LIMIT_S,
    )
    knowledge.first_calls_s.setdefault(variant.name, []).append(float(answer["first_call_s"]))
    if not known:
        note_shared_caches(crew, variant, knowledge)
        iteration_ns = float(answer["iteration_ns"])
        knowledge.iteration_ns[variant.name] = iteration_ns
        knowledge.plans[variant.name] = plan_block(
            iteration_ns,
            block_s=crew.settings.block_s,
            training=crew.workload.mode == "training",
        )
        if not answer["stable"]:
            text = f"was still changing after {answer['warm_up_s']:.0f} s of warm-up"
            knowledge.notes.append((variant.name, text))


def note_shared_caches(crew: Crew, variant: Variant, knowledge: Knowledge) -> None:
    """The first of a process to be compiled loads the compiler and fills its caches for the rest."""
    if not uses_inductor(variant.backend):
        return
    for earlier in crew.variants[: crew.variants.index(variant)]:
        if earlier.process_key == variant.process_key and uses_inductor(earlier.backend):
            text = f"was compiled after {earlier.name} in one process, so not from empty caches"
            knowledge.notes.append((variant.name, text))
            return


def measure_metrics(crew: Crew, variant: Variant, knowledge: Knowledge) -> None:
    """Peak memory and graphs; a side that cannot tell says why."""
    try:
        answer = crew.ask(
            variant,
            "measure",
            phase="metrics",
            limit_s=crew.settings.step_limit_s,
            variant=variant.name,
        )
    except VariantFailed as failed:
        if not failed.process_alive:
            raise
        answer = {"unavailable": [["peak_memory_bytes", failed.failure.message]]}
    _note_recompiles(variant, answer, knowledge)
    built = crew.built[variant.process_key]
    unavailable = [tuple(map(str, item)) for item in answer.get("unavailable", [])]
    if answer.get("flops") is None:
        unavailable.append(("flops", str(answer.get("flops_why_not", "nothing was measured"))))
    knowledge.metrics[variant.name] = VariantMetrics(
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
        torch_version=str(crew.hellos[variant.process_key].get("torch", "")),
        unavailable=tuple((item[0], item[1]) for item in unavailable),
    )


def measure_energy(crew: Crew, variant: Variant, knowledge: Knowledge, gpu: GpuGuard) -> None:
    """Joules of one iteration: blocks one after another while the card's counter runs.

    Not taken from the timed blocks: they alternate between variants, and the counter moves in
    steps, so that a variant could pay for its neighbour.
    """
    known = knowledge.metrics[variant.name]
    before = gpu.read_energy_j()
    if before.value is None:
        reason = ("energy_j", before.because or "there is no counter")
        knowledge.metrics[variant.name] = replace(known, unavailable=(*known.unavailable, reason))
        return
    plan = knowledge.plans[variant.name]
    iterations = 0
    started = time.monotonic()
    while time.monotonic() - started < ENERGY_STRETCH_S:
        answer = crew.ask(
            variant,
            "block",
            phase="metrics",
            limit_s=crew.settings.step_limit_s,
            variant=variant.name,
            inner=plan.inner,
            samples=plan.samples,
            prime=0,
            settle=False,
            flush_l2=False,  # the energy of flushing is not the iteration's
        )
        iterations += int(answer["inner"]) * len(answer["samples_ns"])
    after = gpu.read_energy_j()
    if after.value is None or not iterations:
        return
    energy_j = (after.value - before.value) / iterations
    knowledge.metrics[variant.name] = replace(known, energy_j=energy_j)


def _note_recompiles(variant: Variant, answer: dict[str, Any], knowledge: Knowledge) -> None:
    """The row says what was compiled again, and for which sizes it was tried."""
    tried = [str(size) for size in answer.get("tried_batches", [])]
    again = _counted(answer.get("recompile_reasons", []))
    if again:
        said = "; ".join(f"{reason} ({count})" for reason, count in again[:_REASONS_SAID])
        more = len(again) - _REASONS_SAID
        said += f" and {more} more" if more > 0 else ""
        knowledge.notes.append((variant.name, f"was compiled again: {said}"))
    elif tried:
        text = f"was not compiled again for batch size {' and '.join(tried)}"
        knowledge.notes.append((variant.name, text))


def _counted(found: list[Any]) -> tuple[tuple[str, int], ...]:
    return tuple((str(reason), int(count)) for reason, count in found)

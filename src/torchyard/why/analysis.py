"""Explain one comparison: measure, attribute, and collect what the compiler reports about itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final

from torchyard.core.comparison import WITHOUT_SPEED, Comparison, VariantMetrics
from torchyard.core.events import Listener
from torchyard.core.roofline import MachinePeak, attainment_of
from torchyard.core.study import Study, Variant
from torchyard.errors import NothingToDo
from torchyard.why.attribution import attribute
from torchyard.why.measurement import AttributionSession, Measurement, memory_sites
from torchyard.why.model import Attribution, CompilePhase, Part, Work
from torchyard.why.software import library_links, software_differences

_PARTIAL: Final = "incomplete: further launches were planned"
MOST_CODE: Final = 3
"""Kernels whose generated code is kept."""
LIBRARY_SHARE: Final = 0.01
"""Library calls below this share of the iteration are not listed."""


def explain_comparison(
    study: Study,
    row: Comparison,
    *,
    launches: int,
    seconds: float,
    budget_s: float,
    traces: Path | None = None,
    folder: Path,
    listener: Listener,
    keep: Callable[[Attribution], object],
) -> Attribution:
    """Attribute the difference of a comparison; `keep` gets the result after every launch."""
    baseline, candidate = (
        next(one for one in study.variants if one.name == name)
        for name in (row.baseline, row.candidate)
    )

    def on_launch() -> None:
        keep(attribution_of(row, baseline, candidate, session.measurement, notes=[_PARTIAL]))

    session = AttributionSession(
        row.workload,
        baseline,
        candidate,
        study.settings,
        launches=launches,
        seconds=seconds,
        budget_s=budget_s,
        traces=traces,
        folder=folder,
        listener=listener,
        on_launch=on_launch,
    )
    session.run()
    launches_done = len({one.launch for one in session.measurement.rounds})
    notes = (
        [f"{launches_done} of {launches} launches: the time is used up"]
        if launches_done < launches
        else []
    )
    result = attribution_of(row, baseline, candidate, session.measurement, notes=notes)
    keep(result)
    return result


def attribution_of(
    row: Comparison,
    baseline: Variant,
    candidate: Variant,
    measurement: Measurement,
    *,
    notes: Sequence[str] = (),
) -> Attribution:
    """Return the attribution of a finished measurement."""
    if not measurement.rounds:
        raise NothingToDo("nothing was measured", hint="increase --launches")
    result = attribute(
        row.workload,
        baseline.name,
        candidate.name,
        measurement.rounds,
        work=[measurement.work.get(one.name, {}) for one in (baseline, candidate)],
        notes=[*measurement.notes, *notes, *_state_notes(row), *_disagreement(row, measurement)],
    )
    facts = [
        fact
        for variant in (baseline, candidate)
        for fact in compiler_facts(variant, measurement.metrics.get(variant.name))
    ]
    peaks = [measurement.peaks.get(one.name) for one in (baseline, candidate)]
    result = replace(result, parts=tuple(with_shares(part, *peaks) for part in result.parts))
    if baseline.name in measurement.software and candidate.name in measurement.software:
        one, other = (measurement.software[side.name] for side in (baseline, candidate))
        different = software_differences(one, other)
        links = library_links(result.parts, one, other, different)
        result = replace(
            result,
            software=different,
            links=tuple(f"{part.name}: {text}" for part, text in links),
        )
    return replace(
        result,
        peak_command=measurement.peak_command,
        memory=memory_sites(
            result.parts,
            *(measurement.memory.get(one.name, ()) for one in (baseline, candidate)),
        ),
        facts=(*facts, *library_calls(result)),
        code=slow_code(result, measurement.code),
        compile_phases=compile_phases(
            *(measurement.phases.get(one.name, {}) for one in (baseline, candidate))
        ),
    )


def with_shares(part: Part, baseline: MachinePeak | None, candidate: MachinePeak | None) -> Part:
    """Return the part with the shares of the measured peaks that its sides reach."""
    return replace(
        part,
        baseline_work=_with_share(part.baseline_work, part.baseline_ns, baseline),
        candidate_work=_with_share(part.candidate_work, part.candidate_ns, candidate),
    )


def _with_share(work: Work | None, time_ns: float, peak: MachinePeak | None) -> Work | None:
    if work is None or peak is None or time_ns <= 0.0:
        return work
    metrics = VariantMetrics(
        time_ns=time_ns, flops=work.flops or None, moved_bytes=work.moved_bytes or None
    )
    attained = attainment_of(metrics, peak)
    return (
        work if attained is None else replace(work, share=attained.roof_share, bound=attained.bound)
    )


def slow_code(result: Attribution, code: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the generated code of the kernels in parts that the candidate makes slower."""
    slower = [part for part in result.parts if part.named and part.difference_ns > 0.0]
    names = [kernel.name for part in slower for kernel in part.candidate_kernels]
    shown = [name for name in dict.fromkeys(names) if name in code]
    return tuple((name, code[name]) for name in shown[:MOST_CODE])


def compile_phases(
    baseline: Mapping[str, float], candidate: Mapping[str, float]
) -> tuple[CompilePhase, ...]:
    """Return the phases of both sides that take time on one of them."""
    return tuple(
        CompilePhase(name=name, baseline_s=baseline.get(name), candidate_s=candidate.get(name))
        for name in dict.fromkeys((*baseline, *candidate))
        if baseline.get(name) or candidate.get(name)
    )


def compiler_facts(variant: Variant, metrics: VariantMetrics | None) -> list[str]:
    """Return graphs, graph breaks and recompilations of a compiled variant."""
    if metrics is None or metrics.graphs is None:
        return []
    facts = [f"{variant.name}: {metrics.graphs} graph{'s' if metrics.graphs != 1 else ''}"]
    facts += [
        f"{variant.name}: graph break ({count}x): {reason}"
        for reason, count in metrics.graph_breaks
    ]
    facts += [
        f"{variant.name}: recompiled ({count}x): {reason}"
        for reason, count in metrics.recompile_reasons
    ]
    return facts


def library_calls(result: Attribution) -> list[str]:
    """Return the operators that compiled code calls instead of generating a kernel."""
    kernels = [
        kernel
        for part in result.parts
        for kernel in part.candidate_kernels
        if kernel.duration_ns >= LIBRARY_SHARE * result.candidate_ns
    ]
    if not any(kernel.name.startswith(("cpp_", "triton_")) for kernel in kernels):
        return []
    names = sorted({kernel.name.partition(": ")[0] for kernel in kernels if "::" in kernel.name})
    return (
        [f"{result.candidate}: not generated by the compiler: {', '.join(names)}"] if names else []
    )


def _state_notes(row: Comparison) -> list[str]:
    """Note that the comparison has no valid speedup."""
    if row.state not in WITHOUT_SPEED and row.trusted:
        return []
    return [f"the comparison itself is {row.state.value}: its speedup must not be used"]


def _disagreement(row: Comparison, measurement: Measurement) -> list[str]:
    """Note that these launches do not reproduce the comparison that they explain."""
    estimate = row.estimate
    if estimate is None or estimate.interval is None:
        return []
    speedup = median(one.baseline.plain_ns / one.candidate.plain_ns for one in measurement.rounds)
    low, high = estimate.interval.low, estimate.interval.high
    if low * 0.9 <= speedup <= high * 1.1:
        return []
    text = (
        f"these launches have a speedup of {speedup:.2f}x, the comparison "
        f"{estimate.speedup:.2f}x [{low:.2f}, {high:.2f}]: the machine or the inputs have changed"
    )
    return [text]

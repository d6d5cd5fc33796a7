"""Show an attribution in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from torchyard.core.short_names import short_label
from torchyard.core.units import format_bandwidth, format_bytes, format_count, format_flops
from torchyard.presentation.safe_text import one_line, wrapped
from torchyard.why.model import (
    Ablation,
    Attribution,
    CompilePhase,
    Kernel,
    MemorySite,
    Part,
    SoftwareDifference,
    Source,
    Work,
)

MOST_PARTS: Final = 8
ENOUGH_LAUNCHES: Final = 4
"""With fewer launches, only large changes of a part are significant."""
LARGEST_SHARE: Final = 2.0
"""Parts of opposite signs can have any share of the difference; a larger one says nothing."""
_MOST_KERNELS: Final = 3
_MOST_LINES: Final = 3
PHASES_METHOD: Final = "single reading, empty caches"
_MOST_SITES: Final = 6
_MOST_DIFFERENCES: Final = 20
_LONGEST_FACT: Final = 160


def attribution_text(result: Attribution, *, width: int = 100) -> str:
    """Return headline, contributions that sum to the difference, and facts about the compiler."""
    unit, scale = time_unit(max(result.baseline_ns, result.candidate_ns))
    lines = [*wrapped(one_line(headline(result)), width), ""]
    shown = shown_parts(result)
    amount = max(len(_amount(part.difference_ns, scale)) for part in shown)
    for part in shown:
        number = next(n for n, one in enumerate(result.parts, start=1) if one is part)
        lines += _part_lines(number, part, result, scale, unit, amount, width)
    rest = [part for part in result.parts if part not in shown]
    if rest:
        total_ns = sum(part.difference_ns for part in rest)
        times = _times(sum(p.baseline_ns for p in rest), sum(p.candidate_ns for p in rest), scale)
        count = format_count(len(rest), "smaller part")
        lines.append(f"{_amount(total_ns, scale):>{amount}} {unit}  {count}: {times} {unit}")
    lines.append(f"{'-' * (amount + 3)}")
    times = _times(result.baseline_ns, result.candidate_ns, scale)
    total = _amount(result.difference_ns, scale)
    lines.append(f"{total:>{amount}} {unit}  sum of all parts: {times} {unit}")
    if result.links:
        lines += ["", "Libraries of the parts:"]
        for text in result.links:
            lines += wrapped(one_line(text), width, first="  ", rest="      ")
    if result.software:
        lines += ["", f"Software that differs, {result.baseline} -> {result.candidate}:"]
        for different in result.software[:_MOST_DIFFERENCES]:
            text = one_line(software_line(different))
            lines += wrapped(text, width, first="  ", rest="      ")
        if len(result.software) > _MOST_DIFFERENCES:
            lines.append(f"  {len(result.software) - _MOST_DIFFERENCES} more: see --json")
    if result.memory:
        lines += ["", *wrapped(memory_headline(result), width)]
        for site in shown_sites(result):
            lines += wrapped(one_line(site_line(site)), width, first="  ", rest="      ")
    if result.facts:
        lines += ["", "Compiler:"]
        for fact in result.facts:
            lines += wrapped(one_line(fact), width, first="  ", rest="    ")
    if result.compile_phases:
        lines += ["", f"Compile time by phase ({PHASES_METHOD}):"]
        lines += [f"  {phase_line(one, result)}" for one in result.compile_phases]
    if result.ablations:
        lines += ["", f"Decisions of the compiler, compared with {result.candidate}:"]
        for one in result.ablations:
            lines += wrapped(one_line(ablation_line(one)), width, first="  ", rest="      ")
    lines += ["", *wrapped(method_line(result), width)]
    if result.peak_command:
        lines += wrapped(peak_line(result), width)
    for note in result.notes:
        lines += wrapped(f"note: {one_line(note)}", width, rest="  ")
    return "\n".join(lines) + "\n"


def headline(result: Attribution) -> str:
    """Return the answer in one or two sentences."""
    unit, scale = time_unit(max(result.baseline_ns, result.candidate_ns))
    times = f"{result.baseline_ns / scale:.4g} {unit} -> {result.candidate_ns / scale:.4g} {unit}"
    change = f"{_amount(result.difference_ns, scale)} {unit}"
    interval = _interval(result.low_ns, result.high_ns, scale)
    text = (
        f"{short_label(result.workload)}: {result.baseline} -> {result.candidate}: {times} per iteration, "
        f"{change} {interval}."
    )
    if result.untrusted:
        return f"Untrusted, do not use these numbers: {result.untrusted}. {text}"
    named = [part for part in result.parts if part.named]
    if not named:
        few = ""
        if result.launches < ENOUGH_LAUNCHES:
            few = f" {result.launches} launches are too few for most parts; use --launches 5 --time 5m."
        return f"{text} No part has a significant contribution.{few}"
    first = named[0]
    share = first.difference_ns / result.difference_ns if result.difference_ns else 0.0
    portion = f" ({share:.0%} of the difference)" if 0.0 < share <= LARGEST_SHARE else ""
    return f"{text} Largest contribution: {first.name}{portion}."


def software_line(one: SoftwareDifference) -> str:
    """Return a fact that differs: `library libgomp: of GCC 10.2.1 -> of GCC 14.2.1`."""
    sides = [
        side if len(side) <= _LONGEST_FACT else side[: _LONGEST_FACT - 3] + "..."
        for side in (one.baseline, one.candidate)
    ]
    return f"{one.group} {one.name}: {sides[0]} -> {sides[1]}"


def memory_headline(result: Attribution) -> str:
    """Return the peaks of both sides."""
    totals = [
        format_bytes(sum(sizes))
        for sizes in (
            [site.baseline_bytes for site in result.memory],
            [site.candidate_bytes for site in result.memory],
        )
    ]
    return (
        f"Memory that an iteration holds at its peak (single reading): {result.baseline} {totals[0]} -> "
        f"{result.candidate} {totals[1]}"
    )


def shown_sites(result: Attribution) -> list[MemorySite]:
    """Return the sites with the largest differences; without one, those that hold most."""
    different = [site for site in result.memory if site.difference_bytes]
    return (different or list(result.memory))[:_MOST_SITES]


def site_line(site: MemorySite) -> str:
    """Return a site: `+4.00 MiB (0 B -> 4.00 MiB) Linear up: addmm, model.py:7: ...`."""
    sign = "-" if site.difference_bytes < 0 else "+"
    lines = places(site.sources)
    where = f", {lines[0]}" if lines else ""
    more = f" and {format_count(len(lines) - 1, 'other line')}" if lines[1:] else ""
    return (
        f"{sign}{format_bytes(abs(site.difference_bytes))} ({format_bytes(site.baseline_bytes)} -> "
        f"{format_bytes(site.candidate_bytes)}) {site.name}{where}{more}"
    )


def work_line(part: Part, result: Attribution) -> str:
    """Return the rates of both sides, with the share of the roofline bound; empty if unknown."""
    sides = (
        (result.baseline, part.baseline_work, part.baseline_ns),
        (result.candidate, part.candidate_work, part.candidate_ns),
    )
    return "; ".join(
        f"{name}: {_rates(work, time_ns)}"
        for name, work, time_ns in sides
        if work is not None and time_ns > 0.0
    )


def _rates(work: Work, time_ns: float) -> str:
    texts = []
    if work.flops:
        rate = format_flops(work.flops * 1e9 / time_ns, per_second=True)
        texts.append(f"{format_flops(work.flops)} at {rate}")
    if work.moved_bytes:
        rate = format_bandwidth(work.moved_bytes * 1e9 / time_ns)
        texts.append(f"{format_bytes(work.moved_bytes)} at {rate}")
    if work.share is not None:
        texts.append(f"{work.share:.0%} of the roofline bound ({work.bound})")
    return ", ".join(texts)


def phase_line(phase: CompilePhase, result: Attribution) -> str:
    """Return a phase and its time on the compiled sides: `Inductor: code generation: inductor 1.2 s`."""
    sides = ((result.baseline, phase.baseline_s), (result.candidate, phase.candidate_s))
    return f"{phase.name}: " + ", ".join(
        f"{name} {seconds_text(duration_s)}" for name, duration_s in sides if duration_s is not None
    )


def seconds_text(duration_s: float | None) -> str:
    """Return a compile time; a dash for a side that has no such phase."""
    return "-" if duration_s is None else f"{duration_s:.2f} s"


def ablation_line(one: Ablation) -> str:
    """Return a change and its effect: `eager kernel for gelu: faster 1.4x [1.3, 1.5]; ...`."""
    text = f"{one.change} ({one.option}): {one.verdict} {one.effect_text}".rstrip()
    if one.decided and one.speedup_text:
        text += f"; {one.speedup_text} over the baseline"
    if one.confirmed:
        text += " (second comparison, which confirms the first)"
    elif one.confirmed is not None:
        text += " (second comparison, which does not confirm the first)"
    return text


def method_line(result: Attribution) -> str:
    """Return how the numbers were measured."""
    dropped = f", {result.rounds_dropped} disturbed rounds dropped" if result.rounds_dropped else ""
    device = "" if result.workload.device == "cpu" else "Times of operators are GPU time. "
    return (
        f"{device}{result.launches} launches, {result.rounds} rounds{dropped}. "
        f"95 % confidence intervals. Slowdown by the profiler: {result.baseline} "
        f"{max(0.0, result.baseline_overhead):.1%}, {result.candidate} "
        f"{max(0.0, result.candidate_overhead):.1%}."
    )


def peak_line(result: Attribution) -> str:
    """Return why there are no shares of the roofline bound, and what to do."""
    return one_line(
        f"Share of the roofline bound: unavailable: no stored peak; measure it with: {result.peak_command}"
    )


def shown_parts(result: Attribution) -> list[Part]:
    """Return named parts and others of some size; the profiler bias also if it is alike in both."""
    limit_ns = 0.01 * max(result.baseline_ns, result.candidate_ns)
    parts = [
        part
        for part in result.parts
        if part.named
        or abs(part.difference_ns) >= limit_ns
        or (part.kind == "profiler" and abs(part.baseline_ns) >= limit_ns)
    ]
    if len(parts) > MOST_PARTS:
        bias = [part for part in parts[MOST_PARTS - 1 :] if part.kind == "profiler"]
        parts = [*parts[: MOST_PARTS - len(bias)], *bias]
    return parts or list(result.parts[:1])


def time_unit(duration_ns: float) -> tuple[str, float]:
    """Return the unit in which all times of an attribution are shown, and its length in ns."""
    units = (("s", 1e9), ("ms", 1e6), ("us", 1e3))
    return next((unit for unit in units if duration_ns >= unit[1]), units[-1])


def _amount(duration_ns: float, scale: float) -> str:
    return f"{duration_ns / scale:+.3f}"


def _times(baseline_ns: float, candidate_ns: float, scale: float) -> str:
    return f"{baseline_ns / scale:.3f} -> {candidate_ns / scale:.3f}"


def _interval(low_ns: float, high_ns: float, scale: float) -> str:
    return f"[{low_ns / scale:+.3f}, {high_ns / scale:+.3f}]"


def _part_lines(
    number: int, part: Part, result: Attribution, scale: float, unit: str, amount: int, width: int
) -> list[str]:
    times = f"{_times(part.baseline_ns, part.candidate_ns, scale)} {unit}"
    mark = "" if part.named else "  not significant"
    head = (
        f"{_amount(part.difference_ns, scale):>{amount}} {unit} "
        f"{_interval(part.low_ns, part.high_ns, scale)}  {times}{mark}"
    )
    indent = " " * (amount + 2)
    name = f"part {number}: {one_line(part.name)}"
    lines = [head, *wrapped(name, width, first=indent, rest=indent + "  ")]
    for place in places(part.sources)[:_MOST_LINES]:
        lines += wrapped(one_line(place), width, first=indent, rest=indent + "    ")
    for name, kernels in (
        (result.baseline, part.baseline_kernels),
        (result.candidate, part.candidate_kernels),
    ):
        if kernels:
            text = f"{name}: {kernel_list(kernels, scale, unit)}"
            lines += wrapped(one_line(text), width, first=indent, rest=indent + "    ")
    if part.named and (text := work_line(part, result)):
        lines += wrapped(one_line(text), width, first=indent, rest=indent + "    ")
    return [*lines, ""]


def places(sources: Sequence[Source]) -> list[str]:
    """Return the source lines: `model.py:7: h = self.norm(x)`."""
    lines = []
    for source in sources:
        if source.file:
            line = f"{Path(source.file).name}:{source.line}: {source.text}"
            if line not in lines:
                lines.append(line)
    return lines


def kernel_list(
    kernels: Sequence[Kernel], scale: float, unit: str, *, most: int = _MOST_KERNELS
) -> str:
    """Return the kernels of one side: `aten::addmm 2x 0.8 ms, ...`."""
    shown = [
        f"{kernel.name} {kernel.calls:.0f}x {kernel.duration_ns / scale:.3f} {unit}"
        for kernel in kernels[:most]
    ]
    more = len(kernels) - most
    return ", ".join(shown) + (f", {more} more" if more > 0 else "")

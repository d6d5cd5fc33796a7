"""Describe findings and the scope of a profile: one order and one wording for every format.

No escaping, no layout. Anything in a profile may come from outside and may be missing: texts are
made one line and truncated, and non-finite numbers are reported as absent. What was not examined
is listed, never skipped silently.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from torchyard.core.units import format_bytes, format_duration, format_percent
from torchyard.presentation.safe_text import one_line
from torchyard.presentation.wording import ABSENT
from torchyard.values.model import (
    Certainty,
    Place,
    ProofTest,
    Saving,
    ValueFinding,
    ValueProfile,
    Worth,
)
from torchyard.values.pattern_texts import suggestion_for
from torchyard.values.prices import OF_WHOLE_STEPS, profiled_steps, steps_of
from torchyard.values.report.process_texts import scope_of_processes, steps_of_processes
from torchyard.worker.values.exchange import KERNEL_PREFIX

MARKS: Final[dict[Certainty, str]] = {
    Certainty.PROVEN: "●",
    Certainty.TESTED: "◕",
    Certainty.LIKELY: "◐",
    Certainty.INPUT_DEPENDENT: "○",
}
_CERTAINTIES: Final = tuple(Certainty)
_LEAVES_OUT: Final = frozenset({"dead initialisation", "redundant write"})
"""Patterns whose advice is to omit work of the program, which another input may need."""
_IF_ALWAYS: Final = "If this holds for all of your inputs:"
_MOST_NAME: Final = 160
_MOST_SENTENCE: Final = 700
_FOLDERS_KEPT: Final = 3
_STATES: Final = {
    "running": "The program is still running. The report shows the findings so far.",
    "interrupted": "The program was interrupted. The report shows the findings until then.",
    "crashed": "The program failed. The report shows the findings until then.",
}
_PASSED: Final = {
    "semantics": ("holds in every call", "does not hold in every call"),
    "poison": ("no result changed", "a result changed"),
    "skip": ("no result changed", "a result changed"),
    "replace": ("no result changed", "a result changed"),
    "needed": ("no other call of the line needs it", "other calls of the line need it"),
    "same again": ("deterministic", "results differ between runs"),
    "native operator": ("also occurs without the profiler", "not confirmed"),
    "native program": ("also occurs without the profiler", "not confirmed"),
}


def clipped(text: str, most: int = _MOST_NAME) -> str:
    """Return the text as one line, truncated to `most` characters."""
    line = one_line(text[: 4 * most])
    return line if len(line) <= most and len(text) <= 4 * most else line[: most - 1] + "…"


def ordered(profile: ValueProfile) -> list[ValueFinding]:
    """Return the findings sorted by time per step, then bytes, then certainty."""
    return sorted(
        profile.findings,
        key=lambda finding: (
            -(_number(finding.worth.per_step_ns) or 0.0),
            -finding.bytes_wasted,
            _CERTAINTIES.index(finding.proof.certainty),
            finding.place.file,
            finding.place.line,
            finding.pattern,
        ),
    )


def title_of_program(profile: ValueProfile) -> str:
    """Return a short title for the profiled program."""
    return clipped(" ".join(profile.program)) or "a program"


def summary_sentence(profile: ValueProfile) -> str:
    """Return the number of findings, their certainty, and the estimated saving."""
    count = len(profile.findings)
    if not count:
        operators = profile.counts.get("operators", 0)
        if not operators:
            return "No findings, because no operator was observed."
        of = f" of {len(profile.processes):,} processes" if profile.processes else ""
        return f"No wasted work was found in {operators:,} operators{of}."
    counts = Counter(finding.proof.certainty for finding in profile.findings)
    certainties = ", ".join(f"{counts[one]} {one.value}" for one in Certainty if counts[one])
    return (
        f"{count} finding{'s' if count != 1 else ''} ({certainties}). {_saving_sentence(profile)}"
    )


def _saving_sentence(profile: ValueProfile) -> str:
    savings = [finding.worth.saving for finding in profile.findings]
    count = sum(saving is not None for saving in savings)
    if profile.saving is None or not count:
        wasted = sum(bytes_per_step(finding, profile) for finding in profile.findings)
        subject = "They waste" if len(savings) > 1 else "It wastes"
        size = f"{format_bytes(wasted)} of writes per {_span(profile)}"
        return f"{subject} {size}; the time was not measured."
    what = "Fixing all of them" if count == len(savings) else f"Fixing {count} of them"
    if len(savings) == 1:
        what = "Fixing it"
    sentence = f"{what}: {saving_text(profile.saving, of=_article(profile))}."
    if count < len(savings):
        sentence += f" {len(savings) - count} not measured."
    return sentence


def saving_text(saving: Saving, *, of: str = "a step") -> str:
    """`estimated saving 12.1-18.0% of a step (CPU time), upper bound 22.3%`."""
    of = f"{of} ({clipped(saving.clock, 60)})" if saving.clock else of
    shares = _range(format_percent(saving.low_share), format_percent(saving.high_share), "%")
    bound = _number(saving.bound_share)
    last = f"upper bound {format_percent(bound)}" if bound is not None else "no upper bound"
    return f"estimated saving {shares} of {of}, {last}"


def chain_text(worth: Worth) -> str:
    """Return the saving and what it covers; empty if nothing was measured."""
    saving = worth.saving
    if saving is None:
        why = clipped(worth.unavailable, 200)
        return f"time not measured: {why}" if why else ""
    text = saving_text(saving)
    calls = _number(saving.calls)
    if calls:
        text += f"; {calls:,.3g} operator call{'s' if calls != 1 else ''} per step"
    if saving.unpriced:
        text += f"; not covered: {clipped(', '.join(saving.unpriced[:8]), 200)}"
    return text


def _range(low: str, high: str, unit: str = "") -> str:
    if low == high:
        return low
    return f"{low.removesuffix(unit)}-{high}" if low.endswith(unit) else f"{low} to {high}"


def _span(profile: ValueProfile) -> str:
    """Return the unit of times and bytes; a program without observed steps counts as one step."""
    return "program" if profile.steps == 1 else "step"


def _article(profile: ValueProfile) -> str:
    return "the program" if profile.steps == 1 else "a step"


def state_sentence(profile: ValueProfile) -> str:
    """Return a warning if the program did not finish successfully; else an empty text."""
    text = _STATES.get(profile.state, "")
    if profile.exit_code:
        text = f"{text} Its exit code is {profile.exit_code}."
    return text.strip()


def certainty_text(finding: ValueFinding) -> str:
    """Return the certainty with its symbol, so that it can be read without colour."""
    return f"{MARKS[finding.proof.certainty]} {finding.proof.certainty.value}"


def operator_text(operator: str, path: Iterable[str] = ()) -> str:
    """`mse_loss_backward > zeros_like > zero_`."""
    return clipped(" > ".join(_bare(name) for name in (*path, operator)))


def _bare(name: str) -> str:
    return name.removeprefix("aten::").removeprefix(KERNEL_PREFIX)


def short_file(file: str) -> str:
    """Return a file relative to site-packages or with its last folders; JSON has the full path."""
    text = clipped(file, 400)
    _, separator, package = text.rpartition("/site-packages/")
    if separator:
        return package
    parts = text.split("/")
    return text if len(parts) <= _FOLDERS_KEPT + 1 else "…/" + "/".join(parts[-_FOLDERS_KEPT:])


def place_text(place: Place) -> str:
    """`train.py:12 (layers.3, backward)`."""
    inside = [clipped(place.module, 80)] if place.module else []
    if place.backward:
        inside.append("backward")
    where = f"{short_file(place.file)}:{place.line}" if place.file else "unknown location"
    return f"{where} ({', '.join(inside)})" if inside else where


def bytes_per_step(finding: ValueFinding, profile: ValueProfile) -> float:
    """Return the wasted bytes per profiled step."""
    return finding.bytes_wasted / steps_of(finding, profile)


def bytes_text(finding: ValueFinding, profile: ValueProfile) -> str:
    """Format the wasted bytes per step."""
    return format_bytes(bytes_per_step(finding, profile))


def calls_text(finding: ValueFinding) -> str:
    """Format calls and steps: `36/3`."""
    return f"{finding.count:,}/{len(finding.steps):,}"


def steps_text(steps: tuple[int, ...]) -> str:
    """Format step numbers as ranges: `1-3, 7`."""
    runs: list[list[int]] = []
    for step in steps:
        if runs and step == runs[-1][1] + 1:
            runs[-1][1] = step
        else:
            runs.append([step, step])
    ranges = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:20]]
    return ", ".join(ranges) + (" and more" if len(runs) > len(ranges) else "")


def time_text(worth: Worth) -> str:
    """Format the estimated saving per step: `1.23-1.50 ms (3.1-3.8%)`."""
    saving = worth.saving
    if saving is None:
        return _old_time_text(worth)
    low_ns, high_ns = _number(saving.low_ns), _number(saving.high_ns)
    if low_ns is None or high_ns is None:
        return ABSENT
    low, high = format_duration(low_ns), format_duration(high_ns)
    time = _range(low, high, high.rpartition(" ")[1] + high.rpartition(" ")[2])
    shares = _range(format_percent(saving.low_share), format_percent(saving.high_share), "%")
    return f"{time} ({shares})"


def _old_time_text(worth: Worth) -> str:
    """Format the time of a profile of an older version, which has no interval."""
    time_ns, share = _number(worth.per_step_ns), _number(worth.share_of_step)
    if time_ns is None:
        return ABSENT
    text = format_duration(time_ns) + (f" ({format_percent(share)})" if share is not None else "")
    return f"about {text}"


def gain_text(worth: Worth) -> str:
    """Format the measured speedup of a fix: `1.21x [1.18, 1.24]`."""
    gain = _number(worth.gain)
    if gain is None:
        return ""
    interval = worth.gain_interval
    return f"{gain:.3g}x" + (f" [{interval.low:.3g}, {interval.high:.3g}]" if interval else "")


def measured_text(worth: Worth) -> str:
    """`measured: saves 12.1% [10.9%, 13.2%]`: the program with the fix applied."""
    measured = worth.measured
    if measured is None:
        return ""
    fix = clipped(measured.fix, 100)
    share = _number(measured.share)
    if not measured.confirmed or share is None:
        return f"fix not confirmed ({fix}): {clipped(measured.why, 300)}"
    interval = measured.interval
    ends = f" [{_percents(interval.low, interval.high)}]" if interval is not None else ""
    text = f"measured: saves {format_percent(share)}{ends} of {clipped(measured.clock, 40)}"
    if interval is not None and interval.covers(0.0):
        text += ", not distinguishable from zero,"
    count = f"{measured.pairs:,} pairs in {measured.launches:,} launches"
    text += f" with {fix} ({count}; results {clipped(measured.rounded, 80) or 'equal'})"
    bound = _number(measured.exceeded_bound)
    if bound is not None:
        text += f"; EXCEEDS the estimated upper bound of {format_percent(bound)}, now corrected"
    return text


def _percents(low: float, high: float) -> str:
    return f"{format_percent(low)}, {format_percent(high)}"


def fix_speedup_text(worth: Worth) -> str:
    """Return the measured speedup and what it refers to: the operator or a whole step."""
    if not gain_text(worth):
        return ""
    what = "a whole step" if OF_WHOLE_STEPS in worth.method else "the operator"
    return f"with the fix, {what} is {gain_text(worth)} as fast"


def detail_text(finding: ValueFinding) -> str:
    """Return dtype, shape and the detail of the pattern."""
    size = "×".join(str(number) for number in finding.shape[:8])
    what = " ".join(word for word in (clipped(finding.dtype, 40), size) if word)
    detail = clipped(finding.detail, _MOST_SENTENCE)
    return ": ".join(part for part in (what, detail) if part)


def suggestion_text(finding: ValueFinding) -> str:
    """Return the suggestion of the profile, else that of the pattern."""
    text = finding.suggestion
    if not text:
        fits = finding.evidence.get("fits")
        evidence = {**finding.evidence, "fits": fits if isinstance(fits, str) else ""}
        text = suggestion_for(replace(finding, evidence=evidence))
    of_program = finding.pattern in _LEAVES_OUT and not finding.path
    unproven = of_program and finding.proof.certainty is not Certainty.PROVEN
    if text and (unproven or finding.proof.certainty is Certainty.INPUT_DEPENDENT):
        text = f"{_IF_ALWAYS} {text}"
    return clipped(text, _MOST_SENTENCE)


def code_spans(text: str) -> list[tuple[bool, str]]:
    """Split a text at backticks into (is code, part); unbalanced backticks are text."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return [(False, text)]
    return [(bool(number % 2), part) for number, part in enumerate(parts) if part]


def result_text(test: ProofTest) -> str:
    """Return the result of a test in words."""
    passed, failed = _PASSED.get(test.test, ("passed", "failed"))
    return passed if test.passed else failed


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


_LEFT_OUT_BYTES: Final = {
    "small_bytes": "in tensors below {least}: counted only",
    "not_seen_bytes": "in dtypes or layouts that are not supported",
    "not_compared_bytes": "overwritten while the memory for copies ({memory}) was full: "
    "not compared with the previous contents",
}
_LEFT_OUT_COUNTS: Final = {
    "not_strided": "tensors without strided memory (sparse, nested and others)",
    "not_deep": "operators whose internals could not be observed",
    "not_tried": "operators with findings that were not tested; see the notes",
}
_REPORTED: Final = frozenset({*_LEFT_OUT_BYTES, *_LEFT_OUT_COUNTS})
_REPORTED_TOTALS: Final = frozenset(
    {
        "operators",
        "written_bytes",
        "steps_left_out",
        "steps_surveyed",
        "trials",
        "trials_ms",
        # Notes report other threads and processes by name.
        "other_threads",
        "other_thread_operators",
        "loader_processes",
        "child_processes",
        "kernels",
        "kernel_buffers",
        "kernel_calls",
        "kernel_calls_elsewhere",
    }
)
_NOT_IN_COMPILED_CODE: Final = (
    "in compiled code: values inside kernels, what the compiler fused away, and code that runs without "
    "Python (CUDA graphs, C++ wrapper, AOTInductor). Libraries that a graph calls are examined as operators"
)
_MOST_NOTES: Final = 50
_MOST_NOTE: Final = 500


def scope_rows(profile: ValueProfile) -> list[tuple[str, str]]:
    """Return (label, text): what was examined, then what was not."""
    counts, options = profile.counts, profile.options
    written = counts.get("written_bytes", 0)
    rows = [*scope_of_processes(profile), ("steps", _steps(profile)), ("depth", _depth(options))]
    rows.append(("operators", f"{counts.get('operators', 0):,}, {format_bytes(written)} written"))
    if counts.get("kernels") or counts.get("kernel_calls_elsewhere"):
        rows += _compiled(counts)
    sampling = ", ".join(_sampling(options))
    rows.append(("sampling", sampling or "none: every step, whole tensors"))
    rows += [("not examined", text) for text in _left_out(counts, options, written)]
    if profile.findings_left_out:
        text = f"{profile.findings_left_out:,} occurrences beyond the limit of stored findings"
        rows.append(("not reported", f"{text}: the list is incomplete"))
    if counts.get("trials"):
        took = f"{counts.get('trials_ms', 0) / 1000:,.1f} s"
        tested = f"{counts['trials']:,} operator{_plural(counts['trials'])}"
        rows.append(("trials", f"{tested} re-executed, in {took}"))
    if options.get("prove") is False:
        rows.append(("proofs", "disabled (--no-prove): findings are at most likely"))
    if options.get("approximate"):
        rows.append(("approximate", "approximate findings are hints, not proofs"))
    elif options:
        rows.append(("approximate", "approximate patterns were not searched for: --approximate"))
    if options.get("graph") is False or not profile.flow.nodes:
        rows.append(("flow graph", "not recorded"))
    device = f"{clipped(profile.device)}, {profile.threads} thread"
    rows.append(("torch", f"{clipped(profile.torch)} on {device}{_plural(profile.threads)}"))
    return rows


def _compiled(counts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Return what was examined in compiled code, and what was not."""
    kernels, buffers = counts.get("kernels", 0), counts.get("kernel_buffers", 0)
    calls, elsewhere = counts.get("kernel_calls", 0), counts.get("kernel_calls_elsewhere", 0)
    text = f"{kernels:,} generated kernel{_plural(kernels)} with {buffers:,} written buffer{_plural(buffers)}"
    yield "compiled", f"{text}, in {calls:,} call{_plural(calls)}"
    yield "not examined", _NOT_IN_COMPILED_CODE
    if elsewhere:
        text = f"{elsewhere:,} call{_plural(elsewhere)} of generated kernels in other threads"
        yield "not examined", text


def notes_of_profile(profile: ValueProfile) -> list[str]:
    """Return the notes of the profiler, limited in number and length."""
    shown = [clipped(note, _MOST_NOTE) for note in profile.notes[:_MOST_NOTES]]
    more = len(profile.notes) - len(shown)
    return [*shown, f"and {more:,} more notes"] if more else shown


def _steps(profile: ValueProfile) -> str:
    profiled = profiled_steps(profile)
    left_out = profile.counts.get("steps_left_out", 0)
    text = f"{profiled:,} profiled{steps_of_processes(profile)}"
    if profile.steps == 1:
        text = "no step boundaries observed: the whole program counts as one step"
    surveyed = profile.counts.get("steps_surveyed", 0)
    if surveyed:
        text += f": {profiled - surveyed:,} in full, {surveyed:,} checked for changes only"
    if left_out:
        text += f", {left_out:,} skipped"
    return f"{text}, in {profile.seconds:,.1f} s" if profile.seconds else text


def _depth(options: Mapping[str, Any]) -> str:
    if options.get("deep"):
        return "deep: including operators called inside C++ operators"
    return "fast: operators called by the program, without their internals (see --deep)"


def _sampling(options: Mapping[str, Any]) -> Iterator[str]:
    every, first = _whole(options, "every"), _whole(options, "first_steps")
    last, most = _whole(options, "last_step"), _whole(options, "most_bytes")
    if every > 1:
        yield f"every {every}{_ordinal(every)} step"
    if first:
        yield "first step skipped" if first == 1 else f"first {first} steps skipped"
    if last:
        yield f"nothing after step {last}"
    if most:
        yield f"tensors above {format_bytes(most)} sampled"


def _left_out(counts: Mapping[str, int], options: Mapping[str, Any], written: int) -> Iterator[str]:
    least = format_bytes(_whole(options, "least_bytes"))
    memory = format_bytes(_whole(options, "memory_bytes"))
    for name, text in _LEFT_OUT_BYTES.items():
        size = counts.get(name, 0)
        if size:
            share = f" ({format_percent(size / written)})" if written else ""
            yield f"{format_bytes(size)}{share} {text.format(least=least, memory=memory)}"
    for name, text in _LEFT_OUT_COUNTS.items():
        if counts.get(name, 0):
            yield f"{counts[name]:,} {text}"
    # A newer worker may report counters that this version does not know.
    for name, count in sorted(counts.items()):
        if count and name not in _REPORTED and name not in _REPORTED_TOTALS:
            yield f"{clipped(name).replace('_', ' ')}: {count:,}"


def _whole(options: Mapping[str, Any], name: str) -> int:
    value = options.get(name, 0)
    return value if isinstance(value, int) and value > 0 else 0


def _plural(number: int) -> str:
    return "" if number == 1 else "s"


def _ordinal(number: int) -> str:
    if number % 100 in {11, 12, 13}:
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")

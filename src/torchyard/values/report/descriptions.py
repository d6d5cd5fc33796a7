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
from torchyard.values.prices import OF_WHOLE_STEPS, steps_looked_at, steps_of

MARKS: Final[dict[Certainty, str]] = {
    Certainty.PROVEN: "●",
    Certainty.TESTED: "◕",
    Certainty.LIKELY: "◐",
    Certainty.INPUT_DEPENDENT: "○",
}
_SURE: Final = tuple(Certainty)
_LEAVES_OUT: Final = frozenset({"dead initialisation", "redundant write"})
"""Patterns whose advice is to leave out work of the program: for another input it may be needed."""
_IF_ALWAYS: Final = "If it is so for every input of yours:"
_MOST_NAME: Final = 160
_MOST_SENTENCE: Final = 700
_FOLDERS_KEPT: Final = 3
_STATES: Final = {
    "running": "The program is still running. What follows is what was found so far.",
    "interrupted": "The program was interrupted. What follows is what was found by then.",
    "crashed": "The program failed. What follows is what was found by then.",
}
_PASSED: Final = {
    "semantics": ("in every call", "not in every call"),
    "poison": ("no result changed", "a result changed"),
    "skip": ("no result changed", "a result changed"),
    "replace": ("no result changed", "a result changed"),
    "same again": ("the same each time", "another result each time"),
    "native operator": ("the work is there", "not confirmed"),
    "native program": ("the work is there", "not confirmed"),
}


def clipped(text: str, most: int = _MOST_NAME) -> str:
    """One line, with its end cut off where it is longer than anybody reads."""
    line = one_line(text[: 4 * most])
    return line if len(line) <= most and len(text) <= 4 * most else line[: most - 1] + "…"


def ordered(profile: ValueProfile) -> list[ValueFinding]:
    """By what they cost in a step, then by bytes, then the surest first."""
    return sorted(
        profile.findings,
        key=lambda found: (
            -(_number(found.worth.per_step_ns) or 0.0),
            -found.bytes_wasted,
            _SURE.index(found.proof.certainty),
            found.place.file,
            found.place.line,
            found.pattern,
        ),
    )


def title_of_program(profile: ValueProfile) -> str:
    """What was profiled, in a few words."""
    return clipped(" ".join(profile.program)) or "a program"


def summary_sentence(profile: ValueProfile) -> str:
    """Say how much was found, how sure it is, and what fixing it saves."""
    count = len(profile.findings)
    if not count:
        operators = profile.counts.get("operators", 0)
        if not operators:
            return "Nothing was found, because no operator was seen."
        return f"No wasted work was found in {operators:,} operators."
    sure = Counter(found.proof.certainty for found in profile.findings)
    said = ", ".join(f"{sure[word]} {word.value}" for word in Certainty if sure[word])
    return f"{count} finding{'s' if count != 1 else ''} ({said}). {_saving_sentence(profile)}"


def _saving_sentence(profile: ValueProfile) -> str:
    savings = [found.worth.saving for found in profile.findings]
    count = sum(saving is not None for saving in savings)
    if profile.saving is None or not count:
        wasted = sum(bytes_per_step(found, profile) for found in profile.findings)
        whose = f"per {_span(profile)}; their time was not measured."
        return f"They waste {format_bytes(wasted)} of writes {whose}"
    what = "Fixing all of them" if count == len(savings) else f"Fixing {count} of them"
    if len(savings) == 1:
        what = "Fixing it"
    said = f"{what}: {saving_text(profile.saving, of=_article(profile))}."
    if count < len(savings):
        said += f" {len(savings) - count} not measured."
    return said


def saving_text(saving: Saving, *, of: str = "a step") -> str:
    """`estimated saving 12.1-18.0% of a step (CPU time), upper bound 22.3%`."""
    of = f"{of} ({clipped(saving.clock, 60)})" if saving.clock else of
    shares = _range(format_percent(saving.low_share), format_percent(saving.high_share), "%")
    bound = _number(saving.bound_share)
    last = f"upper bound {format_percent(bound)}" if bound is not None else "no upper bound"
    return f"estimated saving {shares} of {of}, {last}"


def chain_text(worth: Worth) -> str:
    """What the numbers of a finding cover, and what not; empty where nothing was measured."""
    saving = worth.saving
    if saving is None:
        why = clipped(worth.unavailable, 200)
        return f"time not measured: {why}" if why else ""
    said = saving_text(saving)
    calls = _number(saving.calls)
    if calls:
        said += f"; {calls:,.3g} operator call{'s' if calls != 1 else ''} per step"
    if saving.unpriced:
        said += f"; not covered: {clipped(', '.join(saving.unpriced[:8]), 200)}"
    return said


def _range(low: str, high: str, unit: str = "") -> str:
    if low == high:
        return low
    return f"{low.removesuffix(unit)}-{high}" if low.endswith(unit) else f"{low} to {high}"


def _span(profile: ValueProfile) -> str:
    """What times and bytes are told of: a program in which no step was seen counts as one."""
    return "program" if profile.steps == 1 else "step"


def _article(profile: ValueProfile) -> str:
    return "the program" if profile.steps == 1 else "a step"


def state_sentence(profile: ValueProfile) -> str:
    """What a reader must know first when the program did not end well; else empty."""
    said = _STATES.get(profile.state, "")
    if profile.exit_code:
        said = f"{said} Its exit code is {profile.exit_code}."
    return said.strip()


def certainty_text(finding: ValueFinding) -> str:
    """With its mark, so that colour is never needed to read it."""
    return f"{MARKS[finding.proof.certainty]} {finding.proof.certainty.value}"


def operator_text(operator: str, path: Iterable[str] = ()) -> str:
    """`mse_loss_backward > zeros_like > zero_`."""
    return clipped(" > ".join(name.removeprefix("aten::") for name in (*path, operator)))


def short_file(file: str) -> str:
    """A file without the folders that everybody has; whole paths are in the data formats."""
    text = clipped(file, 400)
    _, found, package = text.rpartition("/site-packages/")
    if found:
        return package
    parts = text.split("/")
    return text if len(parts) <= _FOLDERS_KEPT + 1 else "…/" + "/".join(parts[-_FOLDERS_KEPT:])


def place_text(place: Place) -> str:
    """`train.py:12 (layers.3, backward)`."""
    inside = [clipped(place.module, 80)] if place.module else []
    if place.backward:
        inside.append("backward")
    where = f"{short_file(place.file)}:{place.line}" if place.file else "an unknown place"
    return f"{where} ({', '.join(inside)})" if inside else where


def bytes_per_step(finding: ValueFinding, profile: ValueProfile) -> float:
    """Wasted bytes, spread over the steps that were looked at."""
    return finding.bytes_wasted / steps_of(finding, profile)


def bytes_text(finding: ValueFinding, profile: ValueProfile) -> str:
    """Per step."""
    return format_bytes(bytes_per_step(finding, profile))


def calls_text(finding: ValueFinding) -> str:
    """`36/3`: how often, in how many steps."""
    return f"{finding.count:,}/{len(finding.steps):,}"


def steps_text(steps: tuple[int, ...]) -> str:
    """`1-3, 7`."""
    runs: list[list[int]] = []
    for step in steps:
        if runs and step == runs[-1][1] + 1:
            runs[-1][1] = step
        else:
            runs.append([step, step])
    said = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:20]]
    return ", ".join(said) + (" and more" if len(runs) > len(said) else "")


def time_text(worth: Worth) -> str:
    """`1.23-1.50 ms (3.1-3.8%)`: the estimated saving of one step."""
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
    """A profile of an older version has one number, and no interval."""
    time_ns, share = _number(worth.per_step_ns), _number(worth.share_of_step)
    if time_ns is None:
        return ABSENT
    text = format_duration(time_ns) + (f" ({format_percent(share)})" if share is not None else "")
    return f"about {text}"


def gain_text(worth: Worth) -> str:
    """`1.21x [1.18, 1.24]`: the operator with the fix, measured in pairs."""
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
    said = f"measured: saves {format_percent(share)}{ends} of {clipped(measured.clock, 40)}"
    if interval is not None and interval.covers(0.0):
        said += ", not distinguishable from zero,"
    count = f"{measured.pairs:,} pairs in {measured.launches:,} launches"
    said += f" with {fix} ({count}; results {clipped(measured.rounded, 80) or 'equal'})"
    bound = _number(measured.exceeded_bound)
    if bound is not None:
        said += f"; EXCEEDS the estimated upper bound of {format_percent(bound)}, now corrected"
    return said


def _percents(low: float, high: float) -> str:
    return f"{format_percent(low)}, {format_percent(high)}"


def mended_text(worth: Worth) -> str:
    """What the gain is of: where the mend belongs to the program, whole steps were compared."""
    if not gain_text(worth):
        return ""
    what = "a whole step" if OF_WHOLE_STEPS in worth.method else "the operator"
    return f"mended, {what} is {gain_text(worth)} as fast"


def detail_text(finding: ValueFinding) -> str:
    """What exactly: dtype, shape and what the pattern has to say."""
    size = "×".join(str(number) for number in finding.shape[:8])
    what = " ".join(word for word in (clipped(finding.dtype, 40), size) if word)
    detail = clipped(finding.detail, _MOST_SENTENCE)
    return ": ".join(part for part in (what, detail) if part)


def suggestion_text(finding: ValueFinding) -> str:
    """What to do about it: what the profile says, else what its pattern says."""
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
    """The text in parts; those between backticks are code. Without a last backtick nothing is."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return [(False, text)]
    return [(bool(number % 2), part) for number, part in enumerate(parts) if part]


def result_text(test: ProofTest) -> str:
    """What a test showed."""
    passed, failed = _PASSED.get(test.test, ("passed", "did not pass"))
    return passed if test.passed else failed


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


_LEFT_OUT_BYTES: Final = {
    "small_bytes": "in tensors below {least}: counted, not looked at",
    "not_seen_bytes": "in dtypes or layouts that are not looked into",
    "not_compared_bytes": "overwritten while the memory for copies ({memory}) was full: "
    "not compared with what was there before",
}
_LEFT_OUT_COUNTS: Final = {
    "not_strided": "sparse, nested and other tensors without plain memory",
    "not_deep": "operators that could not be followed inside",
    "not_tried": "operators with findings that were not tried again; the notes say why",
}
_SAID: Final = frozenset({*_LEFT_OUT_BYTES, *_LEFT_OUT_COUNTS})
_SAID_TOTALS: Final = frozenset(
    {
        "operators",
        "written_bytes",
        "steps_left_out",
        "steps_surveyed",
        "trials",
        "trials_ms",
        # What ran elsewhere is told by notes, with names.
        "other_threads",
        "other_thread_operators",
        "loader_processes",
        "child_processes",
    }
)
_MOST_NOTES: Final = 50
_MOST_NOTE: Final = 500


def scope_rows(profile: ValueProfile) -> list[tuple[str, str]]:
    """Name and text: first what was looked at, then what was not."""
    counts, options = profile.counts, profile.options
    written = counts.get("written_bytes", 0)
    rows = [("steps", _steps(profile)), ("depth", _depth(options))]
    rows.append(("operators", f"{counts.get('operators', 0):,}, {format_bytes(written)} written"))
    sampling = ", ".join(_sampling(options))
    rows.append(("sampling", sampling or "none: every step, all of every tensor"))
    rows += [("left out", text) for text in _left_out(counts, options, written)]
    if profile.findings_left_out:
        text = f"{profile.findings_left_out:,} sightings of more causes than are kept"
        rows.append(("left out", f"{text}: the findings are not all"))
    if counts.get("trials"):
        took = f"{counts.get('trials_ms', 0) / 1000:,.1f} s"
        tried = f"{counts['trials']:,} operator{_s(counts['trials'])}"
        rows.append(("trials", f"{tried} tried again, in {took}"))
    if options.get("prove") is False:
        rows.append(("proofs", "not asked for: nothing here can be more than likely"))
    if options.get("approximate"):
        rows.append(("approximate", "findings that hold only nearly are opinions, not proofs"))
    if options.get("graph") is False or not profile.flow.nodes:
        rows.append(("flow graph", "not recorded"))
    device = f"{clipped(profile.device)}, {profile.threads} thread"
    rows.append(("torch", f"{clipped(profile.torch)} on {device}{_s(profile.threads)}"))
    return rows


def notes_of_profile(profile: ValueProfile) -> list[str]:
    """What the profiler had to say, bounded."""
    shown = [clipped(note, _MOST_NOTE) for note in profile.notes[:_MOST_NOTES]]
    more = len(profile.notes) - len(shown)
    return [*shown, f"and {more:,} more notes"] if more else shown


def _steps(profile: ValueProfile) -> str:
    looked = steps_looked_at(profile)
    left_out = profile.counts.get("steps_left_out", 0)
    text = f"{looked:,} looked at"
    if profile.steps == 1:
        text = "none that were seen: the whole program counts as one"
    surveyed = profile.counts.get("steps_surveyed", 0)
    if surveyed:
        text += f": {looked - surveyed:,} closely, {surveyed:,} surveyed for what changed"
    if left_out:
        text += f", {left_out:,} left out"
    return f"{text}, in {profile.seconds:,.1f} s" if profile.seconds else text


def _depth(options: Mapping[str, Any]) -> str:
    if options.get("deep"):
        return "deep: also the operators inside operators written in C++"
    return "fast: operators as the program calls them, not what they do inside (--deep)"


def _sampling(options: Mapping[str, Any]) -> Iterator[str]:
    every, first = _whole(options, "every"), _whole(options, "first_steps")
    last, most = _whole(options, "last_step"), _whole(options, "most_bytes")
    if every > 1:
        yield f"one step in {every}"
    if first:
        yield "the first step left out" if first == 1 else f"the first {first} steps left out"
    if last:
        yield f"nothing after step {last}"
    if most:
        yield f"tensors above {format_bytes(most)} by a part of them"


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
    # A newer worker may count more than we know.
    for name, count in sorted(counts.items()):
        if count and name not in _SAID and name not in _SAID_TOTALS:
            yield f"{clipped(name).replace('_', ' ')}: {count:,}"


def _whole(options: Mapping[str, Any], name: str) -> int:
    value = options.get(name, 0)
    return value if isinstance(value, int) and value > 0 else 0


def _s(number: int) -> str:
    return "" if number == 1 else "s"

"""How findings about values are said: one order and one wording for every format.

No escaping, no layout. Everything from a profile may come from outside and may be missing: texts
are made one line and cut, numbers that are none are said to be absent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from torchyard.core.units import format_bytes, format_duration, format_percent
from torchyard.core.values import (
    Certainty,
    Place,
    ProofTest,
    Saving,
    ValueFinding,
    ValueProfile,
    Worth,
)
from torchyard.reports.plain_text import one_line
from torchyard.reports.wording import ABSENT
from torchyard.values.pattern_texts import suggestion_for
from torchyard.values.prices import OF_WHOLE_STEPS, steps_of

__all__ = [
    "MARKS",
    "bytes_per_step",
    "bytes_text",
    "calls_text",
    "certainty_text",
    "chain_text",
    "clipped",
    "code_spans",
    "detail_text",
    "gain_text",
    "mended_text",
    "operator_text",
    "ordered",
    "place_text",
    "result_text",
    "saving_text",
    "short_file",
    "state_sentence",
    "steps_text",
    "suggestion_text",
    "summary_sentence",
    "time_text",
    "title_of_program",
]

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

"""Compare two runs, or a run and the runs of a baseline, by their speedups where that is valid.

A speedup is paired within its run. Two speedups can be compared if both were measured against the
same baseline, on the same machine with the same settings; each violation becomes a stated reason.
Several sessions of a side are used as far as they are comparable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from torchyard.core.comparison import Comparison, Verdict
from torchyard.results.compare.facts import (
    baseline_facts,
    differing,
    differing_conditions,
    workload_facts,
)
from torchyard.results.compare.model import (
    Basis,
    CrossRow,
    FactDifference,
    SideNumbers,
    SideState,
    Unpaired,
)
from torchyard.results.compare.sides import (
    Rules,
    Side,
    numbers_of,
    row_obstacles,
    state_of,
    supported_row,
)
from torchyard.results.run_reader import Run
from torchyard.stats.between_runs import difference, effect_of

Measured = list[tuple[Run, Comparison]]

_MAX_DIFFERENCES: Final = 4
_LONGEST_VALUE: Final = 60
_INTERRUPTED: Final = "interrupted by the user, which is an unplanned interim analysis"


def two_run_rows(
    one: Side, other: Side, pair: tuple[str, str], rules: Rules
) -> tuple[list[CrossRow], list[Unpaired]]:
    """Return a row for every workload that both sides have valid numbers of, and the rest."""
    rows: list[CrossRow] = []
    unpaired: list[Unpaired] = []
    sides = [_by_label(one, pair[0]), _by_label(other, pair[1])]
    for label in dict.fromkeys([*sides[0], *sides[1]]):
        sessions = [side.get(label, []) for side in sides]
        states = (_state(sessions[0]), _state(sessions[1]))
        if states == ("measured", "measured"):
            valid = [
                [item for item in side if state_of(item[1]) == "measured"] for side in sessions
            ]
            rows.append(_row(label, pair, (valid[0], valid[1]), rules))
        else:
            why = "; ".join(
                _why(side, item) for side, item in zip((one, other), sessions, strict=True)
            )
            unpaired.append(
                Unpaired(
                    workload=label,
                    variants=pair,
                    one=states[0],
                    other=states[1],
                    why=why.strip("; "),
                )
            )
    return rows, unpaired


def _row(
    label: str, pair: tuple[str, str], sessions: tuple[Measured, Measured], rules: Rules
) -> CrossRow:
    numbers = (numbers_of(sessions[0], pair[0]), numbers_of(sessions[1], pair[1]))
    baselines = [number.variant for number in numbers if not number.baseline]
    if baselines:
        reasons = [f"not interleaved: {baselines[0]} is the baseline of its run"]
        return _unsupported(label, numbers, reasons, untrusted=_untrusted(sessions))
    kept, reasons, untrusted, alike = _comparable(sessions)
    effects = tuple(
        [effect for _, row in side if row.estimate and (effect := effect_of(row.estimate))]
        for side in kept
    )
    if not all(effects):
        return _unsupported(label, numbers, reasons, alike=alike, untrusted=untrusted)
    effect = difference(effects[0], effects[1], session_sd=rules.session_sd)
    numbers = (numbers_of(kept[0], pair[0]), numbers_of(kept[1], pair[1]))
    row = supported_row(label, numbers, effect, rules, support="common baseline", basis="speedups")
    return replace(row, reasons=tuple(reasons))


def _unsupported(
    label: str,
    numbers: tuple[SideNumbers, SideNumbers],
    reasons: Sequence[str],
    *,
    alike: bool = False,
    untrusted: Sequence[str] = (),
) -> CrossRow:
    """Return a row without a verdict: the ratio of speedups over a common baseline, else of times."""
    one, other = numbers
    basis: Basis = "speedups" if alike and one.speedup and other.speedup else "times"
    top, bottom = (
        (other.speedup, one.speedup) if basis == "speedups" else (one.time_ns, other.time_ns)
    )
    return CrossRow(
        workload=label,
        one=one,
        other=other,
        support="not supported",
        basis=basis,
        alike=alike,
        verdict=Verdict.UNTRUSTED if untrusted else None,
        ratio=top / bottom if top and bottom else None,
        reasons=tuple(reasons),
        untrusted=tuple(untrusted),
    )


def _untrusted(sessions: tuple[Measured, Measured]) -> list[str]:
    """Return why sessions are untrusted, each with its side."""
    return [
        f"{text} ({letter})"
        for letter, side in zip("AB", sessions, strict=True)
        for text in dict.fromkeys(why for _, row in side for why in row.untrusted)
    ]


def _comparable(
    sessions: tuple[Measured, Measured],
) -> tuple[tuple[Measured, Measured], list[str], list[str], bool]:
    """Return the sessions that match the newest session of the other side.

    Also returns why others cannot be compared, why the numbers are untrusted (if a side has no trusted session), and
    whether each side has a session that differs in the candidate only.
    """
    reasons: dict[str, list[str]] = {}
    kept: tuple[Measured, Measured] = ([], [])
    alike = [False, False]
    reference = sessions[1][-1]
    for index, (letter, side) in enumerate(zip("AB", sessions, strict=True)):
        for run, row in side:
            blocking = _blocking((run, row), reference)
            alike[index] |= not blocking
            obstacles = row_obstacles(row)
            if blocking:
                reasons.setdefault(_blocking_text(blocking), [])
            for text in obstacles:
                reasons.setdefault(text, []).append(letter)
            if not blocking and not obstacles and row.trusted:
                kept[index].append((run, row))
                if run.state == "interrupted":
                    reasons.setdefault(_INTERRUPTED, []).append(letter)
    texts = [
        f"{text} ({' and '.join(dict.fromkeys(where))})" if where else text
        for text, where in reasons.items()
    ]
    untrusted = _untrusted(sessions)
    if any(not any(row.trusted for _, row in side) for side in sessions):
        return kept, texts, untrusted, all(alike)
    return kept, texts + [f"excluded as untrusted: {why}" for why in untrusted], [], all(alike)


def _blocking(one: tuple[Run, Comparison], other: tuple[Run, Comparison]) -> list[FactDifference]:
    """Return the blocking differences; an unknown machine differs from every other."""
    return [
        *differing_conditions(one[0], other[0]),
        *differing(workload_facts(*one), workload_facts(*other), blocks=True),
        *differing(
            baseline_facts(one[0], one[1].baseline),
            baseline_facts(other[0], other[1].baseline),
            blocks=True,
        ),
    ]


def _blocking_text(blocking: Sequence[FactDifference]) -> str:
    """Return text such as `not comparable: baseline differs in cores (0-3 vs 0-7)`."""
    parts = []
    for owner in ("machine", "workload", "baseline", ""):
        own = [fact for fact in blocking if _owner(fact) == owner]
        if not own:
            continue
        texts = [_difference(fact, owner) for fact in own[:_MAX_DIFFERENCES]]
        more = f" and {len(own) - _MAX_DIFFERENCES} more" if len(own) > _MAX_DIFFERENCES else ""
        what = {"machine": "machine differs", "": "conditions differ in"}.get(
            owner, f"{owner} differs in"
        )
        parts.append(f"{what} {', '.join(texts)}{more}")
    return f"not comparable: {'; '.join(parts)}"


def _owner(fact: FactDifference) -> str:
    first = fact.name.partition(" ")[0]
    return first if first in {"machine", "workload", "baseline"} else ""


def _difference(fact: FactDifference, owner: str) -> str:
    name = fact.name.removeprefix(f"{owner} ") if owner != "machine" else ""
    values = [
        f"{text[:_LONGEST_VALUE]}…" if len(text) > _LONGEST_VALUE else text or "none"
        for text in (fact.one, fact.other)
    ]
    text = "unknown" if values == ["unknown", "unknown"] else f"{values[0]} vs {values[1]}"
    return f"{name} ({text})".strip()


def _by_label(side: Side, variant: str) -> dict[str, Measured]:
    """Return each run's comparison of that variant by workload; of a baseline, any of its rows."""
    by_label: dict[str, dict[str, tuple[Run, Comparison]]] = {}
    for run in side.runs:
        as_candidate = [row for row in run.comparisons if row.candidate == variant]
        for row in as_candidate or [row for row in run.comparisons if row.baseline == variant]:
            by_label.setdefault(row.workload.label, {}).setdefault(run.id, (run, row))
    return {label: list(runs.values()) for label, runs in by_label.items()}


def _state(sessions: Measured) -> SideState:
    """Return the best state of the sessions."""
    states: list[SideState] = [state_of(row) for _, row in sessions]
    order: tuple[SideState, ...] = ("measured", "wrong", "no number", "failed")
    return next((state for state in order if state in states), "absent")


def _why(side: Side, sessions: Measured) -> str:
    state = _state(sessions)
    if state == "measured":
        return ""
    if state == "absent":
        return f"not in {side.text}"
    row = sessions[-1][1]
    if state == "failed" and row.failure is not None:
        return f"failed in {side.text}: {row.failure.kind} ({row.failure.message})"
    if state == "wrong":
        detail = row.accuracy.detail if row.accuracy is not None else ""
        return f"wrong results in {side.text}" + (f": {detail}" if detail else "")
    return f"{state} in {side.text}"


def unmatched_rows(
    one: Side, other: Side, matched: Sequence[tuple[str, str]]
) -> Iterator[Unpaired]:
    """Yield candidates that the other side does not have."""
    if one.variant is not None or other.variant is not None:
        return  # the user chose the variants
    for index, side in enumerate((one, other)):
        names = {pair[index] for pair in matched}
        for name in (name for name in side.candidates if name not in names):
            for label, sessions in _by_label(side, name).items():
                state = _state(sessions)
                other_text = (other, one)[index].text
                yield Unpaired(
                    workload=label,
                    variants=(name, "") if index == 0 else ("", name),
                    one=state if index == 0 else "absent",
                    other="absent" if index == 0 else state,
                    why=f"the variant {name} is not in {other_text}",
                )

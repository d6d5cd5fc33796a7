"""Compare two runs, or a run and the runs of a baseline, by their speedups where that is valid.

A speedup is paired within its run. Two speedups can be compared if both were measured against the
same baseline, on the same machine with the same settings; each violation becomes a stated reason.
Several sessions of a side are used as far as they are comparable.

Facts that rule out a verdict are hardware, machine settings, method, workload and baseline. Records
are compared field by field, so that new fields are included.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from torchyard.core.comparison import Comparison, Verdict
from torchyard.core.records import encode
from torchyard.core.study import Variant
from torchyard.machine.identity import machine_name, table_of
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
from torchyard.results.directory import FIRST_METHOD
from torchyard.results.run_reader import Run, revision_of_variant, target_facts
from torchyard.stats.between_runs import difference, effect_of

Facts = dict[str, str]

UNKNOWN: Final = "unknown"
_UNAVAILABLE: Final = "unavailable, because "
_IGNORED: Final = frozenset({"load", "memory", "architecture", "cpu", "cores", "tune"})
"""Machine facts that change by themselves, or that are part of the machine name."""
_LIMITS: Final = frozenset({"start_limit_s", "step_limit_s", "block_limit_s"})
"""Time limits, which do not affect a successful measurement."""
_TARGET: Final = {
    "torch": "torch",
    "torch_git": "torch git",
    "torch_config": "torch config",
    "torch_files": "torch files",
    "python": "python",
    "threads": "threads in use",
    "interop_threads": "interop threads in use",
    "openmp": "openmp",
    "allocators": "allocators",
    "randomisation_off": "address randomisation off",
    "variables": "variables in use",
}
"""Facts of a target that affect its speed."""
_NAMES: Final = frozenset({"name", "target name", "target python"})
"""Fields of a variant that are names or paths. Builds are identified by their facts instead."""
_MUST_BE_KNOWN: Final = frozenset(
    {"machine", "baseline torch", "baseline definition", "workload device model"}
)
"""Facts for which two unknown values do not count as equal."""
_PAIRS: Final = frozenset({"variables", "options", "parameters"})
_DEFAULT: Final = "default"
_WORDS: Final = frozenset({UNKNOWN, _DEFAULT, "none"})
_LONGEST: Final = 160


def condition_facts(run: Run) -> Facts:
    """Return the facts that must be equal for all variants: the machine and the settings."""
    facts = table_of(run.info, "machine")
    return {
        "machine": machine_name(run.info),
        **{
            str(name): "unavailable" if str(value).startswith(_UNAVAILABLE) else str(value)
            for name, value in facts.items()
            if name not in _IGNORED
        },
        "tuned": _tuned(facts.get("tune")),
        "method version": str(run.info.get("method", FIRST_METHOD)),
        **{
            f"setting {name.replace('_', '-')}": _field_text(value)
            for name, value in encode(run.study.settings).items()
            if name not in _LIMITS
        },
    }


def _tuned(tune: object) -> str:
    """Return the settings that `machine quiet` wrote, without the previous values."""
    written = tune.get("written") if isinstance(tune, Mapping) else None
    if not isinstance(written, Mapping):
        return "yes" if tune else "no"
    settings = {
        str(knob): [re.sub(r": .* -> ", ": ", part) for part in str(text).split("; ")]
        for knob, text in written.items()
    }
    return _text(settings)


def workload_facts(run: Run, row: Comparison) -> Facts:
    """Return every field of the workload, and the defaults in use."""
    target = next((one for one in run.study.variants if one.name == row.baseline), None)
    metrics = row.baseline_metrics
    return {
        **{
            f"workload {name.replace('_', ' ')}": _field_text(value)
            for name, value in _fields(encode(row.workload))
        },
        "workload device model": _device(run, target, row.workload.device),
        "workload batch size in use": _text(metrics.batch_size),
        "workload loss in use": metrics.loss,
        "workload operations": _text(metrics.flops),
        "workload bytes moved": _text(metrics.moved_bytes),
    }


def _device(run: Run, variant: Variant | None, device: str) -> str:
    """Return the GPU model of `cuda` or `cuda:1`; empty for a CPU."""
    kind, _, index = device.partition(":")
    if kind == "cpu" or variant is None:
        return ""
    devices = target_facts(run.info, variant).get("devices")
    start = f"{kind}:{index or 0} "
    matching = [str(one) for one in devices if str(one).startswith(start)] if devices else []
    return matching[0].removeprefix(start) if matching else UNKNOWN


def baseline_facts(run: Run, name: str) -> Facts:
    """Return the facts of the baseline."""
    return _variant_facts(run, name, "baseline")


def candidate_facts(run: Run, name: str, *, called: str = "candidate") -> Facts:
    """Return the facts of a candidate; `called` is the prefix of their names."""
    return {called: name, **_variant_facts(run, name, called)}


def other_facts(run: Run, variant: str) -> Facts:
    """Return informative facts, which never block a verdict."""
    variants = {one.name: one for one in run.study.variants}
    owner = table_of(run.info, "owner")
    blocks = sum(row.guards.blocks for row in run.comparisons)
    dirty = sum(row.guards.dirty for row in run.comparisons)
    return {
        "revision": revision_of_variant(run.info, variants[variant]) if variant in variants else "",
        "disturbed blocks": f"{dirty / blocks:.0%}" if blocks else UNKNOWN,
        "load": str(table_of(run.info, "machine").get("load", UNKNOWN)),
        "host": str(owner.get("host") or UNKNOWN),
        "boot id": str(owner.get("boot") or UNKNOWN),
        "time budget": f"{run.study.budget.time_s:g} s",
        "precision goal": f"{run.study.budget.precision_goal:.2%}",
        "torchyard": str(run.info.get("torchyard") or UNKNOWN),
        "state": run.state,
        "started": str(run.info.get("started") or UNKNOWN),
    }


def differing_conditions(one: Run, other: Run) -> list[FactDifference]:
    """Return the conditions that differ, of those that both runs recorded: newer facts must not block old runs."""
    facts, others = condition_facts(one), condition_facts(other)
    shared = [name for name in facts if name in others]
    return differing(
        {name: facts[name] for name in shared}, {name: others[name] for name in shared}, blocks=True
    )


def differing(one: Facts, other: Facts, *, blocks: bool = False) -> list[FactDifference]:
    """Return the facts that differ, in order."""
    differences = []
    for name in dict.fromkeys([*one, *other]):
        before, after = one.get(name, UNKNOWN), other.get(name, UNKNOWN)
        if before != after or (blocks and name in _MUST_BE_KNOWN and UNKNOWN in (before, after)):
            shown = _shortened(before, after)
            differences.append(
                FactDifference(name=name, one=shown[0], other=shown[1], blocks=blocks)
            )
    return differences


def _variant_facts(run: Run, name: str, role: str) -> Facts:
    variant = next((one for one in run.study.variants if one.name == name), None)
    if variant is None:
        return {f"{role} definition": UNKNOWN}
    return {f"{role} {key}": text for key, text in _identity(run, variant)}


def _identity(run: Run, variant: Variant) -> Iterator[tuple[str, str]]:
    facts = target_facts(run.info, variant)
    yield from ((name, _text(facts.get(key))) for key, name in _TARGET.items())
    yield from (
        (name, _field_text(value)) for name, value in _fields(encode(variant)) if name not in _NAMES
    )


def _fields(record: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every field; those of a target are prefixed with its name."""
    for key, value in record.items():
        name = before + key
        if isinstance(value, Mapping):
            yield from _fields(value, "" if key == "environment" else f"{name} ")
        elif key in _PAIRS:
            # If a name has two values, the last one applies.
            yield name, dict(value)
        else:
            yield name, value


def _field_text(value: Any) -> str:
    """Return the value as text; None is the default."""
    return _DEFAULT if value is None else _text(value)


def _text(value: Any) -> str:
    """Return an unambiguous text: strings that look like another value are quoted."""
    if value is None:
        return UNKNOWN
    if isinstance(value, str):
        return json.dumps(value) if value in _WORDS or _is_json(value) else value
    if isinstance(value, (list, tuple, Mapping)) and not value:
        return "none"
    return json.dumps(value, sort_keys=True)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _shortened(one: str, other: str) -> tuple[str, str]:
    """Return both texts; of long texts only the words that the other lacks."""
    if max(len(one), len(other)) <= _LONGEST:
        return one, other
    words_one, words_other = one.split(), other.split()
    shown = (
        " ".join(word for word in words_one if word not in set(words_other)),
        " ".join(word for word in words_other if word not in set(words_one)),
    )
    return _short(shown[0]), _short(shown[1])


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


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
    compared, reasons, untrusted, alike = _comparable(sessions)
    effects = tuple(
        [effect for _, row in side if row.estimate and (effect := effect_of(row.estimate))]
        for side in compared
    )
    if not all(effects):
        return _unsupported(label, numbers, reasons, alike=alike, untrusted=untrusted)
    effect = difference(effects[0], effects[1], session_sd=rules.session_sd)
    numbers = (numbers_of(compared[0], pair[0]), numbers_of(compared[1], pair[1]))
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
    compared: tuple[Measured, Measured] = ([], [])
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
                compared[index].append((run, row))
                if run.state == "interrupted":
                    reasons.setdefault(_INTERRUPTED, []).append(letter)
    texts = [
        f"{text} ({' and '.join(dict.fromkeys(where))})" if where else text
        for text, where in reasons.items()
    ]
    untrusted = _untrusted(sessions)
    if any(not any(row.trusted for _, row in side) for side in sessions):
        return compared, texts, untrusted, all(alike)
    return compared, texts + [f"excluded as untrusted: {why}" for why in untrusted], [], all(alike)


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

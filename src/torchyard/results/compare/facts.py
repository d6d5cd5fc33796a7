"""Compare the facts of two runs: which ones differ, and which of these rule out a verdict.

Speedups are comparable only if hardware, machine settings, method, workload and baseline are equal: differences in
those are blocking. Records are compared field by field, so that new fields are included.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from torchyard.core.comparison import Comparison
from torchyard.core.records import encode
from torchyard.core.study import Variant
from torchyard.machine.identity import machine_name, table_of
from torchyard.results.compare.model import FactDifference
from torchyard.results.directory import FIRST_METHOD
from torchyard.results.run_reader import Run, revision_of_variant, target_facts

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

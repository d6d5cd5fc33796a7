"""Facts of two runs side by side: which ones differ, and which of these rule out a verdict.

The ratio of two speedups compares the candidates only while everything else is equal: hardware,
machine settings, the method and settings of the measurement, the workload and the baseline
itself. Differences in those are blocking. The candidates are what is compared, and all other
facts are informative only. Variants, workloads and settings are compared field by field from
their dataclasses, so that a new field counts without being named here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from torchyard.core.comparison import Comparison
from torchyard.core.records import encode
from torchyard.core.study import Variant
from torchyard.machine.identity import machine_name
from torchyard.results.compare.model import FactDifference
from torchyard.results.directory import FIRST_METHOD
from torchyard.results.run_reader import Run, revision_of_variant, target_facts

__all__ = [
    "UNKNOWN",
    "baseline_facts",
    "candidate_facts",
    "condition_facts",
    "conditions_apart",
    "differing",
    "other_facts",
    "workload_facts",
]

Facts = dict[str, str]

UNKNOWN: Final = "unknown"
_UNAVAILABLE: Final = "unavailable, because "
_PASSING: Final = frozenset({"load", "memory", "architecture", "cpu", "cores", "tune"})
"""Facts of a machine that change by themselves, or that its name holds already."""
_LIMITS: Final = frozenset({"start_limit_s", "step_limit_s", "block_limit_s"})
"""Settings that end a measurement and do not change one that succeeds."""
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
"""What a target says of itself that sets the speed of what runs in it."""
_NAMES: Final = frozenset({"name", "target name", "target python"})
"""Fields of a variant that are names or places. Builds are told apart by what they say of themselves."""
_MUST_BE_KNOWN: Final = frozenset(
    {"machine", "baseline torch", "baseline definition", "workload device model"}
)
"""Facts of which two unknown values are not taken to be alike."""
_PAIRS: Final = frozenset({"variables", "options", "parameters"})
_DEFAULT: Final = "default"
_WORDS: Final = frozenset({UNKNOWN, _DEFAULT, "none"})
_LONGEST: Final = 160


def condition_facts(run: Run) -> Facts:
    """What has to be alike for all variants: the machine and how it was measured."""
    machine = run.info.get("machine")
    facts = machine if isinstance(machine, Mapping) else {}
    tune = facts.get("tune")
    return {
        "machine": machine_name(run.info),
        **{
            str(name): "unavailable" if str(value).startswith(_UNAVAILABLE) else str(value)
            for name, value in facts.items()
            if name not in _PASSING
        },
        "tuned": _tuned(tune),
        "method version": str(run.info.get("method", FIRST_METHOD)),
        **{
            f"setting {name.replace('_', '-')}": _field_text(value)
            for name, value in encode(run.study.settings).items()
            if name not in _LIMITS
        },
    }


def _tuned(tune: object) -> str:
    """What a tune wrote, without the values it found: knob -> places and values."""
    written = tune.get("written") if isinstance(tune, Mapping) else None
    if not isinstance(written, Mapping):
        return "yes" if tune else "no"
    wanted = {
        str(knob): [re.sub(r": .* -> ", ": ", part) for part in str(text).split("; ")]
        for knob, text in written.items()
    }
    return _text(wanted)


def workload_facts(run: Run, row: Comparison) -> Facts:
    """What was run: every field of the workload, and what became of its defaults."""
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
    """The card behind `cuda` or `cuda:1`; empty for a processor."""
    kind, _, index = device.partition(":")
    if kind == "cpu" or variant is None:
        return ""
    devices = target_facts(run.info, variant).get("devices")
    start = f"{kind}:{index or 0} "
    found = [str(one) for one in devices if str(one).startswith(start)] if devices else []
    return found[0].removeprefix(start) if found else UNKNOWN


def baseline_facts(run: Run, name: str) -> Facts:
    """What the variant is that others were measured beside."""
    return _variant_facts(run, name, "baseline")


def candidate_facts(run: Run, name: str, *, called: str = "candidate") -> Facts:
    """What the variant is that is compared; `called` tells several apart."""
    return {called: name, **_variant_facts(run, name, called)}


def other_facts(run: Run, variant: str) -> Facts:
    """What only informs."""
    known = {one.name: one for one in run.study.variants}
    owner = run.info.get("owner")
    owner = owner if isinstance(owner, Mapping) else {}
    machine = run.info.get("machine")
    blocks = sum(row.guards.blocks for row in run.comparisons)
    dirty = sum(row.guards.dirty for row in run.comparisons)
    return {
        "revision": revision_of_variant(run.info, known[variant]) if variant in known else "",
        "disturbed blocks": f"{dirty / blocks:.0%}" if blocks else UNKNOWN,
        "load": str(machine.get("load", UNKNOWN)) if isinstance(machine, Mapping) else UNKNOWN,
        "host": str(owner.get("host") or UNKNOWN),
        "start of the machine": str(owner.get("boot") or UNKNOWN),
        "time allowed": f"{run.study.budget.time_s:g} s",
        "precision goal": f"{run.study.budget.precision_goal:.2%}",
        "torchyard": str(run.info.get("torchyard") or UNKNOWN),
        "state": run.state,
        "started": str(run.info.get("started") or UNKNOWN),
    }


def conditions_apart(one: Run, other: Run) -> list[FactDifference]:
    """Conditions that are not alike, of those that both runs recorded.

    A version that records one fact more must not part old runs from new ones.
    """
    facts, others = condition_facts(one), condition_facts(other)
    shared = [name for name in facts if name in others]
    return differing(
        {name: facts[name] for name in shared},
        {name: others[name] for name in shared},
        blocks=True,
    )


def differing(one: Facts, other: Facts, *, blocks: bool = False) -> list[FactDifference]:
    """The facts that are not alike, in their order."""
    found = []
    for name in dict.fromkeys([*one, *other]):
        before, after = one.get(name, UNKNOWN), other.get(name, UNKNOWN)
        if before != after or (blocks and name in _MUST_BE_KNOWN and UNKNOWN in (before, after)):
            shown = _apart(before, after)
            found.append(FactDifference(name=name, one=shown[0], other=shown[1], blocks=blocks))
    return found


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
    """Every field; those of a target have its name before theirs, those of an environment do not."""
    for key, value in record.items():
        name = before + key
        if isinstance(value, Mapping):
            yield from _fields(value, "" if key == "environment" else f"{name} ")
        elif key in _PAIRS:
            # Of two values of one name the last counts, as when they are set.
            yield name, dict(value)
        else:
            yield name, value


def _field_text(value: Any) -> str:
    """The same for a field in which nothing means that it was left to its default."""
    return _DEFAULT if value is None else _text(value)


def _text(value: Any) -> str:
    """A text that no other value has. Plain words stay plain; what could be misread is quoted."""
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


def _apart(one: str, other: str) -> tuple[str, str]:
    """Both texts; of long ones only the parts that the other lacks."""
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

"""Facts of two runs side by side: which ones differ, and which of these forbid a verdict.

The ratio of two speedups compares the candidates only while everything else is alike: hardware, the
machine's settings, how it was measured, and the baseline itself. Such facts block. What the two
candidates are is what is compared, and the rest only informs. Only looks at records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from torchyard.core.cross_comparison import FactDifference
from torchyard.core.variant import Variant
from torchyard.results.machine_identity import machine_name
from torchyard.results.revision import revision_of_variant, target_facts
from torchyard.results.run_reader import Run

__all__ = [
    "UNKNOWN",
    "baseline_facts",
    "candidate_facts",
    "condition_facts",
    "conditions_apart",
    "differing",
    "other_facts",
]

Facts = dict[str, str]

UNKNOWN: Final = "unknown"
_UNAVAILABLE: Final = "unavailable, because "
_PASSING: Final = frozenset({"load", "memory", "architecture", "cpu", "cores", "tune"})
"""Facts of a machine that change by themselves, or that its name holds already."""
_SETTINGS: Final = ("threads", "seed", "reseat", "paired_layout", "flush_l2", "block_s")
_TARGET: Final = ("torch", "torch_git", "torch_config", "python", "threads", "openmp", "allocators")
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
        "tuned": "yes" if isinstance(tune, Mapping) and tune else "no",
        **{
            f"setting {name.replace('_', '-')}": str(getattr(run.study.settings, name))
            for name in _SETTINGS
        },
    }


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
        if before != after or (name == "machine" and before == UNKNOWN):
            shown = _apart(before, after)
            found.append(FactDifference(name=name, one=shown[0], other=shown[1], blocks=blocks))
    return found


def _variant_facts(run: Run, name: str, role: str) -> Facts:
    variant = next((one for one in run.study.variants if one.name == name), None)
    if variant is None:
        return {role: "not in the study"}
    return {f"{role} {key}": text for key, text in _identity(run, variant)}


def _identity(run: Run, variant: Variant) -> Iterator[tuple[str, str]]:
    facts = target_facts(run.info, variant)
    yield from ((key.replace("_", " "), _text(facts.get(key))) for key in _TARGET)
    yield "backend", variant.backend
    yield "precision", variant.precision
    yield "variables", _pairs((*variant.target.variables, *variant.environment.variables))
    yield "preload", ", ".join(variant.environment.preload)
    yield "own threads", str(variant.environment.threads)


def _pairs(variables: tuple[tuple[str, str], ...]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(variables))


def _text(value: Any) -> str:
    if value is None:
        return UNKNOWN
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


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

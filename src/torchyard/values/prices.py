"""What findings cost: prices from the target, per step and as a bound for the whole program.

Prices are measured by the worker, operator by operator, in a process of its own. A bound says what
mending everything can save at most; work that two findings share is counted once.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from torchyard.core.values import ValueFinding, ValueProfile, Worth
from torchyard.values.program_run import run_in_target
from torchyard.values.request import ProfileRequest

__all__ = [
    "OF_WHOLE_STEPS",
    "price_in_target",
    "steps_looked_at",
    "steps_of",
    "upper_bound",
    "with_prices",
]

_SECONDS_EACH: Final = 0.6
_START_S: Final = 600.0
"""For a process that hangs; on a busy machine torch alone may take minutes to start."""
OF_WHOLE_STEPS: Final = "steps of the whole program"
"""How the method of a gain begins that was measured on more than the operator."""
NO_STEP_TIME: Final = "a step without the profiler was not timed"


def price_in_target(request: ProfileRequest, folder: Path, profile: ValueProfile) -> ValueProfile:
    """Measure the wasted part of each finding natively, one after the other."""
    recipes = [finding.recipe for finding in profile.findings]
    if not recipes:
        return profile
    end = run_in_target(
        request,
        folder,
        name="prices",
        silent=True,
        limit_s=_START_S + 10 * _SECONDS_EACH * len(recipes),
        price=recipes,
        threads=profile.threads,
        seconds_each=_SECONDS_EACH,
    )
    return with_prices(profile, _read(end.output))


def with_prices(profile: ValueProfile, prices: Sequence[Mapping[str, Any]]) -> ValueProfile:
    """The same findings with what the worker measured; those it did not get to say so."""
    found = []
    for number, finding in enumerate(profile.findings):
        missing = {"unavailable": "the process that measures ended before it"}
        price = prices[number] if number < len(prices) else missing
        recipe = {**finding.recipe, "fix": str(price.get("fix", ""))}
        found.append(replace(finding, recipe=recipe, worth=_worth(finding, price, profile)))
    return replace(profile, findings=tuple(found))


def steps_looked_at(profile: ValueProfile) -> int:
    """Steps that were watched; a program without steps is one."""
    done = profile.steps - 1 if profile.steps > 1 else 1
    return max(1, done - profile.counts.get("steps_left_out", 0))


def steps_of(finding: ValueFinding, profile: ValueProfile) -> int:
    """Steps in which a finding could be seen: a survey does not look inside of operators."""
    looked = steps_looked_at(profile)
    closely = looked - profile.counts.get("steps_surveyed", 0)
    if finding.path and len(finding.steps) <= closely:
        return max(1, closely)
    return looked


def upper_bound(profile: ValueProfile) -> float | None:
    """Share of a step that mending every finding can save at most; None where it is unknown.

    Findings of one operator at one place overlap: together they count as the dearest of them.
    """
    if not profile.step_ns:
        return None
    dearest: dict[tuple[str, int, bool, str], float] = defaultdict(float)
    for finding in profile.findings:
        place = finding.place
        outermost = finding.path[0] if finding.path else finding.operator
        key = (place.file, place.line, place.backward, outermost)
        dearest[key] = max(dearest[key], finding.worth.per_step_ns or 0.0)
    return min(1.0, sum(dearest.values()) / profile.step_ns)


def _worth(finding: ValueFinding, price: Mapping[str, Any], profile: ValueProfile) -> Worth:
    if "wasted_ns" not in price:
        return replace(finding.worth, unavailable=str(price.get("unavailable", "not measured")))
    per_step_ns = price["wasted_ns"] * finding.count / steps_of(finding, profile)
    share = per_step_ns / profile.step_ns if profile.step_ns else None
    return replace(
        finding.worth,
        operator_ns=price["operator_ns"],
        wasted_ns=price["wasted_ns"],
        per_step_ns=per_step_ns,
        share_of_step=None if share is None else min(1.0, share),
        method=str(price.get("method", "")),
        unavailable="" if profile.step_ns else NO_STEP_TIME,
    )


def _read(path: Path) -> list[Mapping[str, Any]]:
    """Prices as far as they were written; a process that died leaves those before."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return []
    prices = data.get("prices", []) if isinstance(data, dict) else []
    return [price if isinstance(price, dict) else {} for price in prices]

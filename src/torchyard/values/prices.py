"""What findings cost: per step, as an estimated range and a bound.

Operators are timed where the program calls them (`savings`). Waste inside of operators, and calls that
were too few to time, are made again from recipes and timed alone, in a process of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from torchyard.values.model import ProfileRequest, Saving, ValueFinding, ValueProfile, Worth
from torchyard.values.savings import (
    MOST_DISAGREEMENT,
    NOISY,
    CallTimes,
    Chain,
    NotMeasured,
    chain_of,
    saving_of,
)
from torchyard.values.target_run import NativeRun, run_in_target

_SECONDS_EACH: Final = 0.6
_START_S: Final = 600.0
"""For a process that hangs; on a busy machine torch alone may take minutes to start."""
_MOST_SITES: Final = 2000
OF_WHOLE_STEPS: Final = "steps of the whole program"
"""Start of the method of a gain that was measured on whole steps, not on the operator."""
IN_PLACE: Final = "operators timed where the program calls them, in a run without the profiler"
ALONE: Final = "estimated from the operator alone, with the same values"
NO_STEP_TIME: Final = "a step without the profiler was not timed"
_ENDED: Final = "the process that measures ended before it"


def sites_to_time(profile: ValueProfile) -> list[dict[str, Any]]:
    """Return every call site that a fix concerns, largest findings first, for the timed run."""
    sites: dict[tuple[Any, ...], dict[str, Any]] = {}
    names = ("operator", "file", "line", "backward", "shapes")
    for finding in sorted(profile.findings, key=lambda one: -one.bytes_wasted):
        for call in finding.recipe.get("calls", ()):
            site = {name: call[name] for name in names}
            if len(sites) < _MOST_SITES:
                sites.setdefault(tuple(site.values()), site)
    return list(sites.values())


def price_in_target(
    request: ProfileRequest, folder: Path, profile: ValueProfile, native: NativeRun | None
) -> ValueProfile:
    """Price every finding: from the timed run, and from recipes where that is not enough."""
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
    return priced(profile, _read(end.output), native)


def unpriced(profile: ValueProfile, why: str) -> ValueProfile:
    """Return the profile with all findings unpriced, and the reason."""
    findings = tuple(
        replace(finding, worth=replace(finding.worth, unavailable=why))
        for finding in profile.findings
    )
    return replace(profile, findings=findings)


def priced(
    profile: ValueProfile, prices: Sequence[Mapping[str, Any]], native: NativeRun | None
) -> ValueProfile:
    """Return the profile with the measured prices, or the reason why there is none."""
    times = None if native is None else CallTimes(native, profile.threads)
    findings: list[ValueFinding] = []
    chains: list[Chain] = []
    for number, finding in enumerate(profile.findings):
        price = prices[number] if number < len(prices) else {"unavailable": _ENDED}
        recipe = {**finding.recipe, "fix": str(price.get("fix", ""))}
        steps = steps_of(finding, profile)
        worth = _worth(finding, price, steps, times, chains)
        findings.append(replace(finding, recipe=recipe, worth=worth))
    return replace(profile, findings=tuple(findings), saving=_total(chains, times, findings))


def _worth(
    finding: ValueFinding,
    price: Mapping[str, Any],
    steps: int,
    times: CallTimes | None,
    chains: list[Chain],
) -> Worth:
    alone = {
        name: price[name] for name in ("operator_ns", "wasted_ns") if price.get(name) is not None
    }
    worth = replace(finding.worth, **alone)
    if times is None:
        return replace(worth, unavailable=NO_STEP_TIME)
    try:
        chain = chain_of(finding, steps, price)
        saving = saving_of([chain], times)
    except NotMeasured as error:
        return _from_recipe(worth, price, finding.count / steps, times, str(error))
    chains.append(chain)
    return _with_saving(worth, saving, IN_PLACE)


def _from_recipe(
    worth: Worth, price: Mapping[str, Any], per_step: float, times: CallTimes, why: str
) -> Worth:
    """Estimate from the operator alone; without a bound, because the chain was not timed."""
    low, high = price.get("wasted_low_ns"), price.get("wasted_high_ns")
    if low is None or high is None:
        reasons = (why, str(price.get("unavailable", "")))
        return replace(worth, unavailable="; ".join(text for text in reasons if text))
    if not times.clocks or NOISY in why:
        return replace(worth, unavailable=why)
    differ = float(price.get("differ", 1.0))
    if differ > MOST_DISAGREEMENT:
        why = f"{NOISY}: repeats of the operator alone differ by a factor of {differ:.2g}"
        return replace(worth, unavailable=why)
    step = times.step(times.clocks[0])
    saving = Saving(
        low_ns=per_step * low,
        high_ns=per_step * high,
        low_share=min(1.0, per_step * low / step[2]),
        high_share=min(1.0, per_step * high / step[0]),
        clock={"wall": "wall time", "cpu": "CPU time"}[times.clocks[0]],
        calls=per_step,
        unpriced=(why,),
    )
    return _with_saving(worth, saving, f"{ALONE}: {why}")


def _with_saving(worth: Worth, saving: Saving, method: str) -> Worth:
    return replace(
        worth,
        saving=saving,
        per_step_ns=(saving.low_ns + saving.high_ns) / 2,
        share_of_step=(saving.low_share + saving.high_share) / 2,
        method=method,
        unavailable="",
    )


def _total(
    chains: Sequence[Chain], times: CallTimes | None, findings: Sequence[ValueFinding]
) -> Saving | None:
    """Return what fixing all of them saves; with a bound only if every finding has one."""
    savings = [finding.worth.saving for finding in findings]
    if times is None or not chains:
        return None
    try:
        total = saving_of(chains, times)
    except NotMeasured:
        return None
    if any(saving is None or saving.bound_share is None for saving in savings):
        total = replace(total, bound_ns=None, bound_share=None)
    return total


def profiled_steps(profile: ValueProfile) -> int:
    """Return the number of profiled steps; a program without steps counts as one."""
    done = profile.steps - 1 if profile.steps > 1 else 1
    return max(1, done - profile.counts.get("steps_left_out", 0))


def steps_of(finding: ValueFinding, profile: ValueProfile) -> int:
    """Return the number of steps that could show a finding: surveys do not profile inside operators."""
    profiled = profiled_steps(profile)
    closely = profiled - profile.counts.get("steps_surveyed", 0)
    if finding.path and len(finding.steps) <= closely:
        return max(1, closely)
    return profiled


def _read(path: Path) -> list[Mapping[str, Any]]:
    """Return prices as far as they were written; a process that died leaves those before."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return []
    prices = data.get("prices", []) if isinstance(data, dict) else []
    return [price if isinstance(price, dict) else {} for price in prices]

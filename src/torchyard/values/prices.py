"""What findings cost: per step, as an estimated range and a bound.

Operators are timed where the program calls them. Waste inside of operators, and calls that
were too few to time, are made again from recipes and timed alone, in a process of their own.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from torchyard.values.model import ProfileRequest, Saving, ValueFinding, ValueProfile, Worth
from torchyard.values.target_run import NativeRun, SiteTime, run_in_target

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
    if times is None or times.problem:
        return replace(worth, unavailable=NO_STEP_TIME if times is None else times.problem)
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


ANY_SHAPES: Final = "*"
MOST_DISAGREEMENT: Final = 2.0
"""Upper over lower quartile of the repeats of a chain; beyond it the machine was too noisy."""
_ADDED_TO: Final = ("zeroed only to be added to", "gradient zeroed only to be added to")
"""How details of zeros begin that an operator adds to."""
LEAST_CALLS: Final = 3
LONG_NS: Final = 50_000.0
"""Operators that take longer are timed reliably (`worker/values/pricing/site_times.py`)."""
NOISY: Final = "noisy machine"
_MOST_WAITED: Final = 0.1
"""Share of a run that the main thread may wait for a core; beyond it only CPU time is used."""
_MOST_WAITED_CPU: Final = 0.5
"""Beyond it several threads, which spin while they wait for each other, have no usable CPU time."""
_PARALLEL: Final = 1.1
"""CPU time over wall time of a call from which on it ran on several threads."""
_CACHES: Final = 0.25
"""Of a call's time that its use of the caches costs or saves other calls, at most."""
_KEPT: Final = 0.5
"""Of the time of operators that stay, what they take at least once others are removed."""
_CERTAIN: Final = frozenset({"wasted", "repeated"})
_SHRINKING: Final = frozenset({"shrinks", "reads"})
_INSIDE: Final = "inside"
_FRESH_FILLS: Final = frozenset(
    f"aten::{form}"
    for name in ("zeros", "ones", "full")
    for form in (name, f"{name}_like", f"new_{name}")
)
"""Become `empty`: the memory is still needed, and its first touch moves to the operator that writes it."""

SiteKey = tuple[str, str, int, bool, str]


class NotMeasured(Exception):
    """Why there is no number."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Calls at one site that a fix concerns."""

    key: SiteKey
    role: str
    per_step: float


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Everything that fixing one finding concerns, per step."""

    parts: tuple[Part, ...]
    share: float = 1.0
    """Of the bytes, where a fix makes results smaller."""
    alone: tuple[float, float] | None = None
    """Wasted part over operator, least and most, timed alone: for waste inside of operators."""
    alone_ns: float | None = None
    """The wasted part timed alone."""
    moved: bool = False
    """Whether a fix needs new memory in every step instead, so that it may save nothing."""
    unknown: str = ""
    """Why calls are missing."""


class CallTimes:
    """Times of call sites in one run, and of the step that they are shares of."""

    def __init__(self, native: NativeRun, threads: int) -> None:
        self._sites = {_key(site): site for site in native.sites}
        self._costs = native.costs
        self._threads = max(1, threads)
        self._timed_steps = max(1, native.site_steps)
        self._other_ns = native.other_ns / self._timed_steps
        whole = native.steps == 0 and not native.steps_ns
        walls: tuple[float, ...]
        cpus: tuple[float, ...]
        if whole and native.recorded_whole:
            walls, cpus = (), ()  # the program was never timed untouched
        else:
            walls = (native.program_ns,) if whole else native.steps_ns
            cpus = (native.program_cpu_ns,) if whole else native.steps_cpu_ns
        probes = [probe for probe in native.probes_ns if probe > 0] if whole else []
        self.problem = ""
        """Why no time of this run can be used."""
        self.drift = max(probes) / min(probes) if probes else 1.0
        """How much the speed of the machine differs between the runs that times were taken in; steps
        with and without timing alternate in one run."""
        self._faults = (native.program_faults if whole else native.step_faults) or 0.0
        self._steps = {"wall": _quartiles(walls), "cpu": _quartiles(cpus)}
        if native.accelerated:
            self.clocks: tuple[str, ...] = ("wall",)
        else:
            self.clocks = ("cpu",) if self._threads == 1 else ("wall", "cpu")
        waited = native.program_waited_ns / max(1.0, native.program_ns)
        if waited > _MOST_WAITED:
            self.clocks = tuple(clock for clock in self.clocks if clock == "cpu")
        if not self.clocks or (self._threads > 1 and waited > _MOST_WAITED_CPU):
            self.problem = f"{NOISY}: the program waited for a core for {waited:.0%} of its time"
        self.clocks = tuple(clock for clock in self.clocks if self._steps[clock] is not None)

    def site(self, key: SiteKey) -> SiteTime | None:
        """Return times of a site; of its line where calls with these shapes were too few."""
        for one in (key, (*key[:4], ANY_SHAPES)):
            site = self._sites.get(one)
            if site is not None and site.calls >= LEAST_CALLS:
                return site
        return None

    def calls_per_step(self, key: SiteKey) -> float:
        """Return how often a site is called in a step, wasted or not."""
        site = self.site(key)
        return site.calls / self._timed_steps if site is not None else 0.0

    def step(self, clock: str) -> tuple[float, float, float]:
        """Return lower quartile, median and upper quartile of a step."""
        quartiles = self._steps[clock]
        if quartiles is None:
            raise NotMeasured(NO_STEP_TIME)
        return quartiles

    def range(self, site: SiteTime, clock: str) -> tuple[float, float]:
        """Return the lower and the upper quartile of the repeats."""
        quartiles = _quartiles(site.wall_ns if clock == "wall" else site.cpu_ns)
        return (quartiles[0], quartiles[2]) if quartiles is not None else (0.0, 0.0)

    def estimate(self, site: SiteTime, clock: str) -> tuple[float, float]:
        """Return the least and the most that one call likely costs, without the overhead of timing."""
        fastest, slowest = self.range(site, clock)
        added = self._costs.get(f"window_{clock}", 0.0)
        low, high = max(0.0, fastest - 2 * added), max(0.0, slowest - added)
        before = max(0.0, site.before_ns - self._costs.get("gap", 0.0))
        return low - self.caches(site, low), high + self.caches(site, high) + before

    def python(self, site: SiteTime, clock: str) -> float:
        """Return the most that Python takes around one call, and no less than a small module takes."""
        gap = self._costs.get("gap", 0.0)
        around = max(0.0, site.before_ns - gap) + max(0.0, site.after_ns - gap)
        return max(self._costs.get(f"call_{clock}", 0.0), around)

    def caches(self, site: SiteTime, time_ns: float) -> float:
        """Return what a call changes for others by the memory that it touches."""
        return min(site.touched_bytes * self._costs.get("read", 0.0), _CACHES * time_ns)

    def memory(self, pages: float, own_faults: float) -> float:
        """Return what a step may spend on memory outside of the calls that a fix removes.

        Removed results leave room for as many pages as they take, and no more than a step has page faults elsewhere.
        """
        fault, unmap = self._costs.get("fault", 0.0), self._costs.get("unmap", 0.0)
        elsewhere = min(pages, max(0.0, self._faults - own_faults))
        return elsewhere * (fault + unmap) + min(pages, own_faults) * unmap

    def limit(self, removed: Mapping[SiteKey, float], clock: str) -> float:
        """Return the largest possible share: long operators at other sites stay, and count as half."""
        total = self._other_ns
        for key, site in self._sites.items():
            least = self.range(site, clock)[0]
            if key[4] == ANY_SHAPES or site.calls < LEAST_CALLS or least < LONG_NS:
                continue
            calls = site.calls / self._timed_steps - removed.get(key, 0.0)
            total += max(0.0, calls) * least
        remaining_share = total / self.drift / self.step(clock)[2]
        return (
            1 - _KEPT * remaining_share if remaining_share <= 1 else 1.0
        )  # more than everything: times that cannot be

    def pages(self, site: SiteTime) -> float:
        """Return how many pages the result of one call takes."""
        return site.made_bytes / self._costs.get("page", 4096.0)

    def most(self, site: SiteTime, clock: str) -> float:
        """Return the most that the program spends on one call: the slowest calls, spinning threads, Python, caches."""
        most = site.wall_most_ns
        if clock == "cpu":
            parallel = site.cpu_most_ns > _PARALLEL * site.wall_most_ns
            spinning = site.wall_most_ns * self._threads if parallel else 0.0
            most = max(site.cpu_most_ns, spinning)
        return most + self.python(site, clock) + self.caches(site, most)


def chain_of(finding: ValueFinding, steps: int, price: Mapping[str, Any]) -> Chain:
    """Read the calls of a finding from its recipe, spread over the profiled steps."""
    recipe = finding.recipe
    sightings = recipe.get("sightings") or 0
    if not sightings or not recipe.get("calls"):
        raise NotMeasured(recipe.get("calls_unknown") or "its calls were not followed")
    rate = finding.count / sightings / steps
    parts = tuple(
        Part(key=_key_of(call), role=call["role"], per_step=call["calls"] * rate)
        for call in recipe["calls"]
    )
    low, high = price.get("ratio_low"), price.get("ratio_high")
    return Chain(
        parts=parts,
        share=float(recipe.get("share", 1.0)),
        alone=None if low is None or high is None else (min(1.0, low), min(1.0, high)),
        alone_ns=price.get("wasted_ns"),
        moved=finding.detail.startswith(_ADDED_TO),
        unknown=recipe.get("calls_unknown", ""),
    )


@dataclass(kw_only=True)
class _Sum:
    """Time at one site, in one clock."""

    low: float = 0.0
    high: float = 0.0
    bound: float = 0.0
    fastest: float = 0.0
    slowest: float = 0.0
    calls: float = 0.0
    pages: float = 0.0
    faults: float = 0.0


def saving_of(chains: Sequence[Chain], times: CallTimes) -> Saving:
    """Return the saving of fixes together: a removed call counts once. Raise NotMeasured."""
    if not times.clocks:
        raise NotMeasured(NO_STEP_TIME)
    unpriced = sorted(
        {
            part.key[0]
            for chain in chains
            for part in chain.parts
            if times.site(part.key) is None and part.role != _INSIDE
        }
    )
    missing = [chain.unknown for chain in chains if chain.unknown]
    sums = {clock: _summed(chains, times, clock) for clock in times.clocks}
    trusted = [
        clock
        for clock, one in sums.items()
        if one.fastest > 0 and one.slowest <= MOST_DISAGREEMENT * one.fastest
    ]
    if not any(one.slowest > 0 for one in sums.values()):
        what = f" ({', '.join(unpriced)})" if unpriced else ""
        raise NotMeasured(
            f"its operators ran fewer than {LEAST_CALLS} times in the timed run{what}"
        )
    if not trusted:
        worst = min(one.slowest / max(1.0, one.fastest) for one in sums.values())
        raise NotMeasured(f"{NOISY}: repeats differ by a factor of {worst:.2g}")
    if times.drift > MOST_DISAGREEMENT:
        raise NotMeasured(
            f"{NOISY}: its speed differs by a factor of {times.drift:.2g} between runs"
        )
    first = trusted[0]
    lows = [sums[clock].low / times.step(clock)[2] for clock in trusted]
    removed: dict[SiteKey, float] = defaultdict(float)
    for part in (part for chain in chains for part in chain.parts):
        removed[part.key] += part.per_step
    limits = {clock: times.limit(removed, clock) for clock in sums}
    highs = [min(limits[clock], sums[clock].high / times.step(clock)[0]) for clock in trusted]
    bounds = [min(limits[clock], sums[clock].bound / times.step(clock)[0]) for clock in sums]
    low_share = min(1.0, *lows, *highs)
    complete = not unpriced and not missing
    return Saving(
        low_ns=sums[first].low,
        high_ns=sums[first].high,
        low_share=low_share,
        high_share=min(1.0, max(highs)),
        bound_ns=sums[first].bound if complete else None,
        bound_share=min(1.0, max(bounds)) if complete else None,
        clock=" and ".join({"wall": "wall time", "cpu": "CPU time"}[clock] for clock in trusted),
        calls=sums[first].calls,
        unpriced=(*unpriced, *missing),
    )


def _summed(chains: Iterable[Chain], times: CallTimes, clock: str) -> _Sum:
    """Add up sites; where several chains concern one, no more than all of its calls."""
    by_site: dict[SiteKey, list[_Sum]] = defaultdict(list)
    for chain in chains:
        own: dict[SiteKey, _Sum] = defaultdict(_Sum)
        for part in chain.parts:
            site = times.site(part.key)
            if site is not None:
                _add(own[part.key], part, chain, times, site, clock)
        for key, one in own.items():
            by_site[key].append(one)
    total = _Sum()
    for key, ones in by_site.items():
        calls = sum(one.calls for one in ones)
        # Findings about the same calls overlap, those about different calls do not.
        scale = min(1.0, times.calls_per_step(key) / calls) if len(ones) > 1 and calls else 1.0
        total.low += max(one.low for one in ones)
        for name in ("high", "bound", "fastest", "slowest", "calls", "pages", "faults"):
            summed = scale * sum(getattr(one, name) for one in ones)
            largest = max(getattr(one, name) for one in ones)
            setattr(total, name, getattr(total, name) + max(summed, largest))
    memory = times.memory(total.pages, total.faults)
    total.low /= times.drift
    total.high = (total.high + memory) * times.drift
    total.bound = (total.bound + memory) * times.drift
    return total


def _add(
    into: _Sum, part: Part, chain: Chain, times: CallTimes, site: SiteTime, clock: str
) -> None:
    fastest, slowest = times.range(site, clock)
    most, count = times.most(site, clock), part.per_step
    least, high = times.estimate(site, clock)
    low, bound = 0.0, most
    if part.role in _CERTAIN and not chain.moved:
        low = least
        if part.key[0] in _FRESH_FILLS:
            low = min(least, chain.alone_ns or 0.0)
    elif part.role in _SHRINKING:
        high *= chain.share
    elif part.role == _INSIDE:
        few, many = chain.alone or (0.0, 1.0)
        low, high, bound = few * least, many * high, many * most
    into.low += count * low
    into.high += count * high
    into.bound += count * bound
    into.fastest += count * fastest
    into.slowest += count * slowest
    into.calls += count
    if part.role != _INSIDE:
        into.pages += count * times.pages(site)
        into.faults += count * site.faults


def _quartiles(values: Sequence[float]) -> tuple[float, float, float] | None:
    values = [value for value in values if value > 0]
    if not values:
        return None
    if len(values) == 1:
        return (values[0],) * 3
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def _key(site: SiteTime) -> SiteKey:
    return (site.operator, site.file, site.line, site.backward, site.shapes)


def _key_of(call: Mapping[str, Any]) -> SiteKey:
    return (call["operator"], call["file"], call["line"], call["backward"], call["shapes"])

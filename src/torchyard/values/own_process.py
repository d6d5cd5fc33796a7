"""What the context manager can prove: the same work again in this process, with nobody watching.

The trials of a finding (other bits in its place, the work left out) were made while it was watched.
What is missing for a proof is a run without the watch. In a process of its own the whole program runs
again; here it is what the caller hands over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from torchyard.core.values import ValueProfile
from torchyard.values.confirmation import confirm, unconfirmed, wanted_chains
from torchyard.values.native_file import NativeRun, read_native_run
from torchyard.values.prices import priced, wanted_sites

__all__ = ["PRICED_CALLS", "confirm_here", "price_here"]

PRICED_CALLS: Final = 4
"""Calls of the function in which operators are timed; between them it is timed untouched."""

_MOST_NAMES: Final = 3
_MOST_MISSING: Final = 0.25
"""Share of the block's operators that the function may lack: some run in a first step alone, some only
under a watch. With more it is other work, and confirms nothing."""
_SECONDS_EACH: Final = 0.3


def confirm_here(
    profile: ValueProfile, function: Callable[[], Any], *, scratch: Path, timed_runs: int
) -> tuple[ValueProfile, NativeRun | None]:
    """Call the function without the watch: once for the operators that run, then for the time."""
    native = _recorded(profile, function, scratch / "native.json")
    steps = native.steps or 1
    took = [_timed_ns(function) for _ in range(timed_runs)]
    if took:
        wall_ns, cpu_ns, _ = (min(one) / steps for one in zip(*took, strict=True))
        native = replace(
            native,
            step_ns=wall_ns,
            step_cpu_ns=cpu_ns,
            step_faults=max(one[2] for one in took) / steps,
            steps_ns=tuple(one[0] / steps for one in took),
            steps_cpu_ns=tuple(one[1] / steps for one in took),
            recorded_whole=False,
        )
    watched, missing = _missing(profile, native)
    if len(missing) > _MOST_MISSING * len(watched):
        return unconfirmed(profile, _said(watched, missing)), None
    confirmed = confirm(profile, native)
    if missing:
        confirmed = replace(confirmed, notes=(*confirmed.notes, _said(watched, missing)))
    return confirmed, native


def price_here(
    profile: ValueProfile, function: Callable[[], Any], native: NativeRun, *, scratch: Path
) -> ValueProfile:
    """Price each finding in this process: the function is called with its operators timed."""
    from torchyard.worker.values.native_run import Native
    from torchyard.worker.values.program import Ending
    from torchyard.worker.values.worth import price

    sites = wanted_sites(profile)
    if sites:
        timed = Native({"output": str(scratch / "sites.json"), "sites": sites, "sites_whole": True})
        took = []
        timed.start()
        try:
            for _ in range(PRICED_CALLS):
                function()
                timed.pause_sites()
                took.append(_timed_ns(function))
                timed.resume_sites()
        finally:
            timed.stop(Ending(0, "finished"))
        found = read_native_run(scratch / "sites.json")
        steps = max(1, native.steps)
        native = replace(
            native,
            sites=found.sites,
            site_steps=PRICED_CALLS * steps,
            costs=found.costs,
            steps_ns=tuple(one[0] / steps for one in took),
            steps_cpu_ns=tuple(one[1] / steps for one in took),
            step_faults=max(one[2] for one in took) / steps,
            recorded_whole=False,
        )
    prices = [price(found.recipe, _SECONDS_EACH) for found in profile.findings]
    return priced(profile, prices, native)


def _recorded(profile: ValueProfile, function: Callable[[], Any], output: Path) -> NativeRun:
    from torchyard.worker.values.native_run import Native
    from torchyard.worker.values.program import Ending

    native = Native({"output": str(output), "wanted": wanted_chains(profile), "all_steps": True})
    native.start()
    state = "crashed"
    try:
        function()
        state = "finished"
    finally:
        native.stop(Ending(0 if state == "finished" else 1, state))
    return read_native_run(output)


def _timed_ns(function: Callable[[], Any]) -> tuple[int, int, int]:
    """Return wall time, CPU time and page faults of one call."""
    from torchyard.worker.values.native_run import finished_ns
    from torchyard.worker.values.site_times import page_faults

    faults, began_ns, began_cpu_ns = page_faults(), finished_ns(), time.process_time_ns()
    function()
    took_ns, took_cpu_ns = finished_ns() - began_ns, time.process_time_ns() - began_cpu_ns
    return took_ns, took_cpu_ns, page_faults() - faults


def _missing(profile: ValueProfile, native: NativeRun) -> tuple[set[str], list[str]]:
    """Operators of the block, and those of them that the function does not run."""
    ran = {name for item in native.chains for name in item.chain}
    watched = {node.operator for node in profile.flow.nodes if not node.path}
    return watched, sorted(watched - ran)


def _said(watched: set[str], missing: list[str]) -> str:
    named = ", ".join(missing[:_MOST_NAMES]) + (" and others" if len(missing) > _MOST_NAMES else "")
    return (
        f"the function that was given to prove does not run {len(missing)} of the {len(watched)} "
        f"operators that were watched ({named})"
    )

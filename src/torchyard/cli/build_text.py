"""What a finished build says on stdout, for people and as JSON."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from torchyard.cli.build_progress import time_text
from torchyard.cli.output import printable

if TYPE_CHECKING:
    from torchyard.workflow.build_run import BuildOutcome

__all__ = ["outcome_json", "outcome_text"]

_GIB_MIB = 1024


def outcome_text(outcome: BuildOutcome) -> str:
    """A few lines: what was done, what it cost, how to use it."""
    result, plan = outcome.result, outcome.plan
    if not result.ran:
        lines = [f"{plan.name}: nothing to do, all {len(result.skipped)} steps are done"]
    else:
        rest = "the others left alone" if outcome.partial else f"{len(result.skipped)} done before"
        counts = f"{len(result.ran)} steps run, {rest}"
        lines = [f"{plan.name}: built in {time_text(result.wall_s)} ({counts})"]
    compiles = sum(times.compiles for times in outcome.times.values())
    if compiles:
        cpu_s = sum(times.cpu_s or 0.0 for times in outcome.times.values())
        peak = max(times.peak_memory_mib or 0.0 for times in outcome.times.values())
        lines.append(
            f"  compiles     {compiles}, {cpu_s:.0f} s of CPU time, the largest took {_size(peak)}"
        )
        lines.append(f"  cache hits   {_hits(outcome)}")
        lines.append(f"  jobs         {plan.jobs_why}")
    if outcome.python:
        lines.append(f"  interpreter  {outcome.python}")
        target = shlex.quote(f"{plan.name}={outcome.folder.folder}")
        if outcome.has_torch:
            lines.append(f"  measure it   torchyard bench --target {target}")
    lines.append(f"  activate     . {shlex.quote(str(outcome.folder.folder / 'activate'))}")
    if outcome.folder.record_file.exists():
        lines.append(f"  record       {outcome.folder.record_file}")
    return printable("\n".join(lines))


def outcome_json(outcome: BuildOutcome) -> dict[str, Any]:
    """The same as data."""
    from torchyard.core.records import encode

    return {
        "build": outcome.plan.name,
        "folder": str(outcome.folder.folder),
        "ran": list(outcome.result.ran),
        "skipped": list(outcome.result.skipped),
        "wall_s": outcome.result.wall_s,
        "times": {name: encode(times) for name, times in outcome.times.items()},
        "jobs": outcome.plan.jobs,
        "jobs_why": outcome.plan.jobs_why,
        "python": outcome.python,
        "record": str(outcome.folder.record_file),
    }


def _size(mib: float) -> str:
    return f"{mib / _GIB_MIB:.1f} GiB" if mib >= _GIB_MIB else f"{mib:.0f} MiB"


def _hits(outcome: BuildOutcome) -> str:
    rates = [
        times.cache_hit_rate
        for times in outcome.times.values()
        if times.cache_hit_rate is not None and times.compiles
    ]
    if not rates:
        return "no compiler cache"
    return ", ".join(f"{rate:.0%}" for rate in rates)

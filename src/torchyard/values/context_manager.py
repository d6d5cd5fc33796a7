"""`with torchyard.profile_values() as v:`: profile a block of code in its own process.

    with torchyard.profile_values(deep=True) as v:
        for batch in batches:
            train(batch)
            v.step()
    v.prove(lambda: train(batch))  # repeats the work without profiling to confirm the findings
    v.save("waste")  # then: torchyard values show waste --format html --output waste.html

Torchyard must be installed in the environment of the program; `torchyard values SCRIPT` does not need that.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from torchyard.core.units import format_count
from torchyard.errors import UsageError
from torchyard.values.model import (
    ProfilingOptions,
    ValueProfile,
    new_profile_folder,
    read_profile,
    write_profile,
)
from torchyard.values.prices import priced, sites_to_time
from torchyard.values.profiled_run import chains_to_confirm, confirm, unconfirmed
from torchyard.values.source_excerpts import with_excerpts
from torchyard.values.target_run import NativeRun, read_native_run

PRICED_CALLS: Final = 4
"""Calls of the function with timed operators; calls without timers alternate with them."""

_MOST_NAMES: Final = 3
_MOST_MISSING: Final = 0.25
"""Share of the block's operators that the function may lack: some run only in the first step or only
under the profiler. Beyond this the function does different work and confirms nothing."""
_SECONDS_PER_FINDING: Final = 0.3


def confirm_here(
    profile: ValueProfile, function: Callable[[], Any], *, scratch: Path, timed_runs: int
) -> tuple[ValueProfile, NativeRun | None]:
    """Call the function without the profiler: once to record operators, then to measure time."""
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
    profiled, missing = _missing(profile, native)
    if len(missing) > _MOST_MISSING * len(profiled):
        return unconfirmed(profile, _missing_text(profiled, missing)), None
    confirmed = confirm(profile, native)
    if missing:
        confirmed = replace(confirmed, notes=(*confirmed.notes, _missing_text(profiled, missing)))
    return confirmed, native


def price_here(
    profile: ValueProfile, function: Callable[[], Any], native: NativeRun, *, scratch: Path
) -> ValueProfile:
    """Measure the cost of each finding in this process by calling the function with timers."""
    from torchyard.worker.values.pricing.fix_timing import price
    from torchyard.worker.values.pricing.native_run import NativeRunRecorder
    from torchyard.worker.values.program import Ending

    sites = sites_to_time(profile)
    if sites:
        timed = NativeRunRecorder(
            {"output": str(scratch / "sites.json"), "sites": sites, "sites_whole": True}
        )
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
        timed_run = read_native_run(scratch / "sites.json")
        steps = max(1, native.steps)
        native = replace(
            native,
            sites=timed_run.sites,
            site_steps=PRICED_CALLS * steps,
            other_ns=timed_run.other_ns,
            costs=timed_run.costs,
            steps_ns=tuple(one[0] / steps for one in took),
            steps_cpu_ns=tuple(one[1] / steps for one in took),
            step_faults=max(one[2] for one in took) / steps,
            recorded_whole=False,
        )
    prices = [price(finding.recipe, _SECONDS_PER_FINDING) for finding in profile.findings]
    return priced(profile, prices, native)


def _recorded(profile: ValueProfile, function: Callable[[], Any], output: Path) -> NativeRun:
    from torchyard.worker.values.pricing.native_run import NativeRunRecorder
    from torchyard.worker.values.program import Ending

    native = NativeRunRecorder(
        {"output": str(output), "wanted": chains_to_confirm(profile), "all_steps": True}
    )
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
    from torchyard.worker.values.pricing.native_run import finished_ns
    from torchyard.worker.values.pricing.site_times import page_faults

    faults, began_ns, began_cpu_ns = page_faults(), finished_ns(), time.process_time_ns()
    function()
    took_ns, took_cpu_ns = finished_ns() - began_ns, time.process_time_ns() - began_cpu_ns
    return took_ns, took_cpu_ns, page_faults() - faults


def _missing(profile: ValueProfile, native: NativeRun) -> tuple[set[str], list[str]]:
    """Return the operators of the block, and those that the function does not run."""
    ran = {name for item in native.chains for name in item.chain}
    profiled = {node.operator for node in profile.flow.nodes if not node.path}
    return profiled, sorted(profiled - ran)


def _missing_text(profiled: set[str], missing: list[str]) -> str:
    named = ", ".join(missing[:_MOST_NAMES]) + (" and others" if len(missing) > _MOST_NAMES else "")
    return (
        f"the function passed to prove() does not run {len(missing)} of the {len(profiled)} "
        f"profiled operators ({named})"
    )


class ValueProfiler:
    """Context manager that profiles the current thread; `profile` has the findings afterwards."""

    def __init__(self, **options: Any) -> None:
        try:
            self.options = ProfilingOptions(**options)
        except TypeError:
            valid = asdict(ProfilingOptions())
            unknown = ", ".join(sorted(set(options) - set(valid)))
            raise UsageError(
                f"torchyard.profile_values(): unknown option {unknown}",
                hint="valid options: " + ", ".join(valid),
            ) from None
        self._session: Any = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._profile: ValueProfile | None = None

    def __enter__(self) -> Self:
        from torchyard.worker.values.exchange import options_from
        from torchyard.worker.values.profiling_session import ProfilingSession

        self._folder = tempfile.TemporaryDirectory(prefix="torchyard-values-")
        output = str(Path(self._folder.name) / "profile.json")
        self._session = ProfilingSession(options_from(asdict(self.options)), output)
        self._session.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._session is None or self._folder is None:
            return
        self._session.stop("finished" if kind is None else "crashed")
        self._profile = with_excerpts(read_profile(Path(self._folder.name) / "profile.json"))
        self._folder.cleanup()

    def step(self) -> None:
        """Mark the end of a step; optimizer steps are detected without it."""
        self._session.step()

    def prove(
        self, function: Callable[[], Any], *, timed_runs: int = 1, price: bool = True
    ) -> ValueProfile:
        """Repeat the work of the block without the profiler and confirm each finding.

        The function is called `1 + timed_runs` times, with `price` 8 more times, including its side
        effects: pass one step, or the whole block if it has no steps. A finding is confirmed if its
        trials passed in the block and its operators run here, too. `price` measures what each finding
        costs.
        """
        profile = self.profile
        if not self.options.prove:
            raise UsageError(
                "findings cannot be proven: no trials ran while the block was profiled",
                hint="use torchyard.profile_values() without prove=False",
            )
        if not self.options.graph:
            raise UsageError(
                "findings cannot be proven: the flow graph, which is compared with the function, was not "
                "recorded",
                hint="use torchyard.profile_values() without graph=False",
            )
        if profile.state != "finished":
            raise UsageError("the block did not finish", hint="fix it and profile it again")
        with tempfile.TemporaryDirectory(prefix="torchyard-values-") as folder:
            scratch = Path(folder)
            profile, native = confirm_here(
                profile, function, scratch=scratch, timed_runs=timed_runs
            )
            if price and native is not None:
                profile = price_here(profile, function, native, scratch=scratch)
        self._profile = profile
        return profile

    def save(self, folder: str | Path) -> Path:
        """Write the profile to a new folder, for `torchyard values show`."""
        return write_profile(new_profile_folder(Path(folder)), self.profile)

    def report(self) -> str:
        """Return the text of `torchyard values`."""
        from torchyard.values.report.findings_text import values_text

        return values_text(self.profile)

    def __repr__(self) -> str:
        if self._profile is None:
            return "<ValueProfiler: not finished>"
        count = format_count(len(self._profile.findings), "finding")
        return f"<ValueProfiler: {count}, {self._profile.state}>"

    def _repr_html_(self) -> str:
        from markupsafe import escape

        text = repr(self) if self._profile is None else self.report()
        return f'<pre class="torchyard-result">{escape(text)}</pre>'

    @property
    def profile(self) -> ValueProfile:
        """The profile; available after the `with` block."""
        if self._profile is None:
            raise UsageError("the profile is not finished", hint="access it after the `with` block")
        return self._profile

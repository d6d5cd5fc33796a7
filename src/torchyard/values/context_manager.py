"""`with torchyard.values() as v:`: profile a block of code in its own process.

    import torchyard

    with torchyard.values(deep=True) as v:
        for batch in batches:
            train(batch)
            v.step()
    v.prove(lambda: train(batch))    # the same work again without profiling: confirms findings
    v.save("waste")          # then: torchyard values show waste --format html --output waste.html

Needs Torchyard in the environment of the program; `torchyard values SCRIPT` does not. The trials
of a finding ran during profiling. A proof also needs a native run: in a process of its own the
whole program runs again; here it is the callable that the caller passes to `prove`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from torchyard.errors import UsageError
from torchyard.values.confirmation import confirm, unconfirmed, wanted_chains
from torchyard.values.model import (
    ValueProfile,
    WatchOptions,
    new_profile_folder,
    read_profile,
    write_profile,
)
from torchyard.values.prices import priced, wanted_sites
from torchyard.values.source_excerpts import with_excerpts
from torchyard.values.target_run import NativeRun, read_native_run

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
    from torchyard.worker.values.pricing.fix_timing import price
    from torchyard.worker.values.pricing.native_run import Native
    from torchyard.worker.values.program import Ending

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
            other_ns=found.other_ns,
            costs=found.costs,
            steps_ns=tuple(one[0] / steps for one in took),
            steps_cpu_ns=tuple(one[1] / steps for one in took),
            step_faults=max(one[2] for one in took) / steps,
            recorded_whole=False,
        )
    prices = [price(found.recipe, _SECONDS_EACH) for found in profile.findings]
    return priced(profile, prices, native)


def _recorded(profile: ValueProfile, function: Callable[[], Any], output: Path) -> NativeRun:
    from torchyard.worker.values.pricing.native_run import Native
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
    from torchyard.worker.values.pricing.native_run import finished_ns
    from torchyard.worker.values.pricing.site_times import page_faults

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


class Values:
    """Watches the thread that entered it; afterwards `profile` has what was found."""

    def __init__(self, **options: Any) -> None:
        try:
            self.options = WatchOptions(**options)
        except TypeError:
            known = asdict(WatchOptions())
            unknown = ", ".join(sorted(set(options) - set(known)))
            raise UsageError(
                f"torchyard.values(): there is no option {unknown}",
                hint="options: " + ", ".join(known),
            ) from None
        self._session: Any = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._profile: ValueProfile | None = None

    def __enter__(self) -> Self:
        from torchyard.worker.values.exchange import options_from
        from torchyard.worker.values.profiling_session import Session

        self._folder = tempfile.TemporaryDirectory(prefix="torchyard-values-")
        output = str(Path(self._folder.name) / "watched.json")
        self._session = Session(options_from(asdict(self.options)), output)
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
        self._profile = with_excerpts(read_profile(Path(self._folder.name) / "watched.json"))
        self._folder.cleanup()

    def step(self) -> None:
        """A step of the program is over. Steps of optimisers are seen without it."""
        self._session.step()

    def prove(
        self, function: Callable[[], Any], *, timed_runs: int = 1, price: bool = True
    ) -> ValueProfile:
        """Call a function that does again what the block did, unwatched, and judge every finding.

        It is called `1 + timed_runs` times, and with `price` 8 times more, with its side effects:
        give it a step, or all that the block did where that has no steps. A finding whose trials
        passed in the block, and whose operators run here, too, is proven. `price` measures what each
        finding costs.
        """
        profile = self.profile
        if not self.options.prove:
            raise UsageError(
                "nothing was tried while the block was watched, so nothing can be proven",
                hint="use torchyard.values() without prove=False",
            )
        if not self.options.graph:
            raise UsageError(
                "the flow graph was not recorded: the function cannot be held against the block",
                hint="use torchyard.values() without graph=False",
            )
        if profile.state != "finished":
            raise UsageError("the block did not finish", hint="mend it and watch it again")
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
        """Keep the profile in a new folder, for `torchyard values show`."""
        return write_profile(new_profile_folder(Path(folder)), self.profile)

    @property
    def profile(self) -> ValueProfile:
        """What was found; after the block."""
        if self._profile is None:
            raise UsageError("the profile is not finished", hint="read it after the `with` block")
        return self._profile

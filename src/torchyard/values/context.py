"""`with torchyard.values() as v:` a profile of one's own code, in one's own process.

    import torchyard

    with torchyard.values(deep=True) as v:
        for batch in batches:
            train(batch)
            v.step()
    v.prove(lambda: train(batch))    # the same work once more, unwatched: it confirms findings
    v.save("waste")          # then: torchyard values show waste --format html --output waste.html

Needs Torchyard in the environment of the program; `torchyard values SCRIPT` does not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torchyard.core.values import ValueProfile
from torchyard.errors import UsageError
from torchyard.values.own_process import confirm_here, price_here
from torchyard.values.profile_file import new_profile_folder, read_profile, write_profile
from torchyard.values.request import WatchOptions
from torchyard.values.source_excerpts import with_excerpts

__all__ = ["Values"]


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
        from torchyard.worker.values.options import options_from
        from torchyard.worker.values.session import Session

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

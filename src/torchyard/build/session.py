"""One `torchyard build`: lock the folder, choose jobs and cache, run the plan, keep the record.

Joins the parts of this room; prints nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from torchyard.build.compile_watch import CompileWatch
from torchyard.build.compiler_cache import CacheDecision, choose_cache
from torchyard.build.environments import passed_through
from torchyard.build.failure import explain_failure
from torchyard.build.folder_lock import only_run, standing_on
from torchyard.build.layout import BuildFolder, YardHome
from torchyard.build.lock import Lock, write_lock
from torchyard.build.meter.history import History
from torchyard.build.meter.jobs import JobChoice
from torchyard.build.perform import StepPerformer
from torchyard.build.record import freeze_text, read_earlier, write_record
from torchyard.build.recording import RecordInputs, make_record
from torchyard.build.runner import Runner, RunResult, unfinished_steps
from torchyard.build.runtime import write_runtime_files
from torchyard.build.sandbox import Sandbox
from torchyard.build.selection import Selection
from torchyard.build.source_check import check_source
from torchyard.build.source_lock import source_lock
from torchyard.build.sync_tree import list_files
from torchyard.build.verify import RunInTarget, perform_verify
from torchyard.core.build_events import BuildEvent, BuildListener, ignore_build_events
from torchyard.core.build_plan import Plan, Step, Verify
from torchyard.core.build_record import RecipeIdentity, StepTimes, VerifyReport
from torchyard.core.recipe import Recipe
from torchyard.core.records import encode
from torchyard.errors import StepFailed
from torchyard.process.markers import sweep_orphans
from torchyard.results.durable import replace_file, to_json_text

__all__ = ["BuildSession"]

_CHANGE_SOURCE: Final = ("fetch", "update")
_COPY_SOURCE: Final = ("tree", "update-tree")


@dataclass(kw_only=True)
class BuildSession:
    """Runs one plan."""

    plan: Plan
    home: YardHome
    choice: JobChoice
    cache: str = "auto"
    listener: BuildListener = ignore_build_events
    selection: Selection = field(default_factory=Selection)
    keep_going: bool = False
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    identity: RecipeIdentity | None = None
    """What was asked for; without it no record is written."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    """Facts of the machine, for the record."""
    lock: Lock | None = None
    """What was fetched must be what it says."""
    bases: tuple[BuildFolder, ...] = ()
    """Builds that this one stands on; they stay as they are while it runs."""
    times: Mapping[str, StepTimes] = field(default_factory=dict)
    """What each step of the run cost; filled in by `run`."""
    _caches: dict[tuple[str, bool], tuple[CacheDecision, tuple[str, ...]]] = field(
        default_factory=dict
    )
    _cache_lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def folder(self) -> BuildFolder:
        """The build's folder."""
        return BuildFolder(folder=Path(self.plan.folder))

    def run(self) -> RunResult:
        """Run what is not done; failures are in the result, and Ctrl-C is raised."""
        below = [base.lock_file for base in self.bases]
        with only_run(self.folder.lock_file), standing_on(below):
            sweep_orphans()
            replace_file(self.folder.plan_file, to_json_text(encode(self.plan), indent=1) + "\n")
            if self.identity is not None:
                # With the cache: `rebuild` and `update` use the one that was asked for.
                asked = {**encode(self.identity), "cache": self.cache}
                replace_file(self.folder.request_file, to_json_text(asked, indent=1) + "\n")
                if self.lock is not None:
                    write_lock(self.folder.used_lock_file, self.lock)
                else:
                    self.folder.used_lock_file.unlink(missing_ok=True)
            watch = CompileWatch(
                plan=self.plan,
                folder=self.folder,
                choice=self.choice,
                history=History(folder=self.home.history),
                cache_for=self._cache_for,
                passed=passed_through(self.environ),
            )
            self.times = watch.times
            runner = Runner(
                plan=self.plan,
                folder=self.folder,
                performer=self._performer,
                explain=lambda step, performer, error: explain_failure(
                    self.plan, self.folder, step, performer, error
                ),
                watch=watch,
                listener=self.listener,
                selection=self.selection,
                keep_going=self.keep_going,
            )
            result = runner.run()
            if result.good and not unfinished_steps(self.plan, self.folder):
                self._finish(ran=bool(result.ran))
            return result

    def _finish(self, *, ran: bool) -> None:
        """Write what the build is used through, and its record, where they are not there yet."""
        folder = self.folder
        if self.identity is None or (not ran and folder.record_file.exists()):
            return
        python = write_runtime_files(self.plan, folder)
        last = self.plan.steps[-1]
        performer = self._performer(
            last, {**passed_through(self.environ), **dict(last.variables)}, lambda _: None
        )
        record = make_record(
            self.plan,
            RecordInputs(
                recipe=self.identity,
                times=self.times,
                machine=self.machine,
                python=str(python or ""),
                run=performer.run_in_target,
                earlier=read_earlier(folder.folder),
            ),
        )
        write_record(folder.folder, record)
        if record.packages:
            replace_file(folder.freeze_file, freeze_text(record))

    def _performer(
        self, step: Step, variables: Mapping[str, str], heard: Callable[[bytes], None]
    ) -> StepPerformer:
        return StepPerformer(
            step=step,
            folder=self.folder,
            variables=variables,
            verify=self._verify,
            heard=heard,
            guard=self._guard,
        )

    @contextmanager
    def _guard(self, performer: StepPerformer) -> Iterator[None]:
        """Steps that change or copy a source: other builds may be at the same one."""
        step = performer.step
        what = step.name.partition("/")[2]
        if what not in (*_CHANGE_SOURCE, *_COPY_SOURCE):
            yield
            return
        part = self.plan.component(step.component)
        text = f"waiting for another build that is at {part.source}"
        with source_lock(
            Path(part.source),
            alone=what in _CHANGE_SOURCE,
            stopped=lambda: performer.stopped,
            waiting=lambda: self.listener(BuildEvent(kind="note", step=step.name, text=text)),
        ):
            if what == "tree":
                check_source(part, self.lock)
            yield
            if what == "tree":
                # For an update: what the source has no longer goes, and what was built stays.
                list_files(Path(part.source), self.folder.listed(part.name))

    def _verify(self, action: Verify, step: Step, run: RunInTarget) -> None:
        component = self.plan.component(action.component)
        report = perform_verify(component, root=step.root, run=run)
        Path(action.report).parent.mkdir(parents=True, exist_ok=True)
        replace_file(Path(action.report), to_json_text(encode(report), indent=1) + "\n")
        for finding in report.findings:
            self.listener(
                BuildEvent(kind="note", step=step.name, text=f"{finding.level}: {finding.what}")
            )
        if not report.good:
            raise _not_good(report, action.report)

    def _cache_for(self, step: Step) -> tuple[CacheDecision, tuple[str, ...]]:
        recipe = self.plan.component(step.component).recipe
        key = (step.root, _has_precompiled_headers(recipe))
        with self._cache_lock:
            if key not in self._caches:
                self._caches[key] = self._choose_cache(step, precompiled=key[1])
                why = self._caches[key][0].why
                self.listener(
                    BuildEvent(kind="note", step=step.name, text=f"compiler cache: {why}")
                )
            return self._caches[key]

    def _choose_cache(
        self, step: Step, *, precompiled: bool
    ) -> tuple[CacheDecision, tuple[str, ...]]:
        if precompiled and self.cache == "auto":
            # ccache sees a precompiled header only with gcc's -fpch-preprocess, which CMake does
            # not pass: a changed header could be answered with an old object.
            return CacheDecision(choice=None, why="none, because of precompiled headers"), ()
        variables = {**passed_through(self.environ), **dict(step.variables)}
        shown = self.folder.shown_in(step.root)
        sandbox = Sandbox(root=step.root, network=False, writable=shown)
        argv, full = sandbox.command(("true",), folder=self.plan.folder, variables=variables)
        before = tuple(argv[:-1])
        decision = choose_cache(
            self.cache, variables=full, base_folder=self.folder.folder, before=before
        )
        return decision, before


def _has_precompiled_headers(recipe: Recipe) -> bool:
    return bool(recipe.options.get("USE_PRECOMPILED_HEADERS"))


def _not_good(report: VerifyReport, path: str) -> StepFailed:
    failures = [finding for finding in report.findings if finding.level == "failure"]
    first = failures[0]
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    return StepFailed(
        f"{report.component} was built, but does not pass its checks: {first.what}{more}",
        why=first.why,
        hint=first.mend or "see the report",
        log=path,
    )

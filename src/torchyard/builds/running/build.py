"""Plan and run a whole build: doctor, jobs, compiler cache, steps, record.

`plan_build` and `run_build` are what the commands call. `BuildSession` is one run in a locked build
folder: it chooses jobs and cache, runs the plan, and writes the record. Prints nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from torchyard.builds.activation import write_runtime_files
from torchyard.builds.build_folders import (
    BuildFolder,
    BuildsDirectory,
    base_build_locks,
    exclusive_run_lock,
    source_lock,
)
from torchyard.builds.compilers import discard_other_objects, with_compilers
from torchyard.builds.doctor.examination import can_build, examine
from torchyard.builds.environments.base_interpreter import base_builds, resolve_base
from torchyard.builds.environments.model import inherited_variables
from torchyard.builds.lockfile import Lock, apply_lock, check_source, read_lock, write_lock
from torchyard.builds.meter.compile_costs import History, JobChoice, parse_jobs, with_jobs
from torchyard.builds.meter.compiler_launcher import CacheDecision, choose_cache
from torchyard.builds.plan import (
    BuildEvent,
    BuildListener,
    Component,
    Plan,
    Step,
    Verify,
    fingerprints,
)
from torchyard.builds.planner import filled_environment, make_plan
from torchyard.builds.recipe_file import BuildRequest, ResolvedBuild, resolve
from torchyard.builds.record import (
    RecipeIdentity,
    StepTimes,
    VerifyReport,
    freeze_text,
    read_earlier,
    write_record,
)
from torchyard.builds.running.build_cache import BuildCache, is_replaced
from torchyard.builds.running.compile_progress import CompileMonitor
from torchyard.builds.running.recording import RecordInputs, make_record
from torchyard.builds.running.runner import (
    Runner,
    RunResult,
    Selection,
    read_state,
    touch,
    unfinished_steps,
)
from torchyard.builds.running.steps import StepPerformer, explain_failure
from torchyard.builds.running.sync_tree import list_files
from torchyard.builds.sandbox import Sandbox
from torchyard.builds.verify.target_python import RunInTarget
from torchyard.builds.verify.verification import perform_verify
from torchyard.core.records import encode
from torchyard.errors import MissingTool, StepFailed, TorchyardError
from torchyard.files.safe_writing import replace_file, replace_json
from torchyard.machine.facts import read_facts
from torchyard.machine.facts.isolation import read_limits
from torchyard.process.tree import sweep_orphans

_CHANGE_SOURCE: Final = ("fetch", "update")
_COPY_SOURCE: Final = ("tree", "update-tree")


@dataclass(kw_only=True)
class BuildSession:
    """One run of a plan in its locked build folder."""

    planned: PlannedBuild
    choices: BuildChoices
    listener: BuildListener
    identity: RecipeIdentity | None = None
    """The requested recipe and settings; without it no record is written."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    """Facts of the machine, for the record."""
    bases: tuple[BuildFolder, ...] = ()
    """Builds that this one uses as its base; they are locked while it runs."""
    times: Mapping[str, StepTimes] = field(default_factory=dict)
    """Cost of each step of the run; filled in by `run`."""
    _caches: dict[tuple[str, bool], tuple[CacheDecision, tuple[str, ...]]] = field(
        default_factory=dict
    )
    _cache_lock: threading.Lock = field(default_factory=threading.Lock)
    _reused: dict[str, bool] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        """The plan to run."""
        return self.planned.plan

    @property
    def folder(self) -> BuildFolder:
        """The build's folder."""
        return BuildFolder(folder=Path(self.plan.folder))

    def run(self) -> RunResult:
        """Run the unfinished steps; return failures in the result, raise KeyboardInterrupt."""
        base_locks = [base.lock_file for base in self.bases]
        with exclusive_run_lock(self.folder.lock_file), base_build_locks(base_locks):
            sweep_orphans()
            replace_json(self.folder.plan_file, encode(self.plan))
            if self.identity is not None:
                # With the requested cache, for `rebuild` and `update`.
                request = {**encode(self.identity), "cache": self.choices.cache}
                replace_json(self.folder.request_file, request)
                if self.planned.lock is not None:
                    write_lock(self.folder.used_lock_file, self.planned.lock)
                else:
                    self.folder.used_lock_file.unlink(missing_ok=True)
            watch = CompileMonitor(
                plan=self.plan,
                folder=self.folder,
                choice=self.planned.jobs,
                history=History(folder=self.planned.home.history),
                cache_for=self._cache_for,
                passed=inherited_variables(os.environ),
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
                selection=self.choices.selection,
                keep_going=self.choices.keep_going,
            )
            result = runner.run()
            if result.good and not unfinished_steps(self.plan, self.folder):
                self._finish(ran=bool(result.ran))
            return result

    def _finish(self, *, ran: bool) -> None:
        """Write activation script, interpreter and record unless they are up to date."""
        folder = self.folder
        if self.identity is None or (not ran and folder.record_file.exists()):
            return
        python = write_runtime_files(self.plan, folder)
        last = self.plan.steps[-1]
        variables = {**inherited_variables(os.environ), **dict(last.variables)}
        performer = self._performer(last, variables, lambda _: None)
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
        self, step: Step, variables: Mapping[str, str], on_output: Callable[[bytes], None]
    ) -> StepPerformer:
        if self._build_cache is not None and is_replaced(step) and self._restored(step.component):
            step = replace(step, actions=())
        return StepPerformer(
            step=step,
            folder=self.folder,
            variables=variables,
            verify=self._verify,
            on_output=on_output,
            guard=self._guard,
        )

    @cached_property
    def _build_cache(self) -> BuildCache | None:
        selected = self.choices.selection
        if not self.choices.build_cache or selected.force or selected.only or selected.start_from:
            return None
        place, home = self.choices.build_cache, self.planned.home
        if place.startswith(("http://", "https://")):
            return BuildCache(folder=home.downloads / "build-cache", home=home, address=place)
        return BuildCache(folder=Path(place).expanduser().absolute(), home=home)

    def _restored(self, name: str) -> bool:
        """Whether a component is restored from the build cache, which is done once."""
        assert self._build_cache is not None  # noqa: S101  # checked by the caller
        with self._cache_lock:
            if name not in self._reused:
                part = self.plan.component(name)
                key = self._build_cache.key(self.plan, part)
                entry, why = self._build_cache.find(key, self.plan) if key else (None, "")
                self.folder.restored(name).unlink(missing_ok=True)
                if entry is not None:
                    self._build_cache.restore(entry, self.plan, part)
                    why = f"restored from {entry.build_folder}, stored {entry.stored}"
                if why:
                    prefix = "build cache" if entry is not None else "build cache not used"
                    self.listener(BuildEvent(kind="note", step=name, text=f"{prefix}: {why}"))
                self._reused[name] = entry is not None
            return self._reused[name]

    def _store(self, part: Component, run: RunInTarget) -> None:
        """Store a verified component in the build cache, unless it came from there."""
        cache = self._build_cache
        if cache is None or self.folder.restored(part.name).exists():
            return
        key = cache.key(self.plan, part)
        why = (
            cache.store(key, self.plan, part, run) if key else "it is of a kind that is not stored"
        )
        text = f"build cache: not stored: {why}" if why else f"build cache: stored as {key[:12]}"
        self.listener(BuildEvent(kind="note", step=part.name, text=text))

    @contextmanager
    def _guard(self, performer: StepPerformer) -> Iterator[None]:
        """Remove objects of other compilers, and lock a source that other builds may share."""
        step = performer.step
        note = discard_other_objects(self.plan, step) if step.actions else ""
        if note:
            self.listener(BuildEvent(kind="note", step=step.name, text=note))
        what = step.name.partition("/")[2]
        if what not in (*_CHANGE_SOURCE, *_COPY_SOURCE):
            yield
            return
        part = self.plan.component(step.component)
        text = f"waiting for another build that uses {part.source}"
        with source_lock(
            Path(part.source),
            alone=what in _CHANGE_SOURCE,
            stopped=lambda: performer.stopped,
            waiting=lambda: self.listener(BuildEvent(kind="note", step=step.name, text=text)),
        ):
            if what == "tree":
                check_source(part, self.planned.lock)
            yield
            if what == "tree":
                # An update removes the files of this list that the new source lacks.
                list_files(Path(part.source), self.folder.listed(part.name))

    def _verify(self, action: Verify, step: Step, run: RunInTarget) -> None:
        component = self.plan.component(action.component)
        report = perform_verify(component, root=step.root, run=run)
        replace_json(Path(action.report), encode(report))
        for finding in report.findings:
            self.listener(
                BuildEvent(kind="note", step=step.name, text=f"{finding.level}: {finding.what}")
            )
        if not report.good:
            raise _verification_error(report, action.report)
        self._store(component, run)

    def _cache_for(self, step: Step) -> tuple[CacheDecision, tuple[str, ...]]:
        recipe = self.plan.component(step.component).recipe
        key = (step.root, bool(recipe.options.get("USE_PRECOMPILED_HEADERS")))
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
        if precompiled and self.choices.cache == "auto":
            # ccache tracks a precompiled header only with gcc's -fpch-preprocess, which CMake does
            # not pass: a changed header could produce a stale cache hit.
            return CacheDecision(choice=None, why="none, because of precompiled headers"), ()
        variables = {**inherited_variables(os.environ), **dict(step.variables)}
        shown = self.folder.shown_in(step.root)
        sandbox = Sandbox(root=step.root, network=False, writable=shown)
        argv, full = sandbox.command(("true",), folder=self.plan.folder, variables=variables)
        before = tuple(argv[:-1])
        decision = choose_cache(
            self.choices.cache, variables=full, base_folder=self.folder.folder, before=before
        )
        return decision, before


def _verification_error(report: VerifyReport, path: str) -> StepFailed:
    failures = [finding for finding in report.findings if finding.level == "failure"]
    first = failures[0]
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    return StepFailed(
        f"{report.component} was built, but failed verification: {first.what}{more}",
        why=first.why,
        hint=first.fix or "see the report",
        log=path,
    )


@dataclass(frozen=True, kw_only=True)
class BuildChoices:
    """How to build: name, jobs, cache, steps to run."""

    name: str = ""
    jobs: str = "auto"
    cache: str = "auto"
    build_cache: str = ""
    """Folder of finished components to reuse; empty for none."""
    lock_file: str = ""
    selection: Selection = field(default_factory=Selection)
    keep_going: bool = False
    doctor: bool = True
    touch: bool = False
    """Treat steps finished by an earlier plan as up to date."""


@dataclass(frozen=True, kw_only=True)
class PlannedBuild:
    """A plan with the request, recipes and lock it was made from."""

    request: BuildRequest
    resolved: ResolvedBuild
    home: BuildsDirectory
    plan: Plan
    jobs: JobChoice
    lock: Lock | None = None


@dataclass(frozen=True, kw_only=True)
class BuildOutcome:
    """The outcome of a run of a plan."""

    plan: Plan
    result: RunResult
    times: Mapping[str, StepTimes]
    folder: BuildFolder
    partial: bool = False
    """Only selected steps were considered (`--only`)."""

    @property
    def python(self) -> str:
        """Path of the script that starts the build's interpreter; empty if there is none."""
        script = self.folder.folder / "bin" / "python"
        return str(script) if script.exists() else ""

    @property
    def has_torch(self) -> bool:
        """Whether torch is installed in the environment of the build."""
        record = read_earlier(self.folder.folder)
        return record is not None and any(item.name == "torch" for item in record.packages)

    @property
    def errors(self) -> tuple[TorchyardError, ...]:
        """Errors of the failed steps."""
        return tuple(self.result.failed.values())


def plan_build(request: BuildRequest, choices: BuildChoices) -> PlannedBuild:
    """Resolve recipes, apply the lock, make the plan and choose the jobs; change nothing."""
    home = BuildsDirectory.default()
    resolved = _with_named_base(resolve(request), home)
    lock = read_lock(Path(choices.lock_file)) if choices.lock_file else None
    if lock is not None:
        resolved = apply_lock(resolved, lock)
    plan = make_plan(request, home=home, name=choices.name, resolved=resolved)
    table = filled_environment(resolved, home=home, name=plan.name, machine=request.machine)
    resolved = replace(resolved, recipe=replace(resolved.recipe, environment=table))
    plan = with_compilers(plan, resolved.environment.use)
    plan, jobs = with_jobs(plan, parse_jobs(choices.jobs), home=home, limits=read_limits())
    return PlannedBuild(
        request=request, resolved=resolved, home=home, plan=plan, jobs=jobs, lock=lock
    )


def _with_named_base(build: ResolvedBuild, home: BuildsDirectory) -> ResolvedBuild:
    """Replace the base `build:NAME` by the path of that build's interpreter."""
    recipe = build.recipe
    base = resolve_base(recipe.environment.base, home)
    environment = replace(recipe.environment, base=base)
    return replace(build, recipe=replace(recipe, environment=environment))


def run_build(
    planned: PlannedBuild, choices: BuildChoices, listener: BuildListener
) -> BuildOutcome:
    """Check the prerequisites, then run the unfinished steps."""
    if choices.touch:
        _touch(planned.plan, listener)
    unfinished = unfinished_steps(
        planned.plan, BuildFolder(folder=Path(planned.plan.folder)), choices.selection
    )
    _check_missing(planned.plan, unfinished)
    # Checking the prerequisites takes time: only where something will be compiled.
    if choices.doctor and any(
        step.compiles and step.name in unfinished for step in planned.plan.steps
    ):
        _check_prerequisites(planned, listener)
    session = BuildSession(
        planned=planned,
        choices=choices,
        listener=listener,
        identity=RecipeIdentity(
            name=planned.request.recipe,
            variant=planned.resolved.recipe.variant,
            version=planned.resolved.recipe.version,
            settings={
                component: dict(values) for component, values in planned.request.settings.items()
            },
        ),
        machine=read_facts(),
        bases=base_builds(planned.resolved.recipe.environment.base, planned.home),
    )
    result = session.run()
    return BuildOutcome(
        plan=planned.plan,
        result=result,
        times=session.times,
        folder=session.folder,
        partial=bool(choices.selection.only),
    )


def _touch(plan: Plan, listener: BuildListener) -> None:
    folder = BuildFolder(folder=Path(plan.folder))
    step_fingerprints = fingerprints(plan)
    for step in plan.steps:
        if step.counts and touch(step, folder.state(step.name), step_fingerprints[step.name]):
            state = read_state(folder.state(step.name))
            done = state is not None and state.status == "done"
            text = "treated as up to date" if done else "resumes where it was interrupted"
            listener(BuildEvent(kind="note", step=step.name, text=text))


def _check_missing(plan: Plan, unfinished: tuple[str, ...]) -> None:
    """Raise MissingTool if the environment has to be created and cannot be."""
    if plan.missing and any(name.startswith("environment/") for name in unfinished):
        raise MissingTool(
            f"the environment of this build requires {plan.missing[0]}",
            why="; ".join(plan.missing[1:]),
            hint="install it, or choose another environment with --set environment.use=...",
        )


def _check_prerequisites(planned: PlannedBuild, listener: BuildListener) -> None:
    findings = examine(
        planned.plan, environment=planned.resolved.environment, tool_cache=planned.home.tools
    )
    for finding in findings:
        if finding.severity != "notes":
            fix = f"; fix: {finding.fix}" if finding.fix else ""
            listener(BuildEvent(kind="note", text=f"doctor: {finding.what}{fix}"))
    if not can_build(findings):
        first = next(finding for finding in findings if finding.severity == "blocks")
        raise MissingTool(
            f"this build cannot succeed: {first.what}",
            why=first.why,
            hint=f"{first.fix or 'see torchyard doctor'}; --no-doctor skips this check",
        )

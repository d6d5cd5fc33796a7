"""A whole build: plan, doctor, steps, record. Joins the build room with the machine's facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from torchyard.build.components import BuildRequest, ResolvedBuild, resolve
from torchyard.build.doctor import can_build, examine
from torchyard.build.environments.base import builds_below, named_base
from torchyard.build.job_plan import parse_jobs, with_jobs
from torchyard.build.layout import BuildFolder, YardHome
from torchyard.build.lock import Lock, apply_lock, read_lock
from torchyard.build.meter.jobs import JobChoice
from torchyard.build.planner import make_plan
from torchyard.build.record import read_earlier
from torchyard.build.runner import RunResult, unfinished_steps
from torchyard.build.selection import Selection
from torchyard.build.session import BuildSession
from torchyard.build.step_state import read_state, touch
from torchyard.core.build_events import BuildEvent, BuildListener
from torchyard.core.build_plan import Plan, fingerprints
from torchyard.core.build_record import RecipeIdentity, StepTimes
from torchyard.errors import MissingTool, TorchyardError
from torchyard.machine.limits import read_limits
from torchyard.machine.run_facts import read_facts

__all__ = ["BuildChoices", "BuildOutcome", "PlannedBuild", "plan_build", "run_build"]


@dataclass(frozen=True, kw_only=True)
class BuildChoices:
    """How to build, as opposed to what."""

    name: str = ""
    jobs: str = "auto"
    cache: str = "auto"
    lock_file: str = ""
    selection: Selection = field(default_factory=Selection)
    keep_going: bool = False
    doctor: bool = True
    touch: bool = False
    """Take what earlier plans made for done."""


@dataclass(frozen=True, kw_only=True)
class PlannedBuild:
    """A plan with everything that was looked at to make it."""

    request: BuildRequest
    resolved: ResolvedBuild
    home: YardHome
    plan: Plan
    jobs: JobChoice
    lock: Lock | None = None


@dataclass(frozen=True, kw_only=True)
class BuildOutcome:
    """What a run of a plan came to."""

    plan: Plan
    result: RunResult
    times: Mapping[str, StepTimes]
    folder: BuildFolder
    partial: bool = False
    """Only some steps were asked for."""

    @property
    def python(self) -> str:
        """What starts the interpreter of the build; empty where it has none."""
        script = self.folder.folder / "bin" / "python"
        return str(script) if script.exists() else ""

    @property
    def has_torch(self) -> bool:
        """Whether the build can be measured: its environment sees a torch."""
        record = read_earlier(self.folder.folder)
        return record is not None and any(item.name == "torch" for item in record.packages)

    @property
    def errors(self) -> tuple[TorchyardError, ...]:
        """The failed steps' errors."""
        return tuple(self.result.failed.values())


def plan_build(request: BuildRequest, choices: BuildChoices) -> PlannedBuild:
    """Resolve recipes, apply the lock, make the plan, choose the jobs; changes nothing."""
    home = YardHome.default()
    resolved = _with_named_base(resolve(request), home)
    lock = read_lock(Path(choices.lock_file)) if choices.lock_file else None
    if lock is not None:
        resolved = apply_lock(resolved, lock)
    plan = make_plan(request, home=home, name=choices.name, resolved=resolved)
    plan, jobs = with_jobs(plan, parse_jobs(choices.jobs), home=home, limits=read_limits())
    return PlannedBuild(
        request=request, resolved=resolved, home=home, plan=plan, jobs=jobs, lock=lock
    )


def _with_named_base(build: ResolvedBuild, home: YardHome) -> ResolvedBuild:
    """`build:NAME` as the path of that build's interpreter, for the plan and for the doctor."""
    recipe = build.recipe
    base = named_base(recipe.environment.base, home)
    environment = replace(recipe.environment, base=base)
    return replace(build, recipe=replace(recipe, environment=environment))


def run_build(
    planned: PlannedBuild, choices: BuildChoices, listener: BuildListener
) -> BuildOutcome:
    """Run what is not done; the doctor speaks first, and stops what cannot work."""
    if choices.touch:
        _touch(planned.plan, listener)
    todo = unfinished_steps(
        planned.plan, BuildFolder(folder=Path(planned.plan.folder)), choices.selection
    )
    _check_missing(planned.plan, todo)
    # The doctor is worth the wait only where something will be compiled.
    if choices.doctor and any(step.compiles and step.name in todo for step in planned.plan.steps):
        _ask_doctor(planned, listener)
    session = BuildSession(
        plan=planned.plan,
        home=planned.home,
        choice=planned.jobs,
        cache=choices.cache,
        listener=listener,
        selection=choices.selection,
        keep_going=choices.keep_going,
        identity=RecipeIdentity(
            name=planned.request.recipe,
            variant=planned.resolved.recipe.variant,
            version=planned.resolved.recipe.version,
            settings={
                component: dict(values) for component, values in planned.request.settings.items()
            },
        ),
        machine=read_facts(),
        lock=planned.lock,
        bases=builds_below(planned.resolved.recipe.environment.base, planned.home),
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
    prints = fingerprints(plan)
    for step in plan.steps:
        if step.counts and touch(step, folder.state(step.name), prints[step.name]):
            state = read_state(folder.state(step.name))
            done = state is not None and state.status == "done"
            text = "taken as it is" if done else "goes on where it was cut off"
            listener(BuildEvent(kind="note", step=step.name, text=text))


def _check_missing(plan: Plan, todo: tuple[str, ...]) -> None:
    """The environment must be made, and cannot be made here."""
    if plan.missing and any(name.startswith("environment/") for name in todo):
        raise MissingTool(
            f"the environment of this build needs {plan.missing[0]}",
            why="; ".join(plan.missing[1:]),
            hint="install it, or choose another environment with --set environment.use=...",
        )


def _ask_doctor(planned: PlannedBuild, listener: BuildListener) -> None:
    findings = examine(
        planned.plan, environment=planned.resolved.environment, tool_cache=planned.home.tools
    )
    for finding in findings:
        if finding.severity != "notes":
            mend = f"; {finding.mend}" if finding.mend else ""
            listener(BuildEvent(kind="note", text=f"doctor: {finding.what}{mend}"))
    if not can_build(findings):
        first = next(finding for finding in findings if finding.severity == "blocks")
        raise MissingTool(
            f"this build can't work: {first.what}",
            why=first.why,
            hint=f"{first.mend or 'torchyard doctor says more'}; --no-doctor builds all the same",
        )

"""Run the steps of a plan that are not done, in parallel where they do not depend on each other.

The state of each step (done, its fingerprint, its cost) is kept on disk, so that an interrupted run
resumes where it stopped. `steps_to_run` decides which steps must run: unfinished ones, requested
ones, and those that depend on them. `steps` executes a single step.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, Protocol

from torchyard.builds.build_folders import BuildFolder
from torchyard.builds.plan import BuildEvent, BuildListener, Plan, Step, accepted_fingerprints
from torchyard.builds.running.steps import CommandFailed, StepPerformer
from torchyard.core.records import decode, encode, nearest_hint
from torchyard.errors import StepFailed, TorchyardError, UsageError
from torchyard.files.safe_writing import replace_json


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Steps selected by the user."""

    force: bool = False
    """Run all steps, finished ones included; with `start_from`, those and their dependents."""
    start_from: tuple[str, ...] = ()
    """Run these steps and everything that depends on them."""
    only: tuple[str, ...] = ()
    """Run only these steps."""


def find_step(plan: Plan, name: str, *, where: str) -> Step:
    """Return a step by its full name, or by the part after the slash if that is unique."""
    matching = [
        step for step in plan.steps if step.name == name or step.name.partition("/")[2] == name
    ]
    exact = [step for step in matching if step.name == name]
    if len(exact or matching) == 1:
        return (exact or matching)[0]
    if matching:
        names = ", ".join(step.name for step in matching)
        raise UsageError(f"{where}: {name!r} matches several steps", hint=f"use one of {names}")
    raise UsageError(
        f"{where}: there is no step {name!r}",
        hint=nearest_hint(name, [step.name for step in plan.steps], what="step"),
    )


def steps_to_run(
    plan: Plan, selection: Selection, *, fresh: Callable[[Step], bool]
) -> tuple[str, ...]:
    """Return the names of the steps to run, in the order of the plan."""
    if selection.only:
        chosen = {find_step(plan, name, where="--only").name for name in selection.only}
        _check_needs(plan, chosen, fresh)
        return tuple(step.name for step in plan.steps if step.name in chosen)
    forced = {find_step(plan, name, where="--from").name for name in selection.start_from}
    # With --from, --force must not affect earlier steps: a new working copy would lose all objects.
    everything = selection.force and not forced
    running: set[str] = set()
    counting = {step.name for step in plan.steps if step.counts}
    for step in plan.steps:
        follows = any(need in running and need in counting for need in step.needs)
        if everything or step.name in forced or follows or not fresh(step):
            running.add(step.name)
    return _with_removed_sources(plan, running)


def _with_removed_sources(plan: Plan, running: set[str]) -> tuple[str, ...]:
    """Add the steps that recreate removed sources, where a step that runs needs them."""
    for step in reversed(plan.steps):
        if step.name not in running:
            continue
        for name in step.needs:
            need = next(item for item in plan.steps if item.name == name)
            if not need.kept and not all(Path(path).exists() for path in need.creates):
                running.add(name)
    return tuple(step.name for step in plan.steps if step.name in running)


def _check_needs(plan: Plan, chosen: Collection[str], fresh: Callable[[Step], bool]) -> None:
    steps = {step.name: step for step in plan.steps}
    for name in chosen:
        for need in steps[name].needs:
            if need not in chosen and not fresh(steps[need]):
                raise UsageError(
                    f"--only {name}: the step {need}, which it depends on, is not done",
                    hint=f"omit --only, or add --only {need}",
                )


StepStatus = Literal["running", "done", "failed", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class StepState:
    """The last run of a step."""

    step: str
    fingerprint: str
    status: StepStatus
    started_at: float
    first_started_at: float = 0.0
    """Start of the first interrupted attempt with this fingerprint; 0: unknown."""
    wall_s: float = 0.0
    earlier_s: float = 0.0
    """Total time of earlier interrupted attempts with this fingerprint."""
    exit_code: int | None = None
    detail: str = ""


def read_state(path: Path) -> StepState | None:
    """Return the state; None if it is missing or unreadable: the step then runs again."""
    try:
        return decode(StepState, json.loads(path.read_text()), where=str(path), strict=False)
    except (OSError, ValueError, UsageError):
        return None


def write_state(path: Path, state: StepState) -> None:
    """Write the state atomically."""
    replace_json(path, encode(state))


def touch(step: Step, path: Path, fingerprint: str) -> bool:
    """Mark the result of an earlier plan's step as up to date; return False if there is none.

    An interrupted step resumes at the next run; only its time is kept.
    """
    state = read_state(path)
    if state is None or state.fingerprint == fingerprint:
        return False
    if state.status == "done" and not all(
        Path(path_created).exists() for path_created in step.creates
    ):
        return False
    write_state(path, replace(state, fingerprint=fingerprint))
    return True


def is_fresh(step: Step, state: StepState | None, accepted: Collection[str]) -> bool:
    """Whether the step is done with one of the fingerprints and its files still exist."""
    return (
        state is not None
        and state.status == "done"
        and state.fingerprint in accepted
        and (not step.kept or all(Path(path).exists() for path in step.creates))
    )


_MAX_PARALLEL_STEPS: Final = 4
"""Compiles of parallel steps share the job slots of the meter, so cores are not oversubscribed."""


class StepMonitor(Protocol):
    """Observer of running steps: progress and compile costs."""

    def begin(self, step: Step, since: float) -> Mapping[str, str]:
        """Return the variables of a step that starts; `since` is the time of its first attempt."""
        ...

    def on_output(self, step: Step, output: bytes) -> BuildEvent | None:
        """Process output of the step; return a progress event, or None."""
        ...

    def end(self, step: Step, wall_s: float, *, whole: bool) -> None:
        """Process the end of the step; `whole` is False if it did not finish."""
        ...


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of a run of a plan."""

    ran: tuple[str, ...]
    skipped: tuple[str, ...]
    failed: Mapping[str, TorchyardError]
    blocked: tuple[str, ...]
    """Steps that could not start because a step they depend on failed."""
    wall_s: float

    @property
    def good(self) -> bool:
        """Whether all steps to run are done."""
        return not self.failed and not self.blocked


def unfinished_steps(
    plan: Plan, folder: BuildFolder, selection: Selection | None = None
) -> tuple[str, ...]:
    """Return the names of the steps that a run would execute now."""
    step_fingerprints = accepted_fingerprints(plan)

    def fresh(step: Step) -> bool:
        return is_fresh(step, read_state(folder.state(step.name)), step_fingerprints[step.name])

    return steps_to_run(plan, selection or Selection(), fresh=fresh)


@dataclass(kw_only=True)
class Runner:
    """One run of a plan in its folder."""

    plan: Plan
    folder: BuildFolder
    performer: Callable[[Step, Mapping[str, str], Callable[[bytes], None]], StepPerformer]
    explain: Callable[[Step, StepPerformer, CommandFailed], StepFailed]
    watch: StepMonitor
    listener: BuildListener
    selection: Selection = field(default_factory=Selection)
    keep_going: bool = False
    _active: dict[str, StepPerformer] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> RunResult:
        """Run the selected steps; a failed step ends the run unless `keep_going`.

        Ctrl-C stops the running steps, marks them as interrupted and is raised again.
        """
        started = time.monotonic()
        step_fingerprints = accepted_fingerprints(self.plan)
        chosen = unfinished_steps(self.plan, self.folder, self.selection)
        skipped = tuple(step.name for step in self.plan.steps if step.name not in chosen)
        for name in skipped:
            self._renew(name, step_fingerprints[name])
            self.listener(BuildEvent(kind="skip", step=name))
        done, failed = self._run_all(chosen, step_fingerprints)
        blocked = tuple(name for name in chosen if name not in done and name not in failed)
        return RunResult(
            ran=tuple(done),
            skipped=skipped,
            failed=failed,
            blocked=blocked,
            wall_s=time.monotonic() - started,
        )

    def _renew(self, name: str, accepted: tuple[str, ...]) -> None:
        """Give a finished step the current version of its fingerprint."""
        path = self.folder.state(name)
        state = read_state(path)
        if state is not None and state.fingerprint in accepted[1:]:
            write_state(path, replace(state, fingerprint=accepted[0]))

    def _run_all(
        self, chosen: tuple[str, ...], step_fingerprints: Mapping[str, tuple[str, ...]]
    ) -> tuple[list[str], dict[str, TorchyardError]]:
        steps = {step.name: step for step in self.plan.steps}
        prerequisites = _all_needs(self.plan)
        waiting, running = list(chosen), set[str]()
        done: list[str] = []
        failed: dict[str, TorchyardError] = {}
        ended: queue.SimpleQueue[tuple[str, BaseException | None]] = queue.SimpleQueue()
        try:
            while True:
                if not failed or self.keep_going:
                    for name in list(waiting):
                        unmet = (prerequisites[name] & set(chosen)) - set(done)
                        if len(running) < _MAX_PARALLEL_STEPS and not unmet:
                            waiting.remove(name)
                            running.add(name)
                            self._start(steps[name], step_fingerprints[name], ended)
                if not running:
                    return done, failed
                name, error = self._next_ended(ended)
                running.discard(name)
                if error is None:
                    done.append(name)
                else:
                    failed[name] = _expected_error(error)
        except BaseException:
            self._stop_all()
            raise

    @staticmethod
    def _next_ended(
        ended: queue.SimpleQueue[tuple[str, BaseException | None]],
    ) -> tuple[str, BaseException | None]:
        while True:  # the timeout lets Ctrl-C through
            with suppress(queue.Empty):
                return ended.get(timeout=0.5)

    def _start(
        self,
        step: Step,
        accepted: tuple[str, ...],
        ended: queue.SimpleQueue[tuple[str, BaseException | None]],
    ) -> None:
        def work() -> None:
            try:
                self._run_step(step, accepted)
            except BaseException as error:  # noqa: BLE001  # handed to the waiting thread
                ended.put((step.name, error))
            else:
                ended.put((step.name, None))

        threading.Thread(target=work, name=f"step-{step.name}", daemon=True).start()

    def _run_step(self, step: Step, accepted: tuple[str, ...]) -> None:
        state = self._begin_state(step, accepted)
        write_state(self.folder.state(step.name), state)
        self.listener(BuildEvent(kind="start", step=step.name, text=step.title))
        started = time.monotonic()
        variables = self.watch.begin(step, state.first_started_at)

        def on_output(output: bytes) -> None:
            event = self.watch.on_output(step, output)
            if event is not None:
                self.listener(event)

        performer = self.performer(step, variables, on_output)
        with self._lock:
            self._active[step.name] = performer
        status: StepStatus = "failed"
        detail, exit_code = "", None
        try:
            performer.perform()
            status = "done"
        except CommandFailed as error:
            exit_code = error.command_exit_code
            if error.stopped:
                status = "interrupted"
                raise
            explained = self.explain(step, performer, error)
            detail = explained.why or explained.what
            raise explained from error
        except TorchyardError as error:
            detail = error.what
            raise
        finally:
            wall_s = time.monotonic() - started
            try:
                self.watch.end(step, wall_s, whole=status == "done")
                self._write_end(state, status, wall_s, exit_code, detail)
            finally:
                # Only after the state is written: the process exits once no step is active.
                with self._lock:
                    self._active.pop(step.name, None)
            self.listener(
                BuildEvent(
                    kind="done" if status == "done" else "failed",
                    step=step.name,
                    text=detail,
                    elapsed_s=wall_s,
                )
            )

    def _begin_state(self, step: Step, accepted: tuple[str, ...]) -> StepState:
        """Return the state of a starting step, with the time of its interrupted attempts."""
        now = time.time()
        state = StepState(
            step=step.name,
            fingerprint=accepted[0],
            status="running",
            started_at=now,
            first_started_at=now,
        )
        earlier = read_state(self.folder.state(step.name))
        if earlier is None or earlier.fingerprint not in accepted or earlier.status == "done":
            return state
        wall_s = earlier.wall_s
        if earlier.status == "running":  # killed: the log was last written then
            with suppress(OSError):
                last = self.folder.log(step.name).stat().st_mtime
                wall_s = max(last - earlier.started_at, 0.0)
        return replace(
            state,
            first_started_at=earlier.first_started_at or earlier.started_at,
            earlier_s=earlier.earlier_s + wall_s,
        )

    def _write_end(
        self,
        state: StepState,
        status: StepStatus,
        wall_s: float,
        exit_code: int | None,
        detail: str,
    ) -> None:
        # A full disk must not hide the error of the step.
        with suppress(TorchyardError):
            write_state(
                self.folder.state(state.step),
                replace(state, status=status, wall_s=wall_s, exit_code=exit_code, detail=detail),
            )

    def _stop_all(self) -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with self._lock:
                active = list(self._active.values())
            if not active:
                return
            for performer in active:
                performer.stop()
            time.sleep(0.05)


def _expected_error(error: BaseException) -> TorchyardError:
    """Return the error of a step; raise it again if it is a bug."""
    if isinstance(error, TorchyardError):
        return error
    raise error


def _all_needs(plan: Plan) -> Mapping[str, frozenset[str]]:
    """Return the transitive dependencies of each step: a step in between may be done already."""
    needs: dict[str, frozenset[str]] = {}
    for step in plan.steps:
        needs[step.name] = frozenset(step.needs).union(*(needs[name] for name in step.needs))
    return needs

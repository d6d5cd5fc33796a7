"""Execute a sweep: prepare its folder, run open cells, and join them into runs.

Shared by `torchyard sweep` and `torchyard.sweep`; prints nothing. Cells of a local sweep are separate
processes that share template processes and compiled artifacts, whose places are in the environment
that they inherit.

The driver submits cells to an executor, records how they ended, and retries them. All state is in the
sweep's folder and in the executor. When a driver is killed, the next one continues and repeats no
finished cell.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from torchyard.bench.launch_templates import IMPORT_ORDER, modules_of
from torchyard.bench.target_checks import check_devices
from torchyard.machine.system.core_reservation import CoreReservation
from torchyard.process.templates import TemplatePool
from torchyard.process.tree import confined
from torchyard.results.directory import new_run_folder, runs_home
from torchyard.results.run_reader import Run, read_run
from torchyard.sweep.executors.interface import Ended, Executor, Job, open_executor
from torchyard.sweep.executors.local import reservation_of
from torchyard.sweep.folder import HEARTBEAT_S, LOST_S, SweepFolder, sweeps_home
from torchyard.sweep.join import join_sweep
from torchyard.sweep.launch_order import LaunchOrder
from torchyard.sweep.model import CellStatus, SweepPlan, SweepSummary, SweepView
from torchyard.sweep.summary import sweep_summary


@contextmanager
def shared_templates(folder: SweepFolder) -> Iterator[None]:
    """Provide templates to the cells that are started inside the block, unless they run elsewhere."""
    plan = folder.plan
    forks = any(cell.study.settings.start != "fresh" for cell in plan.cells)
    if plan.executor.name != "local" or not forks or sys.platform != "linux":
        yield
        return
    names = dict.fromkeys(
        name
        for cell in plan.cells
        for workload in cell.study.workloads
        for name in modules_of(workload, cell.study.variants)
    )
    modules = sorted(names, key=IMPORT_ORDER.index)
    with TemplatePool(cache=folder.folder / "cache", modules=modules) as pool:
        variables = pool.serve()
        os.environ.update(variables)
        try:
            yield
        finally:
            for name in variables:
                os.environ.pop(name, None)


def executor_of(
    folder: SweepFolder,
    *,
    first_launch_s: Mapping[str, float] | None = None,
    deadline_s: float = math.inf,
    reserved: Sequence[int] = (),
) -> Executor:
    """Open the executor of the sweep's plan.

    `first_launch_s` has the expected durations of first launches by cell, where known; `deadline_s` is
    the end of the time budget (`time.monotonic`); `reserved` are the CPUs of the timed cell.
    """
    cells = folder.plan.cells
    return open_executor(
        folder.plan.executor,
        folder.folder,
        # With this interpreter, which cluster nodes must see, too.
        lambda cell: [sys.executable, "-m", "torchyard", "sweep-cell", str(folder.folder), cell],
        folder.log_path,
        limit_s=folder.plan.limits.cell_s,
        order=LaunchOrder(
            {cell.id: cell.study.budget for cell in cells},
            seed=next((cell.study.settings.seed for cell in cells), 0),
            first_launch_s=first_launch_s,
            longest_first=bool(reserved) and math.isinf(deadline_s),
        ),
        deadline_s=deadline_s,
        reserved=reserved,
        nodes=max(one.nodes for cell in cells for one in cell.study.workloads),
    )


def check_before_running(plan: SweepPlan) -> None:
    """Raise an error if the tools of the cluster, or a device of this machine, are missing."""
    if plan.executor.name == "slurm":
        from torchyard.sweep.executors.slurm.job_states import check_tools

        check_tools()
    else:
        check_devices(cell.study for cell in plan.cells)


def create_folder(plan: SweepPlan, folder: Path | None) -> SweepFolder:
    """Create the folder of a new sweep, by default in the sweeps directory."""
    return SweepFolder.create(folder or new_run_folder(sweeps_home()), plan)


@dataclass(kw_only=True)
class SweepExecution:
    """One execution of a sweep and its results."""

    folder: SweepFolder
    expected_s: Mapping[str, float] = field(default_factory=dict)
    """Expected durations of cells by id, where known."""
    first_launch_s: Mapping[str, float] = field(default_factory=dict)
    """Expected durations of first launches by cell id, where known."""
    deadline_s: float = math.inf
    """End of the time budget (`time.monotonic`)."""
    take_over: bool = False
    """Whether to measure cells here that other processes may still run."""
    home: Path | None = None
    """Parent folder of joined runs; None: the results directory."""
    statuses: Sequence[CellStatus] = ()
    runs: dict[str, Run] = field(default_factory=dict)
    """The joined runs by name; empty if cells are still open, unless the time budget has ended."""
    notes: tuple[str, ...] = ()
    """Remarks of the executor."""
    out_of_time: bool = False
    """Whether the time budget ended before every cell had a finished launch."""
    detach_message: str = ""
    """What happens to running cells after Ctrl-C."""

    def __post_init__(self) -> None:
        plan = self.folder.plan
        is_local = plan.executor.name == "local"
        self._cores = reservation_of(plan) if is_local else CoreReservation()
        self._executor = executor_of(
            self.folder,
            first_launch_s=self.first_launch_s,
            deadline_s=self.deadline_s,
            reserved=self._cores.timed,
        )
        self.notes = tuple(getattr(self._executor, "notes", ()))

    def run(self, listener: Callable[[SweepView], None]) -> None:
        """Run the open cells and join all; after KeyboardInterrupt, `statuses` are up to date."""
        changed = any(status.is_open for status in self.folder.statuses())
        driver = SweepDriver(
            self.folder,
            self._executor,
            listener=listener,
            expected_s=self.expected_s,
            take_over=self.take_over,
            deadline_s=self.deadline_s,
        )
        try:
            with ExitStack() as stack:
                if self._cores.timed:  # cells and templates inherit it
                    stack.enter_context(confined(self._cores.preparing))
                stack.enter_context(shared_templates(self.folder))
                self.statuses = driver.run()
        except KeyboardInterrupt:
            self.statuses = self.folder.statuses()
            self.detach_message = driver.detach_message
            raise
        is_open = [status.is_open for status in self.statuses]
        self.out_of_time = any(is_open) and getattr(self._executor, "out_of_time", False)
        if not any(is_open) or (self.out_of_time and not all(is_open)):
            self._join(again=changed)

    def summary(self) -> SweepSummary:
        """Summarize the cells and the joined runs."""
        return sweep_summary(
            self.folder.plan,
            self.statuses,
            list(self.runs.values()),
            folders=[self.folder.folder] * len(self.statuses),
        )

    def _join(self, *, again: bool) -> None:
        """Join the cells into runs, or use the runs that an earlier driver joined."""
        joined = {name: Path(path) for name, path in self.folder.runs().items()}
        if not joined or again or not all(path.is_dir() for path in joined.values()):
            joined = join_sweep(self.folder, self.home or runs_home())
            self.folder.save_runs({name: str(path) for name, path in joined.items()})
        self.runs = {name: read_run(path) for name, path in joined.items()}


SweepListener = Callable[[SweepView], None]
PAUSE_S: Final = 0.5
_LIMITS: Final = frozenset({"time-limit", "memory-limit", "node-failed"})
"""Outcomes from the executor that override `interrupted`, which the cell recorded itself."""
_STOPPED: Final = frozenset({"interrupted", "cancelled"})
"""Outcomes after which a cell is not retried by this driver."""


class SweepDriver:
    """One run of a sweep until no cell can be started any more."""

    def __init__(
        self,
        folder: SweepFolder,
        executor: Executor,
        *,
        listener: SweepListener,
        expected_s: Mapping[str, float] | None = None,
        pause_s: float = PAUSE_S,
        take_over: bool = False,
        wait_s: float = LOST_S + HEARTBEAT_S,
        deadline_s: float = math.inf,
    ) -> None:
        """`expected_s` has the expected durations of cells by id, where known.

        `deadline_s` is the end of the time budget (`time.monotonic`), which the executor enforces.

        `take_over` ends attempts of other processes that may still run. `wait_s` is how long to wait
        for those, after all other cells, until they end or count as lost.
        """
        self._folder = folder
        self._executor = executor
        self._listener = listener
        self._expected_s = dict(expected_s or {})
        self._pause_s = pause_s
        self._take_over = take_over
        self._wait_s = wait_s
        self._deadline_s = deadline_s
        self._waiting_since_s: float | None = None
        self._began_s = time.monotonic()
        self._took_s: dict[str, float] = {}
        self._at_a_time = 1
        self._busy_s: dict[str, float] = {}
        """Time that open cells have been running, without the time in which they were paused."""
        self._reported_s = self._began_s
        self._attempts_before: dict[str, int] = {}
        self.detach_message = ""
        """What happens to running cells after Ctrl-C, for the user."""

    def run(self) -> list[CellStatus]:
        """Run all open cells and return their final states; Ctrl-C detaches the executor first."""
        with self._folder.driving():
            try:
                return self._drive()
            except KeyboardInterrupt:
                self.detach_message = self._executor.detach()
                self._folder.close_lost()
                raise
            except BaseException:
                self._executor.detach()
                raise

    def _drive(self) -> list[CellStatus]:
        jobs, ended = self._executor.poll()  # submitted by an earlier driver
        self._record_ended(ended)
        self._close_lost(jobs, take_over=self._take_over)
        submitted = {job.cell for job in jobs}
        self._submit([cell for cell in self._waiting_cells() if cell not in submitted])
        while True:
            jobs, ended = self._executor.poll()
            self._record_ended(ended)
            self._submit([one.cell for one in ended if self._should_retry(one)])
            self._report(jobs)
            if not jobs and not ended:
                lost = self._close_lost(jobs)
                self._submit([one for one in self._waiting_cells() if one in lost])
                if not lost and not self._should_wait():
                    return list(self._view(jobs).statuses)
            self._executor.wait(self._pause_s)

    def _close_lost(self, jobs: Sequence[Job], *, take_over: bool = False) -> list[str]:
        return self._folder.close_lost(running={job.cell for job in jobs}, take_over=take_over)

    def _should_wait(self) -> bool:
        """Return whether to wait for cells of other processes, which may turn out to be lost."""
        now_s = time.monotonic()
        # One that has become lost since `close_lost` counts too: the next call closes it.
        if not any(
            one.state != "done" and one.attempts and one.attempts[-1].outcome is None
            for one in self._folder.statuses()
        ):
            self._waiting_since_s = None
            return False
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
        return now_s - self._waiting_since_s < self._wait_s

    def _waiting_cells(self) -> list[str]:
        """Return the cells that no process runs and that may be started."""
        return [one.cell.id for one in self._folder.statuses() if one.state == "waiting"]

    def _submit(self, cells: Sequence[str]) -> None:
        for cell in cells:
            self._attempts_before[cell] = len(self._folder.attempts(cell))
        if cells:
            self._executor.submit(cells)

    def _should_retry(self, ended: Ended) -> bool:
        if ended.outcome in _STOPPED:
            return False
        return self._folder.status(ended.cell).state == "waiting"

    def _record_ended(self, ended: Sequence[Ended]) -> None:
        """Record the outcome of attempts that could not record it themselves."""
        for one in ended:
            busy_s = self._busy_s.pop(one.cell, None)
            if busy_s is not None:
                self._took_s[one.cell] = busy_s
            attempts = self._folder.attempts(one.cell)
            never_began = len(attempts) <= self._attempts_before.get(one.cell, 0)
            if self._folder.status(one.cell).state == "done":
                continue
            idle = never_began and one.outcome in _STOPPED
            if never_began:
                number = self._folder.begin(one.cell, place="never started").number
            elif attempts[-1].outcome is None or (
                attempts[-1].outcome == "interrupted" and one.outcome in _LIMITS
            ):
                number = attempts[-1].number
            else:
                continue  # the record of the attempt is more specific
            outcome = "died" if one.outcome == "finished" else one.outcome
            why = one.why or "its process ended without recording an outcome"
            self._folder.end(one.cell, number, outcome, why=why, idle=idle)

    def _report(self, jobs: Sequence[Job]) -> None:
        now_s = time.monotonic()
        running = [job.cell for job in jobs if job.state == "running"]
        self._at_a_time = max(self._at_a_time, len(running))
        for cell in running:
            self._busy_s[cell] = self._busy_s.get(cell, 0.0) + now_s - self._reported_s
        self._reported_s = now_s
        self._listener(self._view(jobs))

    def _view(self, jobs: Sequence[Job]) -> SweepView:
        by_cell = {job.cell: job for job in jobs}
        statuses = tuple(_with_job(one, by_cell) for one in self._folder.statuses())
        return SweepView(
            plan=self._folder.plan,
            statuses=statuses,
            elapsed_s=time.monotonic() - self._began_s,
            remaining_s=self._within_budget(self._remaining_s(statuses)),
        )

    def _within_budget(self, remaining_s: float | None) -> float | None:
        budget_s = max(0.0, self._deadline_s - time.monotonic())
        if remaining_s is None:
            return None if math.isinf(budget_s) else budget_s
        return min(remaining_s, budget_s)

    def _remaining_s(self, statuses: Sequence[CellStatus]) -> float | None:
        """Scale the expected time of open cells by the error so far; else use the mean duration."""
        open_cells = [one for one in statuses if one.is_open]
        if not open_cells:
            return 0.0
        predicted = [cell for cell in self._took_s if cell in self._expected_s]
        took_s = sum(self._took_s.values())
        if self._took_s and not predicted:
            mean_s = took_s / len(self._took_s)
            whole_s = sum(mean_s * _remaining_fraction(one) for one in open_cells)
        elif predicted:
            pace = sum(self._took_s[cell] for cell in predicted) / max(
                1e-9, sum(self._expected_s[cell] for cell in predicted)
            )
            mean_s = took_s / len(self._took_s)
            whole_s = sum(
                self._expected_s.get(one.cell.id, mean_s / pace) * pace * _remaining_fraction(one)
                for one in open_cells
            )
        else:
            return None
        return whole_s / self._at_a_time


def _remaining_fraction(status: CellStatus) -> float:
    return 1.0 - (status.fraction or 0.0) if status.state in ("running", "paused") else 1.0


def _with_job(status: CellStatus, jobs: Mapping[str, Job]) -> CellStatus:
    """Add the state in the executor: the cell is queued, is starting, or is paused."""
    job = jobs.get(status.cell.id)
    if job is None:
        return status
    if status.state == "waiting":
        return replace(status, state=job.state, text=job.text or status.text)
    if status.state == "running" and job.state == "paused":
        return replace(status, state=job.state)
    return status

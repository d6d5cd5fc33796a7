"""Execute a sweep: prepare its folder, run open cells, and join them into runs.

The code that `torchyard sweep` and `torchyard.sweep` share; it prints nothing. Cells of a local sweep
are separate processes that share template processes and compiled artifacts; the driver's environment,
which they inherit, says where both are.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from torchyard.bench.launch_templates import IMPORT_ORDER, modules_of
from torchyard.bench.target_checks import check_devices
from torchyard.machine.system.core_reservation import CoreReservation
from torchyard.process.affinity import confined
from torchyard.process.templates import TemplatePool
from torchyard.results.directory import new_run_folder, runs_home
from torchyard.results.run_reader import Run, read_run
from torchyard.sweep.driver import SweepDriver
from torchyard.sweep.executors.interface import Executor, open_executor
from torchyard.sweep.executors.local import reservation_of
from torchyard.sweep.folder import SweepFolder, sweeps_home
from torchyard.sweep.join import join_sweep
from torchyard.sweep.launch_order import LaunchOrder
from torchyard.sweep.model import CellStatus, SweepPlan, SweepSummary, SweepView
from torchyard.sweep.summary import sweep_summary


@contextmanager
def shared_templates(folder: SweepFolder) -> Iterator[None]:
    """Serve templates to the cells that are started inside the block, unless they run elsewhere."""
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


def command_of_cell(folder: SweepFolder, cell: str) -> list[str]:
    """Return the command of a cell, with this interpreter, which cluster nodes must see too."""
    return [sys.executable, "-m", "torchyard", "sweep-cell", str(folder.folder), cell]


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
    return open_executor(
        folder.plan.executor,
        folder.folder,
        lambda cell: command_of_cell(folder, cell),
        folder.log_path,
        limit_s=folder.plan.limits.cell_s,
        order=LaunchOrder.of_cells(
            folder.plan.cells,
            first_launch_s=first_launch_s,
            longest_first=bool(reserved) and math.isinf(deadline_s),
        ),
        deadline_s=deadline_s,
        reserved=reserved,
        nodes=max(one.nodes for cell in folder.plan.cells for one in cell.study.workloads),
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

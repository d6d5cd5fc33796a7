"""The estimate of a sweep for the command line: asks kept runs, and with `--calibrate` the workloads."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from torchyard.cli.output import talk

if TYPE_CHECKING:
    from torchyard.core.sweep import SweepPlan
    from torchyard.workflow.sweep_calibrate import Calibration
    from torchyard.workflow.sweep_estimate import SweepEstimate

__all__ = ["estimate_of"]


def estimate_of(
    plan: SweepPlan, folder: Path | None, *, calibrating: bool, quiet: bool, keep: bool = True
) -> SweepEstimate:
    """What the sweep will take. `folder` is the sweep's, or where it would be.

    With `keep`, a calibration goes into the folder, where the next driver of the sweep finds it.
    """
    from torchyard.results.sweep_folder import sweeps_home
    from torchyard.workflow.sweep_estimate import estimate_sweep
    from torchyard.workflow.sweep_known import read_surroundings

    surroundings = read_surroundings(folder or sweeps_home())
    # Of batch sizes that are not known yet nothing is known.
    if not plan.cells or plan.largest_batches or (quiet and not calibrating):
        return estimate_sweep(plan, surroundings=surroundings)
    seen = _calibrations(plan, folder if keep else None, calibrating=calibrating, quiet=quiet)
    from torchyard.cli.results_store import fresh_store
    from torchyard.workflow.sweep_calibrate import known_from_calibration
    from torchyard.workflow.sweep_known import compile_ranges, known_from_runs, machine_of_plan

    machine = machine_of_plan(plan)
    with fresh_store() as store:
        kept = known_from_runs(plan, store, machine=machine)
        compiling = compile_ranges(plan, store, machine=machine) if seen else {}
    calibrated = known_from_calibration(plan, seen, compiling=compiling)
    return estimate_sweep(plan, [kept, calibrated], surroundings=surroundings)


def _calibrations(
    plan: SweepPlan, folder: Path | None, *, calibrating: bool, quiet: bool
) -> list[Calibration]:
    """What is known of the workloads; looks at those that are not known when that is asked for."""
    from torchyard.workflow.sweep_calibrate import calibrate, read_calibrations

    known = read_calibrations(folder) if folder is not None else []
    if not calibrating:
        return known

    def told(one: Calibration, number: int, total: int) -> None:
        if quiet:
            return
        said = "cannot run here" if one.failure is not None else f"ready in {one.ready_s:.1f} s"
        talk(f"calibration {number} of {total}: {one.workload.label} {said}")

    with _place(folder) as place:
        return calibrate(plan, place, known=known, told=told)


@contextmanager
def _place(folder: Path | None) -> Iterator[Path]:
    """The sweep's folder, or one that goes away: a plan alone keeps nothing."""
    if folder is not None:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="torchyard-") as name:
        yield Path(name)

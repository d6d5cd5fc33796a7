"""Describe the plan and the estimated cost of a sweep, before it runs and with `--plan`.

The estimate uses recorded runs and, with `--calibrate`, a calibration of the workloads.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from torchyard.bench.time_estimate import Range
from torchyard.cli.output import print_message
from torchyard.core.short_names import short_texts
from torchyard.core.study import Study
from torchyard.core.units import format_bytes, format_count, format_percent
from torchyard.presentation.wording import rough_duration
from torchyard.results.commands.options import fresh_store
from torchyard.sweep.cost_estimate import (
    Calibration,
    SweepEstimate,
    calibrate,
    compile_ranges,
    costs_from_calibration,
    costs_from_runs,
    estimate_sweep,
    machine_of_plan,
    read_calibrations,
    read_resources,
)
from torchyard.sweep.executors.local import read_at_most, reservation_of
from torchyard.sweep.folder import sweeps_home
from torchyard.sweep.model import SweepPlan

_MOST_NAMED = 5


def sweep_plan_text(
    plan: SweepPlan, estimate: SweepEstimate, *, all_cells: bool = False, notes: Sequence[str] = ()
) -> str:
    """Return the plan as text; with `all_cells`, list each cell with its id."""
    part, parts = plan.shard
    studies = [cell.study for cell in plan.cells]
    comparisons = sum(len(study.candidates) for study in studies)
    shard = f", shard {part} of {parts}" if parts > 1 else ""
    lines = [
        f"sweep {plan.name}: {format_count(len(studies), 'cell')}, {format_count(comparisons, 'comparison')}{shard}",
        *_suites(studies),
        *_variants(studies),
        *_limits(plan, studies[0]),
        *_batches(plan),
        _executor(plan),
        *_time(estimate),
        *_budget(plan, estimate),
        *_disk(estimate),
        *_memory(estimate),
        *(f"  note        {note}" for note in notes),
    ]
    if plan.null:
        lines.append(
            "  A/A         every candidate is the baseline again: any difference is a false alarm"
        )
    if all_cells:
        labels = short_texts(cell.label for cell in plan.cells)
        lines += ["", *(f"  {cell.id}  {labels[cell.label]}" for cell in plan.cells)]
    return "\n".join(lines)


def rough_time(range_s: Range) -> str:
    """Format an estimated duration with few digits, such as `3 to 12 min`."""
    low, high = rough_duration(range_s.low), rough_duration(range_s.high)
    if low == high:
        return f"about {high}"
    if low.split()[1:] == high.split()[1:]:
        low = low.split()[0]
    return f"{low} to {high}"


def _one_digit(size_bytes: float) -> str:
    number, unit = format_bytes(size_bytes).split()
    return f"{float(number):.2g} {unit}" if float(number) < 100 else f"{float(number):.0f} {unit}"  # noqa: PLR2004


def _suites(studies: Sequence[Study]) -> list[str]:
    counted: Counter[tuple[str, str]] = Counter()
    names: dict[str, set[str]] = {}
    for study in studies:
        workload = study.workloads[0]
        counted[workload.suite, f"{workload.mode} {study.baseline.precision}"] += 1
        names.setdefault(workload.suite, set()).add(workload.name)
    lines = []
    for suite, workloads in sorted(names.items()):
        kinds = ", ".join(
            f"{count} {kind}" for (name, kind), count in sorted(counted.items()) if name == suite
        )
        lines.append(f"  {suite:<11} {format_count(len(workloads), 'workload')}: {kinds}")
    return lines


def _variants(studies: Sequence[Study]) -> list[str]:
    lines: dict[str, None] = {}
    for study in studies:
        candidates = ", ".join(candidate.name for candidate in study.candidates)
        lines[f"  {'compare':<11} {candidates} with {study.baseline.name}"] = None
    return list(lines)


def _limits(plan: SweepPlan, study: Study) -> list[str]:
    budget, limits = study.budget, plan.limits
    texts = [
        f"at most {rough_duration(budget.time_s)} of measuring",
        f"until ±{format_percent(budget.precision_goal)} or decided",
        f"{limits.tries} tries" if limits.tries > 1 else "1 try",
    ]
    if limits.cell_s is not None:
        texts.append(f"{rough_duration(limits.cell_s)} of wall time per attempt")
    return [f"  {'each cell':<11} {', '.join(texts)}"]


def _batches(plan: SweepPlan) -> list[str]:
    if not plan.largest_batches:
        return []
    return [
        f"  {'batch size':<11} the largest that fits; the search is not included in the time below"
    ]


def _executor(plan: SweepPlan) -> str:
    if plan.executor.name == "local":
        at_most = read_at_most(dict(plan.executor.options))
        if at_most == 1:
            return f"  {'runs':<11} on this machine, one cell at a time"
        return (
            f"  {'runs':<11} on this machine, {at_most} concurrent cells, timed one at a time\n"
            f"  {'':<11} {reservation_of(plan).text}"
        )
    options = ", ".join(f"{name} {value}" for name, value in plan.executor.options)
    return f"  {'runs':<11} as {plan.executor.name} jobs" + (f" ({options})" if options else "")


def _time(estimate: SweepEstimate) -> list[str]:
    total = len(estimate.cells)
    unknown = estimate.count("budget")
    text = rough_time(estimate.time_s)
    if estimate.at_a_time is None:
        text += " of job time in total; the cluster decides how many jobs run at a time"
    elif estimate.at_a_time > 1:
        text += f" with {estimate.at_a_time} jobs at a time, without queue time"
    if unknown:
        text += ", plus startup and compilation"
    elif any(cell.compiling_unknown for cell in estimate.cells):
        text += ", plus compilation"
    if unknown == total:
        origin = "upper bound from the budget: there is no earlier run and no calibration"
    else:
        parts = [
            f"{estimate.count('history')} from earlier runs" if estimate.count("history") else "",
            f"{estimate.count('calibration')} from the calibration"
            if estimate.count("calibration")
            else "",
            f"{unknown} from the budget only" if unknown else "",
        ]
        origin = f"cells: {', '.join(part for part in parts if part)}"
    return [f"  {'time':<11} {text}", f"  {'':<11} ({origin})"]


def _budget(plan: SweepPlan, estimate: SweepEstimate) -> list[str]:
    """Describe what fits into the time budget."""
    budget_s = plan.limits.budget_s
    if budget_s is None:
        return []
    size = f"{budget_s / 60:g} min" if budget_s % 60 == 0 else f"{budget_s:g} s"
    lines = [f"{size} of wall time; then cells end with the launches that they have"]
    cells, first_pass_s = len(estimate.cells), estimate.first_pass_s()
    if first_pass_s is None:
        lines.append("(how many cells get a launch is unknown: there is no earlier run)")
        return [f"  {'budget':<11} {lines[0]}", f"  {'':<11} {lines[1]}"]
    known_cells = len(estimate.first_launch_s())
    source = "" if known_cells == cells else f", known for {known_cells} of {cells} cells"
    launch_text = f"one launch of each cell takes about {rough_duration(first_pass_s)}{source}"
    if first_pass_s > budget_s:
        fitting = int(cells * budget_s / first_pass_s)
        launch_text = f"too short: {launch_text}; about {fitting} of {format_count(cells, 'cell')} get a launch"
    return [f"  {'budget':<11} {lines[0]}", f"  {'':<11} {launch_text}"]


def _disk(estimate: SweepEstimate) -> list[str]:
    size = f"{_one_digit(estimate.size_bytes.low)} to {_one_digit(estimate.size_bytes.high)}"
    origin = "from earlier runs" if estimate.size_source == "history" else "guess: no earlier run"
    line = f"  {'disk':<11} {size} ({origin})"
    if estimate.free_bytes is not None:
        line += f", {format_bytes(estimate.free_bytes)} free"
        if estimate.free_bytes < estimate.size_bytes.high:
            line += ": may not be enough"
    return [line]


def _memory(estimate: SweepEstimate) -> list[str]:
    bounds = []
    if estimate.together > 1:
        bounds.append(f"up to {estimate.together} concurrent cells")
    if estimate.limit_bytes is not None:
        bounds.append(f"{format_bytes(estimate.limit_bytes)} allowed for a worker")
    if estimate.machine_bytes is not None:
        bounds.append(f"{format_bytes(estimate.machine_bytes)} on this machine")
    worker, tensors = estimate.largest("worker_bytes"), estimate.largest("tensor_bytes")
    if worker is not None:
        text = f"at least {format_bytes(worker[0])} for a worker, with {worker[1].label}"
    elif tensors is not None:
        text = f"more than the {format_bytes(tensors[0])} of tensors of {tensors[1].label}"
    else:
        text = "unknown without a calibration or an earlier run"
    lines = [f"  {'memory':<11} {'; '.join([text, *bounds])}"]
    on_device = estimate.largest("device_bytes")
    if on_device is not None:
        text = f"{format_bytes(on_device[0])} of tensors in an iteration of {on_device[1].label}"
        lines.append(f"  {'on the GPU':<11} {text}")
    large = estimate.too_large()
    if large:
        lines.append(f"  {'':<11} too large: {_named([cell.label for cell in large])}")
    unsupported = [cell for cell in estimate.cells if cell.unsupported]
    if unsupported:
        named = _named([f"{cell.label} ({cell.unsupported})" for cell in unsupported])
        lines.append(f"  {'will fail':<11} {named}")
    return lines


def _named(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST_NAMED
    return "; ".join(texts[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")


def estimate_of(
    plan: SweepPlan, folder: Path | None, *, calibrating: bool, quiet: bool, keep: bool = True
) -> SweepEstimate:
    """Estimate the cost of a sweep. `folder` is the sweep's folder, or where it would be.

    With `keep`, a calibration is saved in the folder for the next driver of the sweep.
    """
    resources = read_resources(folder or sweeps_home())
    # Costs are unknown while the batch sizes are.
    if not plan.cells or plan.largest_batches or (quiet and not calibrating):
        return estimate_sweep(plan, resources=resources)
    calibrations = _calibrations(
        plan, folder if keep else None, calibrating=calibrating, quiet=quiet
    )
    machine = machine_of_plan(plan)
    with fresh_store() as store:
        recorded = costs_from_runs(plan, store, machine=machine)
        compiling = compile_ranges(plan, store, machine=machine) if calibrations else {}
    calibrated = costs_from_calibration(plan, calibrations, compiling=compiling)
    return estimate_sweep(plan, [recorded, calibrated], resources=resources)


def _calibrations(
    plan: SweepPlan, folder: Path | None, *, calibrating: bool, quiet: bool
) -> list[Calibration]:
    """Return saved calibrations; with `calibrating`, calibrate the remaining workloads."""
    saved = read_calibrations(folder) if folder is not None else []
    if not calibrating:
        return saved

    def listen(one: Calibration, number: int, total: int) -> None:
        if quiet:
            return
        result = "cannot run here" if one.failure is not None else f"ready in {one.ready_s:.1f} s"
        print_message(f"calibration {number} of {total}: {one.workload.label} {result}")

    with tempfile.TemporaryDirectory(prefix="torchyard-") as temporary:  # `--plan` saves nothing
        return calibrate(plan, folder or Path(temporary), earlier=saved, listener=listen)

"""What `torchyard bench --dry-run` says: the study in full, in words."""

from __future__ import annotations

from torchyard.core.study import Study
from torchyard.core.units import format_bytes, format_duration, format_percent
from torchyard.core.variant import DEFAULT_ENVIRONMENT, Environment, Variant
from torchyard.worker.options import as_text

__all__ = ["plan_text"]


def plan_text(study: Study) -> str:
    """Variants, workloads, budget and settings; nothing is left to a default unsaid."""
    budget, settings = study.budget, study.settings
    rows = len(study.candidates) * len(study.workloads)
    limit = settings.memory_limit_bytes
    lines = [f"study {study.name}", "", "baseline"]
    lines += _variant(study.baseline)
    lines += ["candidates"]
    for candidate in study.candidates:
        lines += _variant(candidate)
    lines += ["workloads", *(f"  {workload.label}" for workload in study.workloads)]
    lines += [
        "budget",
        (
            f"  {_count(rows, 'comparison')}, at most {_seconds(budget.time_s)} of measuring time"
            f" for each workload ({_seconds(budget.time_s * len(study.workloads))} in all, without"
            " the first start and compiling)"
        ),
        (
            f"  until the interval is ±{format_percent(budget.precision_goal)} or the verdict is sure;"
            f" below {format_percent(budget.margin)} is the same"
        ),
        f"  {budget.min_launches} to {budget.max_launches} launches, alpha {budget.alpha:g}",
        "settings",
        (
            f"  blocks of {_seconds(settings.block_s)}, seed {settings.seed},"
            f" threads {settings.threads or 'one for each core'}"
        ),
        f"  reseat {settings.reseat}, {_layout(settings.paired_layout)},"
        f" accuracy {'checked' if settings.check_accuracy else 'not checked'}"
        + (", L2 flushed" if settings.flush_l2 else ""),
        (
            f"  limits: start {_seconds(settings.start_limit_s)}, step {_seconds(settings.step_limit_s)},"
            f" block {_seconds(settings.block_limit_s)},"
            f" memory {format_bytes(limit) if limit is not None else 'none'}"
        ),
    ]
    return "\n".join(lines)


def _variant(variant: Variant) -> list[str]:
    lines = [
        (
            f"  {variant.name}: {variant.backend}, {variant.precision}, "
            f"target {variant.target.name} ({variant.target.python})"
        )
    ]
    if variant.options:
        lines.append(f"    options {as_text(dict(variant.options))}")
    lines += [f"    {key}={value}" for key, value in variant.target.variables]
    if variant.environment != DEFAULT_ENVIRONMENT:
        lines += _environment(variant.environment)
    return lines


def _environment(environment: Environment) -> list[str]:
    lines = [f"    environment {environment.name}"]
    lines += [f"    {key}={value}" for key, value in environment.variables]
    lines += [f"    preload {library}" for library in environment.preload]
    if environment.threads is not None:
        lines.append(f"    threads {environment.threads}")
    lines += [f"    cores {environment.cores}"] if environment.cores else []
    lines += [f"    memory {environment.memory}"] if environment.memory else []
    if environment.instances > 1:
        lines.append(f"    {environment.instances} instances side by side")
    return lines


def _layout(paired: bool) -> str:
    return "paired layout" if paired else "each side its own layout"


def _seconds(duration_s: float) -> str:
    return format_duration(duration_s * 1e9)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

"""Check that variants and workloads fit together where several ranks are involved."""

from __future__ import annotations

from collections.abc import Sequence

from torchyard.core.study import SCRIPT_SUITE, Variant, Workload
from torchyard.errors import UsageError
from torchyard.worker.bench import options
from torchyard.worker.bench.backend_names import is_user_function

_WRAPPERS = " or ".join(options.WRAPPERS)


def check_ranks(variants: Sequence[Variant], workloads: Sequence[Workload]) -> None:
    """Raise UsageError for a wrapper without ranks, and for ranks without a wrapper in training."""
    same = [variant for variant in variants if dict(variant.options).get(options.SAME_BATCH)]
    if same and len(same) < len(variants):
        raise UsageError(
            f"the variant {same[0].name!r} has {options.SAME_BATCH}, and others do not",
            why="variants with one batch per rank do more work in an iteration",
            hint=f"give all variants {options.SAME_BATCH}, or none",
        )
    for variant in variants:
        wrappers = options.wrappers_of(dict(variant.options))
        if len(wrappers) > 1:
            raise UsageError(
                f"the variant {variant.name!r} has {' and '.join(wrappers)}",
                hint="keep one; write two variants as two candidates",
            )
        for workload in workloads:
            _check(variant, workload, wrappers)


def _check(variant: Variant, workload: Workload, wrappers: Sequence[str]) -> None:
    if workload.ranks % workload.nodes:
        raise UsageError(
            f"{workload.ranks} ranks cannot be spread evenly over {workload.nodes} nodes",
            hint=f"use --ranks {workload.nodes * max(1, round(workload.ranks / workload.nodes))}",
        )
    if workload.ranks == 1:
        if wrappers or dict(variant.options).get(options.SAME_BATCH):
            raise UsageError(
                f"the variant {variant.name!r} needs several ranks",
                why=f"{workload.label} has one process",
                hint="add --ranks 2",
            )
        return
    refusals = {
        f"the mode {workload.mode}": workload.mode not in ("inference", "training"),
        "several instances": variant.environment.instances > 1,
        "several Python files": bool(variant.file),
        "a script": workload.suite == SCRIPT_SUITE,
    }
    for what, given in refusals.items():
        if given:
            raise UsageError(
                f"{workload.label}: {what} cannot be combined with several ranks",
                hint="use one rank, or inference or training",
            )
    if wrappers and workload.mode != "training":
        raise UsageError(
            f"the variant {variant.name!r} supports training only",
            hint=f"add --mode training, or remove {wrappers[0]}",
        )
    if workload.mode == "training" and not wrappers and not is_user_function(variant.backend):
        raise UsageError(
            f"the variant {variant.name!r} does not combine the gradients of {workload.ranks} ranks",
            why=f"it has neither {_WRAPPERS} nor a function of the user",
            hint="write --baseline ddp --candidate inductor+ddp, or FILE.py:FUNCTION",
        )

"""`torchyard.measure`: the time of one callable in this process."""

from __future__ import annotations

import time as clock
from collections.abc import Callable
from typing import Any

from torchyard.api.comparing import needs_torch, seconds_of
from torchyard.api.result import Measurement, short_name
from torchyard.api.this_process import local_settings
from torchyard.bench.preparation import FIRST_WARM_UP_LIMIT_S, plan_block
from torchyard.core.variant_parts import check_device
from torchyard.errors import UsageError
from torchyard.machine.guards import block_check

_NAME = "measured"


def measure(function: Callable[..., Any], *args: Any, time: str | float = "5s") -> Measurement:
    """Measure the time of `function(*args)` in this process, after a warm-up.

    Runs without gradients, and a module in evaluation mode. The function gets copies of the tensors
    in `args`; if it writes them, they are restored between blocks of calls.
    """
    needs_torch()
    from torchyard.worker.bench import this_process as local

    time_s = seconds_of(time)
    if not callable(function):
        raise UsageError(f"function is a {type(function).__name__}, not a callable")
    arguments = local.arguments_of(args)
    device = check_device(local.device_of([args, function], function, args), where="args")
    service = local.ThisProcessService(
        local.uncompiled(function), arguments, {_NAME: function}, time_s
    )
    settings = local_settings(service, time_s)
    variant = {"name": _NAME, "backend": local.GIVEN, "precision": "float32"}
    times_ns: list[float] = []
    blocks = disturbed = 0
    with service.preserving():
        service.build({"device": device}, [variant], settings.seed)
        warm = service.warm(_NAME, FIRST_WARM_UP_LIMIT_S)
        plan = plan_block(warm["iteration_ns"], block_s=settings.block_s, training=False)
        started = clock.monotonic()
        while not blocks or clock.monotonic() - started < time_s:
            service.rewind()
            answer = service.block(
                _NAME, plan.inner, plan.samples, plan.prime, settle=False, flush_l2=False
            )
            times_ns += answer["samples_ns"]
            blocks += 1
            disturbed += bool(
                block_check.judge(
                    block_check.reading_from(answer["readings"]),
                    wall_ns=answer["wall_ns"],
                    samples=plan.samples,
                    threads=settings.threads or 1,
                )
            )
        service.rewind()
    notes = [f"{disturbed} of {blocks} blocks were disturbed by other work"] if disturbed else []
    if not warm["stable"]:
        notes.append("the time had not reached a steady state after the warm-up")
    return Measurement(
        name=short_name(function),
        times_s=tuple(time_ns / 1e9 for time_ns in times_ns),
        calls_per_time=plan.inner,
        notes=tuple(notes),
    )

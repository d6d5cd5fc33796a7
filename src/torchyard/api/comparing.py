"""`torchyard.compare` and `torchyard.measure`: callables in fresh processes, or in this one."""

from __future__ import annotations

import sys
import time as clock
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torchyard.api.result import SUITE, THIS_PROCESS, Comparison, Measurement, short_name
from torchyard.api.this_process import local_settings
from torchyard.bench.preparation import FIRST_WARM_UP_LIMIT_S, plan_block
from torchyard.core.study import (
    DEFAULT_ENVIRONMENT,
    PRECISIONS,
    Precision,
    Target,
    Variant,
    Workload,
)
from torchyard.core.units import parse_duration_s
from torchyard.core.variant_parts import DEFAULT_TARGET, check_device
from torchyard.errors import MissingTool, UsageError
from torchyard.machine.guards import block_check
from torchyard.results.directory import new_run_folder, runs_home
from torchyard.worker.bench.backend_names import GIVEN

Side = Callable[..., Any] | str
"""A callable, or the name of a backend."""


def compare(
    baseline: Side,
    candidate: Side,
    inputs: Any = (),
    *,
    model: Callable[..., Any] | None = None,
    time: str | float = "20s",
    processes: bool = True,
    name: str = "",
) -> Comparison:
    """Compare the speed and the results of two ways to compute the same thing.

    Each of `baseline` and `candidate` is a callable (a function, an `nn.Module`, a module compiled
    with `torch.compile`), or the name of a backend such as `"eager"`, `"inductor"` or
    `"inductor:max-autotune"`. A backend applies to `model`, by default the other argument:

        torchyard.compare(f, g, inputs=(x,))
        torchyard.compare(net, "inductor", inputs=(x,))
        torchyard.compare("inductor", "aot_eager", model=net, inputs=(x,))

    `inputs` is a tensor, a tuple of positional arguments or a dict of keyword arguments. Callables
    get copies of it. They run as in `torchyard bench --mode inference`: without gradients, and
    modules in evaluation mode.

    With `processes`, callables that other processes can import are measured in several fresh
    processes, and the run is kept in the results directory. All others (closures, lambdas, objects
    of `__main__`, compiled modules) are measured in this process, and `notes` says why. `time` is the
    measuring time after compilation and checks. `name` is the name of the workload in the run, by
    default that of the model; with a name, a comparison in this process is kept, too.

    Exceptions of a callable propagate; one that was raised in another process becomes `WorkerFailed`.
    """
    needs_torch()
    from torchyard.worker.bench import this_process as local

    time_s = seconds_of(time)
    owner = _owner(baseline, candidate, model)
    arguments = local.arguments_of(inputs)
    if arguments is None:
        raise UsageError(
            f"inputs has the type {type(inputs).__name__}, not tensor, tuple, list or dict",
            hint="write inputs=(x,) for one argument",
        )
    reference = local.uncompiled(owner)
    objects = [*arguments, reference, baseline, candidate]
    device = check_device(local.device_of(objects, reference, inputs), where="inputs")
    precision_name = local.precision_of(objects)
    precision = next(one for one in PRECISIONS if one == precision_name)
    variants = _variants(baseline, candidate, reference, precision)
    why_here = "processes=False"
    if processes:
        from torchyard.api.fresh_processes import WorkloadFile

        file = WorkloadFile(reference, baseline, candidate, arguments)
        why_here = file.why_not
        if not why_here:
            return file.compare(variants, device=device, time_s=time_s, name=name)
    for one in variants:
        _check_local(one, precision, why_here)
    from torchyard.api.this_process import compare_here

    sides_by_name = {
        variant.name: reference if isinstance(side, str) else side
        for variant, side in zip(variants, (baseline, candidate), strict=True)
        if variant.backend == GIVEN
    }
    service = local.ThisProcessService(reference, arguments, sides_by_name, time_s)
    workload = Workload(suite=SUITE, name=name or short_name(reference), device=device)
    run = new_run_folder(runs_home()) if name else None
    note = f"measured in this process: {why_here}"
    result = compare_here(service, workload, *variants, time_s=time_s, note=note, run=run)
    return Comparison(result=result, scope=THIS_PROCESS, run=run)


def needs_torch() -> None:
    """Raise MissingTool if torch cannot be imported."""
    if find_spec("torch") is None:
        raise MissingTool(
            f"{sys.executable} has no torch", hint="install torch in the environment of the program"
        )


def seconds_of(time: str | float) -> float:
    """Return a duration in seconds; a number is in seconds."""
    time_s = parse_duration_s(time) if isinstance(time, str) else float(time)
    if not 0.0 < time_s < float("inf"):
        raise UsageError(f"time is {time!r}, not a positive duration", hint="write time='20s'")
    return time_s


def _owner(baseline: Side, candidate: Side, model: Callable[..., Any] | None) -> Any:
    """Return the object that backends apply to, and whose results are the reference."""
    sides = {"baseline": baseline, "candidate": candidate, "model": model}
    for name, side in sides.items():
        if not (isinstance(side, str) or callable(side)) and not (name == "model" and side is None):
            raise UsageError(
                f"{name} has the type {type(side).__name__}, and is no callable or name of a backend",
                hint="pass a function, a module, or a name such as 'inductor'",
            )
    named = [isinstance(side, str) for side in (baseline, candidate)]
    if model is not None and not any(named):
        raise UsageError(
            "model has no effect, because baseline and candidate are callables",
            hint="remove model, or name a backend",
        )
    if model is not None:
        return model
    if all(named):
        raise UsageError(
            f"there is no model to run with {baseline} and {candidate}",
            hint="add model=net, or pass the model instead of 'eager'",
        )
    return candidate if named[0] else baseline


def _variants(
    baseline: Side, candidate: Side, reference: Any, precision: Precision
) -> list[Variant]:
    from torchyard.bench.request import SpecText
    from torchyard.bench.variant_text import Parts, parse_variant
    from torchyard.worker.bench.this_process import is_module

    here = Target(name=DEFAULT_TARGET, python=sys.executable)
    parts = Parts(targets={}, environments={}, here=here, default_precision=precision)
    variants = []
    for where, side in (("baseline", baseline), ("candidate", candidate)):
        if isinstance(side, str):
            spec = SpecText(text=side, where=where, folder=Path.cwd())
            variant = parse_variant(spec, parts)
            if variant.backend == "eager" and not is_module(reference):
                # Called directly, as the other one: a wrapping module would take time.
                variant = replace(variant, backend=GIVEN)
            variants.append(variant)
        else:
            is_reference = side is reference and is_module(side)
            backend = "eager" if is_reference else GIVEN
            name = short_name(side)
            variants.append(Variant(name=name, target=here, backend=backend, precision=precision))
    if variants[0].name == variants[1].name:
        variants = [
            replace(one, name=f"{one.name} ({where})")
            for one, where in zip(variants, ("baseline", "candidate"), strict=True)
        ]
    return variants


def _check_local(variant: Variant, precision: Precision, why_here: str) -> None:
    """Raise UsageError for a variant that needs a process of its own."""
    is_plain = not variant.options and variant.environment == DEFAULT_ENVIRONMENT
    if not is_plain or variant.precision != precision:
        raise UsageError(
            f"{variant.name!r} needs fresh processes, but this comparison runs in this process",
            why=why_here,
            hint="use the name of a backend only, or callables that can be imported",
        )


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
    variant = {"name": _NAME, "backend": GIVEN, "precision": "float32"}
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

"""Write a program as one Python file that needs only torch."""

import json
from typing import Any, Dict, List

import torch

from torchyard.worker.reduce.program import Program, Value

_TEMPLATE = '''"""{title}

{about}
Run: python {name}
"""

import json
import random
import sys
import time

import torch
from torch import device, inf, nan  # noqa: F401
{imports}
BACKEND = {backend}
MODE = {mode}
INDUCTOR = {inductor}
THREADS = {threads}
TRAINING = {training}


class Program(torch.nn.Module):
{code}

def filled(shape, stride, dtype, low, high, gradient=False):
    """Return a tensor of this layout with random values between two bounds."""
    length = 1 + sum((n - 1) * s for n, s in zip(shape, stride)) if all(shape) else 0
    flat = torch.empty(length, dtype=dtype, device={device})
    if dtype is torch.bool:
        flat = torch.rand(length, device={device}) < 0.5
    elif dtype.is_floating_point:
        flat.uniform_(low, high) if high > low else flat.fill_(low)
    elif dtype.is_complex:
        flat.normal_()
    else:
        flat.random_(int(low), int(high) + 1)
    return flat.as_strided(shape, stride).requires_grad_(gradient)


def inputs():
    torch.manual_seed(0)
    return [
{inputs}
    ]


def wait():
    if torch.device({device}).type == "cuda":
        torch.cuda.synchronize()


def call(function, arguments):
    """Return the outputs and, in training, the gradients of their sum."""
    output = function(*arguments)
    if not TRAINING:
        return output
    outputs = output if isinstance(output, (tuple, list)) else [output]
    sum(one.float().sum() for one in outputs if one.requires_grad).backward()
    gradients = [one.grad for one in arguments if one.grad is not None]
    for one in arguments:
        one.grad = None
    return [*outputs, *gradients]

{measure}

def main():
    torch.set_num_threads(THREADS)
    program, arguments = Program().train(TRAINING), inputs()
    if INDUCTOR:
        from torch._inductor import config

        for key, value in INDUCTOR.items():
            setattr(config, key, value)
    sides = [program, torch.compile(program, backend=BACKEND, **({{"mode": MODE}} if MODE else {{}}))]
    with torch.set_grad_enabled(TRAINING):
        for side in sides:
            for _ in range(3):
                call(side, arguments)
        eager, compiled = measure(sides, arguments)
    if "--json" in sys.argv:
        print(json.dumps({{"eager_{key}": eager, "compiled_{key}": compiled}}))
        return
    print(f"torch {{torch.__version__}}, {{torch.get_num_threads()}} threads")
    print(f"{{'eager {unit}':>12}} {{'compiled {unit}':>14}} {{'{ratio}':>17}}")
    ratio = {ratio} if {divisor} else inf
    print(f"{{eager:12.4g}} {{compiled:14.4g}} {{ratio:16.3f}}x")


if __name__ == "__main__":
    main()
'''
_TIME = '''
# With one thread, CPU time excludes waiting for a core.
CLOCK = time.{clock}


def block(function, arguments, calls):
    """Return the time of one call in ms."""
    wait()
    started = CLOCK()
    for _ in range(calls):
        call(function, arguments)
    wait()
    return (CLOCK() - started) * 1e3 / calls


def measure(sides, arguments):
    """Return the shortest time of each side: other programs can only add time."""
    once = min(block(side, arguments, 3) for side in sides)
    calls = max(1, min(1000, int(20.0 / max(once, 1e-4))))
    times = [[], []]
    for _ in range(15):
        for index in random.sample(range(2), 2):
            times[index].append(block(sides[index], arguments, calls))
    return [min(one) for one in times]
'''
_MEMORY = '''
def peak(function, arguments):
    """Return the peak of live tensor bytes above the start, in MB."""
    if torch.device({device}).type == "cuda":
        wait()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call(function, arguments)
        wait()
        return (torch.cuda.max_memory_allocated() - before) / 1e6
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profiler:
        call(function, arguments)
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda e: e.start_ns() if hasattr(e, "start_ns") else e.start_us())
    alive = highest = 0
    for event in events:
        alive += event.nbytes()
        highest = max(highest, alive)
    return highest / 1e6


def measure(sides, arguments):
    """Return the peak memory of each side."""
    return [peak(side, arguments) for side in sides]
'''
_WRONG = '''
def largest(results, exact):
    """Return the largest difference; infinite if only one of both is NaN or infinite."""
    error = 0.0
    for one, other in zip(results, exact):
        one, other = one.detach().double(), other.detach().double()
        if one.shape != other.shape or not torch.equal(one.isfinite(), other.isfinite()):
            return 1e300
        difference = (one - other)[other.isfinite()].abs()
        error = max(error, float(difference.max()) if difference.numel() else 0.0)
    return error


def measure(sides, arguments):
    """Return the largest error of each side against the same program in double precision.

    It is at least the rounding error of the largest value; without double precision, 100 times as much.
    """

    def results(side, values):
        torch.manual_seed(0)
        copies = [one.detach().clone().requires_grad_(one.requires_grad) for one in values]
        outputs = call(side, copies)
        return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]

    doubles = [
        one.detach().double().requires_grad_(one.requires_grad) if one.is_floating_point() else one
        for one in arguments
    ]
    eager, compiled = (results(side, arguments) for side in sides)
    factor = 1.0
    try:
        exact = results(sides[0], doubles)
    except (RuntimeError, TypeError, ValueError):
        exact, factor = eager, 100.0
    rounding = 0.0
    for one in eager:
        values = one.detach()[one.detach().isfinite()]
        if one.is_floating_point() and values.numel():
            rounding = max(rounding, factor * torch.finfo(one.dtype).eps * float(values.abs().max()))
    return max(rounding, largest(eager, exact)), max(rounding, largest(compiled, exact))
'''
_MEASURES = {
    # code, key and unit of the values, and what is shown besides them
    "time": (_TIME, "ms", "ms", "eager / compiled"),
    "memory": (_MEMORY, "mb", "MB", "compiled / eager"),
    "wrong": (_WRONG, "error", "error", "compiled / eager"),
}


def script(
    program: Program,
    name: str,
    title: str,
    about: str,
    backend: str,
    options: Dict[str, Any],
    device: str,
    metric: str = "time",
    training: bool = False,
) -> str:
    """Return the text of the file."""
    measure, key, unit, ratio = _MEASURES[metric]
    compiler, _, mode = backend.partition(":")
    compiler, mode = (mode, "") if compiler == "dynamo" else (compiler, mode)
    code = program.module.graph.python_code("self")
    body = code.src.strip("\n").replace("\n\n", "\n")
    threads = torch.get_num_threads()
    inductor = {
        key[len("inductor.") :]: value
        for key, value in options.items()
        if key.startswith("inductor.")
    }
    return _TEMPLATE.format(
        title=title.replace("\\", "/").replace('"', "'"),
        about=about.replace("\\", "/").replace('"', "'"),
        name=name,
        imports=_imports(code.globals),
        backend=json.dumps(compiler),
        mode=json.dumps(mode) if mode else None,
        inductor=repr(inductor),
        threads=threads,
        training=training,
        measure=measure.replace(
            "{clock}", "thread_time" if threads == 1 and device == "cpu" else "perf_counter"
        ).replace("{device}", json.dumps(device)),
        key=key,
        unit=unit,
        ratio=ratio,
        divisor=ratio.rpartition(" ")[2],
        code="\n".join("    " + line if line.strip() else "" for line in body.splitlines()),
        device=json.dumps(device),
        inputs="\n".join("        " + _input(value) for value in program.values),
    )


def _imports(names: Dict[str, Any]) -> str:
    """Return imports of what the code of the graph names, besides torch."""
    lines: List[str] = []
    for name, value in sorted(names.items()):
        if name in ("torch", "device", "inf", "nan", "NoneType", "fx_pytree", "pytree"):
            continue
        module = getattr(value, "__module__", None)
        own = getattr(value, "__qualname__", getattr(value, "__name__", ""))
        if type(value).__name__ == "module":
            lines.append("import " + value.__name__ + " as " + name)
        elif module and own and "." not in own and "<" not in own:
            lines.append("from " + module + " import " + own + " as " + name)
    return "\n".join(lines) + ("\n" if lines else "")


def _input(value: Value) -> str:
    tensor = value.tensor
    low, high = 0.0, 1.0
    if tensor.numel() and not tensor.is_complex() and tensor.dtype is not torch.bool:
        numbers = tensor.detach()
        if tensor.is_floating_point():
            numbers = numbers.double()
            numbers = numbers[torch.isfinite(numbers)]
        if numbers.numel():
            low, high = float(numbers.min()), float(numbers.max())
    bounds = ("%.6g, %.6g" if tensor.is_floating_point() else "%d, %d") % (low, high)
    return "filled(%r, %r, %s, %s%s),  # %s" % (
        tuple(tensor.shape),
        tuple(tensor.stride()),
        str(tensor.dtype),
        bounds,
        ", gradient=True" if tensor.requires_grad else "",
        value.name,
    )

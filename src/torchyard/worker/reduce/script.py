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
# With one thread, CPU time excludes waiting for a core.
CLOCK = time.{clock}


class Program(torch.nn.Module):
{code}

def filled(shape, stride, dtype, low, high):
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
    return flat.as_strided(shape, stride)


def inputs():
    torch.manual_seed(0)
    return [
{inputs}
    ]


def wait():
    if torch.device({device}).type == "cuda":
        torch.cuda.synchronize()


def block(function, arguments, calls):
    """Return the time of one call in ms."""
    wait()
    started = CLOCK()
    for _ in range(calls):
        function(*arguments)
    wait()
    return (CLOCK() - started) * 1e3 / calls


def main():
    torch.set_num_threads(THREADS)
    program, arguments = Program().eval(), inputs()
    if INDUCTOR:
        from torch._inductor import config

        for key, value in INDUCTOR.items():
            setattr(config, key, value)
    sides = [program, torch.compile(program, backend=BACKEND, **({{"mode": MODE}} if MODE else {{}}))]
    with torch.no_grad():
        for side in sides:
            for _ in range(3):
                side(*arguments)
        once = min(block(side, arguments, 3) for side in sides)
        calls = max(1, min(1000, int(20.0 / max(once, 1e-4))))
        times = [[], []]
        for _ in range(15):
            for index in random.sample(range(2), 2):
                times[index].append(block(sides[index], arguments, calls))
    # Other programs can only add time.
    eager, compiled = (min(one) for one in times)
    if "--json" in sys.argv:
        print(json.dumps({{"eager_ms": eager, "compiled_ms": compiled}}))
        return
    print(f"torch {{torch.__version__}}, {{torch.get_num_threads()}} threads")
    print(f"{{'eager ms':>12}} {{'compiled ms':>12}} {{'eager / compiled':>17}}")
    print(f"{{eager:12.4f}} {{compiled:12.4f}} {{eager / compiled:16.3f}}x")


if __name__ == "__main__":
    main()
'''


def script(
    program: Program,
    name: str,
    title: str,
    about: str,
    backend: str,
    options: Dict[str, Any],
    device: str,
) -> str:
    """Return the text of the file."""
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
        clock="thread_time" if threads == 1 and device == "cpu" else "perf_counter",
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
    return "filled(%r, %r, %s, %s),  # %s" % (
        tuple(tensor.shape),
        tuple(tensor.stride()),
        str(tensor.dtype),
        bounds,
        value.name,
    )

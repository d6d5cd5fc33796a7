"""Plausible proofs that are false because of processes, C++ code and compiled functions. Slow to start.

    python false_outside.py gloo RANK WORLD_SIZE PORT | extension | compiled

Prints the findings of each program, as `profile_all.py` does.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

import torch
import torch.distributed as dist

from tests.values.adversary.profile_all import profile
from tests.values.adversary.program import SHAPE, Program, values

_SOURCE = """
#include <torch/extension.h>
static torch::Tensor kept;
void hold(torch::Tensor x) { kept = x; }
void bump() { kept.data_ptr<float>()[0] += 1.0f; }
double first() { return kept.data_ptr<float>()[0]; }
TORCH_LIBRARY(torchyard_adversary_cpp, m) {
  m.def("add_one(Tensor x) -> ()", [](const torch::Tensor& x) { x.data_ptr<float>()[0] += 1.0f; });
}
"""
EXTENSION: dict[str, Any] = {}


def gathered_into_a_buffer(other: bool) -> Any:
    buffer, results = torch.zeros(dist.get_world_size() * SHAPE[0], SHAPE[1]), []
    for step in range(4):
        buffer.zero_()
        results.append(float(buffer.sum()))
        dist.all_gather_into_tensor(buffer, values(other, step))
    return results


def gathered_into_a_list(other: bool) -> Any:
    buffers, results = [torch.zeros(SHAPE) for _ in range(dist.get_world_size())], []
    for step in range(4):
        for buffer in buffers:
            buffer.zero_()
        results.append(float(buffers[0].sum()))
        dist.all_gather(buffers, values(other, step))
    return results


def gathered_asynchronously(other: bool) -> Any:
    buffer, results = torch.zeros(dist.get_world_size() * SHAPE[0], SHAPE[1]), []
    for step in range(4):
        buffer.zero_()
        results.append(float(buffer.sum()))
        dist.all_gather_into_tensor(buffer, values(other, step), async_op=True).wait()
    return results


def sent_while_it_is_overwritten(other: bool) -> Any:
    buffer, results = torch.zeros(SHAPE), []
    for step in range(4):
        buffer.zero_()
        work = dist.all_reduce(buffer, async_op=True)
        work.wait()
        results.append(float(buffer.sum()))
        buffer.copy_(values(other, step))
    return results


def summed_over_processes(other: bool) -> Any:
    total, results = torch.zeros(SHAPE), []
    for step in range(4):
        total.zero_()
        if dist.get_rank() == 0:
            total.add_(values(other, step))
        dist.all_reduce(total)
        results.append(float(total.sum()))
    return results


def written_by_an_operator_in_cpp(_other: bool) -> Any:
    buffer, results = torch.zeros(SHAPE), []
    for _ in range(4):
        buffer.zero_()
        torch.ops.torchyard_adversary_cpp.add_one(buffer)
        results.append(float(buffer.sum()))
    return results


def read_by_an_extension(other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []
    EXTENSION["module"].hold(buffer)
    for step in range(4):
        buffer.zero_()
        results.append(EXTENSION["module"].first())
        buffer.copy_(values(other, step))
    return results


def kept_by_an_extension(other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []
    EXTENSION["module"].hold(buffer)
    for step in range(4):
        x = values(other, step)
        buffer.zero_()
        buffer.copy_(x)
        results.append(float(buffer.sum()))
    return results


def written_by_an_extension(_other: bool) -> Any:
    buffer, results = torch.zeros(SHAPE), []
    EXTENSION["module"].hold(buffer)
    for _ in range(4):
        buffer.zero_()
        results.append(float(buffer.sum()))
        EXTENSION["module"].bump()
    return results


def read_in_a_compiled_function(other: bool) -> Any:
    buffer, results = torch.randn(SHAPE), []

    @torch.compile  # type: ignore[untyped-decorator]
    def total(x: Any) -> Any:
        return (x + buffer).sum()

    for step in range(4):
        x = values(other, step)
        buffer.zero_()
        results.append(float(total(x)))
        buffer.copy_(x)
    return results


def written_in_a_compiled_function(other: bool) -> Any:
    buffer, results = torch.zeros(SHAPE), []

    @torch.compile  # type: ignore[untyped-decorator]
    def add(x: Any) -> None:
        buffer.add_(x * 2)

    for step in range(4):
        buffer.zero_()
        results.append(float(buffer.sum()))
        add(values(other, step))
    return results


GLOO = (
    gathered_into_a_buffer,
    gathered_into_a_list,
    gathered_asynchronously,
    sent_while_it_is_overwritten,
    summed_over_processes,
)
CPP = (
    written_by_an_operator_in_cpp,
    read_by_an_extension,
    kept_by_an_extension,
    written_by_an_extension,
)
COMPILED = (read_in_a_compiled_function, written_in_a_compiled_function)


def main() -> None:
    """Print one JSON object."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    kind = sys.argv[1]
    functions: tuple[Any, ...] = {"gloo": GLOO, "extension": CPP, "compiled": COMPILED}[kind]
    if kind == "gloo":
        rank, size, port = (int(word) for word in sys.argv[2:5])
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        dist.init_process_group("gloo", rank=rank, world_size=size)
    if kind == "extension":
        from torch.utils.cpp_extension import load_inline

        EXTENSION["module"] = load_inline(
            "torchyard_adversary_cpp", _SOURCE, functions=["hold", "bump", "first"]
        )
    found = {}
    for function in functions:
        program = Program(name=function.__name__, run=function, lines=())
        found[program.name] = {
            "fast": profile(program, deep=False),
            "deep": profile(program, deep=True),
        }
    if kind == "gloo":
        dist.destroy_process_group()
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()

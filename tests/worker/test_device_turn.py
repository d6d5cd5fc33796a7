"""When a worker holds the device while torch compiles, with the real compilers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.long]

HEAD = """
import fcntl, json, os, sys
import torch
from torch._inductor import config
from torchyard.worker.device_turn import TURN, compilations_apart, user_file
folder, seen = sys.argv[1], {}

def held():
    try:
        file = os.open(user_file(folder, os.getpid()), os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False

synchronized = []
TURN.begin(folder)
seen["before"] = held()
TURN.use_device(lambda: synchronized.append(held()))
seen["used"] = held()
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
inputs = torch.randn(2, 8)
"""
TAIL = """
seen["end"] = held()
TURN.end()
seen["ended"] = held()
seen["synchronized"] = synchronized
print(json.dumps(seen))
"""


def program(tmp_path: Path, code: str) -> dict[str, Any]:
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    completed = subprocess.run(
        [sys.executable, "-c", HEAD + code + TAIL, str(tmp_path / "turn")],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    seen: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    assert (seen["before"], seen["used"], seen["end"], seen["ended"]) == (False, True, True, False)
    assert all(seen["synchronized"]), "the device was given up before its work was done"
    return seen


def test_inductor_leaves_the_device_except_for_benchmarks(tmp_path: Path) -> None:
    completed = program(
        tmp_path,
        """
from torch._inductor import constant_folding
from torch._inductor.runtime.benchmarking import benchmarker
from torch._inductor.graph import GraphLowering

def probe(owner, name, label):
    function = getattr(owner, name)
    def call(*args, **kwargs):
        seen.setdefault(label, []).append(held())
        return function(*args, **kwargs)
    setattr(owner, name, call)

probe(constant_folding.ConstantFolder, "run", "folds constants")
run = GraphLowering.run
def lower(self, *args):
    seen.setdefault("lowers", []).append(held())
    benchmarker.benchmark(lambda: seen.setdefault("benchmarks", []).append(held()), device="cpu", warmup=1, rep=1)
    seen["lowers"].append(held())
    return run(self, *args)
GraphLowering.run = lower
compiled = torch.compile(model)
with compilations_apart(TURN, known=True):
    loss = compiled(inputs).sum()
    seen["between"] = held()
    loss.backward()
seen["graphs"] = len(seen["lowers"]) // 2
""",
    )
    assert completed["graphs"] >= 2, "forward and backward"
    assert not any(completed["lowers"])
    assert completed["benchmarks"]
    assert all(completed["benchmarks"])
    assert completed["folds constants"]
    assert all(completed["folds constants"])
    assert completed["between"]


@pytest.mark.parametrize(
    ("known", "setting", "leaves"),
    [
        (True, "", True),
        (False, "", False),
        (True, "config.max_autotune = True", False),
        (True, "config.autotune_in_subproc = True", False),
        (True, "TURN.end(); TURN.begin('')", False),
    ],
    ids=["known", "other compiler", "autotuning", "other process", "timed"],
)
def test_compilers_that_may_use_the_device_keep_it(
    tmp_path: Path, known: bool, setting: str, leaves: bool
) -> None:
    completed = program(
        tmp_path,
        f"""
{setting}
def backend(graph, inputs):
    seen["compiles"] = held()
    return graph.forward
with compilations_apart(TURN, known={known}):
    torch.compile(model, backend=backend)(inputs)
    seen["runs"] = held()
TURN.begin(folder)
""",
    )
    is_timed = "begin('')" in setting
    assert completed["compiles"] is (not leaves and not is_timed)
    assert completed["runs"] is not is_timed


def test_the_device_is_held_again_after_a_failed_compilation(tmp_path: Path) -> None:
    completed = program(
        tmp_path,
        """
def backend(graph, inputs):
    seen["compiles"] = held()
    raise RuntimeError("no")
with compilations_apart(TURN, known=True):
    try:
        torch.compile(model, backend=backend)(inputs)
    except Exception as error:
        seen["error"] = type(error).__name__
    seen["after"] = held()
torch.compile(model, backend=lambda graph, inputs: graph.forward)(inputs)
from torch._dynamo import callback
seen["callbacks"] = len(callback.callback_handler.start_callbacks)
""",
    )
    assert completed["error"]
    assert (completed["compiles"], completed["after"], completed["callbacks"]) == (False, True, 0)


def test_a_reset_of_dynamo_does_no_harm(tmp_path: Path) -> None:
    completed = program(
        tmp_path,
        """
with compilations_apart(TURN, known=True):
    torch._dynamo.reset()
    torch.compile(model, backend="eager")(inputs)
    seen["after"] = held()
""",
    )
    assert completed["after"]

"""Programs whose processes are killed, forked, replaced or left running: reported, never a hang, never broken."""

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
import multiprocessing, os, signal, subprocess, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
fork, spawn = multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")


def waste():
    for number in range(4):
        result = torch.zeros(64, 64)
        torch.add(torch.randn(64, 64), number, out=result)
    return result.sum().item()


class Rows(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, number):
        waste()
        return torch.randn(8)


"""


def _run(folder: Path, body: str, *options: str) -> tuple[dict[str, Any], str, int]:
    """Return the profile, the output of the program and the exit code."""
    script = folder / "program.py"
    lines = body.strip("\n").replace("\n", "\n    ")
    script.write_text(f'{HEAD}if __name__ == "__main__":\n    {lines}\n')
    ran = subprocess.run(
        [sys.executable, "-m", "torchyard", "values", "--once", "--json", *options, str(script)],
        env={**os.environ, "TORCHYARD_HOME": str(folder / "home")},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.stdout, ran.stderr
    return json.loads(ran.stdout)["profile"], ran.stderr, ran.returncode


def _states(profile: dict[str, Any]) -> list[tuple[str, str]]:
    return [(process["kind"], process["state"]) for process in profile["processes"]]


def _kinds(profile: dict[str, Any]) -> list[str]:
    """Return the kinds of the processes with the planted waste."""
    return [
        profile["processes"][share["process"]]["kind"]
        for finding in profile["findings"]
        if finding["pattern"] == "dead initialisation"
        for share in finding["processes"]
    ]


def test_a_killed_child_is_reported_and_the_others_are_kept(tmp_path: Path) -> None:
    body = """
def killed():
    waste()
    os.kill(os.getpid(), signal.SIGKILL)

for target in (waste, killed):
    process = fork.Process(target=target)
    process.start()
    process.join()
    print("ended with", process.exitcode)
"""
    profile, output, code = _run(tmp_path, body)
    assert code == 0
    assert "ended with 0" in output
    assert "ended with -9" in output
    assert sorted(_states(profile)) == [
        ("child", "finished"),
        ("child", "killed"),
        ("main", "finished"),
    ]
    assert _kinds(profile) == ["child"]
    shown = subprocess.run(
        [sys.executable, "-m", "torchyard", "values", "show", "latest"],
        env={**os.environ, "TORCHYARD_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "1 of 2 child processes: 1 killed before the last result was written" in shown
    assert "1 of 2 child processes (4 calls, 64.0 KiB)" in shown


def test_a_killed_loader_worker_is_reported(tmp_path: Path) -> None:
    body = """
loader = iter(DataLoader(Rows(), 4, num_workers=2, multiprocessing_context="fork"))
next(loader)
os.kill(loader._workers[0].pid, signal.SIGKILL)
try:
    for batch in loader:
        pass
except RuntimeError as error:
    print("loader failed:", "DataLoader worker" in str(error))
"""
    profile, output, _ = _run(tmp_path, body)
    assert "loader failed: True" in output
    assert ("loader", "killed") in _states(profile)
    assert sum(kind == "loader" for kind, _ in _states(profile)) == 2
    assert _kinds(profile) == ["loader"]


def test_a_program_that_exits_while_workers_live(tmp_path: Path) -> None:
    body = """
loader = iter(DataLoader(Rows(), 4, num_workers=2, multiprocessing_context="fork"))
print("sum", next(loader).shape)
sys.exit(5)
"""
    profile, _, code = _run(tmp_path, body)
    assert code == 5
    assert [kind for kind, _ in _states(profile)] == ["main", "loader", "loader"]
    assert {state for _, state in _states(profile)[1:]} <= {"finished", "interrupted"}
    assert _kinds(profile) == ["loader", "loader"]


def test_a_program_that_leaves_at_once_while_workers_live(tmp_path: Path) -> None:
    body = """
loader = iter(DataLoader(Rows(), 4, num_workers=1, multiprocessing_context="fork"))
next(loader)
os._exit(4)
"""
    profile, _, code = _run(tmp_path, body)
    assert code == 4
    assert [kind for kind, _ in _states(profile)] == ["main", "loader"]
    assert _states(profile)[1][1] in ("finished", "interrupted")
    assert _kinds(profile) == ["loader"]


def test_terminated_children_write_their_result_and_end_by_the_signal(tmp_path: Path) -> None:
    body = """
def sleeps(ready):
    waste()
    ready.set()
    time.sleep(600)

def computes(ready):
    ready.set()
    while True:
        waste()

for target in (sleeps, computes):
    ready = fork.Event()
    process = fork.Process(target=target, args=(ready,))
    process.start()
    ready.wait()
    time.sleep(0.5)
    process.terminate()
    process.join()
    print("ended with", process.exitcode)
"""
    profile, output, _ = _run(tmp_path, body)
    assert output.count("ended with -15") == 2
    assert _states(profile)[1:] == [("child", "interrupted")] * 2
    assert _kinds(profile) == ["child", "child"]


def test_nested_forks_and_exits_without_cleanup(tmp_path: Path) -> None:
    body = """
child = os.fork()
if child == 0:
    grandchild = os.fork()
    if grandchild == 0:
        waste()
        os._exit(3)
    print("grandchild", os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]), flush=True)
    process = fork.Process(target=waste)
    process.start()
    process.join()
    sys.exit(7)
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    profile, output, code = _run(tmp_path, body)
    assert code == 0
    assert "grandchild 3" in output
    assert "child 7" in output
    assert sorted(_states(profile)) == [
        ("child", "finished"),
        ("fork", "crashed"),
        ("fork", "crashed"),
        ("main", "finished"),
    ]
    assert sorted(_kinds(profile)) == ["child", "fork"]


def test_a_child_without_torch_stays_without_it(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(
        "import sys\n\n\ndef count():\n"
        '    print("torch imported:", "torch" in sys.modules, flush=True)\n'
    )
    script = """
import multiprocessing
import small

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=small.count)
    process.start()
    process.join()
    print("ended with", process.exitcode)
"""
    (tmp_path / "main.py").write_text(script)
    ran = subprocess.run(
        [sys.executable, "-m", "torchyard", "values", "--once", "--json", "main.py"],
        env={**os.environ, "TORCHYARD_HOME": str(tmp_path / "home")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "torch imported: False" in ran.stderr
    assert "ended with 0" in ran.stderr
    child = json.loads(ran.stdout)["profile"]["processes"][1]
    assert (child["state"], child["torch"]) == ("finished", False)


def test_subprocesses_are_neither_profiled_nor_changed(tmp_path: Path) -> None:
    body = """
code = "import sys; print('torchyard' in sys.modules, sys.argv[1:])"
print("seen:", subprocess.check_output([sys.executable, "-c", code, "-u"], text=True).strip())
child = os.fork()
if child == 0:
    os.execv(sys.executable, [sys.executable, "-c", "import sys; sys.exit(6)"])
print("executed", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(waste())
"""
    profile, output, code = _run(tmp_path, body)
    assert code == 0
    assert "seen: False ['-u']" in output
    assert "executed 6" in output
    assert _states(profile) in ([], [("main", "finished"), ("fork", "killed")])
    assert len(profile["findings"]) == 1


def test_a_child_that_raises_is_shown_as_failed(tmp_path: Path) -> None:
    body = """
def fails():
    waste()
    raise ValueError("planned")

process = fork.Process(target=fails)
process.start()
process.join()
print("ended with", process.exitcode)
"""
    profile, output, code = _run(tmp_path, body)
    assert code == 0
    assert "ended with 1" in output
    assert "ValueError: planned" in output
    assert _states(profile)[1:] == [("child", "crashed")]
    assert _kinds(profile) == ["child"]


RANKS = """
import torch.distributed as dist
dist.init_process_group("gloo")
{failure}
for _ in range(3):
    dist.all_reduce(torch.randn(64, 64))
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        ("if dist.get_rank() == 1: sys.exit(9)", 9),
        ("if dist.get_rank() == 1: os.kill(os.getpid(), signal.SIGKILL)", 137),
    ],
)
def test_a_rank_that_dies_ends_the_program(tmp_path: Path, failure: str, code: int) -> None:
    profile, _, exit_code = _run(tmp_path, RANKS.format(failure=failure), "--ranks", "2")
    assert exit_code in (code, 1 if code == 9 else code)  # rank 0 may raise before rank 1 has ended
    states = {process["rank"]: process["state"] for process in profile["processes"]}
    assert states[0] in ("crashed", "interrupted")
    assert states[1] == ("crashed" if code == 9 else "killed")


def test_a_rank_that_waits_for_ever_is_ended(tmp_path: Path) -> None:
    failure = "if dist.get_rank() == 1: sys.exit(9)\nwhile True: time.sleep(1)"
    _, _, exit_code = _run(tmp_path, RANKS.format(failure=failure), "--ranks", "2")
    assert exit_code == 9

"""torch.profiler on real programs: exits, recorded steps, written files."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchyard.core.records import decode
from torchyard.process.programs import PROGRAM_ENTRY
from torchyard.profile.model import Collected, CostRow
from torchyard.profile.tools.torch_profiler import data_notes

pytestmark = pytest.mark.torch

TRAIN = """
import os, sys, threading, warnings
import torch
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""


def profiled(
    folder: Path, text: str, *, stop_at: str = "", **options: Any
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run the worker as the controller does; return the process and its summary."""
    script = folder / "train it's.py"
    script.write_text(TRAIN + text)
    plan = folder / "plan.json"
    plan.write_text(
        json.dumps(
            {
                "tool": "torch",
                "output": str(folder / "operators.json"),
                "trace": str(folder / "trace.json.gz"),
                "tool_options": options,
            }
        )
    )
    words = [sys.executable, str(PROGRAM_ENTRY), str(plan), "--", str(script), "an argument"]
    if stop_at:
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder
        )
        assert process.stdout is not None
        while stop_at not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
        completed = subprocess.CompletedProcess(words, process.returncode, out, err)
    else:
        completed = subprocess.run(
            words, capture_output=True, text=True, check=False, cwd=folder, timeout=120
        )
    summary: dict[str, Any] = json.loads((folder / "operators.json").read_text())
    return completed, summary


def names_in(summary: dict[str, Any]) -> set[str]:
    return {row["name"] for row in summary["rows"]}


def test_steps_are_chosen_and_a_trace_is_written(tmp_path: Path) -> None:
    completed, summary = profiled(
        tmp_path,
        "print(sys.argv[1:])\nfor n in range(5):\n    step()\n    if n == 3: torch.ones(3).cumsum(0)\n",
        skip_steps=1,
        warm_steps=1,
        active_steps=2,
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout == "['an argument']\n"
    assert (summary["steps"], summary["recorded_steps"]) == (5, 2)
    rows = {row["name"]: row for row in summary["rows"]}
    assert rows["aten::addmm"]["calls"] == 2
    assert rows["aten::addmm"]["shapes"][0]["shapes"] == "3, 4x8, 8x3"
    assert rows["aten::addmm"]["memory_bytes"] == 2 * 4 * 3 * 4
    assert rows["aten::linear"]["total_cost"] >= rows["aten::addmm"]["total_cost"]
    assert "aten::cumsum" not in rows, "it ran after the last step to record"
    costs = [row["self_cost"] for row in summary["rows"]]
    assert costs == sorted(costs, reverse=True)
    with gzip.open(tmp_path / "trace.json.gz") as file:
        events = json.load(file)["traceEvents"]
    assert any(event.get("name") == "aten::addmm" for event in events)


@pytest.mark.parametrize(
    ("end", "code", "state"),
    [
        ("raise ValueError('broken')", 1, "crashed"),
        pytest.param("sys.exit(3)", 3, "crashed", marks=pytest.mark.slow),
        pytest.param("os._exit(4)", 4, "crashed", marks=pytest.mark.slow),
        pytest.param("sys.exit()", 0, "finished", marks=pytest.mark.slow),
        pytest.param("raise KeyboardInterrupt", 130, "interrupted", marks=pytest.mark.slow),
    ],
)
def test_every_exit_writes_the_recording(tmp_path: Path, end: str, code: int, state: str) -> None:
    completed, summary = profiled(tmp_path, f"step()\n{end}\n")
    assert completed.returncode == code
    assert (summary["state"], summary["exit_code"]) == (state, code)
    assert "aten::addmm" in names_in(summary)
    assert (tmp_path / "trace.json.gz").is_file()
    if "broken" in end:
        assert "ValueError: broken" in completed.stderr
        assert "torch_profile" not in completed.stderr, "its traceback is its own"


@pytest.mark.slow
def test_a_stop_from_outside(tmp_path: Path) -> None:
    completed, summary = profiled(
        tmp_path,
        "step()\nprint('begun', flush=True)\nimport time\ntime.sleep(60)\n",
        stop_at="begun",
    )
    assert completed.returncode == 143
    assert summary["state"] == "interrupted"
    assert "aten::addmm" in names_in(summary)


@pytest.mark.slow
def test_a_program_that_ends_before_the_first_step_to_record_says_so(tmp_path: Path) -> None:
    completed, summary = profiled(tmp_path, "step()\n", skip_steps=5)
    assert completed.returncode == 0
    assert summary["rows"] == []
    assert "ended after 1 steps, before step 5" in summary["notes"][0]
    assert not (tmp_path / "trace.json.gz").exists()


def test_forks_and_threads(tmp_path: Path) -> None:
    completed, summary = profiled(
        tmp_path,
        "step()\nsys.stdout.flush()\nif os.fork() == 0:\n    sys.exit(5)\nprint('child', os.wait()[1] >> 8)\n"
        "thread = threading.Thread(target=lambda: torch.ones(3).cumsum(0))\n"
        "thread.start()\nthread.join()\nprint('end')\n",
        memory=False,
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout == "child 5\nend\n"
    assert {"aten::addmm", "aten::cumsum"} <= names_in(summary)
    assert summary["notes"] == []


@pytest.mark.slow
def test_a_program_that_profiles_itself_takes_precedence(tmp_path: Path) -> None:
    completed, summary = profiled(
        tmp_path,
        "step()\nwith torch.profiler.profile() as own:\n    torch.ones(3).cumsum(0)\n"
        "print(any('cumsum' in one.key for one in own.key_averages()))\n",
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout == "True\n"
    assert "aten::addmm" in names_in(summary)
    assert "aten::cumsum" not in names_in(summary)
    assert any("profiles itself" in note for note in summary["notes"])


@pytest.mark.slow
def test_recording_stops_when_its_time_is_up(tmp_path: Path) -> None:
    completed, summary = profiled(
        tmp_path,
        "import time\nend = time.process_time() + 1.5\nstep()\n"
        "while time.process_time() < end: sum(range(1000))\ntorch.ones(3).cumsum(0)\n",
        most_s=0.2,
    )
    assert completed.returncode == 0, completed.stderr
    assert "recording stopped after 0.2 s" in summary["notes"]
    assert "aten::addmm" in names_in(summary)
    assert "aten::cumsum" not in names_in(summary)


def test_the_whole_command(tmp_path: Path) -> None:
    script = tmp_path / "<b>train.py"
    script.write_text(TRAIN + "for _ in range(3): step()\nprint('trained')\nsys.exit(6)\n")
    completed = subprocess.run(
        [
            *(sys.executable, "-m", "torchyard", "profile", "--active-steps", "2", "--json"),
            *("--run-dir", str(tmp_path / "kept"), "--html", str(tmp_path / "p.html"), str(script)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 6, completed.stderr
    document = json.loads(completed.stdout)
    profile = document["profile"]
    assert (profile["exit_code"], profile["state"], profile["tool"]) == (6, "crashed", "torch")
    assert profile["recorded_steps"] == 2
    assert "trained" in completed.stderr
    page = (tmp_path / "p.html").read_text()
    assert 'href="./kept/trace.json.gz"' in page
    assert "<b>train" not in page
    assert "aten::addmm" in page


LOADER = """
import time
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 12
    def __getitem__(self, index):
        time.sleep(WAIT)
        return torch.randn(8)
for batch in torch.utils.data.DataLoader(Slow(), batch_size=2, num_workers=WORKERS):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
    time.sleep(WORK)
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_a_program_that_waits_for_data_is_recognized(tmp_path: Path, workers: int) -> None:
    text = LOADER.replace("WAIT", "0.1").replace("WORKERS", str(workers)).replace("WORK", "0")
    _, summary = profiled(tmp_path, text)

    (note,) = data_notes(decode(Collected, _fields(summary), where="summary", strict=False))

    assert "bound by data loading" in note


def test_a_program_that_does_not_wait_for_data_has_no_note(tmp_path: Path) -> None:
    text = LOADER.replace("WAIT", "0").replace("WORKERS", "0").replace("WORK", "0.2")
    _, summary = profiled(tmp_path, text)

    assert data_notes(decode(Collected, _fields(summary), where="summary", strict=False)) == []


def test_the_share_of_data_loading_never_exceeds_the_whole() -> None:
    """Loaders in several threads overlap."""
    row = CostRow(
        name="enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", total_cost=3e9
    )
    (note,) = data_notes(Collected(rows=(row, row), recorded_ns=2e9))

    assert note.startswith("100% of the recorded time")


def _fields(summary: dict[str, Any]) -> dict[str, Any]:
    return {name: summary[name] for name in ("rows", "recorded_ns")}

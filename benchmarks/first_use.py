"""The first hour of a new user, from an empty environment: three tasks, their outcomes and times.

    python -m benchmarks.first_use --repeats 20 --json first-use.json

Builds the wheel of this tree, installs it in a new virtual environment with the constraints file, and then

1. compares an own module with inductor in a notebook kernel;
2. runs a pytest check with a limit of 5 % on identical code, which must pass, and on a planted slowdown
   of 10 %, which must fail, `--repeats` times each;
3. runs the shell steps of the GitHub action on a git project whose last commit is slower.

A comparison that is untrusted or undecided is counted as such, neither as right nor as wrong. The exit
code is 1 if equal code failed or planted work was within the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from tests.docs.ci_steps import git, run_steps

ROOT: Final = Path(__file__).parents[1]
TASKS: Final = ("notebook", "pytest", "action")
Outcome = Literal["right", "wrong", "undecided", "untrusted", "error"]

NOTEBOOK: Final = """
import torch, torchyard

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.LayerNorm(1024), torch.nn.Linear(1024, 256)
        )

    def forward(self, x):
        return x + self.layers(x)

result = torchyard.compare(Net(), "inductor", inputs=(torch.randn(64, 256),))
result
"""
EXECUTE: Final = """
import sys
import nbclient, nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager

manager = AsyncKernelManager()
command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
manager._kernel_spec = KernelSpec(argv=command, display_name="Python", language="python")
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(open("cell.py").read())])
nbclient.NotebookClient(notebook, km=manager, timeout=900).execute()
(result,) = [one for one in notebook.cells[0].outputs if one.output_type == "execute_result"]
assert "torchyard-result" in result.data["text/html"]
print(result.data["text/plain"])
"""
# So few elements that torch uses one thread: other programs disturb one core less than all of them.
OPERATIONS: Final = """
import torch

def work(x, repeats):
    for _ in range(repeats):
        y = torch.sin(x)
    return y

def reference(x):
    return work(x, 100)

def equal(x):
    return work(x, 100)

def slower(x):
    return work(x, 110)
"""
CHECKS: Final = """
import operations, pytest, torch

@pytest.mark.torchyard(limit="5%")
@pytest.mark.parametrize("name", ["equal", "slower"])
def test_limit(torchyard_compare, name):
    x = torch.linspace(0.0, 1.0, 16384)
    torchyard_compare(operations.reference, getattr(operations, name), (x,))
"""
WORKLOAD: Final = """
import torch
import operations

class Net(torch.nn.Module):
    def forward(self, x):
        return operations.reference(x)

def make():
    return Net(), (torch.linspace(0.0, 1.0, 16384),)
"""


@dataclass(kw_only=True)
class Task:
    """A task: its duration and the outcome of each repeat."""

    name: str
    duration_s: float = 0.0
    outcomes: list[tuple[str, Outcome]] = field(default_factory=list)
    """Case and outcome of each repeat."""
    text: str = ""

    def lines(self) -> list[str]:
        """Return the summary of the task."""
        lines = [f"{self.name}: {self.duration_s:.0f} s"]
        for case in dict.fromkeys(case for case, _ in self.outcomes):
            counts = Counter(outcome for one, outcome in self.outcomes if one == case)
            total = sum(counts.values())
            others = ", ".join(f"{n} {name}" for name, n in counts.items() if name != "right")
            lines.append(
                f"  {case}: {counts['right']} of {total} right" + (f", {others}" * bool(others))
            )
        return [*lines, *(f"  {line}" for line in self.text.splitlines())]


@contextmanager
def timed(task: Task) -> Iterator[Task]:
    """Record the duration of the block."""
    started = time.monotonic()
    yield task
    task.duration_s = time.monotonic() - started
    print("\n".join(task.lines()), flush=True)


class Environment:
    """A new virtual environment with Torchyard, and a results directory of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "venv" / "bin" / "python"
        self.variables = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith(("PYTHON", "PYTEST", "TORCHYARD", "VIRTUAL_ENV"))
        }
        self.variables["TORCHYARD_HOME"] = str(folder / "home")

    def install(self) -> None:
        """Build the wheel, and install it with torch."""
        self.run([sys.executable, "-m", "venv", str(self.folder / "venv")])
        pip = [str(self.python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        wheels = self.folder / "wheels"
        self.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(ROOT)])
        (wheel,) = wheels.glob("torchyard-*.whl")
        constraints = ["--constraint", str(ROOT / "constraints-test.txt")]
        packages = [f"{wheel}[pytest]", "torch", "ipykernel", "nbclient"]
        self.run([*pip, "install", *constraints, *packages])

    def run(self, command: Sequence[str], *, cwd: Path | None = None) -> str:
        """Run a command and return its output; exit if it fails."""
        done = self.attempt(command, cwd=cwd)
        if done.returncode:
            sys.exit(f"{' '.join(command[:4])} ... failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def attempt(
        self, command: Sequence[str], *, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the environment."""
        return subprocess.run(
            command,
            cwd=cwd or self.folder,
            env=self.variables,
            capture_output=True,
            text=True,
            check=False,
        )


def notebook_task(environment: Environment) -> Task:
    """Compare an own module with inductor in a notebook kernel."""
    folder = environment.folder / "notebook"
    folder.mkdir()
    (folder / "cell.py").write_text(NOTEBOOK, "utf-8")
    with timed(Task(name="1 notebook: own module against inductor")) as task:
        task.text = environment.run([str(environment.python), "-c", EXECUTE], cwd=folder).strip()
    return task


def pytest_task(environment: Environment, options: argparse.Namespace) -> Task:
    """Check a limit of 5 % on identical code and on 10 % more work."""
    folder = environment.folder / "project"
    folder.mkdir()
    (folder / "operations.py").write_text(OPERATIONS, "utf-8")
    (folder / "test_speed.py").write_text(CHECKS, "utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", "utf-8")
    limits = [f"--torchyard-time={options.time}", f"--torchyard-retries={options.retries}"]
    command = [str(environment.python), "-m", "pytest", "-q", *limits]
    with timed(Task(name="2 pytest: limit 5 %, identical code and 10 % more work")) as task:
        for repeat in range(1, options.repeats + 1):
            done = environment.attempt(command, cwd=folder)
            for case in ("equal", "slower"):
                outcome, line = pytest_outcome(done.stdout + done.stderr, case)
                task.outcomes.append((case, outcome))
                print(f"  {repeat} {case} {outcome}: {line}", flush=True)
    return task


def pytest_outcome(output: str, case: str) -> tuple[Outcome, str]:
    """Return the outcome of one test, and its line in the summary."""
    start = f"test_speed.py::test_limit[{case}]: "
    line = next((one for one in output.splitlines() if one.startswith(start)), "")
    text = line.removeprefix(start)
    failed = f"FAILED test_speed.py::test_limit[{case}]" in output
    if not line:
        return "error", output[-500:]
    if "cannot be trusted" in text or "one launch only" in text:
        return "untrusted" if not failed else "wrong", text
    if "undecided: " in text or "no interval" in text:
        return "undecided" if not failed else "wrong", text
    return ("right" if failed == (case == "slower") else "wrong"), text


def action_task(environment: Environment, options: argparse.Namespace) -> Task:
    """Run the steps of the action on a project whose last commit is 20 % slower."""
    repository, runner = environment.folder / "repository", environment.folder / "runner"
    (repository / "benchmarks").mkdir(parents=True)
    runner.mkdir()
    (repository / "operations.py").write_text(OPERATIONS, "utf-8")
    (repository / "benchmarks" / "net.py").write_text(WORKLOAD, "utf-8")
    git(repository, "init", "-q", "-b", "main")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "first")
    slower = OPERATIONS.replace("work(x, 100)", "work(x, 120)")
    (repository / "operations.py").write_text(slower, "utf-8")
    git(repository, "commit", "-qam", "slower")
    with timed(Task(name="3 action: a commit with 20 % more work, limit 5 %")) as task:
        code, output = run_steps(
            repository,
            runner,
            python=str(environment.python),
            workloads="benchmarks/net.py",
            time=options.action_time,
        )
        gate = runner / "torchyard" / "gate.md"
        text = gate.read_text("utf-8") if gate.is_file() else output[-500:]
        row = next(
            (one for one in text.splitlines() if one.startswith("| ") and "net.py" in one), ""
        )
        task.outcomes.append(("slow commit", action_outcome(code, row)))
        task.text = f"exit code {code}\n{row or text}"
    return task


def action_outcome(code: int, row: str) -> Outcome:
    """Return the outcome of the gate."""
    standing = re.sub(r"[^a-z]", "", row.rstrip(" |").rpartition("|")[2])
    outcomes: dict[str, Outcome] = {
        "crossed": "right",
        "kept": "wrong",
        "undecided": "undecided",
        "untrusted": "untrusted",
        "unsupported": "untrusted",
    }
    outcome = outcomes.get(standing, "error")
    return outcome if (outcome == "right") == (code != 0) else "error"


def main() -> int:
    """Run the tasks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--tasks", default=",".join(TASKS), help="[default: all]")
    parser.add_argument("--repeats", type=int, default=20, help="of the pytest check [default: 20]")
    parser.add_argument("--time", default="20s", help="of one comparison in pytest [default: 20s]")
    parser.add_argument("--retries", type=int, default=2, help="after noise [default: 2]")
    parser.add_argument("--action-time", default="60s", help="of the action [default: 60s]")
    parser.add_argument("--json", type=Path, help="write durations and outcomes to this file")
    options = parser.parse_args()
    tasks: list[Task] = []
    with tempfile.TemporaryDirectory(prefix="first-use-") as name:
        environment = Environment(Path(name))
        with timed(Task(name="0 install: wheel, torch and notebook in a new environment")) as task:
            environment.install()
        tasks.append(task)
        if "notebook" in options.tasks:
            tasks.append(notebook_task(environment))
        if "pytest" in options.tasks:
            tasks.append(pytest_task(environment, options))
        if "action" in options.tasks:
            tasks.append(action_task(environment, options))
    if options.json is not None:
        record: list[dict[str, Any]] = [asdict(one) for one in tasks]
        options.json.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    bad = {"wrong", "error"}
    return int(any(outcome in bad for one in tasks for _, outcome in one.outcomes))


if __name__ == "__main__":
    sys.exit(main())

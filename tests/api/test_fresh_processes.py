"""Comparisons in fresh processes: what can be imported there, the run folder, failures and interrupts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

import torchyard
from torchyard.api.fresh_processes import why_not_importable
from torchyard.errors import WorkerFailed

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

CODE = """
import torch

def sine(x):
    return x.sin()

def twice(x):
    x.sin()
    return x.sin()

def broken(x):
    raise ValueError("the message of the candidate")

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.inner(x)
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A package with functions, which only this process has in its path."""
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    package = tmp_path / "path" / "my_package"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "functions.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(package.parent))
    from importlib import import_module

    yield import_module("my_package.functions")
    for name in ("my_package", "my_package.functions"):
        sys.modules.pop(name, None)


def test_functions_of_a_package_run_in_fresh_processes(code: ModuleType, tmp_path: Path) -> None:
    result = torchyard.compare(code.sine, code.twice, (torch.randn(4096),), time="3s")
    assert result.scope in {"fresh processes", "these processes only"}
    assert result.verdict in {"slower", "undecided", "untrusted"}
    assert result.speedup is not None
    assert 0.2 < result.speedup < 0.9
    assert result.accuracy.startswith("pass")
    assert result.run is not None
    assert result.run.is_relative_to(tmp_path / "home")
    run = torchyard.read_run(result.run)
    assert (run.state, run.folder) == ("finished", result.run)
    assert [one.speedup for one in run.comparisons] == [result.speedup]
    assert torchyard.read_run(run.id).id == torchyard.read_run("latest").id == run.id
    for text in (repr(run), run.report(), run._repr_html_()):
        assert "twice" in text or "1 comparison" in text
    # One launch has no verdict, unless it was requested.
    if result.scope == "these processes only":
        assert result.verdict in {"undecided", "untrusted"}


def test_modules_run_in_fresh_processes_with_a_backend(code: ModuleType) -> None:
    net = code.Net()
    result = torchyard.compare(net, "eager+inference-mode", (torch.randn(4, 8),), time="500ms")
    assert result.run is not None
    assert result.accuracy.startswith("pass")
    assert net.training


def test_wrong_results_are_called_wrong(code: ModuleType) -> None:
    other = code.Net()  # with other weights
    result = torchyard.compare(code.Net(), other, (torch.randn(4, 8),), time="500ms")
    assert result.verdict == "wrong"
    assert result.run is not None


def test_modules_with_weights_of_their_own_are_not_called_wrong(code: ModuleType) -> None:
    import copy

    net = code.Net()
    result = torchyard.compare(net, copy.deepcopy(net), (torch.randn(4, 8),), time="500ms")
    assert result.run is not None
    assert result.verdict != "wrong", result.notes


def test_an_exception_keeps_its_message(code: ModuleType) -> None:
    with pytest.raises(WorkerFailed, match="the message of the candidate") as caught:
        torchyard.compare(code.sine, code.broken, (torch.randn(4),), time="500ms")
    assert "in broken" in "".join(caught.value.__notes__)


def test_an_interrupt_leaves_no_processes(code: ModuleType, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            f"""
            import sys
            sys.path.insert(0, {str(tmp_path / "path")!r})
            import torch, torchyard
            from my_package.functions import sine, twice
            torchyard.compare(sine, twice, (torch.randn(64),), time="60s")
            print("returned")
            """
        )
    )
    process = subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 60
        children: list[psutil.Process] = []
        while not children and time.monotonic() < deadline:
            time.sleep(0.5)
            children = psutil.Process(process.pid).children(recursive=True)
        time.sleep(2)
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        os.kill(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert "KeyboardInterrupt" in errors
    assert output == ""
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    run = torchyard.read_run("latest")
    assert run.state == "interrupted"


def test_what_can_be_imported(code: ModuleType) -> None:
    assert why_not_importable(code.sine) == ""
    assert why_not_importable(torch.nn.functional.relu) == ""
    assert "lambda" in why_not_importable(lambda: None)
    assert "no importable name" in why_not_importable(torch.nn.ReLU())

    def inner() -> None:
        """Not importable."""

    assert "defined in a function" in why_not_importable(inner)
    inner.__module__ = "__main__"
    assert "__main__" in why_not_importable(inner)
    replaced = code.sine
    vars(code)["sine"] = code.twice
    assert "is not my_package.functions.sine" in why_not_importable(replaced)

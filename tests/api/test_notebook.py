"""The Python API in a real Jupyter kernel: cells of a notebook, and the HTML that they show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]

OPERATIONS = """
def plain(x):
    return (x @ x).relu() + 1.0


def in_place(x):
    return (x @ x).relu_().add_(1.0)
"""
CELLS = {
    "setup": """
import torch, torchyard
torch.set_num_threads(1)
x = torch.randn(64, 64)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x):
        return self.linear(x).relu()

net = Net()
net.train()
""",
    "own module": "own = torchyard.compare(net, 'aot_eager', inputs=(x,), time='3s'); own",
    "own module, as text": """
print(own.scope, own.candidate, own.run, *own.notes, sep='\\n')
print(net.training, torch.get_num_threads())
""",
    "importable": """
import operations
both = torchyard.compare(operations.plain, operations.in_place, inputs=(x,), time='6s'); both
""",
    "importable, as text": "print(both.scope, both.run.is_dir(), both.accuracy, sep='\\n')",
    "measure": "torchyard.measure(net, x, time='1s')",
    "values": """
with torchyard.profile_values() as found:
    y = torch.zeros(512, 512)
    y.fill_(0.0)
    y.fill_(0.0)
found
""",
    "values, as text": "print(found.report())",
    "error": "torchyard.compare(net, 'indutor', inputs=(x,))",
}


# In a process of its own: the sockets of its client stay open until it ends.
EXECUTE = """
import sys
import nbclient, nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager

# Needs no installed kernel specification.
manager = AsyncKernelManager()
command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
manager._kernel_spec = KernelSpec(argv=command, display_name="Python", language="python")
notebook = nbformat.read("notebook.ipynb", as_version=4)
nbclient.NotebookClient(notebook, km=manager, timeout=600).execute()
nbformat.write(notebook, "executed.ipynb")
"""


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The executed cells by name."""
    folder = tmp_path_factory.mktemp("notebook")
    (folder / "operations.py").write_text(OPERATIONS, "utf-8")
    made: list[dict[str, Any]] = [
        {
            "cell_type": "code",
            "execution_count": None,
            "id": f"cell-{number}",
            "metadata": {"tags": ["raises-exception"]} if name == "error" else {},
            "outputs": [],
            "source": text.strip(),
        }
        for number, (name, text) in enumerate(CELLS.items())
    ]
    notebook = {"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (folder / "notebook.ipynb").write_text(json.dumps(notebook), "utf-8")
    completed = subprocess.run(
        [sys.executable, "-c", EXECUTE],
        cwd=folder,
        env={**os.environ, "TORCHYARD_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    executed = json.loads((folder / "executed.ipynb").read_text("utf-8"))
    return dict(zip(CELLS, executed["cells"], strict=True))


def text_of(cell: Any) -> str:
    lines = [one["text"] for one in cell["outputs"] if one["output_type"] == "stream"]
    return "".join("".join(part) for part in lines)


def shown(cell: Any) -> dict[str, str]:
    (result,) = [one for one in cell["outputs"] if one["output_type"] == "execute_result"]
    return {kind: "".join(text) for kind, text in result["data"].items()}


def test_an_own_module_is_compared_in_this_process(cells: dict[str, Any]) -> None:
    html = shown(cells["own module"])["text/html"]
    assert 'class="torchyard-result"' in html
    assert "this process only" in html
    assert "aot_eager" in html
    assert "<script" not in html
    scope, candidate, run, *notes, state = text_of(cells["own module, as text"]).splitlines()
    assert (scope, candidate, run) == ("this process only", "aot_eager", "None")
    assert any("__main__" in note for note in notes), notes
    assert state == "True 1"  # the module is in training mode again


def test_functions_of_a_module_are_compared_in_fresh_processes(cells: dict[str, Any]) -> None:
    html = shown(cells["importable"])["text/html"]
    assert "in_place" in html
    scope, kept, accuracy = text_of(cells["importable, as text"]).splitlines()
    # On a busy machine, the time may allow one launch only.
    assert scope in ("fresh processes", "these processes only")
    assert scope in html
    assert kept == "True"
    assert accuracy.startswith("pass")


def test_the_forest_plot_is_part_of_the_html(cells: dict[str, Any]) -> None:
    pytest.importorskip("vl_convert")
    for name in ("own module", "importable"):
        html = shown(cells[name])["text/html"]
        # Without a usable pair there is no interval to draw.
        assert "<svg" in html or "untrusted" in html, name


def test_a_measurement_has_html(cells: dict[str, Any]) -> None:
    data = shown(cells["measure"])
    assert "Net" in data["text/html"]
    assert "median" in data["text/html"]
    assert data["text/plain"].startswith("<Measurement Net: median ")


def test_wasted_work_of_a_cell_is_found(cells: dict[str, Any]) -> None:
    assert "fill_" in text_of(cells["values, as text"])
    data = shown(cells["values"])
    assert data["text/plain"].startswith("<ValueProfiler: ")
    assert data["text/html"].startswith("<pre")
    assert "fill_" in data["text/html"]


def test_an_error_names_the_fix(cells: dict[str, Any]) -> None:
    (error,) = [one for one in cells["error"]["outputs"] if one["output_type"] == "error"]
    assert error["ename"] == "UsageError"
    assert "indutor" in error["evalue"]

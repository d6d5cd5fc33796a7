"""The module of another file on the inputs of a workload: weights, inputs, imports and checks."""

import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.worker.in_process_service import make_service, variant, write_file
from torchyard.worker.workload import CannotBuild

pytestmark = pytest.mark.torch

BASE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, values):
        return self.two(torch.relu(self.one(values)))

    def example_inputs(self):
        return torch.randn(3, 8)

    def loss(self, output):
        return output.square().mean()
"""
OTHER_ORDER = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.two, self.one = nn.Linear(16, 4), nn.Linear(8, 16)

    def forward(self, values):
        hidden = torch.addmm(self.one.bias, values, self.one.weight.t())
        return torch.addmm(self.two.bias, hidden.clamp_min(0), self.two.weight.t())
"""
WRONG = OTHER_ORDER.replace("clamp_min(0)", "clamp_min(0.01)")
REMEMBERS = OTHER_ORDER.replace(
    "        hidden", "        if hasattr(self, 'kept'): return self.kept.clone()\n        hidden"
).replace("return torch.addmm", "self.kept = torch.addmm").rstrip() + (
    "\n        return self.kept.clone()\n"
)
OTHER_WEIGHTS = """
import torch
from torch import nn

def make():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(3, 8)
"""


@pytest.fixture(autouse=True)
def _own_modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("torchyard_user_file_") or name == "layers":
            del sys.modules[name]


def service_of(folder: Path, code: str, *, base: str = BASE, **given: Any) -> Any:
    (folder / "b").mkdir(exist_ok=True)
    path = write_file(folder, "a.py", base)
    other = dict(variant("b"), file=write_file(folder / "b", "b.py", code))
    return make_service(path, variant("a"), other, **given)


def accuracy_of(service: Any, folder: Path) -> Any:
    reference = str(folder / "reference.pt")
    service.reference("a", reference)
    return service.judge("b", reference)


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_parameters_of_the_same_structure_are_shared(tmp_path: Path, mode: str) -> None:
    service = service_of(tmp_path, OTHER_ORDER, mode=mode)
    runners = service._runners
    mine, others = runners["b"].own_module, runners["a"].model.module
    assert mine is not others
    assert dict(mine.named_parameters())["two.bias"] is dict(others.named_parameters())["two.bias"]
    assert accuracy_of(service, tmp_path)["status"] == "pass"
    assert not runners["b"].own_weights


@pytest.mark.parametrize("code", [WRONG, REMEMBERS])
def test_wrong_results_are_found(tmp_path: Path, code: str) -> None:
    assert accuracy_of(service_of(tmp_path, code), tmp_path)["status"] == "fail"


def test_results_that_become_wrong_later_are_found_in_timed_calls(tmp_path: Path) -> None:
    code = OTHER_ORDER.replace(
        "        hidden", "        self.calls = getattr(self, 'calls', 0) + 1\n        hidden"
    ).replace("clamp_min(0)", "clamp_min(0 if self.calls < 300 else 1)")
    service = service_of(tmp_path, code)
    record = accuracy_of(service, tmp_path)
    assert record["status"] == "pass"
    for draw in range(2, 40):
        service.block("b", 1, 20, 0, settle=False, flush_l2=False, draw=draw, varied="all")
        failure = service.verify("b", record["accepted"])["failure"]
        if failure:
            return
    pytest.fail("no timed call was found wrong")


def test_other_parameters_are_kept_and_noted(tmp_path: Path) -> None:
    service = service_of(tmp_path, OTHER_WEIGHTS)
    record = accuracy_of(service, tmp_path)
    assert service._runners["b"].own_weights
    # The same seed and the same order of initialisation give the same weights.
    assert record["status"] == "pass"
    note = "has parameters that differ from the baseline's: one.weight, one.bias, two.weight"
    assert any(text.startswith(note) for text in record["notes"])


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (OTHER_WEIGHTS.replace("return", "torch.rand(1)\n    return"), "unchecked"),
        (OTHER_WEIGHTS.replace("nn.Linear(16, 4)", "nn.Linear(16, 5)"), "fail"),
    ],
)
def test_other_results_of_other_parameters_are_not_called_wrong(
    tmp_path: Path, code: str, status: str
) -> None:
    record = accuracy_of(service_of(tmp_path, code), tmp_path)
    assert record["status"] == status, record
    assert ("it has parameters that differ" in record["detail"]) == (status == "unchecked")


@pytest.mark.parametrize(("own", "notes"), [("square().mean()", 0), ("abs().mean()", 1)])
def test_another_loss_is_noted(tmp_path: Path, own: str, notes: int) -> None:
    loss = f"\n    def loss(self, output):\n        return output.{own}\n"
    record = accuracy_of(service_of(tmp_path, OTHER_ORDER + loss, mode="training"), tmp_path)
    assert record["status"] == "pass", record
    assert record["notes"].count("its own loss is not used, but that of the baseline") == notes


def test_training_needs_the_same_parameters(tmp_path: Path) -> None:
    service = service_of(tmp_path, OTHER_WEIGHTS, mode="training")
    with pytest.raises(CannotBuild, match="parameters that differ") as caught:
        service.warm("b", 0)
    assert "--mode inference" in caught.value.hint
    service.warm("a", 0)


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        (
            "torch.randn(3, 9)",
            r"input 0 .* is float32\[3, 9\], and float32\[3, 8\] in the baseline",
        ),
        ("torch.randn(3, 8, dtype=torch.float64)", r"float64\[3, 8\]"),
        ("(torch.randn(3, 8), 2)", "input 1 .* is 2, and missing"),
        ("{'values': torch.randn(3, 8)}", "input 0 .* is missing"),
    ],
)
def test_own_inputs_must_have_the_same_structure(tmp_path: Path, inputs: str, text: str) -> None:
    service = service_of(
        tmp_path, f"{OTHER_ORDER}\n    def example_inputs(self): return {inputs}\n"
    )
    with pytest.raises(CannotBuild, match=text):
        service.warm("b", 0)


def test_lstm_weights_are_shared(tmp_path: Path) -> None:
    code = """
        import torch

        def make():
            torch.rand({skip})
            return torch.nn.LSTM(4, 4), torch.randn(2, 3, 4)
    """
    service = service_of(tmp_path, dedent(code.format(skip=3)), base=dedent(code.format(skip=5)))
    assert accuracy_of(service, tmp_path)["status"] == "pass"


def test_another_precision_is_applied_to_both(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    other = dict(variant("b", precision="bfloat16"), file=write_file(tmp_path, "b.py", OTHER_ORDER))
    service = make_service(
        write_file(tmp_path, "a.py", BASE), variant("a", precision="bfloat16"), other
    )
    assert {str(p.dtype) for p in service._runners["b"].own_module.parameters()} == {
        "torch.bfloat16"
    }
    assert accuracy_of(service, tmp_path)["status"] == "pass"


def test_two_functions_of_one_file(tmp_path: Path) -> None:
    code = """
        import torch
        LOADED = []
        def example_inputs(batch_size=4): return torch.randn(batch_size, 3)
        def one(x): return x + x
        def two(x): return 2 * x
    """
    path = write_file(tmp_path, "a.py", code)
    other = dict(variant("b"), file=f"{path}:two")
    service = make_service(f"{path}:one", variant("a"), other, batch_size=7)
    assert accuracy_of(service, tmp_path)["status"] == "pass"
    functions = [
        service._runners["a"].model.module.function,
        service._runners["b"].own_module.function,
    ]
    assert functions[0].__globals__ is functions[1].__globals__
    assert tuple(service._runners["b"].model.args[0].shape) == (7, 3)


def test_files_of_the_same_name_are_different_modules(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    old = write_file(
        tmp_path, "net.py", "import torch\ndef make(): return torch.neg, torch.ones(2)"
    )
    new = write_file(tmp_path / "new", "net.py", "import torch\ndef make(): return torch.exp")
    service = make_service(old, variant("a"), dict(variant("b"), file=new))
    assert service._runners["a"].caller()().tolist() == [-1, -1]
    assert service._runners["b"].caller()().tolist() != [-1, -1]


@pytest.mark.parametrize("same", [True, False])
def test_different_modules_of_one_name_are_refused(tmp_path: Path, same: bool) -> None:
    (tmp_path / "new").mkdir()
    code = "import torch, layers\ndef make(): return layers.run, torch.ones(2)"
    write_file(tmp_path, "layers.py", "def run(x): return x + 1")
    write_file(tmp_path / "new", "layers.py", f"def run(x): return x + {1 if same else 2}")
    old = write_file(tmp_path, "net.py", code)
    other = dict(variant("b"), file=write_file(tmp_path / "new", "net.py", code))
    service = make_service(old, variant("a"), other)
    assert sys.modules["layers"].__file__ == str(tmp_path / "layers.py")
    if same:
        service.warm("b", 0)
        return
    with pytest.raises(CannotBuild, match="different modules of the name 'layers'"):
        service.warm("b", 0)

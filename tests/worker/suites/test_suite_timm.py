"""The suite timm, with a small package of the same interface, and without any."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch

FAKE = Path(__file__).parents[2] / "data" / "fake_timm"

ASK = """
import json, sys
path, question = sys.argv[1], json.loads(sys.argv[2])
if path == "none":
    sys.modules["timm"] = None
else:
    sys.path.insert(0, path)
import torch
from torchyard.worker import suites
from torchyard.worker.built import CannotBuild
answers = []
for each in question:
    torch.manual_seed(0)
    try:
        if each == "names":
            answers.append(suites.names("timm"))
            continue
        built = suites.build("timm", **each)
    except CannotBuild as error:
        answers.append({"refused": str(error), "hint": error.hint})
        continue
    output = built.module(*built.args)
    answer = {"shape": list(built.args[0].shape), "said": built.loss_said}
    answer["dropout"] = built.module.drop.p
    if built.module.training:
        loss = built.loss(output)
        loss.backward()
        answer["loss"] = float(loss.detach())
    answers.append(answer)
print(json.dumps(answers))
"""


def ask(path: str, *questions: Any) -> list[Any]:
    command = [sys.executable, "-c", ASK, path, json.dumps(questions)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    answers: list[Any] = json.loads(done.stdout)
    return answers


def test_without_the_package() -> None:
    named, built = ask("none", "names", {"name": "resnet50"})
    for answer in (named, built):
        assert "the target has no timm package" in answer["refused"]
        assert answer["hint"] == "install timm and torchvision into the target"


def test_a_package_that_breaks_while_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms is missing')")
    (answer,) = ask(str(tmp_path), {"name": "resnet50"})
    assert "operator torchvision::nms is missing" in answer["refused"]


def test_with_a_package() -> None:
    names, plain, tagged, sized, training, distilled = ask(
        str(FAKE),
        "names",
        {"name": "tiny_net"},
        {"name": "tiny_net.some_weights", "batch_size": 2},
        {"name": "tiny_net", "parameters": {"size": 20, "num_classes": 3}},
        {"name": "tiny_net", "mode": "training"},
        {"name": "tiny_distilled", "mode": "training", "batch_size": 3},
    )
    assert names == ["tiny_net", "tiny_distilled"]
    assert plain == {"shape": [8, 3, 32, 32], "said": "cross-entropy", "dropout": 0.0}
    assert tagged["shape"] == [2, 3, 32, 32]
    assert sized["shape"] == [8, 3, 20, 20]
    assert training["loss"] > 0
    assert distilled["shape"] == [3, 3, 48, 40]
    assert distilled["loss"] > 0


def test_refusals_with_a_package() -> None:
    unknown, parameter, size, weights, headless = ask(
        str(FAKE),
        {"name": "tiny_nett"},
        {"name": "tiny_net", "parameters": {"depth": 3}},
        {"name": "tiny_net", "parameters": {"size": 0}},
        {"name": "tiny_net", "parameters": {"pretrained": True}},
        {"name": "tiny_net", "mode": "training", "parameters": {"num_classes": 0}},
    )
    assert unknown["refused"] == "timm 0.0-fake has no model 'tiny_nett'; did you mean tiny_net?"
    assert "depth" in parameter["refused"]
    assert "timm.create_model" in parameter["hint"]
    assert size["refused"] == "the parameter size of timm/tiny_net is 0"
    assert "would be fetched" in weights["refused"]
    assert "no classes" in headless["refused"]

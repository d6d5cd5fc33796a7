"""Ask a suite of a package, fake or missing, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

ASK = """
import json, sys
suite, path, question = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
if path == "none":
    sys.modules[suite] = None
else:
    sys.path.insert(0, path)
import torch
from torchyard.worker import suites
from torchyard.worker.workload import CannotBuild, flatten
answers = []
for each in question:
    torch.manual_seed(0)
    try:
        if each == "names":
            answers.append(suites.names(suite))
            continue
        built = suites.build(suite, **each)
    except CannotBuild as error:
        answers.append({"refused": str(error), "hint": error.hint})
        continue
    output = built.module(*built.args)
    answer = {"batch": built.batch_size, "said": built.loss_name}
    answer["shapes"] = [list(tensor.shape) for tensor in flatten(built.args[0])]
    if hasattr(built.module, "drop"):
        answer["dropout"] = built.module.drop.p
    if hasattr(built.module, "path"):
        answer["path"] = built.module.path.drop_prob
    if built.module.training:
        loss = built.loss(output)
        loss.backward()
        answer["loss"] = float(loss.detach())
        answer["without"] = sum(p.grad is None for p in built.module.parameters())
    answers.append(answer)
print(json.dumps(answers))
"""


def ask(suite: str, path: str, *questions: Any) -> list[Any]:
    """Return the answer to each question: `names`, or the arguments of a workload to build and call once.

    The package of the suite is imported from `path`; `none` means that it is not installed.
    """
    command = [sys.executable, "-c", ASK, suite, path, json.dumps(questions)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert completed.returncode == 0, completed.stderr
    answers: list[Any] = json.loads(completed.stdout)
    return answers

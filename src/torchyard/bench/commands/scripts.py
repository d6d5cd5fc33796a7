"""`torchyard bench --script`: the study of a training script from the options."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from torchyard.bench.commands.options import request_of_options
from torchyard.bench.request import WorkloadChoice
from torchyard.bench.study_assembly import assemble
from torchyard.core.study import SCRIPT_FOLDER, SCRIPT_SUITE, Study
from torchyard.errors import UsageError

_WITHOUT_EFFECT: Final = {
    "suites": "--suite",
    "only": "--only",
    "modes": "--mode",
    "batch_size": "--batch-size",
    "optimizer_step": "--optimizer-step",
    "eval_mode": "--eval-mode",
    "reseat": "--reseat",
    "flush_l2": "--flush-l2",
    "backend": "--backend",
}
"""Options about built-in workloads, by parameter: the script creates its model and data itself."""


def study_of_script(files: tuple[str, ...], options: dict[str, Any]) -> Study:
    """Return the study that compares variants in the steps of a script."""
    given = [
        name for key, name in _WITHOUT_EFFECT.items() if options.get(key) not in (None, (), "")
    ]
    if files or given:
        raise UsageError(
            f"{files[0] if files else given[0]} cannot be combined with --script",
            why="the script creates its model and its data itself",
            hint="pass arguments to the script with --script-args",
        )
    path = Path(options["script"]).expanduser().absolute()
    if not path.is_file():
        raise UsageError(
            f"--script: the file {options['script']!r} does not exist",
            hint="give the path of a Python file",
        )
    parameters: dict[str, str] = {SCRIPT_FOLDER: str(Path.cwd())}
    if options["step"] is not None:
        parameters["step"] = _step_name(options["step"])
    if options["script_args"]:
        parameters["arguments"] = _arguments(options["script_args"])
    request = replace(
        request_of_options(options),
        workloads=(
            WorkloadChoice(
                where="--script",
                suite=SCRIPT_SUITE,
                name=str(path),
                modes=("training",),
                parameters=tuple(sorted(parameters.items())),
            ),
        ),
    )
    # The memory of a script cannot be relocated from outside.
    request = replace(request, settings={**request.settings, "reseat": "off"})
    return assemble(request, here=sys.executable)


def _step_name(text: str) -> str:
    if not all(part.isidentifier() for part in text.split(".")):
        raise UsageError(
            f"--step: {text!r} is not the name of a function",
            hint="write train_step, Trainer.step or trainer.step",
        )
    return text


def _arguments(text: str) -> str:
    try:
        shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"--script-args: {text!r} cannot be split", why=str(error), hint="close every quote"
        ) from error
    return text

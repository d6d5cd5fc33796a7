"""A plan as a Dockerfile, and as a development container (devcontainer.json) around it. No I/O.

Each step is one layer, so that a changed step rebuilds only what follows.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from torchyard.builds.export.image import (
    Image,
    check_file,
    check_statements,
    conda_statements,
    freeze_statements,
    image_of,
    input_lines,
    one_step,
    package_statements,
    source_list_statements,
)
from torchyard.builds.export.model import ExportedFile, ExportFacts
from torchyard.builds.export.shell import comment, file_statements, variable_name
from torchyard.builds.plan import Plan, Variables
from torchyard.errors import UsageError

_MOST_BYTES: Final = 128 * 1024 - 4096
"""Linux refuses a single argument of 128 KiB, and a RUN is one argument of a shell."""
_JOBS: Final = "${JOBS:-$(nproc)}"


def export_dockerfile(plan: Plan, facts: ExportFacts) -> tuple[ExportedFile, ...]:
    """One file."""
    return (ExportedFile(name="Dockerfile", text=dockerfile_text(image_of(plan, facts))),)


def dockerfile_text(image: Image) -> str:
    """Two stages: `build` has everything, `runtime` what a user of the result needs."""
    plan = image.plan
    parts = [*_head(image), "", f"# Base image: {comment(image.base.why)}", *_from(image, "build")]
    parts += ["", _run(package_statements(image.packages))]
    if image.source_packages:
        parts += ["", "# Build dependencies are found through source packages."]
        parts.append(_run(source_list_statements()))
    if image.conda:
        parts += ["", f"# Assumed: {image.conda} can be had here; the newest release is taken."]
        parts.append(_run(conda_statements(image)))
    for item in image.inputs:
        parts += ["", _copy(f"local/{item.name}", f"{plan.folder}/local/{item.name}")]
    parts += ["", f"WORKDIR {plan.folder}", *_environment(image.shared)]
    asked_jobs = False
    for step in plan.steps:
        if step.compiles and not asked_jobs:
            parts += ["", "# Compiles at once; one for each core without a number.", _jobs(plan)]
            asked_jobs = True
        parts += ["", f"# {comment(step.name)}: {comment(step.title)}"]
        parts.append(_run(one_step(image, step, jobs=_JOBS)))
    if freeze := freeze_statements(image):
        parts += ["", "# Every Python package, for the record.", _run(freeze)]
    if image.gpu:
        parts += ["", "# No GPU is there while an image is built; run this file where one is."]
        parts.append(_run(file_statements(check_file(image), one_line=True)))
    parts += ["", *_environment(image.variables)]
    if not image.rooted:
        parts += ["", *_runtime(image)]
    return "\n".join((*parts, "", *_start(image))) + "\n"


def _head(image: Image) -> list[str]:
    names = [f"{part.name} {part.recipe.version}".strip() for part in image.plan.components]
    tag = image.plan.name.lower().replace("+", "-")
    lines = [
        f"{image.plan.name}: {', '.join(names)}",
        "",
        f"  docker build --tag {tag} .",
    ]
    if image.rooted:
        lines += ["", "There is one stage only: the result needs the libraries it was built with."]
    else:
        lines.append(f"  docker build --tag {tag} --target build .    (with trees and objects)")
    lines += [
        "",
        "Written by Torchyard from a plan. Not the same as there: the network is not cut off in",
        "steps that do not fetch, compiles are not held back by memory (set --build-arg JOBS=2 if",
        "they are killed), and of the checks only the import and the smoke tests are made.",
        *input_lines(image),
    ]
    return [f"# {comment(line)}".rstrip() for line in lines]


def _from(image: Image, stage: str) -> list[str]:
    return [f"FROM {image.base.name} AS {stage}", "USER root"]


def _run(statements: list[str]) -> str:
    text = "; \\\n".join(("RUN set -eu", *statements))
    if len(text.encode(errors="surrogateescape")) > _MOST_BYTES:
        raise UsageError(
            "a step is too long for one RUN of a Dockerfile",
            why="Linux takes no argument of more than 128 KiB",
            hint="export a script, and COPY it into an image",
        )
    return text


def _jobs(plan: Plan) -> str:
    return f"ARG JOBS={plan.jobs or ''}"


def _copy(source: str, target: str, *, stage: str = "") -> str:
    option = f"--from={stage} " if stage else ""
    return f"COPY {option}{json.dumps([source, target])}"


def _environment(variables: Variables) -> list[str]:
    return [f"ENV {variable_name(name)}={_value(name, text)}" for name, text in variables]


def _value(name: str, text: str) -> str:
    if "\n" in text:
        raise UsageError(
            f"{name} holds a line break, which a Dockerfile cannot set", hint="export a script"
        )
    return '"' + re.sub(r'([\\"$])', r"\\\1", text) + '"'


def _runtime(image: Image) -> list[str]:
    """The finished things on a fresh base, checked again there."""
    names = ["libgomp1"]
    if image.python and not image.base.has_python and not image.in_conda:
        names.append("python3")
    if "openmpi-bin" in image.packages:
        names.append("openmpi-bin")
    lines = ["", *_from(image, "runtime"), _run(package_statements(tuple(sorted(names))))]
    lines += [_copy(path, path, stage="build") for path in image.kept]
    if image.gpu:
        path = check_file(image).path
        lines.append(_copy(path, path, stage="build"))
    lines += [f"WORKDIR {image.plan.folder}", *_environment(image.variables)]
    if not image.gpu and (checks := check_statements(image, one_line=True)):
        lines.append(_run(checks))
    return lines


def _start(image: Image) -> list[str]:
    program = image.python or "/bin/sh"
    return [f"CMD {json.dumps([program])}"]


_FOLDER: Final = ".devcontainer"
_GPU_ARGUMENTS: Final = {
    "cuda": ["--gpus", "all"],
    "rocm": ["--device=/dev/kfd", "--device=/dev/dri", "--group-add", "video"],
}


def export_devcontainer(plan: Plan, facts: ExportFacts) -> tuple[ExportedFile, ...]:
    """Two files in `.devcontainer`; the editor builds the stage that has the trees."""
    image = image_of(plan, facts)
    return (
        ExportedFile(
            name=f"{_FOLDER}/devcontainer.json",
            text=json.dumps(_definition(image), indent=2) + "\n",
        ),
        ExportedFile(name=f"{_FOLDER}/Dockerfile", text=dockerfile_text(image)),
    )


def _definition(image: Image) -> dict[str, Any]:
    plan = image.plan
    found: dict[str, Any] = {
        "name": plan.name,
        "build": {
            "dockerfile": "Dockerfile",
            "context": ".",
            "target": "build",
            **({"args": {"JOBS": str(plan.jobs)}} if plan.jobs else {}),
        },
        "remoteUser": "root",
        "remoteEnv": dict(image.variables),
    }
    if image.gpu:
        found["runArgs"] = _GPU_ARGUMENTS[image.gpu]
        found["hostRequirements"] = {"gpu": True}
    settings: dict[str, Any] = {"cmake.configureOnOpen": False}
    extensions = ["ms-vscode.cpptools"]
    if image.python:
        settings["python.defaultInterpreterPath"] = image.python
        extensions.append("ms-python.python")
    found["customizations"] = {"vscode": {"settings": settings, "extensions": extensions}}
    return found

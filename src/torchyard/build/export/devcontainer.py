"""A plan as a development container: devcontainer.json and the Dockerfile it builds. No I/O."""

from __future__ import annotations

import json
from typing import Any, Final

from torchyard.build.export.contract import ExportedFile, ExportFacts
from torchyard.build.export.dockerfile import dockerfile_text
from torchyard.build.export.image import Image, image_of
from torchyard.core.build_plan import Plan

__all__ = ["export_devcontainer"]

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

"""Export a plan: text, JSON, shell script, images, packages of EasyBuild and Spack.

Adding a format means one function and one entry in EXPORTS.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from torchyard.builds.export.hpc_packages import export_easybuild, export_spack
from torchyard.builds.export.image_formats import (
    export_apptainer,
    export_devcontainer,
    export_dockerfile,
)
from torchyard.builds.export.listing import export_json, export_text
from torchyard.builds.export.shell import Export, ExportedFile, ExportFacts
from torchyard.builds.export.shell_script import export_script
from torchyard.builds.plan import Plan

EXPORTS: Final[Mapping[str, Export]] = {
    "text": export_text,
    "json": export_json,
    "script": export_script,
    "dockerfile": export_dockerfile,
    "apptainer": export_apptainer,
    "devcontainer": export_devcontainer,
    "easybuild": export_easybuild,
    "spack": export_spack,
}


def export_plan(plan: Plan, name: str, facts: ExportFacts) -> tuple[ExportedFile, ...]:
    """Return the files of a plan in a format; the first one is the main file."""
    return EXPORTS[name](plan, facts)

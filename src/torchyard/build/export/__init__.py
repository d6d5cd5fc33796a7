"""A plan in other forms: text for people, JSON, a script, and definitions of images.

Each form is a sibling module; adding one means one module and one line in EXPORTS.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from torchyard.build.export.apptainer import export_apptainer
from torchyard.build.export.contract import Export, ExportedFile, ExportFacts
from torchyard.build.export.devcontainer import export_devcontainer
from torchyard.build.export.dockerfile import export_dockerfile
from torchyard.build.export.json_text import export_json
from torchyard.build.export.script import export_script
from torchyard.build.export.text import export_text
from torchyard.core.build_plan import Plan
from torchyard.core.records import nearest_hint
from torchyard.errors import UsageError

__all__ = [
    "DEFAULT_EXPORT",
    "EXPORTS",
    "Export",
    "ExportFacts",
    "ExportedFile",
    "export_plan",
]

EXPORTS: Final[Mapping[str, Export]] = {
    "text": export_text,
    "json": export_json,
    "script": export_script,
    "dockerfile": export_dockerfile,
    "apptainer": export_apptainer,
    "devcontainer": export_devcontainer,
}
DEFAULT_EXPORT: Final = "text"


def export_plan(plan: Plan, name: str, facts: ExportFacts) -> tuple[ExportedFile, ...]:
    """The plan in the format of that name; the first file is the main one."""
    if name not in EXPORTS:
        raise UsageError(
            f"--format {name}: there is no such format",
            hint=nearest_hint(name, tuple(EXPORTS), what="format"),
        )
    return EXPORTS[name](plan, facts)

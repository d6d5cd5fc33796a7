"""The bill of materials of a build in the two common formats, each by its maintained library.

The libraries are an extra: they are looked for only when a bill is asked for.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from torchyard.build.bill import Bill, make_bill
from torchyard.core.build_record import BuildRecord
from torchyard.core.records import nearest_hint
from torchyard.errors import MissingTool, UsageError
from torchyard.results.durable import replace_file

__all__ = ["SBOM_FORMATS", "sbom_text", "write_sbom"]

SBOM_FORMATS: Final[Mapping[str, tuple[str, str, str]]] = {
    "cyclonedx": ("torchyard.build.sbom_cyclonedx", "cyclonedx", "cyclonedx-python-lib"),
    "spdx": ("torchyard.build.sbom_spdx", "spdx_tools", "spdx-tools"),
}
"""Format -> (our module, the library's module, its distribution)."""


def sbom_text(record: BuildRecord, format_name: str) -> str:
    """The bill as JSON text; the same record always gives the same text."""
    if format_name not in SBOM_FORMATS:
        raise UsageError(
            f"there is no format {format_name!r} for a bill of materials",
            hint=nearest_hint(format_name, tuple(SBOM_FORMATS), what="format"),
        )
    ours, library, distribution = SBOM_FORMATS[format_name]
    if find_spec(library) is None:
        raise MissingTool(
            f"writing {format_name} needs the library {distribution}",
            why="it is not installed beside Torchyard",
            hint="pip install 'torchyard[sbom]'",
        )
    to_text: Callable[[Bill, str, uuid.UUID], str] = import_module(ours).to_text
    identity = f"torchyard:{record.name}:{record.plan_fingerprint}:{record.finished}"
    return to_text(make_bill(record), record.finished, uuid.uuid5(uuid.NAMESPACE_URL, identity))


def write_sbom(record: BuildRecord, format_name: str, path: Path) -> None:
    """Put the bill into a file, whole or not at all."""
    replace_file(path, sbom_text(record, format_name))

"""Write an SBOM as CycloneDX 1.6 JSON. Requires cyclonedx-python-lib."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Final

from cyclonedx.model import (
    ExternalReference,
    ExternalReferenceType,
    HashAlgorithm,
    HashType,
    Property,
    XsUri,
)
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from torchyard.builds.sbom import Bill, BillItem, Role

_TYPES: Final[dict[Role, ComponentType]] = {
    "build": ComponentType.APPLICATION,
    "tool": ComponentType.APPLICATION,
}
"""All others are libraries."""


def to_text(bill: Bill, finished: str, identity: uuid.UUID) -> str:
    """Return the SBOM as JSON."""
    parts = {item.ref: _component(item) for item in bill.items}
    bom = Bom(
        components=[part for ref, part in parts.items() if ref != bill.build.ref],
        serial_number=identity,
    )
    bom.metadata.component = parts[bill.build.ref]
    bom.metadata.timestamp = (
        datetime.fromisoformat(finished) if finished else datetime(1980, 1, 1, tzinfo=UTC)
    )
    for ref, needed in bill.depends.items():
        bom.register_dependency(parts[ref], [parts[other] for other in needed])
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def _component(item: BillItem) -> Component:
    references = []
    if "://" in item.origin:
        kind = (
            ExternalReferenceType.VCS
            if "commit" in item.facts
            else ExternalReferenceType.DISTRIBUTION
        )
        references.append(ExternalReference(type=kind, url=XsUri(item.origin)))
    return Component(
        name=item.name,
        version=item.version or None,
        type=_TYPES.get(item.role, ComponentType.LIBRARY),
        # Tools are not part of the result.
        scope=ComponentScope.EXCLUDED if item.role == "tool" else None,
        bom_ref=item.ref,
        purl=PackageURL.from_string(item.purl) if item.purl else None,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=item.sha256)] if item.sha256 else [],
        external_references=references,
        properties=[
            Property(name="torchyard:role", value=item.role),
            *(Property(name=f"torchyard:{key}", value=value) for key, value in item.facts.items()),
        ],
    )

"""Write an SBOM as SPDX 2.3 JSON. Requires spdx-tools."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime

from spdx_tools.spdx.jsonschema.document_converter import DocumentConverter
from spdx_tools.spdx.model.actor import Actor, ActorType
from spdx_tools.spdx.model.checksum import Checksum, ChecksumAlgorithm
from spdx_tools.spdx.model.document import CreationInfo, Document
from spdx_tools.spdx.model.package import (
    ExternalPackageRef,
    ExternalPackageRefCategory,
    Package,
    PackagePurpose,
)
from spdx_tools.spdx.model.relationship import Relationship, RelationshipType
from spdx_tools.spdx.model.spdx_no_assertion import SpdxNoAssertion
from spdx_tools.spdx.validation.uri_validators import validate_download_location

from torchyard.builds.sbom import Bill, BillItem

_DOCUMENT = "SPDXRef-DOCUMENT"


def to_text(bill: Bill, finished: str, identity: uuid.UUID) -> str:
    """Return the SBOM as JSON."""
    document = make_document(bill, finished, identity)
    converter = DocumentConverter()  # type: ignore[no-untyped-call]  # its constructor alone has no types
    return json.dumps(converter.convert(document), indent=2) + "\n"


def make_document(bill: Bill, finished: str, identity: uuid.UUID) -> Document:
    """Return the SBOM as an SPDX document."""
    names = {
        item.ref: f"SPDXRef-{number}-{re.sub(r'[^A-Za-z0-9.-]', '-', item.name)}"
        for number, item in enumerate(bill.items)
    }
    created = datetime.fromisoformat(finished) if finished else datetime(1980, 1, 1, tzinfo=UTC)
    return Document(
        creation_info=CreationInfo(
            spdx_version="SPDX-2.3",
            spdx_id=_DOCUMENT,
            name=bill.build.name,
            document_namespace=f"urn:uuid:{identity}",
            creators=[Actor(ActorType.TOOL, f"torchyard-{bill.build.facts.get('torchyard', '0')}")],
            # The format has no fractions of seconds and no time zones.
            created=created.astimezone(UTC).replace(microsecond=0, tzinfo=None),
        ),
        packages=[_package(item, names[item.ref]) for item in bill.items],
        relationships=list(_relationships(bill, names)),
    )


def _package(item: BillItem, identifier: str) -> Package:
    references = [
        ExternalPackageRef(
            category=ExternalPackageRefCategory.PACKAGE_MANAGER,
            reference_type="purl",
            locator=item.purl,
        )
    ]
    purpose = {"build": PackagePurpose.INSTALL, "tool": PackagePurpose.APPLICATION}
    facts = [f"role: {item.role}", *(f"{key}: {value}" for key, value in item.facts.items())]
    facts += [f"origin: {item.origin}"] if item.origin else []
    return Package(
        spdx_id=identifier,
        name=item.name,
        version=item.version or None,
        download_location=_place(item) or SpdxNoAssertion(),
        files_analyzed=False,
        checksums=[Checksum(ChecksumAlgorithm.SHA256, item.sha256)] if item.sha256 else [],
        license_concluded=SpdxNoAssertion(),
        license_declared=SpdxNoAssertion(),
        copyright_text=SpdxNoAssertion(),
        external_references=references if item.purl else [],
        primary_package_purpose=purpose.get(item.role, PackagePurpose.LIBRARY),
        comment="\n".join(facts),
    )


def _place(item: BillItem) -> str:
    """Where it can be had; empty where SPDX has no such place (a file, an unusual host)."""
    commit = item.facts.get("commit", "")
    place = f"git+{item.origin}@{commit}" if commit else item.origin
    return place if "://" in place and not validate_download_location(place) else ""


def _relationships(bill: Bill, names: dict[str, str]) -> Iterator[Relationship]:
    build = names[bill.build.ref]
    roles = {item.ref: item.role for item in bill.items}
    yield Relationship(_DOCUMENT, RelationshipType.DESCRIBES, build)
    for ref, needed in bill.depends.items():
        for other in needed:
            kind = RelationshipType.DEPENDS_ON
            if roles[ref] in ("wheel", "build") and roles[other] == "source":
                kind = RelationshipType.GENERATED_FROM
            elif roles[ref] == "build":
                kind = RelationshipType.CONTAINS
            yield Relationship(names[ref], kind, names[other])
    for item in bill.items:
        if item.role == "tool":
            yield Relationship(names[item.ref], RelationshipType.BUILD_TOOL_OF, build)

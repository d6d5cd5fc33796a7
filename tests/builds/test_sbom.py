"""Bills of materials, checked by the validators of their libraries."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.builds.record_samples import COMMIT, make_record
from torchyard.builds.record import BuildRecord, ComponentRecord, RecipeIdentity, SourceIdentity
from torchyard.builds.sbom import make_bill, sbom_text, source_purl
from torchyard.errors import MissingTool, UsageError


def cyclonedx(record: BuildRecord) -> dict[str, Any]:
    pytest.importorskip("cyclonedx")
    found: dict[str, Any] = json.loads(sbom_text(record, "cyclonedx"))
    return found


def spdx(record: BuildRecord) -> dict[str, Any]:
    pytest.importorskip("spdx_tools")
    found: dict[str, Any] = json.loads(sbom_text(record, "spdx"))
    return found


EMPTY = BuildRecord(name="empty", recipe=RecipeIdentity(name="generic"))
ODD = make_record(
    name="odd name/<b>&é",
    components=(
        ComponentRecord(name="part", options={"FLAGS": '-O2 "x" é'}),
        ComponentRecord(
            name="other",
            needs=("part", "unknown"),
            source=SourceIdentity(kind="folder", origin="/home/é x"),
        ),
    ),
)


@pytest.mark.parametrize("record", [make_record(), EMPTY, ODD], ids=["full", "empty", "odd"])
def test_cyclonedx_is_valid(record: BuildRecord) -> None:
    pytest.importorskip("cyclonedx")
    pytest.importorskip("jsonschema")
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = sbom_text(record, "cyclonedx")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


@pytest.mark.parametrize("record", [make_record(), EMPTY, ODD], ids=["full", "empty", "odd"])
def test_spdx_is_valid(record: BuildRecord, tmp_path: Path) -> None:
    pytest.importorskip("spdx_tools")
    from spdx_tools.spdx.parser.parse_anything import parse_file
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

    path = tmp_path / "bill.spdx.json"
    path.write_text(sbom_text(record, "spdx"))
    document = parse_file(str(path))
    assert [message.validation_message for message in validate_full_spdx_document(document)] == []


def test_cyclonedx_names_everything() -> None:
    found = cyclonedx(make_record())
    parts = {part["bom-ref"]: part for part in found["components"]}
    assert found["metadata"]["component"]["name"] == "arm"
    assert parts["source:pytorch"]["purl"].startswith("pkg:generic/pytorch@2.6.0?vcs_url=")
    assert parts["source:pytorch"]["externalReferences"] == [
        {"type": "vcs", "url": "https://git.example.org/pytorch/pytorch"}
    ]
    wheel = parts["wheel:torch-2.6.0-cp313-cp313-linux_aarch64.whl"]
    assert wheel["hashes"] == [{"alg": "SHA-256", "content": "d" * 64}]
    assert wheel["purl"] == "pkg:pypi/torch@2.6.0"
    assert parts["package:PyYAML"]["purl"] == "pkg:pypi/pyyaml@6.0.2"
    assert "package:torch" not in parts, "the wheel that was built is there already"
    assert parts["tool:cc@12.2.0"]["scope"] == "excluded"
    properties = {one["name"]: one["value"] for one in parts["source:pytorch"]["properties"]}
    assert properties["torchyard:option:BLAS"] == "OpenBLAS"
    assert properties["torchyard:verdict:BLAS"] == "honoured"
    assert properties["torchyard:patch:fix.patch"] == "c" * 64
    assert properties["torchyard:commit"] == COMMIT


def test_cyclonedx_dependencies() -> None:
    found = cyclonedx(make_record())
    depends = {one["ref"]: set(one.get("dependsOn", ())) for one in found["dependencies"]}
    wheel = "wheel:torch-2.6.0-cp313-cp313-linux_aarch64.whl"
    assert {wheel, "package:numpy", "source:openblas"} <= depends["build:arm"]
    assert depends[wheel] == {"source:pytorch"}
    assert "source:openblas" in depends["source:pytorch"]
    assert "submodule:pytorch/third_party/ideep" in depends["source:pytorch"]


def test_spdx_names_everything() -> None:
    found = spdx(make_record())
    packages = {package["name"]: package for package in found["packages"]}
    assert found["spdxVersion"] == "SPDX-2.3"
    assert packages["torch"]["checksums"] == [{"algorithm": "SHA256", "checksumValue": "d" * 64}]
    assert (
        packages["pytorch"]["downloadLocation"]
        == f"git+https://git.example.org/pytorch/pytorch@{COMMIT}"
    )
    assert packages["openblas"]["downloadLocation"] == "NOASSERTION"
    assert "origin: debian:trixie/openblas" in packages["openblas"]["comment"]
    locators = [ref["referenceLocator"] for ref in packages["openblas"]["externalRefs"]]
    assert locators == ["pkg:deb/debian/openblas@0.3.29%2Bds-3?arch=source&distro=trixie"]
    assert "option:BLAS: OpenBLAS" in packages["pytorch"]["comment"]


def test_spdx_relationships() -> None:
    found = spdx(make_record())
    names = {package["SPDXID"]: package["name"] for package in found["packages"]}
    links = {
        (
            names.get(one["spdxElementId"], one["spdxElementId"]),
            one["relationshipType"],
            names[one["relatedSpdxElement"]],
        )
        for one in found["relationships"]
    }
    assert ("SPDXRef-DOCUMENT", "DESCRIBES", "arm") in links
    assert ("torch", "GENERATED_FROM", "pytorch") in links
    assert ("pytorch", "DEPENDS_ON", "openblas") in links
    assert ("arm", "CONTAINS", "torch") in links
    assert ("cc", "BUILD_TOOL_OF", "arm") in links


@pytest.mark.parametrize("format_name", ["cyclonedx", "spdx"])
def test_one_record_one_text(format_name: str) -> None:
    pytest.importorskip("cyclonedx" if format_name == "cyclonedx" else "spdx_tools")
    record = make_record()
    assert sbom_text(record, format_name) == sbom_text(record, format_name)
    later = replace(record, finished="2026-02-02T05:04:05+00:00")
    assert sbom_text(later, format_name) != sbom_text(record, format_name)


def test_an_unknown_format() -> None:
    with pytest.raises(UsageError) as caught:
        sbom_text(make_record(), "cyclondx")
    assert "did you mean 'cyclonedx'?" in caught.value.hint


def test_a_missing_library_is_named_with_the_command(tmp_path: Path) -> None:
    """In an interpreter that really has no such library."""
    root = Path(__file__).parents[2]
    code = (
        f"import sys; sys.path[:0] = [{str(root)!r}, {str(root / 'src')!r}]\n"
        "from tests.builds.record_samples import make_record\n"
        "from torchyard.builds.sbom import sbom_text\n"
        "from torchyard.errors import MissingTool\n"
        "for name in ('cyclonedx', 'spdx'):\n"
        "    try: sbom_text(make_record(), name)\n"
        "    except MissingTool as error: print(error.hint)\n"
    )
    # -S: without site-packages; the modules that build a bill need none.
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.splitlines() == ["pip install 'torchyard[sbom]'"] * 2
    assert MissingTool.exit_code == 4


@pytest.mark.parametrize(
    ("source", "purl"),
    [
        (
            SourceIdentity(
                kind="sdist", origin="sdist:Deep_Wave", version="0.1.0", sha256="e" * 64
            ),
            "pkg:pypi/deep-wave@0.1.0",
        ),
        (
            SourceIdentity(kind="debian", origin="debian:own-suites/onednn", version="1:3.7-2"),
            "pkg:deb/debian/onednn@1:3.7-2?arch=source",
        ),
        (
            SourceIdentity(kind="tarball", origin="https://x.example/a.tgz", sha256="e" * 64),
            f"pkg:generic/part@1.0?checksum=sha256:{'e' * 64}&download_url=https:%2F%2Fx.example%2Fa.tgz",
        ),
        (SourceIdentity(kind="folder", origin="/home/me/x"), "pkg:generic/part@1.0"),
    ],
)
def test_package_addresses(source: SourceIdentity, purl: str) -> None:
    assert source_purl("part", "1.0", source) == purl
    packageurl = pytest.importorskip("packageurl")
    parsed = packageurl.PackageURL.from_string(purl)
    assert packageurl.PackageURL.from_string(parsed.to_string()) == parsed


def test_every_ref_in_the_bill_is_there_once() -> None:
    bill = make_bill(make_record())
    refs = [item.ref for item in bill.items]
    assert len(refs) == len(set(refs))
    assert {ref for needed in bill.depends.values() for ref in needed} <= set(refs)
    assert set(bill.depends) == set(refs)
    assert bill.build.name == "arm"


def test_spdx_serial_is_an_address_of_its_own() -> None:
    namespace = spdx(make_record())["documentNamespace"]
    assert uuid.UUID(namespace.removeprefix("urn:uuid:")).version == 5

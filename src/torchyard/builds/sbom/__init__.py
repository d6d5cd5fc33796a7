"""The software bill of materials (SBOM) of a build: its items and their dependencies.

`cyclonedx` and `spdx` write it in the two common formats, each with its maintained library; they
are imported only when their format is requested.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Final, Literal
from urllib.parse import quote

from torchyard.builds.record import BuildRecord, ComponentRecord, SourceIdentity
from torchyard.core.records import nearest_hint
from torchyard.errors import MissingTool, UsageError

Role = Literal["build", "source", "submodule", "wheel", "tool", "package"]
_HEX: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class BillItem:
    """One item of the SBOM."""

    ref: str
    """Unique within the SBOM."""
    role: Role
    name: str
    version: str = ""
    purl: str = ""
    sha256: str = ""
    origin: str = ""
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Bill:
    """The content of an SBOM; the first item is the build itself."""

    items: tuple[BillItem, ...]
    depends: dict[str, tuple[str, ...]]
    """Ref -> refs of its dependencies."""

    @property
    def build(self) -> BillItem:
        """The item of the build itself."""
        return self.items[0]


def make_bill(record: BuildRecord) -> Bill:
    """Collect all items of a build record."""
    build = BillItem(
        ref=f"build:{record.name}",
        role="build",
        name=record.name,
        version=record.recipe.version,
        facts=_without_empty(
            {
                "recipe": record.recipe.name,
                "variant": record.recipe.variant,
                "plan": record.plan_fingerprint,
                "torchyard": record.torchyard,
                "finished": record.finished,
            }
        ),
    )
    items: dict[str, BillItem] = {build.ref: build}
    depends: dict[str, list[str]] = {build.ref: []}

    def add(item: BillItem, *, dependent: str = "") -> str:
        items.setdefault(item.ref, item)
        depends.setdefault(item.ref, [])
        if dependent and item.ref not in depends[dependent]:
            depends[dependent].append(item.ref)
        return item.ref

    for part in record.components:
        source = add(_source_item(part))
        for item in _submodule_items(part):
            add(item, dependent=source)
        for item in _tool_items(part):
            add(item)
        results = [add(item, dependent=build.ref) for item in _wheel_items(part)] or [build.ref]
        for ref in results:
            depends[ref].append(source)
    for part in record.components:
        needs = {need for need in part.needs if record.component(need) is not None}
        depends[f"source:{part.name}"] += [f"source:{need}" for need in sorted(needs)]
    built_wheels = {item.purl for item in items.values() if item.role == "wheel"}
    for item in _package_items(record):
        if item.purl not in built_wheels:
            add(item, dependent=build.ref)
    return Bill(
        items=tuple(items.values()), depends={ref: tuple(refs) for ref, refs in depends.items()}
    )


def source_purl(name: str, version: str, source: SourceIdentity) -> str:
    """Return the package URL (purl) of a source."""
    if source.kind == "sdist":
        return _pypi_purl(source.origin.partition(":")[2], source.version)
    if source.kind == "debian":
        suite, _, package = source.origin.partition(":")[2].rpartition("/")
        distro = f"&distro={_quoted(suite)}" if suite and suite != "own-suites" else ""
        return f"pkg:deb/debian/{_quoted(package)}@{_quoted(source.version)}?arch=source{distro}"
    qualifiers = []
    if source.sha256:
        qualifiers.append(f"checksum=sha256:{source.sha256}")
    if source.kind == "tarball" and "://" in source.origin:
        qualifiers.append(f"download_url={_quoted(source.origin)}")
    if source.kind == "git" and source.commit and "://" in source.origin:
        qualifiers.append(f"vcs_url={_quoted(f'git+{source.origin}@{source.commit}')}")
    released = version or source.commit
    at = f"@{_quoted(released)}" if released else ""
    return f"pkg:generic/{_quoted(name)}{at}" + (f"?{'&'.join(qualifiers)}" if qualifiers else "")


def _source_item(part: ComponentRecord) -> BillItem:
    source = part.source
    facts = {f"option:{name}": str(value) for name, value in part.options.items()}
    facts |= {f"patch:{patch.name}": patch.sha256 for patch in part.patches}
    if part.verified is not None:
        facts |= {f"verdict:{one.name}": one.verdict for one in part.verified.options}
    if source is not None:
        facts |= _without_empty({"commit": source.commit, "digest": source.digest})
        facts |= {f"file:{name}": checksum for name, checksum in source.files.items()}
        facts |= {f"packager-patch:{number}": name for number, name in enumerate(source.patches, 1)}
        facts |= {"changes in no commit": "true"} if source.dirty else {}
    return BillItem(
        ref=f"source:{part.name}",
        role="source",
        name=part.name,
        version=part.version or (source.version if source is not None else ""),
        purl=source_purl(part.name, part.version, source) if source is not None else "",
        sha256=_checksum(source.sha256) if source is not None else "",
        origin=source.origin if source is not None else "",
        facts=facts,
    )


def _submodule_items(part: ComponentRecord) -> Iterator[BillItem]:
    for path, commit in (part.source.submodules if part.source is not None else {}).items():
        yield BillItem(
            ref=f"submodule:{part.name}/{path}",
            role="submodule",
            name=path.rpartition("/")[2],
            version=commit,
            purl=f"pkg:generic/{_quoted(path.rpartition('/')[2])}@{_quoted(commit)}",
            facts={"path": path},
        )


def _wheel_items(part: ComponentRecord) -> Iterator[BillItem]:
    for wheel in part.wheels:
        name, _, rest = wheel.file.partition("-")
        version = rest.partition("-")[0]
        yield BillItem(
            ref=f"wheel:{wheel.file}",
            role="wheel",
            name=name,
            version=version,
            purl=_pypi_purl(name, version),
            sha256=_checksum(wheel.sha256),
            facts={"file": wheel.file, "component": part.name},
        )


def _tool_items(part: ComponentRecord) -> Iterator[BillItem]:
    for tool in part.toolchain:
        yield BillItem(
            ref=f"tool:{tool.name}@{tool.version or tool.path}",
            role="tool",
            name=tool.name,
            version=tool.version,
            purl=f"pkg:generic/{_quoted(tool.name)}"
            + (f"@{_quoted(tool.version)}" if tool.version else ""),
            facts=_without_empty({"path": tool.path}),
        )


def _package_items(record: BuildRecord) -> Iterator[BillItem]:
    for package in record.packages:
        yield BillItem(
            ref=f"package:{package.name}",
            role="package",
            name=package.name,
            version=package.version,
            purl=_pypi_purl(package.name, package.version),
            origin=package.origin if "://" in package.origin else "",
            facts=_without_empty({"seen in": "" if "://" in package.origin else package.origin}),
        )


def _pypi_purl(name: str, version: str) -> str:
    # The purl specification requires PyPI names in lower case with dashes.
    return f"pkg:pypi/{_quoted(name.lower().replace('_', '-'))}@{_quoted(version)}"


def _quoted(text: str) -> str:
    return quote(text, safe="-._~:")


def _checksum(text: str) -> str:
    return text.lower() if _HEX.fullmatch(text.lower()) else ""


def _without_empty(table: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in table.items() if value}


SBOM_FORMATS: Final[Mapping[str, tuple[str, str, str]]] = {
    "cyclonedx": ("torchyard.builds.sbom.cyclonedx", "cyclonedx", "cyclonedx-python-lib"),
    "spdx": ("torchyard.builds.sbom.spdx", "spdx_tools", "spdx-tools"),
}
"""Format -> (module of Torchyard, module of the library, distribution of the library)."""


def sbom_text(record: BuildRecord, format_name: str) -> str:
    """Return the SBOM as JSON; the result is deterministic for a record."""
    if format_name not in SBOM_FORMATS:
        raise UsageError(
            f"unknown SBOM format {format_name!r}",
            hint=nearest_hint(format_name, tuple(SBOM_FORMATS), what="format"),
        )
    module, library, distribution = SBOM_FORMATS[format_name]
    if find_spec(library) is None:
        raise MissingTool(
            f"writing {format_name} requires the package {distribution}",
            why="it is not installed in Torchyard's environment",
            hint="pip install 'torchyard[sbom]'",
        )
    to_text: Callable[[Bill, str, uuid.UUID], str] = import_module(module).to_text
    identity = f"torchyard:{record.name}:{record.plan_fingerprint}:{record.finished}"
    return to_text(make_bill(record), record.finished, uuid.uuid5(uuid.NAMESPACE_URL, identity))

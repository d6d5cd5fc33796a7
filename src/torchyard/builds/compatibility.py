"""Compatible versions: PyTorch releases, compilers, CUDA and ROCm toolkits, companion libraries.

Reads compatibility.toml beside this module. Does not examine the machine: installed versions are
passed in.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Literal

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from torchyard.builds.doctor.finding import DoctorFinding, Severity
from torchyard.core.records import decode
from torchyard.errors import UsageError

FrontEnd = Literal["setup.py", "setuptools", "scikit-build-core"]

_TABLE = Path(__file__).with_name("compatibility.toml")
_ALIASES = {"torch": "pytorch", "vision": "torchvision", "audio": "torchaudio"}


@dataclass(frozen=True, kw_only=True)
class ReleaseFacts:
    """Requirements and companions of one release of a project."""

    project: str
    version: str
    front_end: FrontEnd
    cxx_standard: int
    needs: dict[str, str] = field(default_factory=dict)
    """Tool -> version range; outside of it the build cannot succeed."""
    prefers: dict[str, str] = field(default_factory=dict)
    """Tool -> version range; outside of it the build may fail."""
    companions: dict[str, str] = field(default_factory=dict)
    """Project -> its release that matches this one."""
    also_fits: tuple[str, ...] = ()
    """Further PyTorch version ranges that a companion supports."""
    onednn: str = ""
    """Version of the bundled copy."""
    acl: str = ""
    """Version of the Arm Compute Library in the project's official Arm wheels."""
    build_requires: tuple[str, ...] = ()
    """Requirements that pip installs before the build."""
    notes: tuple[str, ...] = ()
    exact: bool = True
    """False: the table lacks the requested release; these are the facts of the nearest one."""


@dataclass(frozen=True, kw_only=True)
class CudaToolkit:
    """Compiler and driver limits of one CUDA toolkit."""

    gcc_most: int
    clang_most: int
    driver_least: str
    """Oldest driver that runs its programs."""
    driver_own: str = ""
    """Driver of the same release; older ones lack some features."""


@dataclass(frozen=True, kw_only=True)
class AclRange:
    """Versions of the Arm Compute Library that a oneDNN release accepts."""

    accepts: str
    confirmed: bool = True
    """False: taken from another source than the release itself."""


@dataclass(frozen=True, kw_only=True)
class BadCombination:
    """Tools that are known not to work together."""

    name: str
    severity: Severity
    what: str
    why: str
    fix: str
    tools: dict[str, str] = field(default_factory=dict)
    projects: tuple[str, ...] = ()
    """Empty means any."""
    releases: str = ""
    architecture: str = ""
    unless_set: str = ""
    """Variable that works around the problem."""
    unless_off: str = ""
    """Option; if it is off, the combination is harmless."""
    report: bool = False
    """From a report, not confirmed."""


@dataclass(frozen=True, kw_only=True)
class _Companions:
    releases: tuple[ReleaseFacts, ...]


@dataclass(frozen=True, kw_only=True)
class _Rocm:
    versions: str
    note: str


@dataclass(frozen=True, kw_only=True)
class PytorchVariables:
    """How the build of PyTorch uses variables; see the table."""

    cmake: tuple[str, ...]
    environment: tuple[str, ...]
    front_end: tuple[str, ...]
    options: tuple[str, ...]
    cmake_in: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class _Table:
    format: int
    release: tuple[ReleaseFacts, ...]
    companions: _Companions
    onednn_acl: dict[str, AclRange]
    cuda: dict[str, CudaToolkit]
    capabilities: dict[str, tuple[str, ...]]
    rocm: tuple[_Rocm, ...]
    debian: dict[str, dict[str, str]]
    bad: tuple[BadCombination, ...]
    pytorch_variables: PytorchVariables


def pytorch_variables() -> PytorchVariables:
    """Return how the build of PyTorch uses variables."""
    return _table().pytorch_variables


@cache
def _table() -> _Table:
    return decode(_Table, tomllib.loads(_TABLE.read_text(encoding="utf-8")), where=_TABLE.name)


@cache
def _releases(project: str) -> tuple[ReleaseFacts, ...]:
    name = _ALIASES.get(project, project)
    table = _table()
    return tuple(f for f in (*table.release, *table.companions.releases) if f.project == name)


def parse_version(text: str) -> Version | None:
    """Parse a version or a tag (`v2.6.0`, `release/2.6`); return None if it is not a version."""
    try:
        return Version(text.strip().removeprefix("release/").removeprefix("v"))
    except InvalidVersion:
        return None


def version_in_range(specifiers: str, version: str) -> bool:
    """Whether a version range contains a version; True for an unparsable version."""
    parsed = parse_version(version)
    # Build numbers (`79.0.1.post20250101`, `2.6.0a0+git123`) are ignored.
    return parsed is None or SpecifierSet(specifiers).contains(
        parsed.base_version, prereleases=True
    )


def known_releases(project: str) -> tuple[str, ...]:
    """Return the releases of a project in the table, oldest first; empty for an unknown project."""
    return tuple(facts.version for facts in _releases(project))


def release_facts(project: str, version: str) -> ReleaseFacts:
    """Return the facts of a release, or of the nearest one, with a note, if the table lacks it."""
    releases = _releases(project)
    if not releases:
        raise UsageError(
            f"the version table has no project {project!r}",
            hint="the table has pytorch, torchvision and torchaudio",
        )
    name = releases[0].project
    requested = parse_version(version)
    if requested is None:
        note = (
            f"{version or 'no version'!r} is not a release number;"
            f" using the facts of {name} {releases[-1].version}"
        )
        return _inexact(releases[-1], note)
    release = requested.release[:2]
    for facts in releases:
        if Version(facts.version).release[:2] == release:
            return facts
    older = [facts for facts in releases if Version(facts.version) < requested]
    nearest = older[-1] if older else releases[0]
    relation = "newer" if older else "older"
    note = (
        f"{name} {version} is {relation} than the releases in the version table;"
        f" using the facts of {nearest.version}"
    )
    return _inexact(nearest, note)


def _inexact(facts: ReleaseFacts, note: str) -> ReleaseFacts:
    return replace(facts, exact=False, notes=(note, *facts.notes))


def supports_torch(project: str, version: str, torch_version: str) -> bool:
    """Whether a release of a companion supports a PyTorch version."""
    facts = release_facts(project, version)
    torch = parse_version(torch_version)
    own = facts.companions.get("pytorch")
    if torch is None or own is None or Version(own).release[:2] == torch.release[:2]:
        return True
    return any(version_in_range(specifiers, torch_version) for specifiers in facts.also_fits)


def onednn_acl(version: str) -> AclRange | None:
    """Return the Arm Compute Library versions that a oneDNN accepts; None if unknown."""
    requested = parse_version(version)
    not_newer = [name for name in _table().onednn_acl if requested and Version(name) <= requested]
    return _table().onednn_acl[not_newer[-1]] if not_newer else None


def cuda_toolkit(version: str) -> CudaToolkit | None:
    """Return the limits of a toolkit; those of the next older one if the table lacks it."""
    requested = parse_version(version)
    not_newer = [name for name in _table().cuda if requested and Version(name) <= requested]
    return _table().cuda[not_newer[-1]] if not_newer else None


def toolkit_supports(cuda: str, capability: str) -> bool | None:
    """Whether a toolkit supports a compute capability (`8.6`, `9.0a`); None if unknown."""
    plain = capability.rstrip("af")
    for specifiers, names in _table().capabilities.items():
        if plain in names:
            return version_in_range(specifiers, cuda)
    return None


def supported_capabilities(cuda: str) -> tuple[str, ...]:
    """Return the compute capabilities that a toolkit supports, lowest first."""
    table = _table().capabilities.items()
    capabilities = [
        name for specifiers, names in table if version_in_range(specifiers, cuda) for name in names
    ]
    return tuple(sorted(capabilities, key=Version))


def rocm_notes(rocm: str) -> tuple[str, ...]:
    """Return the notes on a ROCm version."""
    return tuple(item.note for item in _table().rocm if version_in_range(item.versions, rocm))


def debian_toolchain(suite: str) -> dict[str, str]:
    """Return tool -> version of a Debian suite; empty for an unknown suite."""
    return dict(_table().debian.get(suite, {}))


_OFF = frozenset({"0", "OFF", "FALSE", "NO", "N"})
_FIXES = {
    "cmake": "pip install 'cmake{range}'",
    "ninja": "pip install 'ninja{range}'",
    "setuptools": "pip install 'setuptools{range}'",
    "scikit-build-core": "pip install 'scikit-build-core{range}'",
    "python": "build with another interpreter: --set environment.python=VERSION",
    "gcc": "install another gcc and set CC and CXX to it (such as CC=gcc-12 CXX=g++-12)",
    "cuda": "install another CUDA toolkit and set CUDA_HOME to it",
    "cudnn": "install another cuDNN and set CUDNN_ROOT to it",
    "magma": "install another MAGMA and set MAGMA_HOME to it",
}


def check_versions(
    facts: ReleaseFacts,
    installed: Mapping[str, str],
    *,
    architecture: str = "",
    variables: Mapping[str, str] | None = None,
) -> tuple[DoctorFinding, ...]:
    """Compare installed versions with a release's requirements and known bad combinations.

    `installed` maps tools (cmake, ninja, gcc, python, setuptools, cuda, glibc, ...) to versions; tools
    not in it are not checked. `variables` are those of the build.
    """
    findings: list[DoctorFinding] = []
    release = f"{facts.project} {facts.version}"
    ranges: tuple[tuple[Severity, dict[str, str]], ...] = (
        ("blocks", facts.needs),
        ("warns", facts.prefers),
    )
    for severity, required in ranges:
        verb = "needs" if severity == "blocks" else "is known to build with"
        findings += [
            DoctorFinding(
                check="versions",
                severity=severity,
                what=f"{tool} {installed[tool]} does not fit {release}",
                why=f"{release} {verb} {tool} {limits}",
                fix=_FIXES.get(tool, "install {tool} {range}").format(tool=tool, range=limits),
            )
            for tool, limits in required.items()
            if tool in installed and not version_in_range(limits, installed[tool])
        ]
    findings += [
        _bad_finding(bad)
        for bad in _table().bad
        if _applies(bad, facts, architecture)
        and not (variables or {}).get(bad.unless_set)
        and (variables or {}).get(bad.unless_off, "").upper() not in _OFF
        and all(
            tool in installed and _within(limits, installed[tool])
            for tool, limits in bad.tools.items()
        )
    ]
    return tuple(findings)


def _applies(bad: BadCombination, facts: ReleaseFacts, architecture: str) -> bool:
    return (
        (not bad.projects or facts.project in bad.projects)
        and (not bad.architecture or bad.architecture == architecture)
        and (not bad.releases or version_in_range(bad.releases, facts.version))
    )


def _within(limits: str, version: str) -> bool:
    return any(version_in_range(part, version) for part in limits.split("|"))


def _bad_finding(bad: BadCombination) -> DoctorFinding:
    why = f"{bad.why} (a report, not confirmed)" if bad.report else bad.why
    return DoctorFinding(
        check="versions", severity=bad.severity, what=bad.what, why=why, fix=bad.fix
    )

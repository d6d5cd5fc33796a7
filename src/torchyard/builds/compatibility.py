"""Which versions work together: PyTorch releases, compilers, CUDA and ROCm toolkits, companions.

Reads compatibility.toml beside this module and answers questions about it. Examines nothing on the
machine: the versions that were found are passed in.
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

__all__ = [
    "AclRange",
    "BadCombination",
    "CudaToolkit",
    "FrontEnd",
    "ReleaseFacts",
    "allows",
    "capabilities_of",
    "check_versions",
    "cuda_toolkit",
    "debian_toolchain",
    "fits_torch",
    "host_clang_limit",
    "host_gcc_limit",
    "known_releases",
    "matching_companions",
    "onednn_acl",
    "onednn_acl_range",
    "parse_version",
    "release_facts",
    "rocm_notes",
    "toolkit_knows",
]

FrontEnd = Literal["setup.py", "setuptools", "scikit-build-core"]

_TABLE = Path(__file__).with_name("compatibility.toml")
_ALIASES = {"torch": "pytorch", "vision": "torchvision", "audio": "torchaudio"}


@dataclass(frozen=True, kw_only=True)
class ReleaseFacts:
    """What one release of a project needs and goes with."""

    project: str
    version: str
    front_end: FrontEnd
    cxx_standard: int
    needs: dict[str, str] = field(default_factory=dict)
    """Tool -> range of versions; outside of it the build can't work."""
    prefers: dict[str, str] = field(default_factory=dict)
    """Tool -> range of versions; outside of it the build may fail."""
    companions: dict[str, str] = field(default_factory=dict)
    """Project -> its release that belongs to this one."""
    also_fits: tuple[str, ...] = ()
    """Further ranges of PyTorch that a companion is meant for."""
    onednn: str = ""
    """Version of the copy inside the source."""
    acl: str = ""
    """Version of the Arm Compute Library that the project's own Arm wheels carry."""
    build_requires: tuple[str, ...] = ()
    """What pip installs before the build."""
    notes: tuple[str, ...] = ()
    exact: bool = True
    """False: the release that was asked for is not in the table, these are its neighbour's facts."""


@dataclass(frozen=True, kw_only=True)
class CudaToolkit:
    """What one CUDA toolkit accepts."""

    gcc_most: int
    clang_most: int
    driver_least: str
    """Lowest driver that runs its programs at all."""
    driver_own: str = ""
    """Driver that it was released with; an older one lacks some features."""


@dataclass(frozen=True, kw_only=True)
class AclRange:
    """Versions of the Arm Compute Library that a oneDNN takes."""

    accepts: str
    confirmed: bool = True
    """False: read elsewhere than in that release itself."""


@dataclass(frozen=True, kw_only=True)
class BadCombination:
    """Tools that are known not to work together."""

    name: str
    severity: Severity
    what: str
    why: str
    mend: str
    tools: dict[str, str] = field(default_factory=dict)
    projects: tuple[str, ...] = ()
    """Empty means any."""
    releases: str = ""
    architecture: str = ""
    unless_set: str = ""
    """A variable that mends it."""
    unless_off: str = ""
    """An option that makes it moot when it is off."""
    report: bool = False
    """Somebody's notes, not confirmed."""


@dataclass(frozen=True, kw_only=True)
class _Companions:
    releases: tuple[ReleaseFacts, ...]


@dataclass(frozen=True, kw_only=True)
class _Rocm:
    versions: str
    note: str


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


@cache
def _table() -> _Table:
    return decode(_Table, tomllib.loads(_TABLE.read_text(encoding="utf-8")), where=_TABLE.name)


@cache
def _releases(project: str) -> tuple[ReleaseFacts, ...]:
    name = _ALIASES.get(project, project)
    table = _table()
    return tuple(f for f in (*table.release, *table.companions.releases) if f.project == name)


def parse_version(text: str) -> Version | None:
    """The version, also of a tag (`v2.6.0`) or of a tool's own spelling; None when it is none."""
    try:
        return Version(text.strip().removeprefix("release/").removeprefix("v"))
    except InvalidVersion:
        return None


def allows(wanted: str, version: str) -> bool:
    """Whether a range holds a version; a version that can't be read is let through."""
    found = parse_version(version)
    # A build number (`79.0.1.post20250101`, `2.6.0a0+git123`) never decides.
    return found is None or SpecifierSet(wanted).contains(found.base_version, prereleases=True)


def known_releases(project: str) -> tuple[str, ...]:
    """Releases of a project in the table, oldest first; empty for a project it does not have."""
    return tuple(facts.version for facts in _releases(project))


def release_facts(project: str, version: str) -> ReleaseFacts:
    """Facts of a release; of its nearest neighbour, with a note, when the table lacks it."""
    known = _releases(project)
    if not known:
        raise UsageError(
            f"the version table has no project {project!r}",
            hint="it knows pytorch, torchvision and torchaudio",
        )
    name = known[0].project
    wanted = parse_version(version)
    if wanted is None:
        said = version or "no version"
        note = f"{said!r} is no release number; these are the facts of {name} {known[-1].version}"
        return _neighbour(known[-1], note)
    release = wanted.release[:2]
    for facts in known:
        if Version(facts.version).release[:2] == release:
            return facts
    older = [facts for facts in known if Version(facts.version) < wanted]
    near = older[-1] if older else known[0]
    side = "newer" if older else "older"
    note = (
        f"{name} {version} is {side} than what the version table knows;"
        f" these are the facts of {near.version}"
    )
    return _neighbour(near, note)


def _neighbour(facts: ReleaseFacts, note: str) -> ReleaseFacts:
    return replace(facts, exact=False, notes=(note, *facts.notes))


def matching_companions(torch_version: str) -> dict[str, str]:
    """Releases of torchvision and torchaudio that belong to a PyTorch release."""
    return dict(release_facts("pytorch", torch_version).companions)


def fits_torch(project: str, version: str, torch_version: str) -> bool:
    """Whether a companion's release is meant for that PyTorch."""
    facts = release_facts(project, version)
    torch = parse_version(torch_version)
    own = facts.companions.get("pytorch")
    if torch is None or own is None or Version(own).release[:2] == torch.release[:2]:
        return True
    return any(allows(wanted, torch_version) for wanted in facts.also_fits)


def onednn_acl(version: str) -> AclRange | None:
    """What a oneDNN accepts of the Arm Compute Library; None when it is not known."""
    wanted = parse_version(version)
    known = [name for name in _table().onednn_acl if wanted and Version(name) <= wanted]
    return _table().onednn_acl[known[-1]] if known else None


def onednn_acl_range(version: str) -> str:
    """Range of Arm Compute Library versions that a oneDNN accepts; empty when not known."""
    found = onednn_acl(version)
    return found.accepts if found else ""


def cuda_toolkit(version: str) -> CudaToolkit | None:
    """What a toolkit accepts; the next older known one's facts when it is not in the table."""
    wanted = parse_version(version)
    known = [name for name in _table().cuda if wanted and Version(name) <= wanted]
    return _table().cuda[known[-1]] if known else None


def host_gcc_limit(cuda: str) -> int | None:
    """Newest major version of gcc that this toolkit's nvcc accepts."""
    toolkit = cuda_toolkit(cuda)
    return toolkit.gcc_most if toolkit else None


def host_clang_limit(cuda: str) -> int | None:
    """Newest major version of clang that this toolkit's nvcc accepts."""
    toolkit = cuda_toolkit(cuda)
    return toolkit.clang_most if toolkit else None


def toolkit_knows(cuda: str, capability: str) -> bool | None:
    """Whether a toolkit compiles for a compute capability (`8.6`, `9.0a`); None when not known."""
    plain = capability.rstrip("af")
    for wanted, names in _table().capabilities.items():
        if plain in names:
            return allows(wanted, cuda)
    return None


def capabilities_of(cuda: str) -> tuple[str, ...]:
    """Compute capabilities that a toolkit compiles for, lowest first."""
    table = _table().capabilities.items()
    known = [name for wanted, names in table if allows(wanted, cuda) for name in names]
    return tuple(sorted(known, key=Version))


def rocm_notes(rocm: str) -> tuple[str, ...]:
    """What to know about a ROCm version."""
    return tuple(item.note for item in _table().rocm if allows(item.versions, rocm))


def debian_toolchain(suite: str) -> dict[str, str]:
    """Tools of a Debian suite -> their versions; empty for a suite the table does not have."""
    return dict(_table().debian.get(suite, {}))


_OFF = frozenset({"0", "OFF", "FALSE", "NO", "N"})
_MENDS = {
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
    found: Mapping[str, str],
    *,
    architecture: str = "",
    variables: Mapping[str, str] | None = None,
) -> tuple[DoctorFinding, ...]:
    """Hold the versions that were found against a release's needs and the known bad combinations.

    `found` maps tools (cmake, ninja, gcc, python, setuptools, cuda, glibc, ...) to versions; a tool
    that is not in it is not judged. `variables` are those of the build.
    """
    findings: list[DoctorFinding] = []
    release = f"{facts.project} {facts.version}"
    ranges: tuple[tuple[Severity, dict[str, str]], ...] = (
        ("blocks", facts.needs),
        ("warns", facts.prefers),
    )
    for severity, wanted in ranges:
        verb = "needs" if severity == "blocks" else "is known to build with"
        findings += [
            DoctorFinding(
                check="versions",
                severity=severity,
                what=f"{tool} {found[tool]} does not fit {release}",
                why=f"{release} {verb} {tool} {limits}",
                mend=_MENDS.get(tool, "install {tool} {range}").format(tool=tool, range=limits),
            )
            for tool, limits in wanted.items()
            if tool in found and not allows(limits, found[tool])
        ]
    findings += [
        _bad_finding(bad)
        for bad in _table().bad
        if _concerns(bad, facts, architecture)
        and not (variables or {}).get(bad.unless_set)
        and (variables or {}).get(bad.unless_off, "").upper() not in _OFF
        and all(
            tool in found and _within(limits, found[tool]) for tool, limits in bad.tools.items()
        )
    ]
    return tuple(findings)


def _concerns(bad: BadCombination, facts: ReleaseFacts, architecture: str) -> bool:
    return (
        (not bad.projects or facts.project in bad.projects)
        and (not bad.architecture or bad.architecture == architecture)
        and (not bad.releases or allows(bad.releases, facts.version))
    )


def _within(limits: str, version: str) -> bool:
    return any(allows(part, version) for part in limits.split("|"))


def _bad_finding(bad: BadCombination) -> DoctorFinding:
    why = f"{bad.why} (a report, not confirmed)" if bad.report else bad.why
    return DoctorFinding(
        check="versions", severity=bad.severity, what=bad.what, why=why, mend=bad.mend
    )

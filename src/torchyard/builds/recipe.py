"""The recipe: source, environment, builder, options, checks. No I/O.

These dataclasses are the grammar of recipe files: a key that is not a field here is an error that
names the nearest valid key. `fill_placeholders` replaces the {placeholders} of a recipe: paths and versions
that only the plan has. `recipe_file` reads the files and merges variants into one `Recipe`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from torchyard.core.records import decode, encode, nearest_hint
from torchyard.errors import UsageError

Scalar = str | int | float | bool
SourceKind = Literal["git", "folder", "tarball", "sdist", "debian"]
EnvironmentKind = Literal["venv", "conda", "debian-root", "current"]
BuilderKind = Literal["cmake", "python", "scons", "make", "torchbench", "none"]


@dataclass(frozen=True, kw_only=True)
class GitSource:
    """A git repository at one revision."""

    url: str
    """URL or path that git can fetch from."""
    ref: str = "main"
    """Branch, tag or commit."""
    submodules: bool = True
    """Fetch submodules recursively."""
    shallow: bool = True
    """Fetch without history."""
    overrides: dict[str, str] = field(default_factory=dict)
    """Submodule path -> revision to use instead."""


@dataclass(frozen=True, kw_only=True)
class FolderSource:
    """A folder on this machine; the build works on a copy."""

    path: str
    """Relative to the recipe file, or with `--set` to the current folder."""


@dataclass(frozen=True, kw_only=True)
class TarballSource:
    """An archive at a URL or path, with its checksum."""

    url: str
    """URL or path of the archive."""
    sha256: str
    """Checksum of the archive."""
    strip: int = 1
    """As `tar --strip-components`."""


@dataclass(frozen=True, kw_only=True)
class SdistSource:
    """A source distribution from the package index that pip is configured for."""

    name: str
    """Name on the package index."""
    version: str
    """Exact version."""
    sha256: str = ""
    """Checksum of the archive; default: the index's."""


@dataclass(frozen=True, kw_only=True)
class DebianSource:
    """A Debian source package, through the apt configuration of this machine."""

    package: str
    """Name of the source package."""
    suite: str = ""
    """Any suite of the mirror; empty means the suites of this machine."""
    version: str = ""
    """Empty means the newest version in the suite."""
    upstream_only: bool = False
    """Use the upstream tarball only, without Debian's patches."""


@dataclass(frozen=True, kw_only=True)
class SourceTable:
    """The possible sources, and which one to use."""

    use: SourceKind | None = None
    """Kind of source to use; optional if only one is given."""
    git: GitSource | None = None
    folder: FolderSource | None = None
    tarball: TarballSource | None = None
    sdist: SdistSource | None = None
    debian: DebianSource | None = None


@dataclass(frozen=True, kw_only=True)
class VenvTable:
    """Python packages to install into a virtual environment before the build."""

    packages: tuple[str, ...] = ()
    """pip requirements, in addition to those of the [release](versions.md)."""
    requirements: tuple[str, ...] = ()
    """Requirement files, relative to the source tree."""


@dataclass(frozen=True, kw_only=True)
class CondaTable:
    """Packages to install with conda, mamba, micromamba or pixi."""

    channels: tuple[str, ...] = ()
    """Channels in order of priority; empty means conda-forge."""
    packages: tuple[str, ...] = ()
    """Match specifications: `cmake=3.26`, `cmake>=3.27,<4`."""


@dataclass(frozen=True, kw_only=True)
class DebianRootTable:
    """A Debian system of any suite in a root folder."""

    suite: str = "trixie"
    """Code name of the suite."""
    packages: tuple[str, ...] = ()
    """In addition to compiler, CMake, Ninja, git, ccache and Python."""
    build_dependencies_of: tuple[str, ...] = ()
    """Source packages whose build dependencies are installed."""
    archive_areas: tuple[str, ...] = ()
    """Areas of the archive, such as `main`, `contrib`; empty means those of this machine's apt."""
    mirror: str = ""
    """URL of an archive that has the suite; empty means that of this machine's apt."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentTable:
    """The environment that the build runs in."""

    use: EnvironmentKind = "venv"
    """A virtual environment, a conda environment, a Debian root folder, or the existing system."""
    python: str = ""
    """Version (`3.12`) or path of the interpreter; empty means Torchyard's, or the root's."""
    base: str = ""
    """Interpreter, or `build:NAME`, whose packages (e.g. torch) the build uses unchanged."""
    cuda: str = ""
    """Version of the CUDA toolkit (`12.8.0`): {cuda} in packages and paths follows from it."""
    gcc: str = ""
    """Version of gcc (`13.3.0` for conda, else `13`): compilers, {gcc} and flags follow from it."""
    venv: VenvTable = field(default_factory=VenvTable)
    conda: CondaTable = field(default_factory=CondaTable)
    debian_root: DebianRootTable = field(default_factory=DebianRootTable)
    system_packages: tuple[str, ...] = ()
    """Debian packages of exported images, such as an allocator."""
    variables: dict[str, str] = field(default_factory=dict)
    """Set in all steps and in the activation script; may use {placeholders}."""
    path: tuple[str, ...] = ()
    """Folders to prepend to PATH."""
    include: tuple[str, ...] = ()
    """Header folders, searched in order before those of the environment."""
    libraries: tuple[str, ...] = ()
    """Library folders, in search order of linker and loader."""


@dataclass(frozen=True, kw_only=True)
class PrepareCommand:
    """A command to run before the build (hipify, code generation)."""

    run: tuple[str, ...]
    """Program and arguments; no shell is involved."""
    folder: str = ""
    """Working folder, relative to the source tree."""
    why: str = ""
    """Reason, shown in the plan."""


@dataclass(frozen=True, kw_only=True)
class CMakeTable:
    """A CMake project."""

    folder: str = ""
    """Folder of CMakeLists.txt, relative to the source tree."""
    generator: str = "Ninja"
    """Name of the CMake generator."""
    build_type: str = "Release"
    """CMAKE_BUILD_TYPE."""
    arguments: tuple[str, ...] = ()
    """Further arguments of the configure command, after the options."""
    targets: tuple[str, ...] = ()
    """Targets to build; empty means all."""
    install: bool = True
    """Install into the prefix."""


@dataclass(frozen=True, kw_only=True)
class PythonTable:
    """A Python project with native code."""

    distribution: str = ""
    """Distribution name of the wheel; empty means the recipe's name."""
    front_end: Literal["auto", "setup.py", "pep517"] = "auto"
    """`auto`: that of the [release](versions.md), else `pep517`."""
    configure: tuple[str, ...] = ()
    """Arguments of `python` that only configure the project."""
    install: Literal["wheel", "editable"] = "wheel"
    """Install a wheel, or in place for development."""
    options_as: Literal["variables", "cmake-args"] = "variables"
    """Whether options are environment variables or in CMAKE_ARGS."""
    build_folder: str = "build"
    """Folder of CMakeCache.txt and object files, relative to the source tree."""
    online: bool = False
    """Allow network access in the build step."""
    compiles_with: Literal["compiler", "cmake"] = "compiler"
    """`cmake` if CMake starts the compilers."""


@dataclass(frozen=True, kw_only=True)
class SconsTable:
    """A SCons project (Arm Compute Library)."""

    arguments: tuple[str, ...] = ()
    """Further arguments, after the options."""


@dataclass(frozen=True, kw_only=True)
class MakeTable:
    """A plain Makefile."""

    targets: tuple[str, ...] = ("all",)
    """Targets to build."""
    install_targets: tuple[str, ...] = ("install",)
    """Targets to install."""
    arguments: tuple[str, ...] = ()
    """Further arguments of both commands, after the options."""


@dataclass(frozen=True, kw_only=True)
class SmokeTest:
    """Python code that must run in the finished target, outside the source tree."""

    name: str
    """Name shown in reports."""
    python: str
    """The code."""
    device: Literal["", "cuda", "rocm"] = ""
    """Device it needs; without one, the test is skipped, and recorded so."""


@dataclass(frozen=True, kw_only=True)
class TestFile:
    """A test file of the project with its known failures."""

    path: str
    """Relative to the source tree."""
    known_failures: tuple[str, ...] = ()
    """Test names as in pytest, without the file: `Class::test`."""


@dataclass(frozen=True, kw_only=True)
class VerifyTable:
    """Checks of the result."""

    import_name: str = ""
    """Module that must be importable outside the source tree."""
    libraries: tuple[str, ...] = ()
    """Glob patterns below site-packages or the prefix, of files whose linked libraries are checked."""
    files: tuple[str, ...] = ()
    """Files that must exist below the prefix."""
    ignored_options: tuple[str, ...] = ()
    """Options that are not in CMakeCache.txt."""
    smoke: tuple[SmokeTest, ...] = ()
    """Tests that run after every build."""
    tests: tuple[TestFile, ...] = ()
    """Test files that `torchyard build test` runs."""


@dataclass(frozen=True, kw_only=True)
class ComponentTable:
    """One component of a stack."""

    recipe: str
    """Name of a shipped recipe, or path relative to this file."""
    variant: str = ""
    """Empty means the recipe's default variant."""
    variants: dict[str, str] = field(default_factory=dict)
    """Variant of the stack -> variant of the component, before `variant`."""
    version: str = ""
    """Empty means the recipe's version."""
    needs: tuple[str, ...] = ()
    """Further components to build first."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings as in `--set KEY=VALUE`."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A component or a stack of components, with variant and settings merged in."""

    name: str
    """Default: the name of the file."""
    summary: str = ""
    """One-line description."""
    version: str = ""
    """Release to build; `--version` overrides it."""
    variant: str = ""
    builder: BuilderKind = "cmake"
    """`torchbench` installs the requirements of a model, `none` only fetches and checks."""
    needs: tuple[str, ...] = ()
    """Recipes to build first, whose files this one finds in the prefix."""
    architectures: tuple[str, ...] = ()
    """Processor architectures, as in `uname -m`; empty means any."""
    source: SourceTable = field(default_factory=SourceTable)
    environment: EnvironmentTable = field(default_factory=EnvironmentTable)
    options: dict[str, Scalar] = field(default_factory=dict)
    """Build options, with the names the project uses."""
    patches: tuple[str, ...] = ()
    """Patches to apply; paths relative to the recipe file."""
    prepare: tuple[PrepareCommand, ...] = ()
    """Commands to run in the working copy before the build."""
    cmake: CMakeTable = field(default_factory=CMakeTable)
    python: PythonTable = field(default_factory=PythonTable)
    scons: SconsTable = field(default_factory=SconsTable)
    make: MakeTable = field(default_factory=MakeTable)
    verify: VerifyTable = field(default_factory=VerifyTable)
    disk_gib: float = 1.0
    """Disk space for source, object files and result."""
    cpu_seconds: float = 0.0
    """CPU time of all compiles, for the first estimate; 0 means unknown."""
    jobs: int = 0
    """Most parallel jobs of this component; 0 means no limit of its own."""
    job_memory_mib: int = 1024
    """Peak memory of a typical compile job, until measured on this machine."""
    heavy: dict[str, int] = field(default_factory=dict)
    """Glob pattern of object or source names -> peak memory in MiB, for files that need more."""
    compile_options: dict[str, str] = field(default_factory=dict)
    """Glob pattern of source names -> compiler options to append. Existing object files are not recompiled."""
    components: tuple[ComponentTable, ...] = ()
    """Components of a stack; a stack has no source."""
    known_release: str = ""
    """Project name in the compatibility table, if the project is in it."""
    folder: str = ""
    """Folder of the recipe file, for relative paths; set when the file is read."""


_PLACEHOLDER: Final = re.compile(r"\{([a-z][a-zA-Z0-9_.-]*)\}")
_WITHOUT_PLACEHOLDERS: Final = ("smoke", "summary", "why")
"""Keys with code or prose, in which braces are literal."""


def fill_placeholders(
    recipe: Recipe, names: Mapping[str, str], *, where: str, only: str = ""
) -> Recipe:
    """Return the recipe with all {name} placeholders replaced; raise UsageError for unknown ones.

    `only` restricts the replacement to one table.
    """
    table = encode(recipe)
    if only:
        table[only] = _walk(table[only], names, f"{where}.{only}")
    else:
        table = _walk(table, names, where)
    return decode(Recipe, table, where=where)


def _walk(value: Any, names: Mapping[str, str], where: str) -> Any:
    if isinstance(value, str):
        return _fill(value, names, where)
    if isinstance(value, dict):
        return {
            key: item if key in _WITHOUT_PLACEHOLDERS else _walk(item, names, f"{where}.{key}")
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_walk(item, names, f"{where}[{index}]") for index, item in enumerate(value)]
    return value


def _fill(text: str, names: Mapping[str, str], where: str) -> str:
    def replace(match: re.Match[str]) -> str:
        name = match[1]
        if name not in names:
            raise UsageError(
                f"{where}: unknown placeholder {{{name}}}",
                hint=nearest_hint(name, sorted(names), what="placeholder"),
            )
        return names[name]

    return _PLACEHOLDER.sub(replace, text)

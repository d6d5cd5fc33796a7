"""The recipe: source, environment, builder, options, checks. No I/O.

These dataclasses are the grammar of recipe files: a key that is not a field here is an error that
names the nearest valid key. `filled_in` replaces the {placeholders} of a recipe: paths and versions
that only the plan knows. `recipe_file` reads the files and merges variants into one `Recipe`.
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
    """Anything git can fetch from: an address, or the path of a repository."""
    ref: str = "main"
    """Branch, tag or commit."""
    submodules: bool = True
    """Fetch them, too, and theirs."""
    shallow: bool = True
    """Without history; false where history is worked with."""
    overrides: dict[str, str] = field(default_factory=dict)
    """Path of a submodule -> another revision of it (oneDNN inside PyTorch, say)."""


@dataclass(frozen=True, kw_only=True)
class FolderSource:
    """A folder on this machine; it is copied, never built in."""

    path: str
    """A full path, or one from the folder that Torchyard is started in."""


@dataclass(frozen=True, kw_only=True)
class TarballSource:
    """An archive from an address or a path, with its checksum."""

    url: str
    """Address or path of the archive."""
    sha256: str
    """Another one is an error, and nothing of the archive is used."""
    strip: int = 1
    """Leading folders to drop from the names inside."""


@dataclass(frozen=True, kw_only=True)
class SdistSource:
    """A source distribution from the package index that pip is configured for."""

    name: str
    """As pip calls it."""
    version: str
    """Exact."""
    sha256: str = ""
    """Without one, the checksum the index gives is used, and is written into the lock."""


@dataclass(frozen=True, kw_only=True)
class DebianSource:
    """A Debian source package, through this machine's own apt configuration."""

    package: str
    """Name of the source package."""
    suite: str = ""
    """Any suite the mirror has; empty means the machine's own."""
    version: str = ""
    """Empty means the newest of the suite."""
    upstream_only: bool = False
    """Only the upstream tarball, without Debian's patches."""


@dataclass(frozen=True, kw_only=True)
class SourceTable:
    """The places a source can come from, and the one that is used."""

    use: SourceKind | None = None
    """Which table below; may be left out when there is only one."""
    git: GitSource | None = None
    folder: FolderSource | None = None
    tarball: TarballSource | None = None
    sdist: SdistSource | None = None
    debian: DebianSource | None = None


@dataclass(frozen=True, kw_only=True)
class VenvTable:
    """What pip installs into a virtual environment before the build."""

    packages: tuple[str, ...] = ()
    """As pip writes them; what the release needs by the version table is added."""
    requirements: tuple[str, ...] = ()
    """Requirement files of the source tree, relative to it."""


@dataclass(frozen=True, kw_only=True)
class CondaTable:
    """What conda (or mamba, micromamba, pixi) installs."""

    channels: tuple[str, ...] = ()
    """First one first; conda-forge when empty."""
    packages: tuple[str, ...] = ()
    """As conda writes them: `cmake=3.26`, `cmake>=3.27,<4`."""


@dataclass(frozen=True, kw_only=True)
class DebianRootTable:
    """A Debian of any suite in a folder."""

    suite: str = "trixie"
    """Code name."""
    packages: tuple[str, ...] = ()
    """Beside compiler, CMake, Ninja, git, ccache and Python, which every root gets."""
    build_dependencies_of: tuple[str, ...] = ()
    """Source packages whose build dependencies are installed."""
    mirror: str = ""
    """Address of an archive that has the suite; empty means the one this machine's apt uses."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentTable:
    """Where the build runs and what it finds there."""

    use: EnvironmentKind = "venv"
    """A virtual environment, a conda environment, a Debian in a folder, or what is here already."""
    python: str = ""
    """Version (`3.12`) or path of the interpreter; empty means the yard's, or the root's."""
    base: str = ""
    """An interpreter, or `build:NAME`, whose packages (a torch) the build sees and does not change."""
    venv: VenvTable = field(default_factory=VenvTable)
    conda: CondaTable = field(default_factory=CondaTable)
    debian_root: DebianRootTable = field(default_factory=DebianRootTable)
    variables: dict[str, str] = field(default_factory=dict)
    """Set in every step and in the activation script; may use {placeholders}."""
    path: tuple[str, ...] = ()
    """Folders put before PATH."""
    include: tuple[str, ...] = ()
    """Header folders, in the order the compiler must look: environment first."""
    libraries: tuple[str, ...] = ()
    """Library folders, in the order the linker and the loader must look."""


@dataclass(frozen=True, kw_only=True)
class PrepareCommand:
    """One command between unpacking and building (hipify, code generation)."""

    run: tuple[str, ...]
    """Program and arguments; no shell reads them."""
    folder: str = ""
    """Relative to the source tree."""
    why: str = ""
    """Shown in the plan."""


@dataclass(frozen=True, kw_only=True)
class CMakeTable:
    """A CMake project."""

    folder: str = ""
    """Where CMakeLists.txt is, relative to the source tree."""
    generator: str = "Ninja"
    """CMake's own name for it."""
    build_type: str = "Release"
    """CMAKE_BUILD_TYPE."""
    arguments: tuple[str, ...] = ()
    """Further ones when configuring, behind the options."""
    targets: tuple[str, ...] = ()
    """What to build; everything when empty."""
    install: bool = True
    """Into the prefix; without it the result stays in the build folder."""


@dataclass(frozen=True, kw_only=True)
class PythonTable:
    """A Python project with native code."""

    distribution: str = ""
    """Name of the wheel; empty means the recipe's name."""
    front_end: Literal["auto", "setup.py", "pep517"] = "auto"
    """`auto` takes what the version table says of the release, and `pep517` where it says nothing."""
    configure: tuple[str, ...] = ()
    """Arguments after `python` that stop behind the configure step, where the project can."""
    install: Literal["wheel", "editable"] = "wheel"
    """A wheel that is kept and installed, or in place, for working on the project."""
    options_as: Literal["variables", "cmake-args"] = "variables"
    """How options reach the project: as variables of its build, or in CMAKE_ARGS."""
    build_folder: str = "build"
    """Where the project keeps CMakeCache.txt and objects, relative to the source tree."""
    compiles_with: Literal["compiler", "cmake"] = "compiler"
    """`cmake` where CMake starts the compilers, so that the meter can be its launcher."""


@dataclass(frozen=True, kw_only=True)
class SconsTable:
    """A SCons project (Arm Compute Library)."""

    arguments: tuple[str, ...] = ()
    """Behind the options."""


@dataclass(frozen=True, kw_only=True)
class MakeTable:
    """A plain Makefile."""

    targets: tuple[str, ...] = ("all",)
    """What is built."""
    install_targets: tuple[str, ...] = ("install",)
    """What is made afterwards, to install."""
    arguments: tuple[str, ...] = ()
    """Behind the options, in both."""


@dataclass(frozen=True, kw_only=True)
class SmokeTest:
    """A few lines that must run in the finished target, outside the source."""

    name: str
    """What it shows, for people."""
    python: str
    """The lines; an exception or another exit code than 0 is a failure."""


@dataclass(frozen=True, kw_only=True)
class TestFile:
    """A test file of the project with the failures that are known."""

    path: str
    """Relative to the source tree."""
    known_failures: tuple[str, ...] = ()
    """Names as pytest writes them, without the file: `Class::test`."""


@dataclass(frozen=True, kw_only=True)
class VerifyTable:
    """How the result is checked."""

    import_name: str = ""
    """Module that must import from outside the source tree."""
    libraries: tuple[str, ...] = ()
    """Glob patterns below site-packages or the prefix, whose linked libraries are checked."""
    files: tuple[str, ...] = ()
    """Files that must exist below the prefix."""
    ignored_options: tuple[str, ...] = ()
    """Options that no CMakeCache shows, so that their absence there is no finding."""
    smoke: tuple[SmokeTest, ...] = ()
    """Run after every build."""
    tests: tuple[TestFile, ...] = ()
    """Run on request, by `torchyard build test`."""


@dataclass(frozen=True, kw_only=True)
class ComponentTable:
    """One part of a stack."""

    recipe: str
    """Name of a shipped one, or path relative to this file."""
    variant: str = ""
    """Its default one when empty."""
    version: str = ""
    """Its own when empty."""
    needs: tuple[str, ...] = ()
    """Components that are built first, beside those that the recipe names itself."""
    settings: dict[str, Any] = field(default_factory=dict)
    """As `--set KEY=VALUE`."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One component, or a stack of them, with variant and settings already merged in."""

    name: str
    """Of the recipe and of the component it makes; the file's own name when left out."""
    summary: str = ""
    """One line."""
    version: str = ""
    """Release to build; `--version` replaces it."""
    variant: str = ""
    builder: BuilderKind = "cmake"
    """What builds it; `torchbench` installs what one of its models needs, `none` fetches and checks only."""
    needs: tuple[str, ...] = ()
    """Recipes that are built first and whose prefix this one sees."""
    source: SourceTable = field(default_factory=SourceTable)
    environment: EnvironmentTable = field(default_factory=EnvironmentTable)
    options: dict[str, Scalar] = field(default_factory=dict)
    """Build options by the project's own names."""
    patches: tuple[str, ...] = ()
    """Paths relative to the recipe file."""
    prepare: tuple[PrepareCommand, ...] = ()
    """Commands in the working copy before it is built."""
    cmake: CMakeTable = field(default_factory=CMakeTable)
    python: PythonTable = field(default_factory=PythonTable)
    scons: SconsTable = field(default_factory=SconsTable)
    make: MakeTable = field(default_factory=MakeTable)
    verify: VerifyTable = field(default_factory=VerifyTable)
    disk_gib: float = 1.0
    """What source, objects and result take together."""
    cpu_seconds: float = 0.0
    """Compile time seen on a 2020s server core, for the first estimate; 0 means unknown."""
    job_memory_mib: int = 1024
    """Peak memory of an ordinary compile, until this machine has measured its own."""
    heavy: dict[str, int] = field(default_factory=dict)
    """Glob pattern of object or source names -> MiB, for files known to need more."""
    compile_options: dict[str, str] = field(default_factory=dict)
    """Glob pattern of source names -> compiler options that come last, such as `-O1` for a file that
    the compiler breaks down over. For what is compiled from now on; finished objects stay."""
    components: tuple[ComponentTable, ...] = ()
    """A stack has these and no source of its own."""
    known_release: str = ""
    """Name of the coupling table's project when it differs from `name`."""
    folder: str = ""
    """Folder of the recipe file, for relative paths; filled in by the reader."""


_NAME: Final = re.compile(r"\{([a-z][a-zA-Z0-9_.-]*)\}")
_AS_WRITTEN: Final = ("smoke", "summary", "why")
"""Keys whose texts are programs or prose, where braces mean braces."""


def filled_in(recipe: Recipe, names: Mapping[str, str], *, where: str, only: str = "") -> Recipe:
    """The recipe with every {name} replaced; an unknown one is an error that names its key.

    `only` fills in one table and leaves the others as they are.
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
            key: item if key in _AS_WRITTEN else _walk(item, names, f"{where}.{key}")
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_walk(item, names, f"{where}[{index}]") for index, item in enumerate(value)]
    return value


def _fill(text: str, names: Mapping[str, str], where: str) -> str:
    def replace(found: re.Match[str]) -> str:
        name = found[1]
        if name not in names:
            raise UsageError(
                f"{where}: {{{name}}} stands for nothing here",
                hint=nearest_hint(name, sorted(names), what="placeholder"),
            )
        return names[name]

    return _NAME.sub(replace, text)

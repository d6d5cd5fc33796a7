"""Input of the checks of the doctor: machine, programs, plan, recipes, variables.

Collects facts only. `Toolbox` finds programs and their versions, which are cached in a file. Which
versions are supported is decided by `builds.compatibility`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from torchyard.builds.cmake_cache import cmake_bool, cmake_value
from torchyard.builds.compatibility import ReleaseFacts, known_releases, release_facts
from torchyard.builds.compilers import compiler_word
from torchyard.builds.doctor.finding import DoctorFinding
from torchyard.builds.plan import Component, Plan
from torchyard.builds.recipe import EnvironmentTable, Recipe
from torchyard.core.records import encode
from torchyard.errors import TorchyardError
from torchyard.files.safe_writing import replace_file, to_json_text
from torchyard.process.programs import capture

_VERSION_LIMIT_S: Final = 30.0
_NUMBER: Final = r"(\d+(?:\.\d+)+)"


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A program and its version."""

    name: str
    """The requested name, such as `cmake`."""
    path: str
    version: str
    """Empty if its output could not be parsed; `raw` has the output."""
    raw: str
    family: str = ""
    """`gcc` or `clang` for compilers, whatever their name."""


@dataclass(frozen=True, kw_only=True)
class _VersionQuery:
    """How to find a program and read its version."""

    programs: tuple[str, ...]
    pattern: str


# The version of GCC follows the packager's parentheses: `g++ (Debian 12.2.0-14) 12.2.0`. A program
# named cc may be clang, whose output says so.
_GNU_PATTERN: Final = rf"(?m)^[^\n(]*\([^\n)]*\)\s+{_NUMBER}"
_CLANG_PATTERN: Final = rf"clang version {_NUMBER}"
_COMPILERS: Final = ("cc", "c++", "gcc", "g++", "clang", "clang++")

_QUERIES: Final[Mapping[str, _VersionQuery]] = {
    **{name: _VersionQuery(programs=(name,), pattern=_GNU_PATTERN) for name in _COMPILERS},
    "gfortran": _VersionQuery(programs=("gfortran",), pattern=_GNU_PATTERN),
    "cmake": _VersionQuery(programs=("cmake",), pattern=rf"cmake version {_NUMBER}"),
    "ninja": _VersionQuery(programs=("ninja", "ninja-build"), pattern=rf"^{_NUMBER}"),
    "nvcc": _VersionQuery(programs=("nvcc",), pattern=rf"release [\d.]+, V{_NUMBER}"),
    "hipcc": _VersionQuery(programs=("hipcc",), pattern=rf"HIP version: {_NUMBER}"),
    "ld": _VersionQuery(programs=("ld",), pattern=rf"(?m)^GNU (?:ld|gold) .*?{_NUMBER}\S*$"),
    "mold": _VersionQuery(programs=("mold", "ld.mold"), pattern=rf"mold {_NUMBER}"),
    "lld": _VersionQuery(programs=("ld.lld", "lld"), pattern=rf"LLD {_NUMBER}"),
    "python": _VersionQuery(programs=("python3", "python"), pattern=rf"Python {_NUMBER}"),
    "git": _VersionQuery(programs=("git",), pattern=rf"git version {_NUMBER}"),
    "ccache": _VersionQuery(programs=("ccache",), pattern=rf"ccache version {_NUMBER}"),
    "sccache": _VersionQuery(programs=("sccache",), pattern=rf"sccache {_NUMBER}"),
    "scons": _VersionQuery(programs=("scons",), pattern=rf"SCons: v?{_NUMBER}"),
    "patchelf": _VersionQuery(programs=("patchelf",), pattern=rf"patchelf {_NUMBER}"),
    "curl": _VersionQuery(programs=("curl",), pattern=rf"curl {_NUMBER}"),
    "apt-get": _VersionQuery(programs=("apt-get",), pattern=rf"apt {_NUMBER}"),
    "dpkg-source": _VersionQuery(programs=("dpkg-source",), pattern=rf"version {_NUMBER}"),
    "mmdebstrap": _VersionQuery(programs=("mmdebstrap",), pattern=rf"mmdebstrap {_NUMBER}"),
    "debootstrap": _VersionQuery(programs=("debootstrap",), pattern=rf"debootstrap {_NUMBER}"),
    "glibc": _VersionQuery(programs=("ldd",), pattern=rf"ldd \([^)]*\) {_NUMBER}"),
}

TOOL_NAMES: Final = tuple(_QUERIES)


@dataclass(frozen=True, kw_only=True)
class ProgramOutput:
    """Exit code and output of a program."""

    exit_code: int
    """-1 if it could not be started or timed out."""
    text: str


@dataclass(kw_only=True)
class Toolbox:
    """Programs of one search path; versions are cached until the file of the program changes."""

    search_path: str
    cache_file: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    """Further variables for the programs; their PATH is the search path."""
    _cache: dict[str, Any] = field(init=False, default_factory=dict)
    _changed: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """Read the cache file; an unreadable file counts as none."""
        if self.cache_file is not None:
            with suppress(OSError, ValueError, RecursionError):
                content = json.loads(self.cache_file.read_bytes())
                self._cache = content if isinstance(content, dict) else {}

    def find(self, name: str) -> Tool | None:
        """Return the first program of that name (or at that path) with its version, or None."""
        path = self.find_path(name)
        return None if path is None else self._tool_at(name, path, _query_for(name))

    def find_path(self, name: str) -> str | None:
        """Return the path of a program without running it."""
        for program in (name,) if "/" in name else _query_for(name).programs:
            path = _executable(program, self.search_path)
            if path is not None:
                return path
        return None

    def version(self, name: str) -> str:
        """Return the version of a program; empty if it is missing or unknown."""
        tool = self.find(name)
        return tool.version if tool else ""

    def save(self) -> None:
        """Write the cache file; failures are ignored."""
        if self.cache_file is None or not self._changed:
            return
        with suppress(OSError, TorchyardError):
            self.cache_file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.cache_file, to_json_text(self._cache))
            self._changed = False

    def _tool_at(self, name: str, path: str, query: _VersionQuery) -> Tool:
        facts = Path(path).stat()
        # Stat of the link target: `gcc` may stay while `gcc-12` behind it changes.
        stamp = [facts.st_mtime_ns, facts.st_size, facts.st_ino]
        key = f"{path} --version"
        cached = self._cache.get(key)
        if isinstance(cached, dict) and cached.get("stamp") == stamp:
            with suppress(KeyError, TypeError):
                return Tool(name=name, path=path, **{k: str(cached[k]) for k in _CACHED_FIELDS})
        variables = {**self.variables, "PATH": self.search_path, "LC_ALL": "C"}
        output = _run((path, "--version"), variables, limit_s=_VERSION_LIMIT_S)
        tool = _parse(name, path, output.text, query)
        if tool.version:
            described = encode(tool)
            self._cache[key] = {"stamp": stamp, **{k: described[k] for k in _CACHED_FIELDS}}
            self._changed = True
        return tool


_CACHED_FIELDS: Final = ("version", "raw", "family")


def installed_versions(
    python: str, distributions: tuple[str, ...], *, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the versions of packages installed for an interpreter; missing ones are omitted.

    Not cached: packages change while the file of the interpreter stays the same.
    """
    program = (
        "import importlib.metadata as m, json, sys\n"
        "versions = {}\n"
        "for name in sys.argv[1:]:\n"
        "    try: versions[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(versions))"
    )
    # `-c` adds the working folder to the module path, and packages there must not count.
    argv = (python, "-c", program, *distributions)
    output = _run(argv, environ, limit_s=_VERSION_LIMIT_S, folder="/")
    with suppress(ValueError, IndexError):
        versions = json.loads(output.text.strip().splitlines()[-1])
        if isinstance(versions, dict):
            return {str(name): str(version) for name, version in versions.items()}
    return {}


def _query_for(name: str) -> _VersionQuery:
    """Return the query for a program; a path or a version suffix (`g++-12`) is ignored."""
    plain = re.sub(r"-\d+(\.\d+)*$", "", Path(name).name)
    query = _QUERIES.get(plain) or _QUERIES.get(plain.rsplit("-", 1)[-1])
    if query is None and plain.startswith("python"):
        query = _QUERIES["python"]
    pattern = query.pattern if query else _NUMBER
    programs = query.programs if query and name in _QUERIES else (name,)
    return _VersionQuery(programs=programs, pattern=pattern)


def _executable(program: str, search_path: str) -> str | None:
    if "/" in program:
        return program if os.access(program, os.X_OK) and Path(program).is_file() else None
    for folder in search_path.split(os.pathsep):
        path = Path(folder or ".") / program
        # Not `shutil.which`: with an empty search path it falls back to PATH of this process.
        if path.is_file() and os.access(path, os.X_OK):
            return str(path.absolute())
    return None


def _run(
    argv: Sequence[str],
    variables: Mapping[str, str] | None,
    *,
    limit_s: float,
    folder: Path | str | None = None,
) -> ProgramOutput:
    try:
        done = capture(argv, variables=variables, folder=folder, limit_s=limit_s, together=True)
    except (OSError, subprocess.TimeoutExpired) as error:
        return ProgramOutput(exit_code=-1, text=str(error))
    return ProgramOutput(exit_code=done.returncode, text=done.stdout)


def _parse(name: str, path: str, raw: str, query: _VersionQuery) -> Tool:
    family = ""
    match = re.search(query.pattern, raw)
    if query.pattern == _GNU_PATTERN:
        clang = re.search(_CLANG_PATTERN, raw)
        match = clang or match
        family = "clang" if clang else "gcc" if match else ""
    return Tool(
        name=name,
        path=path,
        version=match[1] if match else "",
        raw=raw.strip()[:2000],
        family=family,
    )


_PROGRAM_LIMIT_S: Final = 120.0


@dataclass(frozen=True)
class Check:
    """One check of the doctor."""

    name: str
    subject: str
    """What it checks, as a phrase for reports."""
    run: Callable[[DoctorContext], Iterable[DoctorFinding]]


@dataclass(frozen=True, kw_only=True)
class DoctorContext:
    """A machine and the build that is planned on it."""

    root: Path
    """Folder that contains /proc, /sys and the system folders."""
    environ: Mapping[str, str]
    """Environment variables of the user."""
    plan: Plan | None
    recipes: tuple[Recipe, ...]
    architecture: str
    given_environment: EnvironmentTable | None = None
    """The environment that all components share, if it is not that of the last recipe."""
    tool_cache: Path | None = None

    # --- the build -------------------------------------------------------------------------------

    @cached_property
    def variables(self) -> Mapping[str, str]:
        """Environment variables of the compilers: those of the plan, else those of the user."""
        if self.plan is not None:
            steps = [step for step in self.plan.steps if step.compiles] or list(self.plan.steps)
            planned: dict[str, str] = {}
            for step in steps:
                planned.update(step.variables)
            if planned:
                return planned
        merged = dict(self.environ)
        for recipe in self.recipes:
            table = recipe.environment
            merged.update(table.variables)
            if table.path:
                merged["PATH"] = os.pathsep.join((*table.path, merged.get("PATH", "")))
        return merged

    @cached_property
    def environment(self) -> EnvironmentTable | None:
        """The environment of the build; None without a recipe.

        A plan does not contain it, apart from the root folder of its steps. The environment of the
        last recipe is used, because companion packages come last and share it.
        """
        if self.given_environment is None and not self.recipes:
            return None
        own = self.given_environment or self.recipes[-1].environment
        steps = self.plan.steps if self.plan is not None else ()
        root = next((step.root for step in steps if step.root), "")
        if not root or own.use == "debian-root":
            return own
        # A virtual environment on a base inside a root: the tools are those of the root.
        suite = _suite_of(Path(root)) or own.debian_root.suite
        return replace(own, use="debian-root", debian_root=replace(own.debian_root, suite=suite))

    @property
    def environment_kind(self) -> str:
        """Kind of the environment; `current` without a recipe."""
        return self.environment.use if self.environment else "current"

    @property
    def tools_come_later(self) -> bool:
        """Whether the compilers are in an environment that does not exist yet."""
        if self.environment_kind == "debian-root":
            return True
        return self.environment_kind == "conda" and not self.environment_made

    @cached_property
    def environment_made(self) -> bool:
        """Whether the environment of the plan exists."""
        return any(part.python and Path(part.python).exists() for part in self.components)

    @property
    def components(self) -> tuple[Component, ...]:
        """The components of the plan."""
        return self.plan.components if self.plan else ()

    def component(self, recipe: Recipe) -> Component | None:
        """Return the component of the plan that a recipe builds."""
        return next((part for part in self.components if part.name == recipe.name), None)

    def facts(self, recipe: Recipe) -> ReleaseFacts | None:
        """Return the entry of the coupling table for a recipe; None for unknown projects."""
        project = recipe.known_release or recipe.name
        return release_facts(project, recipe.version) if known_releases(project) else None

    def pytorch_recipes(self) -> Iterator[tuple[Recipe, ReleaseFacts]]:
        """Yield the recipes that build PyTorch, with their entries of the coupling table."""
        for recipe in self.recipes:
            facts = self.facts(recipe)
            if facts is not None and facts.project == "pytorch":
                yield recipe, facts

    def settings(self, recipe: Recipe) -> dict[str, str]:
        """Return variables and options of a recipe's build, as text."""
        options = {name: cmake_value(value) for name, value in recipe.options.items()}
        return {**self.variables, **recipe.environment.variables, **options}

    @cached_property
    def wants_cuda(self) -> bool:
        """Whether a recipe builds for CUDA; without a recipe, whether a toolkit is installed."""
        # torchvision has FORCE_CUDA for CUDA and for ROCm.
        forced = any(
            cmake_bool(cmake_value(recipe.options.get("FORCE_CUDA", "")))
            and "PYTORCH_ROCM_ARCH" not in recipe.options
            for recipe in self.recipes
        )
        # A recipe of the user names its toolkit and has no USE_CUDA.
        named = self.environment is not None and self.environment.cuda != ""
        named &= not any("USE_CUDA" in recipe.options for recipe in self.recipes)
        return forced or named or self._wants("USE_CUDA", self.nvcc)

    @cached_property
    def wants_rocm(self) -> bool:
        """Whether a recipe builds for ROCm; without a recipe, whether ROCm is installed."""
        return self._wants("USE_ROCM", self.hipcc)

    def _wants(self, option: str, tool: Tool | None) -> bool:
        if not self.recipes:
            return tool is not None
        return any(
            cmake_bool(cmake_value(recipe.options.get(option, ""))) for recipe in self.recipes
        )

    # --- the machine -----------------------------------------------------------------------------

    @cached_property
    def toolbox(self) -> Toolbox:
        """Programs on the search path of the build."""
        return Toolbox(
            search_path=self.variables.get("PATH", ""),
            cache_file=self.tool_cache,
            variables=self.variables,
        )

    @cached_property
    def cxx(self) -> Tool | None:
        """The C++ compiler of the build."""
        return self._compiler("CXX", ("c++", "g++", "clang++"))

    @cached_property
    def cc(self) -> Tool | None:
        """The C compiler of the build."""
        return self._compiler("CC", ("cc", "gcc", "clang"))

    @cached_property
    def nvcc(self) -> Tool | None:
        """The CUDA compiler: from its variables, from the toolkit, or from the search path."""
        for name in ("CUDACXX", "CMAKE_CUDA_COMPILER", "CUDA_NVCC_EXECUTABLE"):
            if self.variables.get(name):
                return self.toolbox.find(self.variables[name])
        for name in ("CUDA_HOME", "CUDA_PATH"):
            if self.variables.get(name):
                tool = self.toolbox.find(f"{self.variables[name]}/bin/nvcc")
                if tool:
                    return tool
        return self.toolbox.find("nvcc")

    @cached_property
    def hipcc(self) -> Tool | None:
        """The ROCm compiler."""
        in_rocm = self.toolbox.find(f"{self.rocm_path}/bin/hipcc")
        return in_rocm or self.toolbox.find("hipcc")

    @property
    def rocm_path(self) -> str:
        """Folder of ROCm."""
        return self.variables.get("ROCM_PATH") or "/opt/rocm"

    def words(self, variable: str) -> list[str]:
        """Split a variable of the build into words, like a shell."""
        text = self.variables.get(variable, "")
        try:
            return shlex.split(text)
        except ValueError:
            # An unbalanced quote: split at white space instead.
            return text.split()

    def _compiler(self, variable: str, names: Sequence[str]) -> Tool | None:
        word = compiler_word(self.variables.get(variable, ""))
        if word:
            return self.toolbox.find(word)
        return next((tool for name in names if (tool := self.toolbox.find(name))), None)

    def run_program(self, argv: Sequence[str], *, folder: Path | None = None) -> ProgramOutput:
        """Run a program with the variables of the build."""
        variables = {**self.variables, "LC_ALL": "C"}
        return _run(argv, variables, limit_s=_PROGRAM_LIMIT_S, folder=folder)

    def system(self, path: str) -> Path:
        """Return a system path below the root."""
        return self.root / path.lstrip("/")


def _suite_of(root: Path) -> str:
    """Return the code name of the Debian release in a root folder; empty if unknown."""
    try:
        lines = (root / "etc/os-release").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    values = dict(line.split("=", 1) for line in lines if "=" in line)
    return values.get("VERSION_CODENAME", "").strip("\"'")

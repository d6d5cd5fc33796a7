"""What the checks of the doctor examine: machine, programs, plan, recipes, variables.

Collects facts and judges none. `Toolbox` finds programs and asks each for its version; the answers
are cached in a file. Which versions are good is decided by `builds.compatibility`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from torchyard.builds.cmake_cache import as_truth
from torchyard.builds.compatibility import ReleaseFacts, known_releases, release_facts
from torchyard.builds.doctor.finding import DoctorFinding
from torchyard.builds.plan import Component, Plan
from torchyard.builds.recipe import EnvironmentTable, Recipe
from torchyard.core.records import encode
from torchyard.errors import TorchyardError
from torchyard.files.safe_writing import replace_file, to_json_text

_VERSION_LIMIT_S: Final = 30.0
_NUMBER: Final = r"(\d+(?:\.\d+)+)"


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A program that was found and what it says about itself."""

    name: str
    """What was asked for, such as `cmake`."""
    path: str
    version: str
    """Empty when it gave no answer that could be understood; `raw` says what it did say."""
    raw: str
    family: str = ""
    """`gcc` or `clang` for compilers, whatever name they were found under."""


@dataclass(frozen=True, kw_only=True)
class _Spelling:
    """How a program is found and read."""

    programs: tuple[str, ...]
    pattern: str
    arguments: tuple[str, ...] = ("--version",)


# The version of GCC stands behind the packager's brackets: `g++ (Debian 12.2.0-14) 12.2.0`. Programs
# that call themselves cc may be clang, which says so.
_GNU_PATTERN: Final = rf"(?m)^[^\n(]*\([^\n)]*\)\s+{_NUMBER}"
_CLANG_PATTERN: Final = rf"clang version {_NUMBER}"
_COMPILERS: Final = ("cc", "c++", "gcc", "g++", "clang", "clang++")

_SPELLINGS: Final[Mapping[str, _Spelling]] = {
    **{name: _Spelling(programs=(name,), pattern=_GNU_PATTERN) for name in _COMPILERS},
    "gfortran": _Spelling(programs=("gfortran",), pattern=_GNU_PATTERN),
    "cmake": _Spelling(programs=("cmake",), pattern=rf"cmake version {_NUMBER}"),
    "ninja": _Spelling(programs=("ninja", "ninja-build"), pattern=rf"^{_NUMBER}"),
    "nvcc": _Spelling(programs=("nvcc",), pattern=rf"release [\d.]+, V{_NUMBER}"),
    "hipcc": _Spelling(programs=("hipcc",), pattern=rf"HIP version: {_NUMBER}"),
    "ld": _Spelling(programs=("ld",), pattern=rf"(?m)^GNU (?:ld|gold) .*?{_NUMBER}\S*$"),
    "mold": _Spelling(programs=("mold", "ld.mold"), pattern=rf"mold {_NUMBER}"),
    "lld": _Spelling(programs=("ld.lld", "lld"), pattern=rf"LLD {_NUMBER}"),
    "python": _Spelling(programs=("python3", "python"), pattern=rf"Python {_NUMBER}"),
    "git": _Spelling(programs=("git",), pattern=rf"git version {_NUMBER}"),
    "ccache": _Spelling(programs=("ccache",), pattern=rf"ccache version {_NUMBER}"),
    "sccache": _Spelling(programs=("sccache",), pattern=rf"sccache {_NUMBER}"),
    "scons": _Spelling(programs=("scons",), pattern=rf"SCons: v?{_NUMBER}"),
    "patchelf": _Spelling(programs=("patchelf",), pattern=rf"patchelf {_NUMBER}"),
    "curl": _Spelling(programs=("curl",), pattern=rf"curl {_NUMBER}"),
    "apt-get": _Spelling(programs=("apt-get",), pattern=rf"apt {_NUMBER}"),
    "dpkg-source": _Spelling(programs=("dpkg-source",), pattern=rf"version {_NUMBER}"),
    "mmdebstrap": _Spelling(programs=("mmdebstrap",), pattern=rf"mmdebstrap {_NUMBER}"),
    "debootstrap": _Spelling(programs=("debootstrap",), pattern=rf"debootstrap {_NUMBER}"),
    "glibc": _Spelling(programs=("ldd",), pattern=rf"ldd \([^)]*\) {_NUMBER}"),
}

TOOL_NAMES: Final = tuple(_SPELLINGS)


@dataclass(kw_only=True)
class Toolbox:
    """Programs of one search path; what they said is remembered while the file stays the same."""

    search_path: str
    cache_file: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    """Further variables for the programs that are asked; their PATH is the search path."""
    _known: dict[str, Any] = field(init=False, default_factory=dict)
    _asked: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """Read what earlier runs were told; a file that can't be read is as good as none."""
        if self.cache_file is not None:
            with suppress(OSError, ValueError, RecursionError):
                known = json.loads(self.cache_file.read_bytes())
                self._known = known if isinstance(known, dict) else {}

    def find(self, name: str) -> Tool | None:
        """The first program of that name (or at that path), with its version; None if none."""
        path = self.find_path(name)
        return None if path is None else self._described(name, path, _spelling(name))

    def find_path(self, name: str) -> str | None:
        """Where the program is, without asking it anything."""
        for program in (name,) if "/" in name else _spelling(name).programs:
            path = _executable(program, self.search_path)
            if path is not None:
                return path
        return None

    def version(self, name: str) -> str:
        """The version of a program; empty when it is not there or does not say."""
        tool = self.find(name)
        return tool.version if tool else ""

    def save(self) -> None:
        """Remember for the next run; a disk that can't be written to costs only time."""
        if self.cache_file is None or not self._asked:
            return
        with suppress(OSError, TorchyardError):
            self.cache_file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.cache_file, to_json_text(self._known))
            self._asked = False

    def _described(self, name: str, path: str, spelling: _Spelling) -> Tool:
        facts = Path(path).stat()
        # The stamp is that of the file behind links: `gcc` stays and `gcc-12` changes under it.
        stamp = [facts.st_mtime_ns, facts.st_size, facts.st_ino]
        key = " ".join((path, *spelling.arguments))
        known = self._known.get(key)
        if isinstance(known, dict) and known.get("stamp") == stamp:
            with suppress(KeyError, TypeError):
                return Tool(name=name, path=path, **{k: str(known[k]) for k in _REMEMBERED})
        tool = _read(name, path, _ask(path, spelling.arguments, self._environ()), spelling)
        if tool.version:
            described = encode(tool)
            self._known[key] = {"stamp": stamp, **{k: described[k] for k in _REMEMBERED}}
            self._asked = True
        return tool

    def _environ(self) -> dict[str, str]:
        return {**self.variables, "PATH": self.search_path, "LC_ALL": "C"}


_REMEMBERED: Final = ("version", "raw", "family")


def find_tool(name: str, path: str | None = None, *, cache_file: Path | None = None) -> Tool | None:
    """One program of a search path (PATH when none is given); see Toolbox for many."""
    box = Toolbox(
        search_path=os.environ.get("PATH", os.defpath) if path is None else path,
        cache_file=cache_file,
        variables=os.environ,
    )
    tool = box.find(name)
    box.save()
    return tool


def installed_versions(
    python: str, distributions: tuple[str, ...], *, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Versions of packages that an interpreter sees; those it does not see are left out.

    Asked anew each time: packages come and go while the interpreter's file stays the same.
    """
    program = (
        "import importlib.metadata as m, json, sys\n"
        "found = {}\n"
        "for name in sys.argv[1:]:\n"
        "    try: found[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    # `-c` puts the working folder into the module path, and packages there must not count.
    text = _ask(python, ("-c", program, *distributions), environ, folder="/")
    with suppress(ValueError, IndexError):
        found = json.loads(text.strip().splitlines()[-1])
        if isinstance(found, dict):
            return {str(name): str(version) for name, version in found.items()}
    return {}


def _spelling(name: str) -> _Spelling:
    """How to read a program; one with a path or a suffix (`g++-12`) reads as its plain name."""
    plain = re.sub(r"-\d+(\.\d+)*$", "", Path(name).name)
    known = _SPELLINGS.get(plain) or _SPELLINGS.get(plain.rsplit("-", 1)[-1])
    if known is None and plain.startswith("python"):
        known = _SPELLINGS["python"]
    pattern = known.pattern if known else _NUMBER
    arguments = known.arguments if known else ("--version",)
    programs = known.programs if known and name in _SPELLINGS else (name,)
    return _Spelling(programs=programs, pattern=pattern, arguments=arguments)


def _executable(program: str, search_path: str) -> str | None:
    if "/" in program:
        return program if os.access(program, os.X_OK) and Path(program).is_file() else None
    for folder in search_path.split(os.pathsep):
        path = Path(folder or ".") / program
        # Not `shutil.which`: with an empty search path that one falls back to the process's own.
        if path.is_file() and os.access(path, os.X_OK):
            return str(path.absolute())
    return None


def _ask(
    program: str,
    arguments: tuple[str, ...],
    environ: Mapping[str, str] | None,
    folder: str | None = None,
) -> str:
    try:
        done = subprocess.run(
            (program, *arguments),
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_VERSION_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout.decode(errors="replace")


def _read(name: str, path: str, raw: str, spelling: _Spelling) -> Tool:
    family = ""
    found = re.search(spelling.pattern, raw)
    if spelling.pattern == _GNU_PATTERN:
        clang = re.search(_CLANG_PATTERN, raw)
        found = clang or found
        family = "clang" if clang else "gcc" if found else ""
    return Tool(
        name=name,
        path=path,
        version=found[1] if found else "",
        raw=raw.strip()[:2000],
        family=family,
    )


_PROGRAM_LIMIT_S: Final = 120.0


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing the doctor looks at."""

    name: str
    looks_at: str
    """In a few words, for people."""
    run: Callable[[Patient], Iterable[DoctorFinding]]


@dataclass(frozen=True, kw_only=True)
class Said:
    """What a program that was started answered."""

    exit_code: int
    """-1 when it could not be started or did not end in time."""
    text: str


@dataclass(frozen=True, kw_only=True)
class Patient:
    """A machine before a build."""

    root: Path
    """Folder below which /proc, /sys and the system's own folders are looked for."""
    environ: Mapping[str, str]
    """The variables of the user's shell."""
    plan: Plan | None
    recipes: tuple[Recipe, ...]
    architecture: str
    given_environment: EnvironmentTable | None = None
    """The environment all parts share, where it is not that of the last recipe."""
    tool_cache: Path | None = None

    # --- the build -------------------------------------------------------------------------------

    @cached_property
    def variables(self) -> Mapping[str, str]:
        """What the compilers of the build see: the plan's variables, or the shell's without one."""
        if self.plan is not None:
            steps = [step for step in self.plan.steps if step.compiles] or list(self.plan.steps)
            found: dict[str, str] = {}
            for step in steps:
                found.update(step.variables)
            if found:
                return found
        own = dict(self.environ)
        for recipe in self.recipes:
            table = recipe.environment
            own.update(table.variables)
            if table.path:
                own["PATH"] = os.pathsep.join((*table.path, own.get("PATH", "")))
        return own

    @cached_property
    def environment(self) -> EnvironmentTable | None:
        """The environment of the build; None without a recipe.

        A plan does not say it. That its steps run in a root folder can be seen; apart from that the
        last recipe's is taken, because companions come last and share it.
        """
        if self.given_environment is None and not self.recipes:
            return None
        own = self.given_environment or self.recipes[-1].environment
        steps = self.plan.steps if self.plan is not None else ()
        root = next((step.root for step in steps if step.root), "")
        if not root or own.use == "debian-root":
            return own
        # A virtual environment over a base that lives in a root: the tools are the root's.
        suite = _suite_of(Path(root)) or own.debian_root.suite
        return replace(own, use="debian-root", debian_root=replace(own.debian_root, suite=suite))

    @property
    def environment_kind(self) -> str:
        """Kind of the environment; `current` without a recipe."""
        return self.environment.use if self.environment else "current"

    @property
    def tools_come_later(self) -> bool:
        """Whether compilers are in an environment that is not made yet, so that none can be asked."""
        if self.environment_kind == "debian-root":
            return True
        return self.environment_kind == "conda" and not self.environment_made

    @cached_property
    def environment_made(self) -> bool:
        """Whether the plan's environment has an interpreter already."""
        return any(part.python and Path(part.python).exists() for part in self.components)

    @property
    def components(self) -> tuple[Component, ...]:
        """The parts of the plan."""
        return self.plan.components if self.plan else ()

    def component(self, recipe: Recipe) -> Component | None:
        """The part of the plan that a recipe makes."""
        return next((part for part in self.components if part.name == recipe.name), None)

    def facts(self, recipe: Recipe) -> ReleaseFacts | None:
        """What the coupling table knows of a recipe; None for projects it has not."""
        project = recipe.known_release or recipe.name
        return release_facts(project, recipe.version) if known_releases(project) else None

    def settings(self, recipe: Recipe) -> dict[str, str]:
        """Variables and options that a recipe's build gets, as texts."""
        options = {name: _as_text(value) for name, value in recipe.options.items()}
        return {**self.variables, **recipe.environment.variables, **options}

    @cached_property
    def wants_cuda(self) -> bool:
        """Whether a recipe builds for CUDA; without a recipe, whether a toolkit is here."""
        return self._wants("USE_CUDA", self.nvcc)

    @cached_property
    def wants_rocm(self) -> bool:
        """Whether a recipe builds for ROCm; without a recipe, whether one is here."""
        return self._wants("USE_ROCM", self.hipcc)

    def _wants(self, option: str, tool: Tool | None) -> bool:
        if not self.recipes:
            return tool is not None
        return any(as_truth(_as_text(recipe.options.get(option, ""))) for recipe in self.recipes)

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
        """CUDA's compiler: the one that is named, the toolkit's, or the one on the search path."""
        for name in ("CUDACXX", "CMAKE_CUDA_COMPILER", "CUDA_NVCC_EXECUTABLE"):
            if self.variables.get(name):
                return self.toolbox.find(self.variables[name])
        for name in ("CUDA_HOME", "CUDA_PATH"):
            if self.variables.get(name):
                found = self.toolbox.find(f"{self.variables[name]}/bin/nvcc")
                if found:
                    return found
        return self.toolbox.find("nvcc")

    @cached_property
    def hipcc(self) -> Tool | None:
        """ROCm's compiler."""
        found = self.toolbox.find(f"{self.rocm_path}/bin/hipcc")
        return found or self.toolbox.find("hipcc")

    @property
    def rocm_path(self) -> str:
        """Where ROCm is."""
        return self.variables.get("ROCM_PATH") or "/opt/rocm"

    def words(self, variable: str) -> list[str]:
        """A variable of the build as the words a shell would make of it."""
        text = self.variables.get(variable, "")
        try:
            return shlex.split(text)
        except ValueError:
            # A quote without an end: somebody's mistake, and no reason to see nothing at all.
            return text.split()

    def _compiler(self, variable: str, names: Sequence[str]) -> Tool | None:
        # A variable may hold a launcher and flags: `ccache g++ -m64`. The last word that is a
        # program is the compiler.
        words = [word for word in self.words(variable) if not word.startswith("-")]
        if words:
            return self.toolbox.find(words[-1])
        return next((tool for name in names if (tool := self.toolbox.find(name))), None)

    def ask(self, argv: Sequence[str], *, folder: Path | None = None, given: bytes = b"") -> Said:
        """Start a program with the variables of the build and wait for its answer."""
        variables = {**self.variables, "LC_ALL": "C"}
        try:
            done = subprocess.run(
                argv,
                cwd=folder,
                env=variables,
                input=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_PROGRAM_LIMIT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Said(exit_code=-1, text=str(error))
        return Said(exit_code=done.returncode, text=done.stdout.decode(errors="replace"))

    def system(self, path: str) -> Path:
        """A path of the system, below the root."""
        return self.root / path.lstrip("/")


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "ON" if value else "OFF"
    return str(value)


def _suite_of(root: Path) -> str:
    """Code name of the Debian in a root folder; empty where it does not say."""
    try:
        lines = (root / "etc/os-release").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    values = dict(line.split("=", 1) for line in lines if "=" in line)
    return values.get("VERSION_CODENAME", "").strip("\"'")

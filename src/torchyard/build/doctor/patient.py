"""What the doctor's checks look at: the machine, the plan, the recipes, the variables of the build.

Gathers and answers; judges nothing.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from torchyard.build.coupling import ReleaseFacts, known_releases, release_facts
from torchyard.build.tools import Tool, Toolbox
from torchyard.build.verify.cmake_cache import as_truth
from torchyard.core.build_plan import Component, Plan
from torchyard.core.doctor_finding import DoctorFinding
from torchyard.core.recipe import EnvironmentTable, Recipe

__all__ = ["Check", "Patient", "Said"]

_LIMIT_S: Final = 120.0


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
                timeout=_LIMIT_S,
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

"""A fake machine in a folder: executables that answer like real ones, and its own /proc."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchyard.builds.doctor.context import Check, DoctorContext
from torchyard.builds.doctor.examination import CHECKS, examine
from torchyard.builds.doctor.finding import DoctorFinding
from torchyard.builds.plan import Command, Component, Plan, Step
from torchyard.builds.recipe import Recipe

REAL_PATH = "/usr/local/bin:/usr/bin:/bin"
"""Where real compilers are; the fakes come before it."""

GPP_OUTPUT = "g++ (Ubuntu {0}-4ubuntu2) {0}"
NVCC_OUTPUT = """\
nvcc: NVIDIA (R) Cuda compiler driver
Copyright (c) 2005-2024 NVIDIA Corporation
Built on Thu_Mar_28_02:18:24_PDT_2024
Cuda compilation tools, release {1}, V{0}
Build cuda_{1}.r{1}/compiler.34097967_0"""
TOOLKIT_HEADERS = (
    *("cublas_v2.h", "cudnn.h", "cufft.h", "curand.h", "cusolverDn.h", "cusparse.h", "nvrtc.h"),
)
HIPCC_OUTPUT = """\
HIP version: {0}-dd7f95766
AMD clang version 18.0.0git (https://github.com/RadeonOpenCompute/llvm-project roc-6.2.0)
Target: x86_64-unknown-linux-gnu"""


@dataclass
class FakeMachine:
    """Programs, a root folder and variables; `examine` looks at nothing else."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    real_tools: bool = False

    def __post_init__(self) -> None:
        self.bin = self.folder / "bin"
        self.root = self.folder / "root"
        self.bin.mkdir(parents=True)
        self.memory(total_gib=32, available_gib=30)

    def memory(self, *, total_gib: float, available_gib: float, swap_gib: float = 0) -> None:
        def kib(gib: float) -> int:
            return int(gib * (1 << 20))

        self.file(
            "proc/meminfo",
            f"MemTotal:       {kib(total_gib)} kB\nMemFree:        1000 kB\n"
            f"MemAvailable:   {kib(available_gib)} kB\nSwapTotal:      {kib(swap_gib)} kB\n"
            f"SwapFree:       {kib(swap_gib)} kB\n",
        )

    def file(self, path: str, text: str = "") -> Path:
        """A file below the root."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        return place

    def program(self, name: str, script: str, *, folder: Path | None = None) -> Path:
        """A shell script on the search path; it must do with the shell's own commands."""
        place = (folder or self.bin) / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        place.chmod(0o755)
        return place

    def says(self, name: str, text: str, *, folder: Path | None = None) -> Path:
        """A program that always prints the same."""
        return self.program(name, _echo(text), folder=folder)

    def gpp(self, version: str = "13.3.0", *, name: str = "g++", broken: str = "") -> Path:
        """A compiler that tells its version, its libraries, its header folders, and makes programs.

        `broken` is a flag that it does not take.
        """
        own = self.folder / "gcc"
        (own / "include").mkdir(parents=True, exist_ok=True)
        (own / "include" / "omp.h").touch()
        listed = ["#include <...> search starts here:", f" {own}/include", "End of search list."]
        refuses = f'*{broken}*) echo "error: unrecognized {broken}"; exit 1 ;;\n' if broken else ""
        script = (
            f'case " $* " in\n*" --version "*) {_echo(GPP_OUTPUT.format(version))} ;;\n'
            f"*-print-file-name=include*) echo {own}/include ;;\n"
            f"*-print-file-name=libstdc++*) echo {own}/libstdc++.so.6 ;;\n"
            "*-print-file-name=*) echo unknown ;;\n"
            f'*" -v "*) {_echo(chr(10).join(listed))} ;;\n'
            f"{refuses}"
            "*) echo '#!/bin/sh' > probe; echo 'echo torchyard4950' >> probe; /bin/chmod +x probe ;;\n"
            "esac"
        )
        for other in (name, name.replace("g++", "gcc")):
            self.program(other, script)
        return self.program(name, script)

    def nvcc(
        self, version: str, *, folder: Path | None = None, headers: Sequence[str] = TOOLKIT_HEADERS
    ) -> Path:
        """A toolkit: its compiler, and the headers of its libraries and of cuDNN."""
        release = ".".join(version.split(".")[:2])
        path = self.says("nvcc", NVCC_OUTPUT.format(version, release), folder=folder)
        include = path.parent.parent / "include"
        include.mkdir(exist_ok=True)
        for name in headers:
            (include / name).touch()
        return path

    def nvidia_smi(self, driver: str, *capabilities: str) -> Path:
        cards = "\n".join(capabilities) or "[N/A]"
        drivers = "\n".join([driver] * max(len(capabilities), 1))
        return self.program(
            "nvidia-smi",
            f'case "$*" in\n*driver_version*) {_echo(drivers)} ;;\n*) {_echo(cards)} ;;\nesac',
        )

    def good_tools(self) -> None:
        """What a build of any release is content with."""
        self.gpp()
        self.gpp(name="c++")
        self.says("cc", GPP_OUTPUT.format("13.3.0"))
        self.says("cmake", "cmake version 3.28.3")
        self.says("ninja", "1.12.1")
        self.says("ldd", "ldd (Ubuntu GLIBC 2.39-0ubuntu8.3) 2.39")
        self.says("git", "git version 2.43.0")

    @property
    def environ(self) -> dict[str, str]:
        path = f"{self.bin}:{REAL_PATH}" if self.real_tools else str(self.bin)
        return {
            "PATH": path,
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            **self.variables,
        }

    def examine(
        self,
        *recipes: Recipe,
        only: str | Sequence[str] = (),
        plan: Plan | None = None,
        architecture: str = "x86_64",
    ) -> tuple[DoctorFinding, ...]:
        """What the named checks (all of them when none is named) find."""
        names = (only,) if isinstance(only, str) else only
        return examine(
            plan,
            recipes,
            root=self.root,
            environ=self.environ,
            architecture=architecture,
            checks=tuple(check_named(name) for name in names) or CHECKS,
        )

    def context(self, *recipes: Recipe, plan: Plan | None = None) -> DoctorContext:
        return DoctorContext(
            root=self.root,
            environ=self.environ,
            plan=plan,
            recipes=recipes,
            architecture="x86_64",
        )

    def plan(
        self,
        *recipes: Recipe,
        jobs: int = 2,
        python: str = "",
        commands: Sequence[Command] = (),
        variables: Mapping[str, str] | None = None,
        root: str = "",
    ) -> Plan:
        """A plan with one compiling step that has the machine's variables."""
        folder = self.folder / "build"
        components = tuple(
            Component(
                name=recipe.name,
                recipe=recipe,
                source=str(folder / "sources" / recipe.name),
                tree=str(folder / "trees" / recipe.name),
                prefix=str(folder / "prefix"),
                wheels=str(folder / "wheels"),
                python=python,
                release=recipe.version,
            )
            for recipe in recipes
        )
        step = Step(
            name="pytorch/build",
            component="pytorch",
            title="build",
            actions=tuple(commands),
            variables=tuple((self.environ if variables is None else variables).items()),
            compiles=True,
            root=root,
        )
        return Plan(
            name="pytorch",
            folder=str(folder),
            components=components,
            steps=(step,),
            jobs=jobs,
            jobs_why="",
        )


def check_named(name: str) -> Check:
    return next(check for check in CHECKS if check.name == name)


def severities(findings: Sequence[DoctorFinding]) -> list[str]:
    return [finding.severity for finding in findings]


def running_python() -> str:
    """The interpreter of the tests, outside any shim."""
    return os.path.realpath(sys.executable)


def _echo(text: str) -> str:
    quoted = [line.replace("'", "'\\''") for line in text.splitlines()]
    return "; ".join(f"echo '{line}'" for line in quoted)

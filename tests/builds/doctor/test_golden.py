"""The report for complete machines. UPDATE_GOLDEN=1 rewrites the golden files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.builds.doctor.fake_machine import FakeMachine
from tests.builds.doctor.test_search_paths import header, hipcc
from torchyard.builds.doctor.examination import CHECKS, can_build
from torchyard.builds.doctor.finding import DoctorFinding, findings_text, verdict_text
from torchyard.builds.recipe import (
    CondaTable,
    EnvironmentTable,
    GitSource,
    PrepareCommand,
    Recipe,
    SourceTable,
)

GOLDEN = Path(__file__).parent / "golden"
CHECK_NAMES = tuple(check.name for check in CHECKS if check.name not in {"disk", "python-headers"})
"""Not the disk and the interpreter of the machine that runs the tests."""


def check(name: str, findings: tuple[DoctorFinding, ...], machine: FakeMachine) -> None:
    text = findings_text(findings).replace(str(machine.folder), "/M")
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{name} differs; UPDATE_GOLDEN=1 accepts it"


def test_cuda_machine_where_many_things_are_wrong(machine: FakeMachine) -> None:
    """A new distribution with an older toolkit: the usual way a CUDA build ends."""
    machine.good_tools()
    machine.memory(total_gib=16, available_gib=3)
    machine.gpp("14.2.0", name="c++")
    machine.says("cmake", "cmake version 3.25.1")
    machine.says("ldd", "ldd (Debian GLIBC 2.41-12) 2.41")
    home = machine.folder / "cuda"
    machine.nvcc("12.4.131", folder=home / "bin")
    machine.nvidia_smi("470.42.01", "6.1")
    (home / "lib64").mkdir()
    (home / "lib64" / "libtorch_cuda.so").touch()
    machine.variables |= {
        "CUDA_HOME": str(home),
        "LD_LIBRARY_PATH": f"{home}/lib64:{home}/lib64/stubs:",
    }
    recipe = Recipe(
        name="pytorch",
        known_release="pytorch",
        version="2.11.0",
        builder="cmake",
        source=SourceTable(use="git", git=GitSource(url="https://github.com/pytorch/pytorch")),
        environment=EnvironmentTable(use="current"),
        job_memory_mib=1100,
        heavy={"*flash*attention*": 5300},
        options={
            "USE_CUDA": True,
            "TORCH_CUDA_ARCH_LIST": "8.0;10.0+PTX",
            "USE_CUDNNN": True,
            "DEBUG_CUDA": True,
        },
    )
    findings = machine.examine(recipe, only=CHECK_NAMES)
    assert not can_build(findings)
    check("cuda-wrong.txt", findings, machine)


def test_cuda_machine_that_is_good(machine: FakeMachine) -> None:
    machine.good_tools()
    machine.nvcc("12.8.93")
    machine.nvidia_smi("570.124.06", "9.0")
    machine.file("usr/lib/x86_64-linux-gnu/libopenblas.so")
    recipe = Recipe(
        name="pytorch",
        known_release="pytorch",
        version="2.11.0",
        builder="cmake",
        environment=EnvironmentTable(use="current"),
        options={"USE_CUDA": True, "TORCH_CUDA_ARCH_LIST": "9.0", "BLAS": "OpenBLAS"},
    )
    findings = machine.examine(recipe, only=CHECK_NAMES)
    assert can_build(findings)
    check("cuda-well.txt", findings, machine)


def rocm_stack(machine: FakeMachine) -> tuple[Path, Path, Recipe]:
    """ROCm beside a conda environment, as its users set it up by hand."""
    machine.good_tools()
    machine.says("cmake", "cmake version 3.30.2")
    rocm = hipcc(machine)
    env = machine.folder / "env"
    header(env / "include", "thrust/version.h")
    machine.file("usr/lib/x86_64-linux-gnu/libblas.so")
    recipe = Recipe(
        name="pytorch",
        known_release="pytorch",
        version="2.4.0",
        builder="cmake",
        environment=EnvironmentTable(use="current", conda=CondaTable()),
        options={"USE_ROCM": True, "USE_CUDA": False, "PYTORCH_ROCM_ARCH": "gfx906"},
        prepare=(PrepareCommand(run=("python", "tools/amd_build/build_amd.py")),),
    )
    return rocm, env, recipe


def test_rocm_machine_with_the_wrong_include_order(machine: FakeMachine) -> None:
    rocm, env, recipe = rocm_stack(machine)
    machine.variables["CXXFLAGS"] = f"-I{rocm}/include -I{env}/include"
    findings = machine.examine(recipe, only=CHECK_NAMES)
    assert not can_build(findings)
    check("rocm-trap.txt", findings, machine)


def test_rocm_machine_with_the_remedy(machine: FakeMachine) -> None:
    rocm, env, recipe = rocm_stack(machine)
    shutil.copytree(rocm / "include", env / "rocm-include")
    machine.variables["CXXFLAGS"] = f"-I{env}/rocm-include -I{env}/include"
    findings = machine.examine(recipe, only=CHECK_NAMES)
    assert can_build(findings)
    check("rocm-remedy.txt", findings, machine)


def test_arm_stack_whose_parts_do_not_match(machine: FakeMachine) -> None:
    machine.good_tools()
    machine.gpp("14.2.0", name="c++")
    current = EnvironmentTable(use="current", variables={"ACL_ROOT_DIR": "/opt/acl"})
    recipes = (
        Recipe(name="openblas", version="0.3.29", environment=current),
        Recipe(name="arm-compute-library", version="24.11", environment=current),
        Recipe(
            name="pytorch",
            known_release="pytorch",
            version="2.7.1",
            builder="cmake",
            needs=("openblas", "arm-compute-library"),
            environment=current,
            options={"USE_MKLDNN_ACL": True, "BLAS": "OpenBLAS"},
        ),
        Recipe(
            name="torchvision",
            known_release="torchvision",
            version="0.21.0",
            builder="none",
            environment=current,
        ),
    )
    findings = machine.examine(*recipes, only=CHECK_NAMES, architecture="aarch64")
    check("arm-stack.txt", findings, machine)


def test_verdicts() -> None:
    def finding(severity: str) -> DoctorFinding:
        return DoctorFinding(check="x", severity=severity, what="w")  # type: ignore[arg-type]

    assert verdict_text(()) == "The build can succeed."
    assert verdict_text([finding("notes")]) == "The build can succeed."
    assert verdict_text([finding("warns")]) == "The build can succeed; 1 warning."
    assert verdict_text([finding("blocks"), finding("blocks"), finding("warns")]) == (
        "The build cannot succeed: 2 problems to fix first."
    )

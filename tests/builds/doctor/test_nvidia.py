"""CUDA: toolkit, driver, cards, and the host compiler of nvcc."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.builds.doctor.fake_machine import TOOLKIT_HEADERS, FakeMachine, severities
from torchyard.builds.recipe import DebianRootTable, EnvironmentTable, Recipe, Scalar, VenvTable


def cuda(version: str = "2.6.0", **options: Scalar) -> Recipe:
    given: dict[str, Scalar] = {"USE_CUDA": True, "TORCH_CUDA_ARCH_LIST": "8.0;9.0+PTX"}
    return Recipe(
        name="pytorch",
        version=version,
        environment=EnvironmentTable(use="current"),
        options={**given, **options},
    )


DRIVER_FILE = """\
NVRM version: NVIDIA UNIX x86_64 Kernel Module  {0}  Thu Feb 22 01:44:30 UTC 2024
GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)
"""
OPEN_DRIVER_FILE = """\
NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  {0}  Release Build  (root@builder)
"""


class TestToolkit:
    def test_no_nvcc_blocks(self, machine: FakeMachine) -> None:
        (finding,) = machine.examine(cuda(), only="nvidia")
        assert (finding.severity, "nvcc was not found" in finding.what) == ("blocks", True)

    def test_not_checked_without_cuda(self, machine: FakeMachine) -> None:
        machine.nvcc("12.4.131")
        for value in (False, "OFF", 0):
            assert machine.examine(cuda(USE_CUDA=value), only="nvidia") == ()

    def test_toolkit_named_by_cuda_home(self, machine: FakeMachine) -> None:
        home = machine.folder / "cuda-12.4"
        machine.nvcc("12.4.131", folder=home / "bin")
        machine.nvidia_smi("550.54.14", "8.0")
        machine.variables["CUDA_HOME"] = str(home)
        assert machine.examine(cuda(), only="nvidia") == ()

    def test_two_toolkits(self, machine: FakeMachine) -> None:
        home = machine.folder / "cuda-12.4"
        machine.nvcc("12.4.131", folder=home / "bin")
        machine.nvcc("11.8.89")
        machine.nvidia_smi("550.54.14", "8.0")
        machine.variables["CUDA_HOME"] = str(home)
        (finding,) = machine.examine(cuda(), only="nvidia")
        assert finding.what.startswith("two CUDA toolkits")
        assert f"CUDA_HOME={home}" in finding.fix

    def test_another_toolkit_than_the_requested_one_blocks(self, machine: FakeMachine) -> None:
        machine.nvcc("13.0.88")
        machine.nvidia_smi("580.65.06", "8.0")
        for requested, found in (("12.4.0", ["blocks"]), ("13.0", []), ("13.0.1", [])):
            table = EnvironmentTable(use="current", cuda=requested)
            recipe = replace(cuda("2.13.0"), environment=table)
            findings = machine.examine(recipe, only="nvidia")
            assert severities(findings) == found
        machine.variables["CUDA_HOME"] = "/usr/local/cuda-12.4"
        (finding,) = machine.examine(cuda("2.13.0"), only="nvidia")
        assert finding.what.startswith("CUDA_HOME is /usr/local/cuda-12.4, which does not exist")

    def test_a_toolkit_without_libraries_blocks(self, machine: FakeMachine) -> None:
        home = machine.folder / "cuda-13.0"
        machine.nvcc("13.0.88", folder=home / "bin", headers=("cuda_runtime.h",))
        machine.nvidia_smi("580.65.06", "8.0")
        machine.variables["CUDA_HOME"] = str(home)
        blocked, slow = machine.examine(cuda("2.13.0"), only="nvidia")
        assert blocked.severity == "blocks"
        assert (
            blocked.what
            == f"the CUDA toolkit in {home} has no cuBLAS, cuFFT, cuRAND, cuSOLVER, cuSPARSE, NVRTC"
        )
        assert (slow.severity, slow.what) == ("warns", "cuDNN was not found")
        torchvision = Recipe(name="torchvision", options={"FORCE_CUDA": True})
        assert machine.examine(torchvision, only="nvidia") == ()

    def test_places_of_toolkit_libraries(self, machine: FakeMachine) -> None:
        home = machine.folder / "cuda-13.0"
        machine.nvcc("13.0.88", folder=home / "bin", headers=())
        machine.nvidia_smi("580.65.06", "8.0")
        machine.variables |= {"CUDA_HOME": str(home), "CPATH": f"/none:{machine.folder}/more"}
        (home / "targets/sbsa-linux/include").mkdir(parents=True)
        (machine.folder / "more").mkdir()
        for name in TOOLKIT_HEADERS:
            folder = "cuda-13.0/targets/sbsa-linux/include" if name < "cuf" else "more"
            (machine.folder / folder / name).touch()
        assert machine.examine(cuda("2.13.0"), only="nvidia") == ()

    @pytest.mark.parametrize("place", ["include", "."])
    def test_cudnn_elsewhere_or_off(self, machine: FakeMachine, place: str) -> None:
        libraries = tuple(name for name in TOOLKIT_HEADERS if name != "cudnn.h")
        machine.nvcc("12.4.131", headers=libraries)
        machine.nvidia_smi("550.54.14", "8.0")
        assert severities(machine.examine(cuda(), only="nvidia")) == ["warns"]
        assert machine.examine(cuda(USE_CUDNN=False), only="nvidia") == ()
        folder = machine.folder / "cudnn"
        (folder / place).mkdir(parents=True)
        (folder / place / "cudnn.h").touch()
        machine.variables["CUDNN_ROOT"] = str(folder)
        assert machine.examine(cuda(), only="nvidia") == ()

    def test_toolkit_of_a_debian_root(self, machine: FakeMachine) -> None:
        root = EnvironmentTable(use="debian-root", debian_root=DebianRootTable(suite="trixie"))
        recipe = replace(cuda(), environment=root)
        assert machine.examine(recipe, only="nvidia") == ()
        assert machine.examine(recipe, only="nvcc-host") == ()
        assert not [f for f in machine.examine(recipe, only="versions") if f.severity == "blocks"]
        newer = replace(cuda(TORCH_CUDA_ARCH_LIST="9.0;10.0"), environment=root)
        (finding,) = machine.examine(newer, only="nvidia")
        assert finding.what == "CUDA 12.4.131 does not support 10.0"
        unknown = replace(root, debian_root=DebianRootTable(suite="forky"))
        assert machine.examine(replace(newer, environment=unknown), only="nvidia") == ()

    def test_other_projects_with_cuda_are_checked_too(self, machine: FakeMachine) -> None:
        recipe = Recipe(name="torchvision", options={"FORCE_CUDA": True})
        assert severities(machine.examine(recipe, only="nvidia")) == ["blocks"]
        plain = Recipe(name="kernels", environment=EnvironmentTable(use="current", cuda="13.0"))
        assert severities(machine.examine(plain, only="nvidia")) == ["blocks"]
        by_pip = EnvironmentTable(
            cuda="13.0", venv=VenvTable(packages=("nvidia-cuda-nvcc==13.0.*",))
        )
        assert machine.examine(replace(plain, environment=by_pip), only="nvidia") == ()
        rocm = replace(recipe, options={"FORCE_CUDA": True, "PYTORCH_ROCM_ARCH": "gfx90a"})
        assert machine.examine(rocm, only="nvidia") == ()


class TestDriver:
    @pytest.mark.parametrize(
        ("toolkit", "driver", "severity"),
        [
            ("12.4.131", "550.54.14", None),
            ("12.4.131", "570.124.06", None),
            ("12.4.131", "535.183.01", "notes"),
            ("12.4.131", "470.42.01", "warns"),
            ("13.0.88", "575.51.03", "warns"),
            ("13.0.88", "580.65.06", None),
        ],
    )
    def test_against_the_toolkit(
        self, toolkit: str, driver: str, severity: str | None, machine: FakeMachine
    ) -> None:
        machine.nvcc(toolkit)
        machine.nvidia_smi(driver, "8.0")
        findings = machine.examine(cuda(), only="nvidia")
        assert severities(findings) == ([severity] if severity else [])

    @pytest.mark.parametrize("text", [DRIVER_FILE, OPEN_DRIVER_FILE])
    def test_read_from_proc_without_nvidia_smi(self, text: str, machine: FakeMachine) -> None:
        machine.nvcc("12.4.131")
        machine.file("proc/driver/nvidia/version", text.format("470.42.01"))
        (finding,) = machine.examine(cuda(), only="nvidia")
        assert finding.what == "the driver 470.42.01 is too old for CUDA 12.4.131"

    def test_nvidia_smi_that_fails(self, machine: FakeMachine) -> None:
        machine.nvcc("12.4.131")
        said = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
        machine.program("nvidia-smi", f'echo "{said}"; exit 9')
        (finding,) = machine.examine(cuda(), only="nvidia")
        assert (finding.severity, finding.what) == ("notes", "no NVIDIA driver was found")


class TestArchitectures:
    def test_dropped_by_the_toolkit(self, machine: FakeMachine) -> None:
        machine.nvcc("13.0.88")
        machine.nvidia_smi("580.65.06", "9.0")
        recipe = cuda(TORCH_CUDA_ARCH_LIST="6.1 7.0 9.0+PTX")
        (finding,) = machine.examine(recipe, only="nvidia")
        assert finding.severity == "blocks"
        assert finding.what == "CUDA 13.0.88 does not support 6.1, 7.0"
        assert finding.fix == "--set TORCH_CUDA_ARCH_LIST=9.0"

    def test_too_new_for_the_toolkit(self, machine: FakeMachine) -> None:
        machine.nvcc("12.4.131")
        recipe = cuda(TORCH_CUDA_ARCH_LIST="10.0;12.0a")
        findings = machine.examine(recipe, only="nvidia")
        assert findings[0].what == "CUDA 12.4.131 does not support 10.0, 12.0a"
        assert findings[0].fix.endswith("=LIST")

    def test_names_are_understood(self, machine: FakeMachine) -> None:
        machine.nvcc("13.0.88")
        machine.nvidia_smi("580.65.06", "8.0")
        (finding,) = machine.examine(cuda(TORCH_CUDA_ARCH_LIST="Pascal Ampere"), only="nvidia")
        assert finding.what.endswith("does not support 6.0")

    def test_misspelt_list(self, machine: FakeMachine) -> None:
        machine.nvcc("12.4.131")
        findings = machine.examine(cuda(TORCH_CUDA_ARCH_LIST="sm_80;86"), only="nvidia")
        assert any("sm_80, 86" in f.what and f.severity == "warns" for f in findings)

    @pytest.mark.parametrize(
        ("listed", "covered"),
        [
            ("8.0", True),
            ("8.6", True),
            ("8.9", False),
            ("7.5", False),
            ("7.5+PTX", True),
            ("9.0", False),
            ("8.6a", True),
            ("8.0a", False),
            ("Ampere", True),
            ("All", True),
        ],
    )
    def test_card_of_this_machine(self, listed: str, covered: bool, machine: FakeMachine) -> None:
        machine.nvcc("12.4.131")
        machine.nvidia_smi("550.54.14", "8.6", "8.6")
        findings = machine.examine(cuda(TORCH_CUDA_ARCH_LIST=listed), only="nvidia")
        assert any("the GPU in this machine (8.6)" in f.what for f in findings) is not covered

    def test_card_that_the_toolkit_does_not_know(self, machine: FakeMachine) -> None:
        machine.nvcc("12.4.131")
        machine.nvidia_smi("570.124.06", "12.0")
        findings = machine.examine(cuda(TORCH_CUDA_ARCH_LIST="9.0+PTX"), only="nvidia")
        assert [f.what for f in findings] == [
            "CUDA 12.4.131 does not support the GPU in this machine (12.0)"
        ]

    def test_no_list(self, machine: FakeMachine) -> None:
        machine.nvcc("12.4.131")
        findings = machine.examine(cuda(TORCH_CUDA_ARCH_LIST=""), only="nvidia")
        assert ("warns", "TORCH_CUDA_ARCH_LIST is not set") in [
            (f.severity, f.what) for f in findings
        ]
        machine.nvidia_smi("550.54.14", "8.9")
        (finding,) = machine.examine(cuda(TORCH_CUDA_ARCH_LIST=""), only="nvidia")
        assert (finding.severity, finding.fix) == (
            "notes",
            "--set TORCH_CUDA_ARCH_LIST=8.9",
        )


class TestHostCompiler:
    def test_too_new(self, machine: FakeMachine) -> None:
        machine.nvcc("12.4.131")
        machine.gpp("14.2.0", name="c++")
        (finding,) = machine.examine(cuda(), only="nvcc-host")
        assert finding.severity == "blocks"
        assert "does not accept gcc 14.2.0" in finding.what
        assert finding.fix == "apt-get install g++-13, and --set environment.gcc=13"

    def test_an_older_one_that_is_here_is_offered(self, machine: FakeMachine) -> None:
        machine.nvcc("12.4.131")
        machine.gpp("14.2.0", name="c++")
        older = machine.gpp("12.3.0", name="g++-12")
        (finding,) = machine.examine(cuda(), only="nvcc-host")
        assert finding.fix == f"export CUDAHOSTCXX={older}"
        machine.variables["CUDAHOSTCXX"] = str(older)
        assert machine.examine(cuda(), only="nvcc-host") == ()

    def test_fits(self, machine: FakeMachine) -> None:
        machine.nvcc("12.4.131")
        machine.gpp("13.3.0", name="c++")
        assert machine.examine(cuda(), only="nvcc-host") == ()

    def test_override_is_only_warned(self, machine: FakeMachine) -> None:
        machine.nvcc("12.4.131")
        machine.gpp("14.2.0", name="c++")
        machine.variables["NVCC_APPEND_FLAGS"] = "-allow-unsupported-compiler"
        assert severities(machine.examine(cuda(), only="nvcc-host")) == ["warns"]

    def test_clang_has_its_own_limit(self, machine: FakeMachine) -> None:
        machine.nvcc("12.4.131")
        machine.says("c++", "Ubuntu clang version 18.1.3 (1ubuntu1)")
        (finding,) = machine.examine(cuda(), only="nvcc-host")
        assert "does not accept clang 18.1.3" in finding.what
        assert "clang 17" in finding.why

    def test_without_a_recipe_a_toolkit_is_checked(self, machine: FakeMachine) -> None:
        machine.nvcc("11.8.89")
        machine.gpp("12.2.0", name="c++")
        assert severities(machine.examine(only="nvcc-host")) == ["blocks"]


def test_the_systems_nccl(machine: FakeMachine) -> None:
    machine.good_tools()
    machine.nvcc("12.8.61")
    recipe = Recipe(
        name="pytorch",
        known_release="pytorch",
        version="2.9.0",
        options={"USE_CUDA": True, "USE_SYSTEM_NCCL": True, "TORCH_CUDA_ARCH_LIST": "9.0"},
    )
    found = [f for f in machine.examine(recipe, only="nvidia") if "nccl.h" in f.what]
    assert [finding.severity for finding in found] == ["blocks"]
    machine.file("usr/include/nccl.h")
    assert not [f for f in machine.examine(recipe, only="nvidia") if "nccl.h" in f.what]

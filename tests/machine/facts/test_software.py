"""Libraries from the loader cache and standard folders; versions of real programs on PATH."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchyard.machine.facts.software import (
    ALLOCATORS,
    OPENMP,
    PROGRAMS,
    find_libraries,
    program_version,
    read_software,
)
from torchyard.machine.knob import Machine
from torchyard.machine.system.file_tree import FileTree

ANSWERS = {
    "gcc": "gcc (Debian 12.2.0-14) 12.2.0\nCopyright (C) 2022\n",
    "g++": "g++ (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0\n",
    "clang": "Ubuntu clang version 18.1.3 (1ubuntu1)\nTarget: x86_64\n",
    "nvcc": "nvcc: NVIDIA (R) Cuda compiler driver\n"
    "Cuda compilation tools, release 12.4, V12.4.131\nBuild cuda_12.4.r12.4\n",
    "hipcc": "HIP version: 6.2.41134-65d174c3e\nAMD clang version 18.0.0git\n",
    "cmake": "cmake version 3.29.2\n\nCMake suite maintained\n",
}
VERSIONS = {
    "gcc": "12.2.0",
    "g++": "13.3.0",
    "clang": "18.1.3",
    "nvcc": "12.4.131",
    "hipcc": "6.2.41134-65d174c3e",
    "cmake": "3.29.2",
}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def put(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}")
    path.chmod(0o755)


@pytest.mark.parametrize("name", PROGRAMS)
def test_versions_of_programs(name: str, programs: Path) -> None:
    put(programs, name, f'[ "$1" = --version ] && printf "%s" "{ANSWERS[name]}"\n')
    version = program_version(FileTree(), name)
    assert version.value == f"{VERSIONS[name]} ({programs / name})"


def test_a_program_that_is_not_there(programs: Path) -> None:
    version = program_version(FileTree(), "hipcc")
    assert version.value is None or "hipcc" in version.value  # root's folders are looked at, too
    assert version.value or version.because == "hipcc is not installed"


def test_a_program_that_says_something_else(programs: Path) -> None:
    put(programs, "gcc", "printf '\\033[31mtoo old\\377'\n")
    because = program_version(FileTree(), "gcc").because
    assert because == "`gcc --version` prints no version: '\\x1b[31mtoo old\ufffd'"


def test_a_program_that_fails(programs: Path) -> None:
    put(programs, "gcc", "echo 'xcrun: error: no tools' >&2; exit 3\n")
    because = program_version(FileTree(), "gcc").because
    assert because == "`gcc --version` failed with exit code 3: xcrun: error: no tools"


def test_a_program_that_cannot_be_started(programs: Path) -> None:
    (programs / "gcc").write_text("#!/no/such/interpreter\n")
    (programs / "gcc").chmod(0o755)
    assert "No such file" in program_version(FileTree(), "gcc").because


def test_programs_of_a_copy_are_not_asked(programs: Path, tmp_path: Path) -> None:
    put(programs, "gcc", f"touch {tmp_path / 'asked'}\n")
    assert "copy" in program_version(FileTree(tmp_path), "gcc").because
    assert not (tmp_path / "asked").exists()


def test_libraries_of_the_cache_and_of_folders_once_each(tmp_path: Path) -> None:
    libraries = tmp_path / "usr/lib/aarch64-linux-gnu"
    libraries.mkdir(parents=True)
    (libraries / "libgomp.so.1.0.0").write_text("")
    (libraries / "libgomp.so.1").symlink_to("libgomp.so.1.0.0")
    (libraries / "libgomp.so").symlink_to("libgomp.so.1.0.0")
    (libraries / "libgomp.spec").write_text("")
    (libraries / "libgomp-plugin-nvptx.so.1").write_text("")
    (tmp_path / "opt/intel/oneapi/compiler/2024.1/lib").mkdir(parents=True)
    (tmp_path / "opt/intel/oneapi/compiler/2024.1/lib/libiomp5.so").write_text("")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(
        b"glibc-ld.so.cache1.1\x9c\x00\x00libgomp.so.1\x00/usr/lib/aarch64-linux-gnu/libgomp.so.1\x00"
        b"libjemalloc.so.2\x00/usr/local/lib/libjemalloc.so.2\x00\xff/lib/libtcmalloc.so.4.txt\x00"
    )
    files = FileTree(tmp_path)
    assert find_libraries(files, OPENMP) == (
        "/opt/intel/oneapi/compiler/2024.1/lib/libiomp5.so",
        "/usr/lib/aarch64-linux-gnu/libgomp.so.1",
    )
    assert find_libraries(files, ALLOCATORS) == ("/usr/local/lib/libjemalloc.so.2",)
    facts = {fact.name: fact.text for fact in read_software(Machine(files=files))}
    assert "libgomp.so.1 (libgomp.so.1.0.0)" in facts["OpenMP runtimes"]
    assert facts["allocators"] == "/usr/local/lib/libjemalloc.so.2"


def test_drivers(tmp_path: Path) -> None:
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
        "GCC version:  gcc version 12.2.0\n"
    )
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    (tmp_path / "sys/module/amdgpu/version").write_text("6.8.5\n")
    facts = {fact.name: fact.text for fact in read_software(Machine(files=FileTree(tmp_path)))}
    assert facts["NVIDIA driver"] == "550.54.15"
    assert facts["AMD driver"] == "6.8.5"

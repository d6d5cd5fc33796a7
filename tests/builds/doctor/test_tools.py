"""Programs are found on a search path, their versions are parsed, and results are cached."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from pathlib import Path

import pytest

from torchyard.builds.doctor.context import TOOL_NAMES, Tool, Toolbox, installed_versions

# What real programs of these versions print.
OUTPUTS = {
    "cmake": ("cmake version 3.31.6\n\nCMake suite maintained by Kitware", "3.31.6"),
    "ninja": ("1.11.1.git.kitware.jobserver-1", "1.11.1"),
    "gcc": ("gcc (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0\nCopyright (C) 2021", "11.4.0"),
    "g++": ("x86_64-conda-linux-gnu-g++ (conda-forge gcc 10.3.0-16) 10.3.0", "10.3.0"),
    "cc": ("cc (GCC) 14.2.1 20240912 (Red Hat 14.2.1-3)\nCopyright", "14.2.1"),
    "clang": ("Ubuntu clang version 18.1.3 (1ubuntu1)\nTarget: x86_64-pc-linux-gnu", "18.1.3"),
    "gfortran": ("GNU Fortran (Debian 12.2.0-14) 12.2.0\nCopyright (C) 2022", "12.2.0"),
    "nvcc": (
        (
            "nvcc: NVIDIA (R) Cuda compiler driver\nCopyright (c) 2005-2024 NVIDIA Corporation\n"
            "Built on Thu_Mar_28_02:18:24_PDT_2024\n"
            "Cuda compilation tools, release 12.4, V12.4.131\nBuild cuda_12.4.r12.4/compiler.34097967_0"
        ),
        "12.4.131",
    ),
    "hipcc": (
        (
            "HIP version: 6.2.41133-dd7f95766\nAMD clang version 18.0.0git (https://github.com/RadeonOpen"
            "Compute/llvm-project roc-6.2.0)\nTarget: x86_64-unknown-linux-gnu"
        ),
        "6.2.41133",
    ),
    "ld": ("GNU ld (GNU Binutils for Debian) 2.40\nCopyright (C) 2023", "2.40"),
    "mold": ("mold 2.30.0 (compatible with GNU ld)", "2.30.0"),
    "ld.lld": ("Debian LLD 14.0.6 (compatible with GNU linkers)", "14.0.6"),
    "python3": ("Python 3.12.3", "3.12.3"),
    "git": ("git version 2.39.5 (Apple Git-154)", "2.39.5"),
    "ccache": ("ccache version 4.9.1\nFeatures: file-storage", "4.9.1"),
    "sccache": ("sccache 0.8.2", "0.8.2"),
    "scons": (
        (
            "SCons by Steven Knight et al.:\n\tSCons: v4.4.0.fc8d0ec215ee6cba8bc158ad40c099be0b598297,"
            " Sat, 30 Jul 2022 14:11:34 -0700, by bdbaddog on M1Dog2021"
        ),
        "4.4.0",
    ),
    "patchelf": ("patchelf 0.18.0", "0.18.0"),
    "ldd": ("ldd (Ubuntu GLIBC 2.39-0ubuntu8.3) 2.39\nCopyright (C) 2024", "2.39"),
}
QUERY_NAMES = {"ld.lld": "lld", "python3": "python", "ldd": "glibc"}


def put_program(folder: Path, name: str, said: str, *, exit_code: int = 0) -> Path:
    """An executable that prints its text and counts how often it was started."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    count = folder / f"{name}.started"
    path.write_text(
        f"#!/bin/sh\necho x >> '{count}'\ncat <<'END'\n{said}\nEND\nexit {exit_code}\n",
        encoding="utf-8",
    )
    path.chmod(0o755)
    return path


def times_started(folder: Path, name: str) -> int:
    count = folder / f"{name}.started"
    return len(count.read_text(encoding="utf-8").split()) if count.exists() else 0


def find_tool(name: str, path: str) -> Tool | None:
    return Toolbox(search_path=path, variables=os.environ).find(name)


def search(folder: Path) -> str:
    """A search path with the fakes first; /bin behind it for the shell's own programs."""
    return f"{folder}:/usr/bin:/bin"


class TestReading:
    @pytest.mark.parametrize("program", sorted(OUTPUTS))
    def test_version_in_the_programs_own_words(self, program: str, tmp_path: Path) -> None:
        said, version = OUTPUTS[program]
        path = put_program(tmp_path, program, said)
        tool = find_tool(QUERY_NAMES.get(program, program), search(tmp_path))
        assert tool is not None
        assert (tool.path, tool.version) == (str(path), version)
        assert tool.raw == said.strip()

    def test_a_compiler_says_which_family_it_is(self, tmp_path: Path) -> None:
        put_program(tmp_path, "gcc", OUTPUTS["gcc"][0])
        put_program(tmp_path, "c++", OUTPUTS["clang"][0])
        box = Toolbox(search_path=search(tmp_path))
        gcc, cxx = box.find("gcc"), box.find("c++")
        assert gcc is not None
        assert cxx is not None
        assert (gcc.family, cxx.family, cxx.version) == ("gcc", "clang", "18.1.3")

    @pytest.mark.parametrize(
        "name", ["g++-12", "x86_64-conda-linux-gnu-g++", "aarch64-linux-gnu-g++-12"]
    )
    def test_compilers_under_longer_names(self, name: str, tmp_path: Path) -> None:
        path = put_program(tmp_path, name, OUTPUTS["g++"][0])
        for asked in (name, str(path)):
            tool = find_tool(asked, search(tmp_path))
            assert tool is not None
            assert (tool.version, tool.family) == ("10.3.0", "gcc")

    def test_a_program_that_does_not_answer_is_found_without_a_version(
        self, tmp_path: Path
    ) -> None:
        put_program(tmp_path, "cmake", "Segmentation fault", exit_code=139)
        tool = find_tool("cmake", search(tmp_path))
        assert tool is not None
        assert (tool.version, tool.raw) == ("", "Segmentation fault")

    def test_a_program_that_can_not_start_is_found_without_a_version(self, tmp_path: Path) -> None:
        path = tmp_path / "cmake"
        path.write_bytes(b"\x7fELF not really")
        path.chmod(0o755)
        tool = find_tool("cmake", str(tmp_path))
        assert tool is not None
        assert tool.version == ""
        assert "Exec format error" in tool.raw

    def test_undecodable_bytes(self, tmp_path: Path) -> None:
        path = tmp_path / "cmake"
        path.write_bytes(b"#!/bin/sh\nprintf 'cmake version 3.30.1 \\377\\376'\n")
        path.chmod(0o755)
        tool = find_tool("cmake", search(tmp_path))
        assert tool is not None
        assert tool.version == "3.30.1"


class TestFinding:
    def test_first_folder_wins(self, tmp_path: Path) -> None:
        put_program(tmp_path / "a", "cmake", "cmake version 3.1.0")
        put_program(tmp_path / "b", "cmake", "cmake version 3.2.0")
        tool = find_tool("cmake", f"{tmp_path / 'b'}:{tmp_path / 'a'}:/bin")
        assert tool is not None
        assert tool.version == "3.2.0"

    def test_what_is_not_executable_is_passed_over(self, tmp_path: Path) -> None:
        put_program(tmp_path / "a", "cmake", "cmake version 3.1.0").chmod(0o644)
        (tmp_path / "b" / "cmake").mkdir(parents=True)
        put_program(tmp_path / "c", "cmake", "cmake version 3.3.0")
        folders = ":".join(str(tmp_path / name) for name in "abc")
        if os.access(tmp_path / "a" / "cmake", os.X_OK):
            pytest.skip("this user may execute anything")
        tool = find_tool("cmake", f"{folders}:/bin")
        assert tool is not None
        assert tool.version == "3.3.0"

    def test_empty_search_path_finds_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert find_tool("cmake", "") is None
        assert all(find_tool(name, str(tmp_path)) is None for name in TOOL_NAMES)

    def test_second_name_of_a_program(self, tmp_path: Path) -> None:
        path = put_program(tmp_path, "ninja-build", "1.12.1")
        tool = find_tool("ninja", f"{tmp_path}")
        assert tool is not None
        assert (tool.name, tool.path) == ("ninja", str(path))

    def test_unknown_programs_give_the_first_number(self, tmp_path: Path) -> None:
        put_program(tmp_path, "frobnicate", "frobnicate, the tool, v7.4 (2024)")
        tool = find_tool("frobnicate", search(tmp_path))
        assert tool is not None
        assert tool.version == "7.4"

    def test_real_programs_of_this_machine(self) -> None:
        for name in ("cmake", "ninja", "g++", "git", "glibc"):
            tool = find_tool(name, os.environ["PATH"])
            if tool is None:
                continue
            assert tool.version, tool
            assert Path(tool.path).is_absolute()


class TestRemembering:
    def box(self, folder: Path) -> Toolbox:
        return Toolbox(search_path=search(folder), cache_file=folder / "memory" / "tools.json")

    def asked(self, folder: Path, name: str = "cmake") -> Tool:
        box = self.box(folder)
        tool = box.find(name)
        assert tool is not None
        box.save()
        return tool

    def test_a_program_is_asked_once(self, tmp_path: Path) -> None:
        put_program(tmp_path, "cmake", "cmake version 3.31.6")
        assert self.asked(tmp_path) == self.asked(tmp_path)
        assert times_started(tmp_path, "cmake") == 1

    def test_a_changed_program_is_asked_again(self, tmp_path: Path) -> None:
        put_program(tmp_path, "cmake", "cmake version 3.31.6")
        self.asked(tmp_path)
        put_program(tmp_path, "cmake", "cmake version 4.0.0")
        assert self.asked(tmp_path).version == "4.0.0"

    def test_a_link_that_points_elsewhere_is_asked_again(self, tmp_path: Path) -> None:
        put_program(tmp_path / "old", "real", "cmake version 3.31.6")
        put_program(tmp_path / "new", "real", "cmake version 4.0.0")
        (tmp_path / "cmake").symlink_to(tmp_path / "old" / "real")
        assert self.asked(tmp_path).version == "3.31.6"
        (tmp_path / "cmake").unlink()
        (tmp_path / "cmake").symlink_to(tmp_path / "new" / "real")
        assert self.asked(tmp_path).version == "4.0.0"

    def test_family_is_remembered_too(self, tmp_path: Path) -> None:
        put_program(tmp_path, "g++", OUTPUTS["g++"][0])
        assert self.asked(tmp_path, "g++").family == "gcc"
        assert self.asked(tmp_path, "g++").family == "gcc"

    def test_a_missing_answer_is_not_cached(self, tmp_path: Path) -> None:
        put_program(tmp_path, "cmake", "out of memory")
        self.asked(tmp_path)
        self.asked(tmp_path)
        assert times_started(tmp_path, "cmake") == 2

    @pytest.mark.parametrize("damage", ["", "{", "[1]", '{"x": 1}', "\x00", "[" * 100_000])
    def test_a_damaged_file_costs_only_time(self, damage: str, tmp_path: Path) -> None:
        put_program(tmp_path, "cmake", "cmake version 3.31.6")
        self.asked(tmp_path)
        (tmp_path / "memory" / "tools.json").write_text(damage, encoding="utf-8")
        assert self.asked(tmp_path).version == "3.31.6"

    def test_a_damaged_entry_costs_only_time(self, tmp_path: Path) -> None:
        put_program(tmp_path, "cmake", "cmake version 3.31.6")
        self.asked(tmp_path)
        memory = tmp_path / "memory" / "tools.json"
        known = json.loads(memory.read_bytes())
        for entry in known.values():
            del entry["version"]
        memory.write_text(json.dumps(known), encoding="utf-8")
        assert self.asked(tmp_path).version == "3.31.6"

    def test_a_file_that_can_not_be_written_costs_only_time(self, tmp_path: Path) -> None:
        put_program(tmp_path, "cmake", "cmake version 3.31.6")
        (tmp_path / "memory").write_text("in the way", encoding="utf-8")
        assert self.asked(tmp_path).version == "3.31.6"


class TestInstalledVersions:
    def test_sees_packages_of_the_interpreter(self) -> None:
        found = installed_versions(sys.executable, ("pytest", "no-such-package-here"))
        assert found == {"pytest": pytest.__version__}

    def test_packages_of_the_working_folder_do_not_count(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        meta = tmp_path / "ghost-9.9.dist-info"
        meta.mkdir()
        text = "Metadata-Version: 2.1\nName: ghost\nVersion: 9.9\n"
        (meta / "METADATA").write_text(text, encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        assert installed_versions(sys.executable, ("ghost",)) == {}

    def test_output_before_the_answer_is_skipped(self, tmp_path: Path) -> None:
        python = tmp_path / "python"
        python.write_text(
            textwrap.dedent(f"""\
            #!/bin/sh
            echo 'Welcome to this cluster'
            exec '{sys.executable}' "$@"
            """),
            encoding="utf-8",
        )
        python.chmod(0o755)
        assert installed_versions(str(python), ("pytest",)) == {"pytest": pytest.__version__}

    def test_no_interpreter_means_no_packages(self, tmp_path: Path) -> None:
        assert installed_versions(str(tmp_path / "python"), ("pytest",)) == {}
        silent = shutil.which("true")
        assert silent is not None
        assert installed_versions(silent, ("pytest",)) == {}

"""Conda environments, created by fake tools that are real executables."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from torchyard.builds.environments import plan_environment
from torchyard.builds.environments.conda import (
    CondaPackage,
    conda_platform,
    environment_yaml,
    parse_package,
    pixi_toml,
)
from torchyard.builds.environments.model import SYSTEM_PATH, EnvironmentPlan
from torchyard.builds.plan import Command
from torchyard.builds.recipe import CondaTable, EnvironmentTable
from torchyard.errors import UsageError

Perform = Callable[..., str]
MakeProgram = Callable[..., Path]

# Finds --prefix among its arguments, as the real ones do, and refuses a folder that is there.
MAKES_THE_PREFIX = """
prefix= file=
while [ $# -gt 0 ]; do
    case $1 in --prefix) prefix=$2 ;; --file) file=$2 ;; esac
    shift
done
[ -f "$file" ] || exit 3
[ ! -e "$prefix" ] || { echo "prefix already exists" >&2; exit 4; }
[ "${CONDA_ALWAYS_YES-}${MAMBA_ALWAYS_YES-}" = truetrue ] || exit 5
mkdir -p "$prefix/bin" "$prefix/conda-meta"
printf '#!/bin/sh\\necho "pip got: $*"\\n' >"$prefix/bin/python"
chmod +x "$prefix/bin/python"
"""
PIXI = """
[ "$1" = install ] && [ "$2" = --manifest-path ] || exit 3
home=$(dirname "$3")/.pixi/envs/default
mkdir -p "$home/bin"
printf '#!/bin/sh\\necho "pip got: $*"\\n' >"$home/bin/python"
chmod +x "$home/bin/python"
"""


def plan(
    folder: Path,
    programs: Path,
    table: EnvironmentTable | None = None,
    *packages: str,
) -> EnvironmentPlan:
    return plan_environment(
        table or EnvironmentTable(use="conda"),
        folder=folder,
        packages=packages,
        where="pytorch: environment",
        environ={"HOME": "/h", "PATH": str(programs)},
    )


@pytest.mark.parametrize(
    ("tool", "verb"),
    [("micromamba", "create --yes"), ("mamba", "env create"), ("conda", "env create")],
)
def test_made_twice_by(
    tool: str,
    verb: str,
    tmp_path: Path,
    programs: Path,
    make_program: MakeProgram,
    calls: Callable[[str], list[str]],
    perform: Perform,
) -> None:
    make_program(tool, MAKES_THE_PREFIX)
    folder = tmp_path / "a plan"
    made = plan(folder, programs, EnvironmentTable(use="conda", python="3.10"), "six")
    assert [step.name for step in made.steps] == ["environment/python", "environment/packages"]
    heard = [perform(step, folder=folder) for step in (*made.steps, *made.steps)][-1]
    expected = f"{verb} --file {folder}/environment.yml --prefix {folder}/env"
    assert calls(tool) == [expected, expected]
    assert heard.startswith("pip got: -m pip install")
    assert heard.endswith("-- six\n")
    text = (folder / "environment.yml").read_text()
    assert '  - "python=3.10"\n  - "pip"\n' in text
    assert made.missing == ()


def test_made_by_pixi(
    tmp_path: Path, programs: Path, make_program: MakeProgram, perform: Perform
) -> None:
    make_program("pixi", PIXI)
    folder = tmp_path / "a plan"
    made = plan(folder, programs)
    for _ in range(2):
        perform(made.steps[0], folder=folder)
    assert (folder / "env").is_symlink()
    assert (folder / "env" / "bin" / "python").samefile(
        folder / ".pixi" / "envs" / "default" / "bin" / "python"
    )
    assert 'name = "a plan"' in (folder / "pixi.toml").read_text()


def test_fastest_tool_is_taken(tmp_path: Path, programs: Path, make_program: MakeProgram) -> None:
    for tool in ("conda", "mamba", "micromamba", "pixi"):
        make_program(tool)
        made = plan(tmp_path, programs)
        assert made.notes[0] == f"the environment is created by {tool}"


def test_without_any_tool_the_plan_can_be_shown(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rattler", None)  # as if it were not installed
    made = plan(tmp_path, programs)
    (missing,) = made.missing
    assert missing.startswith("one of pixi, micromamba, mamba, conda (pip install py-rattler")
    commands = [action for action in made.steps[0].actions if isinstance(action, Command)]
    assert commands[-1].argv[:3] == ("conda", "env", "create")


def nvidia_table() -> EnvironmentTable:
    return EnvironmentTable(
        use="conda",
        python="3.10",
        conda=CondaTable(
            channels=("conda-forge",),
            packages=(
                "gcc_linux-64=10.3.0",
                "gxx_linux-64=10.3.0",
                "nvidia/label/cuda-12.2.0::cuda-toolkit",
                "defaults::cmake<3.30",
                "ninja",
                "pytorch::magma-cuda121",
            ),
        ),
    )


def test_nvidia_environment(tmp_path: Path, programs: Path) -> None:
    made = plan(tmp_path, programs, nvidia_table())
    variables = dict(made.variables)
    env = f"{tmp_path}/env"
    assert variables["PATH"] == f"{env}/bin:{SYSTEM_PATH}"
    assert variables["CONDA_PREFIX"] == env
    assert variables["CMAKE_PREFIX_PATH"] == env
    assert variables["CPATH"] == f"{env}/include"
    assert variables["LIBRARY_PATH"] == variables["LD_LIBRARY_PATH"] == f"{env}/lib"
    assert variables["CC"] == f"{env}/bin/x86_64-conda-linux-gnu-gcc"
    assert variables["CXX"] == f"{env}/bin/x86_64-conda-linux-gnu-g++"
    assert variables["CUDAHOSTCXX"] == variables["CXX"]
    assert made.python == f"{env}/bin/python"
    assert any("terms of use" in note for note in made.notes)


def rocm_table(folder: Path, rocm: Path) -> EnvironmentTable:
    env = folder / "env"
    return EnvironmentTable(
        use="conda",
        conda=CondaTable(
            packages=("gcc_linux-64=10.3.0", "gxx_linux-64=10.3.0", "zlib", "cmake<3.30", "ninja")
        ),
        path=(f"{rocm}/bin",),
        include=(f"{env}/rocm-include", f"{env}/include"),
        libraries=(f"{rocm}/lib",),
        variables={"ROCM_PATH": str(rocm), "HIP_PLATFORM": "amd"},
    )


@pytest.fixture
def rocm(tmp_path: Path) -> Path:
    folder = tmp_path / "opt rocm"
    (folder / "include" / "thrust").mkdir(parents=True)
    (folder / "include" / "thrust" / "version.h").write_text("// of ROCm\n")
    (folder / ".info").mkdir()
    (folder / ".info" / "version").write_text("6.1.2-115\n")
    return folder


def test_rocm_comes_first(
    tmp_path: Path, programs: Path, make_program: MakeProgram, perform: Perform, rocm: Path
) -> None:
    make_program("micromamba", MAKES_THE_PREFIX)
    folder = tmp_path / "plan"
    env = folder / "env"
    made = plan(folder, programs, rocm_table(folder, rocm))
    variables = dict(made.variables)
    assert variables["CPATH"] == f"{env}/rocm-include:{env}/include"
    assert variables["LD_LIBRARY_PATH"] == f"{rocm}/lib:{env}/lib"
    assert variables["LIBRARY_PATH"] == f"{rocm}/lib:{env}/lib"
    assert variables["PATH"] == f"{rocm}/bin:{env}/bin:{SYSTEM_PATH}"
    assert variables["HIP_PLATFORM"] == "amd"
    assert "CUDAHOSTCXX" not in variables

    for _ in range(2):
        perform(made.steps[0], folder=folder)
    assert (env / "rocm-include" / "thrust" / "version.h").read_text() == "// of ROCm\n"


def test_another_rocm_means_other_headers(tmp_path: Path, programs: Path, rocm: Path) -> None:
    table = rocm_table(tmp_path, rocm)
    assert plan(tmp_path, programs, table).steps[0].inputs == (("rocm", "6.1.2-115"),)
    (rocm / ".info" / "version").unlink()
    assert plan(tmp_path, programs, table).steps[0].inputs == (("rocm", "not found"),)
    assert plan(tmp_path, programs, nvidia_table()).steps[0].inputs == ()


def test_the_compiler_searches_in_that_order(
    tmp_path: Path, programs: Path, make_program: MakeProgram, perform: Perform, rocm: Path
) -> None:
    """The real compiler of this machine, asked for the header that wins."""
    if not Path("/usr/bin/gcc").exists():
        pytest.skip("no gcc here")
    make_program("micromamba", MAKES_THE_PREFIX)
    folder = tmp_path / "plan"
    made = plan(folder, programs, rocm_table(folder, rocm))
    perform(made.steps[0], folder=folder)
    conda_header = folder / "env" / "include" / "thrust" / "version.h"
    conda_header.parent.mkdir(parents=True)
    conda_header.write_text("// of conda\n")
    result = subprocess.run(
        ["/usr/bin/gcc", "-E", "-C", "-x", "c", "-"],
        input="#include <thrust/version.h>\n",
        env=dict(made.variables),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "// of ROCm" in result.stdout
    assert "// of conda" not in result.stdout


def test_wrong_tables(tmp_path: Path, programs: Path) -> None:
    for table, said in (
        (EnvironmentTable(use="conda", base="/usr/bin/python3"), r"environment\.base"),
        (EnvironmentTable(use="conda", python="/usr/bin/python3"), r"environment\.python"),
        (
            EnvironmentTable(use="conda", conda=CondaTable(packages=("zlib", "zlib=1"))),
            "duplicate package zlib",
        ),
        (
            EnvironmentTable(use="conda", python="3.1", conda=CondaTable(packages=("python=3.2",))),
            "has python, too",
        ),
    ):
        with pytest.raises(UsageError, match=said):
            plan(tmp_path, programs, table)


DEV = ("python=3.8", "cuda-version=12.2", "cuda-nvcc", "cmake", "ninja", "ccache", "pip")
NVIDIA = (
    "gcc_linux-64=10.3.0",
    "gxx_linux-64=10.3.0",
    "nvidia/label/cuda-12.2.0::cuda-toolkit",
    "defaults::cmake<3.30",
    "ninja",
    "pytorch::magma-cuda121",
    "pip",
)
ROCM = (
    "gcc_linux-64=10.3.0",
    "gxx_linux-64=10.3.0",
    "zlib",
    "defaults::cmake >=3.26, <3.30",
    "ninja",
    "pip",
)


def parsed(texts: Sequence[str]) -> list[CondaPackage]:
    return [parse_package(text, where="x") for text in texts]


@pytest.mark.parametrize(
    ("packages", "channels"),
    [
        (DEV, ["conda-forge", "nodefaults"]),
        (NVIDIA, ["conda-forge", "nvidia/label/cuda-12.2.0", "defaults", "pytorch"]),
        (ROCM, ["conda-forge", "defaults"]),
    ],
)
def test_yaml(packages: Sequence[str], channels: list[str]) -> None:
    written = environment_yaml(["conda-forge"], parsed(packages))
    assert written.splitlines() == [
        "# Written by torchyard from the recipe; a change here is lost at the next build.",
        "channels:",
        *(f'  - "{name}"' for name in channels),
        "dependencies:",
        *('  - "' + text.replace(" ", "") + '"' for text in packages),
    ]


def test_pixi_for_nvidia() -> None:
    text = pixi_toml("torch-nvidia", ["conda-forge"], parsed(NVIDIA), machine="x86_64")
    assert text == (
        "# Written by torchyard from the recipe; a change here is lost at the next build.\n"
        "[workspace]\n"
        'name = "torch-nvidia"\n'
        'channels = ["conda-forge", "nvidia/label/cuda-12.2.0", "main", "pytorch"]\n'
        'platforms = ["linux-64"]\n'
        "\n"
        "[dependencies]\n"
        '"gcc_linux-64" = "10.3.0.*"\n'
        '"gxx_linux-64" = "10.3.0.*"\n'
        '"cuda-toolkit" = { version = "*", channel = "nvidia/label/cuda-12.2.0" }\n'
        '"cmake" = { version = "<3.30", channel = "main" }\n'
        '"ninja" = "*"\n'
        '"magma-cuda121" = { version = "*", channel = "pytorch" }\n'
        '"pip" = "*"\n'
    )
    assert tomllib.loads(text)["dependencies"]["cmake"]["version"] == "<3.30"


@pytest.mark.parametrize(
    ("text", "package"),
    [
        ("zlib", CondaPackage(name="zlib")),
        (" zlib ", CondaPackage(name="zlib")),
        ("python 3.12", CondaPackage(name="python", version="=3.12")),
        ("python=3.12.*", CondaPackage(name="python", version="=3.12.*")),
        ("numpy>=1.26,<3", CondaPackage(name="numpy", version=">=1.26,<3")),
        ("mkl!=2024.1", CondaPackage(name="mkl", version="!=2024.1")),
        ("blas=1.0=openblas", CondaPackage(name="blas", version="=1.0=openblas")),
        ("_libgcc_mutex", CondaPackage(name="_libgcc_mutex")),
        (
            "https://conda.example/own::tool==1",
            CondaPackage(name="tool", version="==1", channel="https://conda.example/own"),
        ),
    ],
)
def test_ways_to_name_a_package(text: str, package: CondaPackage) -> None:
    assert parse_package(text, where="x") == package


@pytest.mark.parametrize(
    "text",
    [
        "",
        "::zlib",
        "a b c",
        "zlib\n- evil",
        'zlib"',
        "zlib # x",
        "-f",
        "--file=x",
        "zlib;id",
        "a::",
    ],
)
def test_what_names_no_package(text: str) -> None:
    with pytest.raises(UsageError, match=r"x\.conda\.packages") as caught:
        parse_package(text, where="x.conda.packages")
    assert "CHANNEL::NAME" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("zlib", "*"),
        ("zlib=1.2", "1.2.*"),
        ("zlib=1.2.*", "1.2.*"),
        ("zlib==1.2", "==1.2"),
        ("zlib>=1.2,<2", ">=1.2,<2"),
        ("blas=1.0=openblas", {"version": "==1.0", "build": "openblas"}),
    ],
)
def test_pixi_version_syntax(text: str, value: object) -> None:
    manifest = tomllib.loads(pixi_toml("x", ["conda-forge"], parsed([text])))
    assert list(manifest["dependencies"].values()) == [value]


def test_names_of_platforms() -> None:
    assert conda_platform("x86_64") == "linux-64"
    assert conda_platform("aarch64") == "linux-aarch64"
    assert conda_platform("arm64") == "linux-aarch64"
    assert conda_platform("ppc64le") == "linux-ppc64le"
    assert conda_platform().startswith("linux-")

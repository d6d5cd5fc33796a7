"""Complete environment files, for real-world CUDA and ROCm environments."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence

import pytest

from torchyard.builds.environments.conda import (
    CondaPackage,
    conda_platform,
    environment_yaml,
    parse_package,
    pixi_toml,
)
from torchyard.errors import UsageError

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


def test_yaml_for_development() -> None:
    assert environment_yaml(["conda-forge"], parsed(DEV)) == (
        "# Written by torchyard from the recipe; a change here is lost at the next build.\n"
        "channels:\n"
        '  - "conda-forge"\n'
        '  - "nodefaults"\n'
        "dependencies:\n"
        '  - "python=3.8"\n'
        '  - "cuda-version=12.2"\n'
        '  - "cuda-nvcc"\n'
        '  - "cmake"\n'
        '  - "ninja"\n'
        '  - "ccache"\n'
        '  - "pip"\n'
    )


def test_yaml_for_nvidia() -> None:
    assert environment_yaml(["conda-forge"], parsed(NVIDIA)) == (
        "# Written by torchyard from the recipe; a change here is lost at the next build.\n"
        "channels:\n"
        '  - "conda-forge"\n'
        '  - "nvidia/label/cuda-12.2.0"\n'
        '  - "defaults"\n'
        '  - "pytorch"\n'
        "dependencies:\n"
        '  - "gcc_linux-64=10.3.0"\n'
        '  - "gxx_linux-64=10.3.0"\n'
        '  - "nvidia/label/cuda-12.2.0::cuda-toolkit"\n'
        '  - "defaults::cmake<3.30"\n'
        '  - "ninja"\n'
        '  - "pytorch::magma-cuda121"\n'
        '  - "pip"\n'
    )


def test_yaml_for_rocm() -> None:
    assert environment_yaml(["conda-forge"], parsed(ROCM)) == (
        "# Written by torchyard from the recipe; a change here is lost at the next build.\n"
        "channels:\n"
        '  - "conda-forge"\n'
        '  - "defaults"\n'
        "dependencies:\n"
        '  - "gcc_linux-64=10.3.0"\n'
        '  - "gxx_linux-64=10.3.0"\n'
        '  - "zlib"\n'
        '  - "defaults::cmake>=3.26,<3.30"\n'
        '  - "ninja"\n'
        '  - "pip"\n'
    )


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

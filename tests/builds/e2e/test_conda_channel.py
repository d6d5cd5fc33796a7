"""Conda plans, run by a real solver and installer against a channel in a folder."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest

from tests.builds.e2e.build_cli import Cli, call
from tests.builds.e2e.conda_channel import PLATFORM, PYTHON, TRIPLE, Channel, wrapper
from tests.builds.e2e.projects import library

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        importlib.util.find_spec("rattler") is None, reason="needs py-rattler (pip install)"
    ),
]

TOO_NEW = "3.99.0"
"""A Python that no release supports."""


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Channel:
    made = Channel(tmp_path_factory.mktemp("conda") / "channel")
    made.add_python()
    made.add("python", TOO_NEW, files={"bin/python": "#!/bin/sh\nexit 9\n"})
    for version in ("3.25.0", "3.26.4", "3.31.2", "4.1.0"):
        says = f"cmake version {version}"
        made.add("cmake", version, files={"bin/cmake": wrapper("/usr/bin/cmake", says)})
    made.add_compilers("12.4.0", "13.3.0", "14.1.0")
    made.add("ninja", "1.12.1", files={"bin/ninja": wrapper("/usr/bin/ninja")})
    made.add("cuda-toolkit", "12.6.0", files={"bin/nvcc": "#!/bin/sh\necho V12.6.0\n"})
    made.add("cuda-toolkit", "12.8.0", files={"bin/nvcc": "#!/bin/sh\necho V12.8.0\n"})
    made.add("magma", "2.9.0", files={"include/magma_v2.h": ""}, depends=["cuda-toolkit"])
    made.add("openblas", "0.3.29", files={"include/cblas.h": ""})
    made.add("impossible", "1.0", depends=["cmake >=99"])
    return made


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    # A private cache: packages of the same name and version may differ between tests.
    variables = {"PATH": "/usr/bin:/bin", "RATTLER_CACHE_DIR": str(tmp_path / "packages")}
    return Cli(home=tmp_path / "home", variables=variables)


def environment(cli: Cli, channel: Channel, *words: str, name: str = "it") -> dict[str, str]:
    """Create the environment of PyTorch's CUDA variant; package -> installed version."""
    channels = json.dumps([channel.url])
    cli.build(
        *("pytorch", "--variant", "cuda", "--name", name, "--set", "environment.use=conda"),
        *("--set", f"environment.conda.channels={channels}", *words),
        *("--only", "environment/python", "--no-doctor"),
    )
    files = (cli.folder(name) / "env" / "conda-meta").glob("*.json")
    records = [json.loads(path.read_text()) for path in files]
    return {record["name"]: record["version"] for record in records}


def test_pins_of_an_old_release(cli: Cli, channel: Channel) -> None:
    installed = environment(cli, channel, "--version", "2.6.0")
    assert installed["cmake"] == "3.26.4"
    assert installed["python"] == f"{PYTHON}.0"
    assert installed[f"gcc_{PLATFORM}"] == installed[f"gxx_{PLATFORM}"] == "13.3.0"
    assert (installed["cuda-toolkit"], installed["magma"]) == ("12.8.0", "2.9.0")


def test_one_setting_for_cuda_and_one_for_gcc(cli: Cli, channel: Channel) -> None:
    words = ("--set", "environment.cuda=12.6.0", "--set", "environment.gcc=12.4.0")
    installed = environment(cli, channel, "--version", "2.9.0", *words)
    assert installed["cuda-toolkit"] == "12.6.0"
    assert installed[f"gxx_{PLATFORM}"] == "12.4.0"
    assert installed["cmake"] == "3.31.2", "3.27 or newer, but not CMake 4"


def test_packages_that_cannot_be_solved(cli: Cli, channel: Channel) -> None:
    channels = json.dumps([channel.url])
    ended = cli.build(
        *("generic", "--name", "no", "--set", "environment.use=conda", "--no-doctor"),
        *("--set", f"environment.conda.channels={channels}", "--set", "source.folder.path=."),
        *("--set", 'environment.conda.packages=["impossible"]', "--only", "environment/python"),
        code=5,
        cwd=channel.folder,
    )
    log = (cli.folder("no") / "logs" / "environment-python.log").read_text()
    assert "impossible" in log
    assert "cmake" in log
    assert "environment/python failed" in ended.err


def test_a_library_is_built_by_the_tools_of_the_environment(
    cli: Cli, channel: Channel, tmp_path: Path
) -> None:
    source = library(tmp_path / "source")
    packages = json.dumps(["cmake=3.26", f"gcc_{PLATFORM}=13.3.0", "ninja"])
    ended = cli.build(
        *("generic", "--name", "tiny", "--cache", "none", "--no-doctor"),
        *("--set", f"source.folder.path={source}", "--set", "environment.use=conda"),
        *("--set", f"environment.conda.channels={json.dumps([channel.url])}"),
        *(
            "--set",
            f"environment.conda.packages={packages}",
            "--set",
            f"environment.python={PYTHON}",
        ),
        # pip must not install another CMake over that of conda.
        *("--set", 'environment.venv.packages=["cmake>=3.18", "ninja"]'),
    )
    assert "tiny: built in" in ended.out
    folder = cli.folder("tiny")
    assert call(folder / "prefix/lib/libtiny.so", "tiny_two") == 2
    tools = {tool["name"]: tool for tool in cli.record("tiny")["components"][0]["toolchain"]}
    assert tools["cc"]["path"] == f"{folder}/env/bin/{TRIPLE}-gcc"
    assert (tools["cc"]["version"], tools["cmake"]["version"]) == ("13.3.0", "3.26.4")
    # The activation script puts the environment first.
    shell = subprocess.run(
        ["sh", "-c", f'. "{folder}/activate" && command -v cmake && echo "$CC"'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shell.stdout.splitlines() == [
        f"{folder}/env/bin/cmake",
        f"{folder}/env/bin/{TRIPLE}-gcc",
    ]

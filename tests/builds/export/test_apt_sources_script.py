"""The script that writes a private apt configuration, with a fake apt."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import pytest

SCRIPT = resources.files("torchyard.builds.export").joinpath("apt_sources.sh")
DEBIAN = [
    "http://mirror.test/debian/ bookworm main Debian",
    "http://mirror.test/debian/ bookworm contrib Debian",
    "http://mirror.test/debian/ bookworm-updates main Debian",
    "http://security.test/debian-security/ bookworm-security main Debian",
    "http://other.test/apt/ stable main Somebody",
]


def write(
    tmp_path: Path, suite: str, *, lines: list[str], kinds: str = "deb deb-src", folder: str = "apt"
) -> subprocess.CompletedProcess[str]:
    programs = tmp_path / "programs"
    programs.mkdir(exist_ok=True)
    apt = programs / "apt-get"
    text = "\n".join(lines)
    apt.write_text(f"#!/bin/sh\n[ \"$1\" = indextargets ] || exit 9\ncat <<'END'\n{text}\nEND\n")
    apt.chmod(0o755)
    script = tmp_path / "script.sh"
    script.write_text(SCRIPT.read_text(encoding="utf-8"))
    return subprocess.run(
        ["sh", script, tmp_path / folder, suite, kinds],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": f"{programs}:{os.environ['PATH']}"},
    )


def sources(tmp_path: Path) -> list[str]:
    return (tmp_path / "apt/sources.list").read_text().splitlines()


def test_another_suite_is_searched_where_the_plain_one_is(tmp_path: Path) -> None:
    assert write(tmp_path, "trixie", lines=DEBIAN).returncode == 0
    assert sources(tmp_path) == [
        "deb http://mirror.test/debian/ trixie main",
        "deb-src http://mirror.test/debian/ trixie main",
        "deb http://mirror.test/debian/ trixie contrib",
        "deb-src http://mirror.test/debian/ trixie contrib",
    ]


def test_another_security_suite_is_searched_where_the_own_one_is(tmp_path: Path) -> None:
    assert write(tmp_path, "trixie-security", lines=DEBIAN, kinds="deb").returncode == 0
    assert sources(tmp_path) == ["deb http://security.test/debian-security/ trixie-security main"]


def test_a_listed_suite_is_taken_where_it_is_listed(tmp_path: Path) -> None:
    lines = [*DEBIAN, "http://second.test/debian/ sid main Debian"]
    assert write(tmp_path, "sid", lines=lines, kinds="deb-src").returncode == 0
    assert sources(tmp_path) == ["deb-src http://second.test/debian/ sid main"]


def test_no_suite_means_the_machines_own(tmp_path: Path) -> None:
    assert write(tmp_path, "", lines=DEBIAN, kinds="deb").returncode == 0
    assert [line.split()[2] for line in sources(tmp_path)] == [
        "bookworm",
        "bookworm",
        "bookworm-updates",
        "bookworm-security",
    ]


def test_a_fresh_image_has_no_known_mirror(tmp_path: Path) -> None:
    # Before the first update apt prints the name of the field instead of its value.
    lines = ["http://mirror.test/debian/ trixie main $(ORIGIN)"]
    assert write(tmp_path, "trixie", lines=lines, kinds="deb-src").returncode == 0
    assert sources(tmp_path) == ["deb-src http://mirror.test/debian/ trixie main"]


def test_no_mirror_is_an_error(tmp_path: Path) -> None:
    ended = write(tmp_path, "trixie", lines=[])
    assert ended.returncode == 1
    assert "no Debian mirror for suite trixie" in ended.stderr


@pytest.mark.parametrize("folder", ['a"b', "a;b"])
def test_a_folder_that_apt_cannot_represent_is_an_error(tmp_path: Path, folder: str) -> None:
    ended = write(tmp_path, "trixie", lines=DEBIAN, folder=folder)
    assert ended.returncode == 1
    assert "choose another folder" in ended.stderr


@pytest.mark.skipif(not shutil.which("apt-config"), reason="needs apt")
def test_apt_reads_the_configuration_and_keeps_everything_below_the_folder(tmp_path: Path) -> None:
    assert write(tmp_path, "trixie", lines=DEBIAN).returncode == 0
    folder = tmp_path / "apt"
    dumped = subprocess.run(
        ["apt-config", "-c", folder / "apt.conf", "dump", "--format", "%f=%v%n"],
        capture_output=True,
        text=True,
        check=True,
    )
    said = dict(line.partition("=")[::2] for line in dumped.stdout.splitlines())
    for name in (
        "Dir::State::lists",
        "Dir::Etc::sourcelist",
        "Dir::Cache",
        "Dir::Etc::trustedparts",
    ):
        assert said[name].startswith(f"{folder}/")
    assert (folder / "state/status").read_text() == ""

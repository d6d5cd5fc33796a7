"""A full disk: a clear error, and the same command resumes when there is space again.

The home lies on a small file system of its own, which only the commands of one test see.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.builds.e2e.build_cli import LIMIT_S, Cli
from tests.builds.e2e.projects import write
from tests.builds.sandbox.sandbox_commands import needs_mounts
from torchyard.builds.meter.compile_costs import read_meter_log

pytestmark = [
    needs_mounts,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts file systems"),
    pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare"),
]

CMAKE = """\
cmake_minimum_required(VERSION 3.18)
project(big C)
add_library(big SHARED one.c two.c three.c)
install(TARGETS big LIBRARY DESTINATION lib)
"""
# An object of 3 MiB; the middle of the story is when two of them are there.
BIG = "char {name}[3 << 20] = {{1}};\nint {name}_size(void) {{ return sizeof {name} >> 20; }}\n"

STORY = """\
set -u
mkdir -p "$TORCHYARD_HOME"
mount -t tmpfs -o size={size} none "$TORCHYARD_HOME"
{before}
{command} > {out}/first.txt 2>&1
echo $? > {out}/first.code
{between}
mount -o remount,size=64m "$TORCHYARD_HOME"
{command} > {out}/second.txt 2>&1
echo $? > {out}/second.code
cp "$TORCHYARD_HOME"/builds/big/prefix/lib/libbig.so {out}/
cp "$TORCHYARD_HOME"/builds/big/meter/generic.log {out}/
umount "$TORCHYARD_HOME"
"""


@dataclass(frozen=True, kw_only=True)
class DiskMessages:
    """Output and end of the two runs."""

    first: str
    second: str
    codes: tuple[int, int]
    out: Path


def tell(
    folder: Path, size: str, *, before: str = "", between: str = "", pad: int = 0
) -> DiskMessages:
    """Build with so much room, make room, and build again."""
    files = {f"{name}.c": BIG.format(name=name) for name in ("one", "two", "three")}
    source = write(folder / "source", {"CMakeLists.txt": CMAKE, **files, "pad": "x" * pad})
    cli = Cli(home=folder / "home")
    out = folder / "out"
    out.mkdir()
    command = cli.argv(
        *("build", "generic", "--name", "big", "--set", f"source.folder.path={source}"),
        *("--cache", "none", "--jobs", "1", "--no-doctor"),
    )
    story = STORY.format(
        size=size,
        command=shlex.join(command),
        out=shlex.quote(str(out)),
        before=before,
        between=between,
    )
    subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", story],
        check=False,
        timeout=LIMIT_S,
        env=cli.environment(),
        stdin=subprocess.DEVNULL,
    )
    told = DiskMessages(
        first=(out / "first.txt").read_text(),
        second=(out / "second.txt").read_text(),
        codes=(int((out / "first.code").read_text()), int((out / "second.code").read_text())),
        out=out,
    )
    assert told.codes == (5, 0), f"{told.first}\n-----\n{told.second}"
    assert "The disk is full" in told.first or "No space left on device" in told.first
    assert "internal error" not in told.first
    assert (told.out / "libbig.so").stat().st_size > 9 << 20
    return told


def test_full_in_the_middle_of_compiling(tmp_path: Path) -> None:
    told = tell(tmp_path, "8m")
    assert "generic/build failed" in told.first
    assert "3 steps run, 4 up to date" in told.second
    good = [one.name for one in read_meter_log(told.out / "generic.log").compiles if one.succeeded]
    for name in ("one.c.o", "two.c.o", "three.c.o", "libbig.so"):
        assert good.count(name) == 1, "what was there before the disk was full is kept"


@pytest.mark.slow
def test_full_while_the_source_is_copied(tmp_path: Path) -> None:
    told = tell(tmp_path, "1m", pad=4 << 20)
    assert "generic/fetch failed" in told.first
    assert "generic/fetch: done" in told.second


def test_full_from_the_start(tmp_path: Path) -> None:
    told = tell(
        tmp_path,
        "200k",
        before='cat /dev/zero > "$TORCHYARD_HOME"/filling 2>/dev/null',
        between='rm "$TORCHYARD_HOME"/filling',
    )
    assert "7 steps run, 0 up to date" in told.second


def test_full_while_the_library_is_installed(tmp_path: Path) -> None:
    # Three objects of 3 MiB and a library of 9 MiB fit; a second copy of the library does not.
    told = tell(tmp_path, "24m")
    assert "generic/install failed" in told.first
    assert "2 steps run, 5 up to date" in told.second

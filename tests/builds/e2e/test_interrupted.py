"""Interrupted builds: SIGKILL, Ctrl-C, partial objects, two builds at once."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builds.e2e.build_cli import Cli, call, processes_with, wait_until
from tests.builds.e2e.projects import gated_library, write
from tests.builds.sandbox.sandbox_commands import needs_processes

SLOW = pytest.mark.slow
OTHERS = sorted(["total.cpp.o", *(f"part{number}.cpp.o" for number in range(8) if number != 3)])

# A compiler that has begun to write its object when it stops, as one on a slow disk has.
HALF_WRITING = """\
#!/bin/sh
for word; do
    if [ "$last" = -o ]; then object=$word; fi
    last=$word
done
case $last in
*/part3.cpp)
    if [ -e {hold} ]; then
        echo half > "$object"
        while [ -e {hold} ]; do sleep 0.1; done
    fi ;;
esac
exec c++ "$@"
"""


class Gated:
    """A library with one unfinished compile, which waits until it is interrupted."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder = folder
        self.cli = Cli(home=folder / "home")
        self.gate = folder / "gate.h"
        os.mkfifo(self.gate)
        source = gated_library(folder / "source", self.gate)
        self.words = (
            *("generic", "--name", "gated", "--set", f"source.folder.path={source}"),
            *("--cache", "none", "--jobs", "2", "--no-doctor", *words),
        )
        self.process: subprocess.Popen[str] | None = None

    def start_and_wait(self) -> subprocess.Popen[str]:
        """Build until only the held compile is left."""
        self.process = self.cli.start(*self.words)
        wait_until(self._is_held, "the other objects are there")
        return self.process

    def _is_held(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.cli.started_output()
        if sorted(self.cli.compiled("gated")) != OTHERS:
            return False
        return any("cc1plus" in line or "compiler.sh" in line for line in self.compilers())

    def compilers(self) -> list[str]:
        return processes_with(str(self.cli.folder("gated")))

    def open_gate(self) -> None:
        self.gate.unlink()
        self.gate.write_text("static int through_the_gate;\n")

    def goes_on(self, *words: str) -> None:
        """The same command brings it to the end, and compiles what was in flight, only."""
        objects = self.cli.folder("gated") / "trees/generic/build/CMakeFiles/gated.dir"
        times = {name: (objects / name).stat().st_mtime_ns for name in OTHERS}
        before = len(self.cli.compiled("gated"))
        document = self.cli.build(*self.words, *words, "--json").json()
        assert document["ran"] == ["generic/build", "generic/install", "generic/verify"]
        assert self.cli.compiled("gated")[before:] == ["part3.cpp.o", "libgated.so"]
        assert {name: (objects / name).stat().st_mtime_ns for name in OTHERS} == times
        made = self.cli.folder("gated") / "prefix/lib/libgated.so"
        assert call(made, "total") == sum(range(8))

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def gated(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Gated]:
    made = Gated(tmp_path, "--set", f"cmake.generator={getattr(request, 'param', 'Ninja')}")
    yield made
    made.end()


@needs_processes
@pytest.mark.parametrize(
    "gated", ["Ninja", pytest.param("Unix Makefiles", marks=SLOW)], indirect=True
)
def test_sigkill_leaves_no_compiler_and_the_next_run_resumes(gated: Gated) -> None:
    gated.start_and_wait().kill()
    wait_until(lambda: not gated.compilers(), "all compilers are gone")
    assert gated.cli.state("gated", "generic/build")["status"] == "running"
    gated.open_gate()
    gated.goes_on()
    times = {one["step"]: one for one in gated.cli.record("gated")["times"]}
    assert times["generic/build"]["compiles"] == 10, "those of the killed run count, too"


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGINT, "interrupted"),
        (signal.SIGTERM, "ended by SIGTERM"),
        pytest.param(signal.SIGHUP, "ended by SIGHUP", marks=SLOW),
    ],
)
def test_a_signal_ends_it_and_the_next_run_resumes(
    gated: Gated, number: signal.Signals, said: str
) -> None:
    process = gated.start_and_wait()
    process.send_signal(number)
    assert process.wait(timeout=120) == 128 + number
    assert gated.cli.started_output().endswith(f"error: {said}\n")
    assert "Traceback" not in gated.cli.started_output()
    assert gated.compilers() == []
    assert gated.cli.state("gated", "generic/build")["status"] == "interrupted"
    gated.open_gate()
    gated.goes_on()


def test_a_second_build_in_the_same_folder_is_refused(gated: Gated) -> None:
    process = gated.start_and_wait()
    ended = gated.cli.build(*gated.words, code=4)
    assert f"another build is running in {gated.cli.folder('gated')}" in ended.err
    assert f"(process {process.pid})" in ended.err
    assert "--name" in ended.err
    for command in (("clean", "gated"), ("rebuild", "gated"), ("update", "gated")):
        ended = gated.cli.build(*command, code=4)
        assert f"(process {process.pid})" in ended.err, command
    assert process.poll() is None
    assert gated.compilers(), "the first one goes on"
    process.kill()
    process.wait()


@needs_processes
@pytest.mark.parametrize("generator", ["Unix Makefiles", pytest.param("Ninja", marks=SLOW)])
def test_a_partial_object_is_rebuilt(tmp_path: Path, generator: str) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    write(tmp_path, {"compiler.sh": HALF_WRITING.format(hold=hold)})
    compiler = tmp_path / "compiler.sh"
    compiler.chmod(0o755)
    gated = Gated(
        tmp_path,
        *("--set", f"cmake.generator={generator}"),
        *("--set", f'cmake.arguments=["-DCMAKE_CXX_COMPILER={compiler}"]'),
    )
    gated.open_gate()
    process = gated.start_and_wait()
    held = gated.cli.folder("gated") / "trees/generic/build/CMakeFiles/gated.dir/part3.cpp.o"
    wait_until(lambda: held.exists() and held.read_text() == "half\n", "the object is half there")
    process.kill()
    process.wait()
    wait_until(lambda: not gated.compilers(), "all compilers are gone")
    assert held.read_text() == "half\n", "nobody cleaned up"
    hold.unlink()
    gated.goes_on()


def test_sigkill_in_the_middle_of_a_copy(cli: Cli, tmp_path: Path) -> None:
    """The working copy appears whole or not at all."""
    source = gated_library(tmp_path / "source", tmp_path / "gate.h")
    (tmp_path / "gate.h").write_text("\n")
    hold, held = tmp_path / "hold", tmp_path / "held"
    hold.touch()
    recipe = tmp_path / "prepared.toml"
    recipe.write_text(
        f'name = "prepared"\n[source.folder]\npath = "{source}"\n[environment]\nuse = "current"\n'
        f"[[prepare]]\nrun = ['sh', '-c', 'echo no >> part1.cpp; touch {held}; "
        f"while [ -e {hold} ]; do sleep 0.1; done; sed -i /^no/d part1.cpp']\n"
    )
    words = (str(recipe), "--name", "copied", "--cache", "none", "--no-doctor")
    process = cli.start(*words)
    wait_until(held.exists, "the preparation runs")
    process.kill()
    process.wait()
    assert not (cli.folder("copied") / "trees" / "prepared").exists()
    hold.unlink()
    wait_until(lambda: not processes_with(str(hold)), "what it started is gone")
    cli.build(*words)
    assert call(cli.folder("copied") / "prefix/lib/libgated.so", "total") == sum(range(8))

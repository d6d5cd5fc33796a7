"""Folders of builds: safe names, one folder for each source description, locks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.builds.build_folders import (
    BuildFolder,
    BuildsDirectory,
    base_build_locks,
    check_build_name,
    exclusive_run_lock,
    source_lock,
)
from torchyard.builds.recipe import GitSource, Recipe, SourceTable
from torchyard.errors import NotAllowed, TorchyardError, UsageError

HOME = BuildsDirectory(folder=Path("/yard"))
RECIPE = Recipe(
    name="pytorch",
    version="2.6.0",
    source=SourceTable(git=GitSource(url="https://example.org/x", ref="v2.6.0")),
)


@pytest.mark.parametrize("name", ["a", "pytorch-2.6.0-cpu_arm", "A+b", "0", "x" * 100])
def test_names_of_builds(name: str) -> None:
    assert check_build_name(name, where="--name") == name
    assert HOME.build(name).folder == Path("/yard/builds") / name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "-x", ".x", "a b", "a\n", "ü", "x" * 101, "a\0b", "$x"]
)
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(UsageError) as raised:
        HOME.build(name)
    assert raised.value.what.startswith("--name: ")
    assert raised.value.hint


@given(st.text(max_size=30))
def test_a_build_never_leaves_the_builds_folder(name: str) -> None:
    try:
        folder = HOME.build(name).folder
    except UsageError:
        return
    assert folder.parent == HOME.builds
    assert folder.name == name


def test_a_source_has_a_folder_for_each_description() -> None:
    place = HOME.source(RECIPE)
    assert place.parent == Path("/yard/sources")
    assert place.name.startswith("pytorch-2.6.0-")
    assert HOME.source(replace(RECIPE, options={"USE_CUDA": False}, variant="x")) == place
    assert RECIPE.source.git is not None
    other = replace(RECIPE, source=SourceTable(git=replace(RECIPE.source.git, ref="main")))
    assert HOME.source(other) != place


@given(st.text(max_size=40))
def test_an_odd_version_stays_one_folder(version: str) -> None:
    place = HOME.source(replace(RECIPE, version=version))
    assert place.parent == Path("/yard/sources")
    assert "\0" not in place.name


def test_files_of_a_build_are_below_it_and_apart() -> None:
    folder = BuildFolder(folder=Path("/yard/builds/x"))
    of_all = [
        *(folder.prefix, folder.wheels, folder.meter, folder.plan_file, folder.request_file),
        *(folder.used_lock_file, folder.record_file, folder.freeze_file, folder.lock_file),
    ]
    of_parts = [
        place(name)
        for name in ("one", "two")
        for place in (folder.tree, folder.listed, folder.dist, folder.report, folder.meter_log)
    ]
    of_steps = [
        place(name)
        for name in ("one/build", "two/build", "one/verify")
        for place in (folder.log, folder.state)
    ]
    places = [*of_all, *of_parts, *of_steps]
    assert len(set(places)) == len(places)
    assert all(place.is_relative_to(folder.folder) for place in places)


def test_the_results_directory_follows_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path))
    home = BuildsDirectory.default()
    assert home.folder == tmp_path
    for place in (home.builds, home.downloads, home.history, home.tools):
        assert place.parent == tmp_path


def test_what_a_root_shows(tmp_path: Path) -> None:
    folder = BuildsDirectory(folder=tmp_path / "yard").build("vision")
    own = str(folder.folder / "root")
    assert folder.shown_in(own) == (str(tmp_path / "yard"), str(folder.folder))
    theirs = "/elsewhere/builds/torch/root"
    assert folder.shown_in(theirs) == (str(tmp_path / "yard"), "/elsewhere/builds/torch")


HOLDER = """
import sys
from pathlib import Path
from torchyard.builds.build_folders import exclusive_run_lock
with exclusive_run_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(path: Path) -> subprocess.Popen[str]:
    """Another process that holds the folder until its stdin ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_the_folder_is_made_and_names_who_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "builds" / "x" / "running"
    with exclusive_run_lock(path):
        assert path.read_text() == f"{os.getpid()}\n"


def test_another_process_is_refused_with_the_pid_of_the_owner(tmp_path: Path) -> None:
    path = tmp_path / "running"
    with holder(path) as process:
        with pytest.raises(NotAllowed) as raised, exclusive_run_lock(path):
            pass
        assert (
            raised.value.what == f"another build is running in {tmp_path} (process {process.pid})"
        )
        assert "--name" in raised.value.hint
        assert raised.value.exit_code == 4
        process.communicate("")
    with exclusive_run_lock(path):
        pass


def test_a_shorter_number_leaves_nothing_of_a_longer_one(tmp_path: Path) -> None:
    path = tmp_path / "running"
    path.write_text("123456789012345678\n")
    with exclusive_run_lock(path):
        assert path.read_text() == f"{os.getpid()}\n"


def test_a_kill_releases_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "running"
    with holder(path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        with exclusive_run_lock(path):
            assert path.read_text() == f"{os.getpid()}\n"


def test_twice_in_one_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "running"
    with (
        exclusive_run_lock(path),
        pytest.raises(NotAllowed, match=f"process {os.getpid()}"),
        exclusive_run_lock(path),
    ):
        pass


def test_an_error_releases_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "running"
    with pytest.raises(KeyboardInterrupt), exclusive_run_lock(path):
        raise KeyboardInterrupt
    with exclusive_run_lock(path):
        pass


def test_children_do_not_hold_it(tmp_path: Path) -> None:
    path = tmp_path / "running"
    with exclusive_run_lock(path):
        child = subprocess.Popen(["sleep", "60"])
    try:
        with exclusive_run_lock(path):
            pass
    finally:
        child.kill()
        child.wait()


def test_a_place_that_cannot_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(TorchyardError, match="cannot write"),
        exclusive_run_lock(tmp_path / "file" / "x"),
    ):
        pass


def test_many_builds_share_a_base_and_block_its_rebuild(tmp_path: Path) -> None:
    path = tmp_path / "running"
    with exclusive_run_lock(path):
        pass
    with base_build_locks([path]), base_build_locks([path]):
        with pytest.raises(
            NotAllowed, match=f"a build that uses {tmp_path} as its base is running"
        ):
            exclusive_run_lock(path).__enter__()
        # Asking does not take it away from those who stand there.
        with pytest.raises(NotAllowed, match="as its base"):
            exclusive_run_lock(path).__enter__()
        with base_build_locks([path]):
            pass
    with exclusive_run_lock(path):
        pass


def test_a_base_that_is_being_built_is_refused(tmp_path: Path) -> None:
    other, path = tmp_path / "other", tmp_path / "running"
    with holder(path) as process:
        with pytest.raises(NotAllowed) as raised, base_build_locks([other, path]):
            pass
        assert raised.value.what == (
            f"{tmp_path}, the base of this build, is being built (process {process.pid})"
        )
        assert raised.value.hint.startswith("wait until it has finished")
        with exclusive_run_lock(other):  # the first one was given back
            pass
        process.communicate("")
    with base_build_locks([other, path]):
        pass


def test_a_missing_base_folder_is_not_locked(tmp_path: Path) -> None:
    with base_build_locks([tmp_path / "gone" / "running"]):
        assert list(tmp_path.iterdir()) == []


def held(source: Path, *, alone: bool, waits: list[str]) -> AbstractContextManager[None]:
    return source_lock(
        source, alone=alone, stopped=lambda: False, waiting=lambda: waits.append("waits")
    )


def test_two_may_copy_at_once(tmp_path: Path) -> None:
    waits: list[str] = []
    source = tmp_path / "sources" / "x"
    with held(source, alone=False, waits=waits), held(source, alone=False, waits=waits):
        pass
    assert waits == []


@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True)])
def test_changing_a_source_needs_the_exclusive_lock(
    tmp_path: Path, first: bool, second: bool
) -> None:
    waits: list[str] = []
    order: list[str] = []
    asked = threading.Event()

    def other() -> None:
        asked.set()
        with held(tmp_path / "x", alone=second, waits=waits):
            order.append("second")

    with held(tmp_path / "x", alone=first, waits=[]):
        thread = threading.Thread(target=other)
        thread.start()
        assert asked.wait(60)
        while not waits:
            assert thread.is_alive()
            thread.join(0.01)
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]
    assert waits == ["waits"], "said once"


def test_waiting_ends_when_stopped(tmp_path: Path) -> None:
    stopped: list[str] = []
    with (
        held(tmp_path / "x", alone=True, waits=[]),
        source_lock(
            tmp_path / "x",
            alone=True,
            stopped=lambda: bool(stopped),
            waiting=lambda: stopped.append("now"),
        ),
    ):
        assert stopped == ["now"]


def test_other_sources_are_other_locks(tmp_path: Path) -> None:
    waits: list[str] = []
    with (
        held(tmp_path / "x", alone=True, waits=waits),
        held(tmp_path / "y", alone=True, waits=waits),
    ):
        pass
    assert waits == []


def test_a_location_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(TorchyardError, match="cannot write"),
        held(tmp_path / "file" / "x", alone=True, waits=[]),
    ):
        pass

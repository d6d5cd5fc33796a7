"""Bare library names are found as the dynamic loader finds them."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from torchyard.errors import MissingTool
from torchyard.process import start
from torchyard.process.start import LaunchSpec, find_library, prepare


def test_a_system_library_is_found_by_its_bare_name_and_loads() -> None:
    path = find_library("libm.so.6")
    assert path is not None
    assert path.is_absolute()
    assert ctypes.CDLL(str(path)).cos is not None


def test_without_the_loaders_cache_the_usual_folders_are_searched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("torchyard.process.start.shutil.which", lambda *_, **__: None)
    monkeypatch.setattr(start, "_FOLDERS", (str(tmp_path),))
    assert find_library("libours.so.1") is None
    (tmp_path / "libours.so.1").write_bytes(b"")
    assert find_library("libours.so.1") == tmp_path / "libours.so.1"


def test_a_name_that_is_nowhere_is_an_error_before_anything_starts() -> None:
    spec = LaunchSpec(name="x", python="python3", variables=(), preload=("libnowhere.so.9",))
    with pytest.raises(MissingTool) as caught:
        prepare(spec, launch_mark="mark")
    assert "libnowhere.so.9" in caught.value.what
    assert "full path" in caught.value.hint


def test_a_bare_name_becomes_a_path_in_the_workers_environment() -> None:
    spec = LaunchSpec(name="x", python="python3", variables=(), preload=("libm.so.6",))
    launch = prepare(spec, launch_mark="mark")
    assert launch.environment["LD_PRELOAD"] == str(find_library("libm.so.6"))

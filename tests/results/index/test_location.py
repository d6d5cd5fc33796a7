"""The location of the index: beside the runs on a local disk, else in the user's cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchyard.results.index.entries import INDEX_FILE, file_system_of, is_local, places_for


def test_which_file_systems_are_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert file_system_of(Path("/proc")) == "proc"
    assert not is_local(Path("/proc"))
    assert not is_local(tmp_path / "missing")
    (place,) = places_for(Path("/proc"))
    assert place.parent == tmp_path / "cache" / "torchyard"
    assert is_local(tmp_path)
    assert places_for(tmp_path)[0] == tmp_path / INDEX_FILE

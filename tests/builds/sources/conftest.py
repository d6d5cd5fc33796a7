"""Fixtures for tests of sources: a web server, and an environment without settings of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builds.sources.fetching import Place
from tests.builds.sources.file_server import FileServer, served


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", "/nonexistent")
    with served() as running:
        yield running


@pytest.fixture
def place(tmp_path: Path) -> Place:
    # A blank and a quote: paths are never trusted to be harmless.
    return Place(tmp_path / "a home's folder")

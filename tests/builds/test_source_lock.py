"""Builds that share a source: parallel copies, exclusive changes."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from torchyard.builds.build_folders import source_lock
from torchyard.errors import TorchyardError


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

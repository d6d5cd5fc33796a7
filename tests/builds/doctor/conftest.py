"""A fresh fake machine for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builds.doctor.fake_machine import FakeMachine


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(folder=tmp_path / "machine")

"""The list of the long lane names files that exist, each once, in order."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent


def test_the_long_lane_names_existing_files_in_order() -> None:
    lines = (HERE / "long_lane.txt").read_text("utf-8").splitlines()
    files = [line for line in lines if not line.startswith("#")]
    assert files == sorted(set(files))
    assert [name for name in files if not (HERE.parent / name).is_file()] == []

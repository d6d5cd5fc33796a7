"""The lists of test files name existing files."""

from __future__ import annotations

from tests.conftest import LONG_LANE_FILE, ONE_KERNEL, ROOT


def test_the_long_lane_names_existing_files_in_order() -> None:
    lines = LONG_LANE_FILE.read_text("utf-8").splitlines()
    files = [line for line in lines if not line.startswith("#")]
    assert files == sorted(set(files))
    assert [name for name in files if not (ROOT / name).is_file()] == []


def test_the_files_that_use_the_kernel_alone_exist() -> None:
    assert [name for name in sorted(ONE_KERNEL) if not (ROOT / name).is_file()] == []

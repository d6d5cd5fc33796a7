from __future__ import annotations

from pathlib import Path

import pytest

from tests.builds.verify.sample_components import make_component, make_subject
from torchyard.builds.verify.verification import check_files


def whats(tmp_path: Path, *patterns: str, root: str = "") -> list[str]:
    component = make_component(tmp_path, files=patterns)
    return [found.what for found in check_files(make_subject(component, root=root)).findings]


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "prefix/lib/libopenblas.so.0"
    path.parent.mkdir(parents=True)
    path.write_text("content")
    return path


def test_names_and_patterns(tmp_path: Path, library: Path) -> None:
    assert whats(tmp_path, "lib/libopenblas.so.0", "lib/libopenblas.so*", "lib*/lib*.so.0") == []


def test_a_missing_file(tmp_path: Path, library: Path) -> None:
    assert whats(tmp_path, "include/cblas.h") == ["include/cblas.h is missing"]


def test_an_empty_file_is_what_a_full_disk_leaves(tmp_path: Path, library: Path) -> None:
    library.write_text("")
    assert whats(tmp_path, "lib/*") == ["lib/* is empty"]
    (library.parent / "other").write_text("content")
    assert whats(tmp_path, "lib/*") == []


def test_a_folder_and_a_link_count(tmp_path: Path, library: Path) -> None:
    (library.parent / "libopenblas.so").symlink_to("libopenblas.so.0")
    assert whats(tmp_path, "lib", "lib/libopenblas.so") == []


@pytest.mark.parametrize("pattern", ["/etc/passwd", "../wheels"])
def test_only_below_the_prefix(tmp_path: Path, pattern: str) -> None:
    assert whats(tmp_path, pattern) == [f"{pattern} is not a relative path"]


def test_what_stays_in_the_working_copy(tmp_path: Path) -> None:
    tree = Path(make_component(tmp_path).tree)
    (tree / "build").mkdir(parents=True, exist_ok=True)
    (tree / "build/libarm_compute.so").write_text("content")
    assert whats(tmp_path, f"{tree}/build/libarm_compute.so") == []
    assert whats(tmp_path, f"{tree}/build/other.so") == ["build/other.so is missing"]


def test_a_prefix_that_is_missing(tmp_path: Path) -> None:
    component = make_component(tmp_path, files=("lib/x",))
    Path(component.prefix).rmdir()
    (found,) = check_files(make_subject(component)).findings
    assert component.prefix in found.why


def test_a_prefix_in_a_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    inside = root / str(tmp_path / "prefix").lstrip("/") / "lib"
    inside.mkdir(parents=True)
    (inside / "x").write_text("content")
    assert whats(tmp_path, "lib/x", root=str(root)) == []

"""The fetched release compared with the requested one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.builds.plans import plan_of
from torchyard.builds.lockfile import check_source, upstream_version
from torchyard.builds.plan import Component
from torchyard.builds.recipe import DebianSource, FolderSource, Recipe, SourceTable
from torchyard.errors import StepFailed


@pytest.mark.parametrize(
    ("debian", "upstream"),
    [
        ("2.6.0+dfsg-7", "2.6.0"),
        ("0.3.29+ds-3", "0.3.29"),
        ("0.21.0-3", "0.21.0"),
        ("1:24.11-1", "24.11"),
        ("3.7.2", "3.7.2"),
        ("2.0~rc1-1", "2.0"),
    ],
)
def test_the_projects_own_version(debian: str, upstream: str) -> None:
    assert upstream_version(debian) == upstream


def fetched(folder: Path, *, asked: str, package: str = "1.2.0+ds-1") -> Component:
    """A component whose Debian source lies there as the fetch step leaves it."""
    source = folder / "source"
    (source / "debian").mkdir(parents=True)
    (source / "debian/changelog").write_text(f"thing ({package}) trixie; urgency=medium\n")
    files = folder / "source.files"
    files.mkdir()
    (files / "thing.dsc").write_text(f"Source: thing\nVersion: {package}\n")
    table = SourceTable(debian=DebianSource(package="thing", suite="trixie"))
    part = plan_of(folder).components[0]
    return replace(part, recipe=Recipe(name="thing", version=asked, source=table))


@pytest.mark.parametrize("asked", ["1.2.0", "1.2", "v1.2.0", "", "main"])
def test_the_same_release_or_none(tmp_path: Path, asked: str) -> None:
    check_source(fetched(tmp_path, asked=asked), None)


def test_another_release_is_an_error_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(StepFailed) as caught:
        check_source(fetched(tmp_path, asked="2.13.0"), None)
    assert "release 1.2.0, not 2.13.0 as requested" in caught.value.what
    assert "--set part/version=1.2.0" in caught.value.hint


def test_other_sources_have_no_release_to_check(tmp_path: Path) -> None:
    part = fetched(tmp_path, asked="2.13.0")
    folder = SourceTable(folder=FolderSource(path=str(tmp_path)))
    check_source(replace(part, recipe=replace(part.recipe, source=folder)), None)

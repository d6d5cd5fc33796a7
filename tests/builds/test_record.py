from __future__ import annotations

import json
import os
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.builds.record_samples import make_record
from torchyard.builds.build_folders import BuildsDirectory
from torchyard.builds.record import (
    BuildRecord,
    PackageRecord,
    SourceIdentity,
    TestFileReport,
    find_build,
    freeze_text,
    list_builds,
    read_earlier,
    read_record,
    target_of_build,
    write_record,
)
from torchyard.core.records import decode, encode
from torchyard.errors import MissingTool, NotAllowed, ResultsDamaged, UsageError


@pytest.fixture
def home(tmp_path: Path) -> BuildsDirectory:
    return BuildsDirectory(folder=tmp_path / "yard")


def write(home: BuildsDirectory, name: str = "arm", **changes: Any) -> Path:
    folder = home.builds / name
    write_record(folder, make_record(name=name, **changes))
    return folder


def spoil(folder: Path, **changes: object) -> None:
    path = folder / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def empty_fields(value: object, where: str = "") -> list[str]:
    """Fields at any depth that are as they are by default."""
    if is_dataclass(value) and not isinstance(value, type):
        return [
            name
            for one in fields(value)
            for name in empty_fields(getattr(value, one.name), f"{where}.{one.name}")
        ]
    if isinstance(value, tuple) and value and is_dataclass(value[0]):
        each = [set(empty_fields(item, where)) for item in value]
        return sorted(set.intersection(*each))
    return [] if value or value is False or isinstance(value, float) else [where]


def test_every_field_round_trips(home: BuildsDirectory) -> None:
    record = make_record()
    folder = home.builds / "arm"
    path = write_record(folder, record)
    assert path == folder / "record.json"
    assert read_record(folder) == record


def test_the_sample_fills_nearly_every_field() -> None:
    """Else the round trip would prove little."""
    absent = [".components.source.digest", ".components.source.sha256"]
    assert empty_fields(make_record()) == absent, "no component has every kind of source"


def test_a_field_that_a_later_version_adds_is_skipped(home: BuildsDirectory) -> None:
    folder = write(home)
    spoil(folder, colour="green", recipe={"name": "pytorch", "mood": 3})
    assert read_record(folder).recipe.name == "pytorch"


def test_an_old_record_lacks_fields(home: BuildsDirectory) -> None:
    folder = home.builds / "old"
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(
        '{"record_version": 1, "name": "old", "recipe": {"name": "pytorch"}}'
    )
    assert read_record(folder).components == ()


def test_a_newer_record_is_refused(home: BuildsDirectory) -> None:
    folder = write(home)
    spoil(folder, record_version=99, torchyard="9.0")
    with pytest.raises(
        ResultsDamaged, match=r"record\.json was written by a newer Torchyard \(9\.0\)"
    ):
        read_record(folder)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        "null",
        '{"record_version": "1"}',
        '{"record_version": true}',
        "[" * 100_000,
    ],
)
def test_a_damaged_record_names_its_file(home: BuildsDirectory, text: str) -> None:
    folder = write(home)
    (folder / "record.json").write_text(text)
    with pytest.raises(ResultsDamaged) as caught:
        read_record(folder)
    assert str(folder / "record.json") in caught.value.what
    assert caught.value.hint


def test_a_value_of_the_wrong_kind_is_named(home: BuildsDirectory) -> None:
    folder = write(home)
    spoil(folder, components=[{"name": 7}])
    with pytest.raises(ResultsDamaged) as caught:
        read_record(folder)
    assert "components[0].name" in caught.value.why


def test_a_build_that_never_finished(home: BuildsDirectory) -> None:
    folder = home.builds / "half"
    folder.mkdir(parents=True)
    with pytest.raises(UsageError, match="is not a finished build"):
        read_record(folder)
    assert read_earlier(folder) is None


def test_a_write_leaves_no_half_file(home: BuildsDirectory) -> None:
    folder = write(home)
    write(home)
    assert [path.name for path in folder.iterdir()] == ["record.json"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(home: BuildsDirectory) -> None:
    folder = write(home)
    folder.chmod(0o500)
    try:
        with pytest.raises(NotAllowed):
            write(home)
    finally:
        folder.chmod(0o700)
    assert read_record(folder).name == "arm"


def test_listing_shows_damaged_and_unfinished_builds_too(home: BuildsDirectory) -> None:
    assert list_builds(home) == ()
    write(home, "good")
    (write(home, "spoilt") / "record.json").write_text("{")
    (home.builds / "half").mkdir()
    (home.builds / ".removed-1").mkdir()
    (home.builds / "file").write_text("")
    found = {
        entry.name: (entry.record is not None, bool(entry.problem)) for entry in list_builds(home)
    }
    assert found == {"good": (True, False), "half": (False, False), "spoilt": (False, True)}


def test_finding_by_name_and_by_folder(
    home: BuildsDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(home)
    for text in ("arm", str(folder)):
        found = find_build(text, home)
        assert found.record is not None
        assert found.folder == folder
    monkeypatch.chdir(folder.parent)
    assert find_build("./arm", home).folder == folder
    monkeypatch.chdir(folder)
    assert find_build(".", home).name == "arm"


def test_a_name_that_is_not_there_offers_the_nearest(home: BuildsDirectory) -> None:
    write(home)
    with pytest.raises(UsageError) as caught:
        find_build("amr", home)
    assert "did you mean 'arm'?" in caught.value.hint


@pytest.mark.parametrize("name", ["", "-x", "a b", "é"])
def test_odd_names_are_refused(home: BuildsDirectory, name: str) -> None:
    with pytest.raises(UsageError):
        find_build(name, home)


def test_a_build_as_a_target(home: BuildsDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home, python=sys.executable)
    target = target_of_build("arm", home)
    assert (target.name, target.python) == ("arm", sys.executable)
    assert target.variables == (("LD_LIBRARY_PATH", "/builds/arm/prefix/lib"),)
    monkeypatch.setenv("TORCHYARD_HOME", str(home.folder))
    assert target_of_build("arm") == target


def test_a_build_of_libraries_is_no_target(home: BuildsDirectory) -> None:
    write(home, python="")
    with pytest.raises(UsageError, match="has no interpreter"):
        target_of_build("arm", home)


def test_an_interpreter_that_is_gone(home: BuildsDirectory) -> None:
    write(home)
    with pytest.raises(MissingTool) as caught:
        target_of_build("arm", home)
    assert caught.value.hint == "torchyard build arm-stack --name arm"


def test_freeze_text_in_pip_s_form() -> None:
    assert freeze_text(make_record()).splitlines() == [
        "numpy==2.1.0",
        "PyYAML==6.0.2",
        "pip==25.0",
        "torch @ file:///home/torch-2.6.0.whl",
        "six==1.16.0  # seen in /usr/lib/python3/dist-packages",
    ]


@pytest.mark.parametrize(
    ("origin", "kept"),
    [
        ("https://me:secret@git.example/a/b.git", "https://git.example/a/b.git"),
        ("https://token@git.example:8443/a", "https://git.example:8443/a"),
        ("https://files.example/a.tar.gz?X-Signature=secret&y=1", "https://files.example/a.tar.gz"),
        ("git@git.example:a/b.git", "git@git.example:a/b.git"),
        ("/home/me/pytorch", "/home/me/pytorch"),
        ("debian:trixie/pytorch", "debian:trixie/pytorch"),
        ("file:///home/me/x.whl", "file:///home/me/x.whl"),
    ],
)
def test_no_secret_gets_into_a_record(origin: str, kept: str) -> None:
    assert SourceIdentity(kind="git", origin=origin).origin == kept
    assert PackageRecord(name="a", version="1", origin=origin).origin == kept


def test_reports_and_accounts_say_whether_they_are_good() -> None:
    record = decode(BuildRecord, encode(make_record()), where="", strict=True)
    report = record.components[1].verified
    assert report is not None
    assert report.good, "a warning is no failure"
    known = TestFileReport(path="test/test_nn.py", passed=2500, failed=2, known_failures=("a", "b"))
    assert known.good, "only known failures"

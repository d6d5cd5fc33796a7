from __future__ import annotations

import hashlib
import io
import os
import shutil
import stat
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.builds.sources.fetching import CommandFailed, Place
from tests.builds.sources.file_server import FileServer, Reply
from torchyard.builds.recipe import SourceTable, TarballSource
from torchyard.errors import StepFailed

needs_unzip = pytest.mark.skipif(shutil.which("unzip") is None, reason="needs unzip")


def source(archive: Path, *, strip: int = 1, url: str = "") -> SourceTable:
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    return SourceTable(tarball=TarballSource(url=url or str(archive), sha256=sha256, strip=strip))


def project(folder: Path) -> Path:
    tree = folder / "project-1.0"
    (tree / "sub folder").mkdir(parents=True)
    (tree / "readme").write_text("hello", encoding="utf-8")
    (tree / "sub folder" / "ärger").write_text("x", encoding="utf-8")
    (tree / "run").write_text("#!/bin/sh\n", encoding="utf-8")
    (tree / "run").chmod(0o755)
    (tree / "link").symlink_to("readme")
    return tree


def make_tar(path: Path, *members: tuple[str, str | None]) -> Path:
    """Members by name; with a target they are symbolic links."""
    with tarfile.open(path, "w") as archive:
        for name, target in members:
            member = tarfile.TarInfo(name)
            if target is None:
                member.size = 4
                archive.addfile(member, io.BytesIO(b"evil"))
            else:
                member.type, member.linkname = tarfile.SYMTYPE, target
                archive.addfile(member)
    return path


def make_zip(path: Path, *members: tuple[str, str | None]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, target in members:
            member = zipfile.ZipInfo(name)
            if target is not None:
                member.create_system = 3
                member.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(member, target or "evil")
    return path


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tar.xz", "tar.bz2", "tar.zst"])
def test_every_compression(tmp_path: Path, place: Place, suffix: str) -> None:
    project(tmp_path)
    archive = tmp_path / f"project-1.0.{suffix}"
    program = {"gz": "gzip", "xz": "xz", "bz2": "bzip2", "zst": "zstd"}.get(suffix[4:], "tar")
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")
    subprocess.run(("tar", "-caf", archive, "-C", tmp_path, "project-1.0"), check=True)
    place.fetch(source(archive))
    assert (place.destination / "readme").read_text(encoding="utf-8") == "hello"
    assert (place.destination / "sub folder" / "ärger").exists()
    assert os.access(place.destination / "run", os.X_OK)
    assert (place.destination / "link").readlink() == Path("readme")
    assert sorted(place.destination.parent.iterdir()) == [place.destination]


@needs_unzip
def test_zip_keeps_links_and_permissions(tmp_path: Path, place: Place) -> None:
    tree = project(tmp_path)
    archive = tmp_path / "project.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(tree.rglob("*")):
            if not path.is_symlink():
                file.write(path, path.relative_to(tmp_path))
        link = zipfile.ZipInfo("project-1.0/link")
        link.create_system = 3
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        file.writestr(link, "readme")
    place.fetch(source(archive))
    assert (place.destination / "readme").read_text(encoding="utf-8") == "hello"
    assert (place.destination / "sub folder" / "ärger").exists()
    assert os.access(place.destination / "run", os.X_OK)
    assert (place.destination / "link").readlink() == Path("readme")


def test_the_kind_is_detected_from_the_content(tmp_path: Path, place: Place) -> None:
    project(tmp_path)
    archive = tmp_path / "v1.0"
    subprocess.run(("tar", "-czf", archive, "-C", tmp_path, "project-1.0"), check=True)
    place.fetch(source(archive))
    assert (place.destination / "readme").exists()


@pytest.mark.parametrize("kind", ["tar", pytest.param("zip", marks=needs_unzip)])
@pytest.mark.parametrize(("strip", "found"), [(0, "a/b/c"), (1, "b/c"), (2, "c")])
def test_leading_folders_are_dropped(
    tmp_path: Path, place: Place, kind: str, strip: int, found: str
) -> None:
    make = make_tar if kind == "tar" else make_zip
    archive = make(tmp_path / f"x.{kind}", ("a/b/c", None), ("a/b/d", None))
    place.fetch(source(archive, strip=strip))
    assert (place.destination / found).is_file()


@pytest.mark.parametrize("kind", ["tar", pytest.param("zip", marks=needs_unzip)])
def test_an_archive_that_is_empty_after_dropping(tmp_path: Path, place: Place, kind: str) -> None:
    make = make_tar if kind == "tar" else make_zip
    with pytest.raises(CommandFailed, match="is empty below 3 leading"):
        place.fetch(source(make(tmp_path / f"x.{kind}", ("a/b", None)), strip=3))
    assert not place.destination.exists()


@pytest.mark.parametrize("kind", ["tar", pytest.param("zip", marks=needs_unzip)])
@pytest.mark.parametrize("name", ["../../escaped", "p/../../../escaped", "/ABSOLUTE", "p/.."])
def test_members_that_lead_out_are_refused_before_anything_is_unpacked(
    tmp_path: Path, place: Place, kind: str, name: str
) -> None:
    make = make_tar if kind == "tar" else make_zip
    name = name.replace("/ABSOLUTE", str(tmp_path / "escaped"))
    archive = make(tmp_path / f"x.{kind}", ("p/good", None), (name, None))
    with pytest.raises(CommandFailed) as caught:
        place.fetch(source(archive))
    assert "lead out of its folder" in str(caught.value)
    assert name in str(caught.value)
    assert not place.destination.exists()
    assert not (place.part / "tree").exists()
    assert not list(tmp_path.rglob("escaped"))


@pytest.mark.parametrize("kind", ["tar", pytest.param("zip", marks=needs_unzip)])
def test_writing_through_a_link_that_leads_out_fails(
    tmp_path: Path, place: Place, kind: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    make = make_tar if kind == "tar" else make_zip
    archive = make(tmp_path / f"x.{kind}", ("p/link", str(outside)), ("p/link/escaped", None))
    with pytest.raises(CommandFailed):
        place.fetch(source(archive))
    assert list(outside.iterdir()) == []
    assert not place.destination.exists()


def test_backslashes_do_not_lead_out_either(tmp_path: Path, place: Place) -> None:
    archive = make_tar(tmp_path / "x.tar", ("p\\..\\..\\escaped", None))
    with pytest.raises(CommandFailed, match="lead out"):
        place.fetch(source(archive, strip=0))


@pytest.mark.parametrize("content", [b"<html>not found</html>", b"", b"PK\x03\x04 broken"])
def test_files_that_are_not_archives(tmp_path: Path, place: Place, content: bytes) -> None:
    archive = tmp_path / "x.tar.gz"
    archive.write_bytes(content)
    with pytest.raises(
        CommandFailed, match=r"cannot be read: it is damaged, or no archive|is empty"
    ):
        place.fetch(source(archive))
    assert not place.destination.exists()


def test_a_truncated_archive_is_refused(tmp_path: Path, place: Place) -> None:
    project(tmp_path)
    whole = tmp_path / "whole.tar.gz"
    subprocess.run(("tar", "-czf", whole, "-C", tmp_path, "project-1.0"), check=True)
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(whole.read_bytes()[:-40])
    with pytest.raises(CommandFailed, match="damaged"):
        place.fetch(source(cut))


def test_over_http_and_again_without_asking(
    tmp_path: Path, place: Place, server: FileServer
) -> None:
    archive = make_tar(tmp_path / "x.tar", ("p/file", None))
    server.replies["/x.tar"] = Reply(archive.read_bytes())
    wanted = source(archive, url=f"{server.address}/x.tar?key=s3cret")
    place.fetch(wanted)
    place.fetch(wanted)
    assert len(server.requests) == 1
    identity = place.identity(wanted)
    assert wanted.tarball is not None
    assert identity.sha256 == wanted.tarball.sha256
    assert identity.origin == f"{server.address}/x.tar"


def test_a_wrong_checksum_leaves_the_earlier_source_and_no_archive(
    tmp_path: Path, place: Place
) -> None:
    archive = make_tar(tmp_path / "x.tar", ("p/file", None))
    place.fetch(source(archive))
    wrong = SourceTable(tarball=TarballSource(url=str(archive), sha256="f" * 64))
    with pytest.raises(StepFailed, match="wrong checksum") as caught:
        place.fetch(wrong)
    assert "f" * 64 in caught.value.why
    assert (place.destination / "file").exists()
    assert not [path for path in place.downloads.rglob("*") if "ffff" in path.name]


def test_checksums_may_be_written_in_capitals(tmp_path: Path, place: Place) -> None:
    archive = make_tar(tmp_path / "x.tar", ("p/file", None))
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest().upper()
    place.fetch(SourceTable(tarball=TarballSource(url=str(archive), sha256=f"sha256:{sha256}")))
    assert (place.destination / "file").exists()


def test_a_relative_path_is_made_absolute(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = make_tar(tmp_path / "x.tar", ("p/file", None))
    monkeypatch.chdir(tmp_path)
    place.fetch(source(archive, url="./x.tar"))
    assert (place.destination / "file").exists()


def test_names_are_quoted(tmp_path: Path, place: Place) -> None:
    trap = tmp_path / "trapped"
    archive = make_tar(tmp_path / f"$(touch trapped) '; touch {trap.name}'.tar", ("p/f", None))
    place.fetch(source(archive))
    assert (place.destination / "f").exists()
    assert not list(tmp_path.rglob("trapped"))


def test_setuid_and_owner_are_not_taken_over(tmp_path: Path, place: Place) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("p/program")
        member.mode, member.uid, member.gid = 0o4777, 12345, 12345
        archive.addfile(member)
    place.fetch(source(path))
    status = (place.destination / "program").stat()
    assert status.st_uid == os.geteuid()
    assert not status.st_mode & stat.S_ISUID


def test_update_has_nothing_to_do(tmp_path: Path, place: Place) -> None:
    archive = make_tar(tmp_path / "x.tar", ("p/file", None))
    plan = place.plan_update(source(archive))
    assert plan.actions == ()
    assert "nothing to update" in plan.summary


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_devices_and_fifos_are_refused_before_anything_is_unpacked(
    tmp_path: Path, place: Place, kind: bytes
) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w:gz") as archive:
        good = tarfile.TarInfo("p/good")
        archive.addfile(good, io.BytesIO(b""))
        device = tarfile.TarInfo("p/a name\nof two lines")
        device.type, device.devmajor, device.devminor = kind, 1, 3
        archive.addfile(device)
    with pytest.raises(CommandFailed, match="has devices or FIFOs"):
        place.fetch(source(path))
    assert not place.destination.exists()


@pytest.mark.parametrize(
    "records",
    [b"x path=p/x\n", b"0 path=p/x\n", b"999999999 path=p/x\n", b"\0" * 512, b"9 size=zz\n"],
)
def test_broken_extra_headers_end_in_a_tree_or_an_error(
    tmp_path: Path, place: Place, records: bytes
) -> None:
    extra = tarfile.TarInfo("PaxHeaders/x")
    extra.type, extra.size = tarfile.XHDTYPE, len(records)
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("p/good"), io.BytesIO(b""))
    path = tmp_path / "x.tar"
    header = extra.tobuf(tarfile.USTAR_FORMAT) + records + b"\0" * (-len(records) % 512)
    path.write_bytes(header + plain.getvalue())
    try:
        place.fetch(source(path))
    except CommandFailed:
        assert not place.destination.exists()
    else:
        assert [entry.name for entry in place.destination.iterdir()] == ["good"]

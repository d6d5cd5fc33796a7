from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.builds.sources.debian_archive import DebianArchive, make_machine
from tests.builds.sources.fetching import CommandFailed, Place
from tests.builds.sources.file_server import FileServer
from torchyard.builds.plan import AptSources
from torchyard.builds.recipe import DebianSource, SourceTable
from torchyard.builds.running.steps import perform_fetch
from torchyard.errors import MissingTool, UsageError

_TOOLS = ("apt-get", "apt-config", "dpkg-source", "dpkg-scansources")
needs_apt = pytest.mark.skipif(
    not all(map(shutil.which, _TOOLS)), reason=f"needs {', '.join(_TOOLS)}"
)


def source(**fields: object) -> SourceTable:
    table = DebianSource(package="project", suite="there", **fields)  # type: ignore[arg-type]
    return SourceTable(debian=table)


@pytest.fixture
def archive(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DebianArchive:
    made = DebianArchive(server, tmp_path / "archive")
    made.publish("there", "project", "1:2.6.0+dfsg-7")
    configuration = make_machine(tmp_path / "machine", made, own_suite="here")
    monkeypatch.setenv("APT_CONFIG", str(configuration))
    return made


@needs_apt
def test_a_whole_package_of_a_suite_that_the_machine_does_not_list(
    archive: DebianArchive, place: Place, tmp_path: Path
) -> None:
    place.fetch(source())
    assert (place.destination / "file").read_text(encoding="utf-8") == "patched\n"
    assert (place.destination / "extra" / "part").exists()
    identity = place.identity(source())
    assert identity.version == "1:2.6.0+dfsg-7"
    assert identity.patches == ("fix.patch",)
    assert identity.origin == "debian:there/project"
    pool = archive.folder / "pool" / "there" / "project"
    assert identity.files == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in pool.iterdir()
        if path.is_file()
    }
    assert any(name.endswith(".dsc") for name in identity.files)
    assert not place.part.exists()
    assert not (tmp_path / "machine" / "hook ran").exists(), "hooks of the machine are its own"
    lists = tmp_path / "machine" / "state" / "lists"
    assert [path.name for path in lists.iterdir()] == ["partial"]


@needs_apt
def test_the_upstream_archive_only(archive: DebianArchive, place: Place) -> None:
    # As mirrors have it: the packaging is gone, the upstream archive is there.
    archive.withdraw("project_2.6.0+dfsg-7.debian.tar.xz")
    archive.withdraw("project_2.6.0+dfsg-7.dsc")
    wanted = source(upstream_only=True)
    place.fetch(wanted)
    assert (place.destination / "file").read_text(encoding="utf-8") == "upstream\n"
    assert (place.destination / "extra" / "part").exists()
    assert not (place.destination / "debian").exists()
    identity = place.identity(wanted)
    assert identity.version == "1:2.6.0+dfsg-7", "for the lock it must be apt's version"
    assert set(identity.files) == {
        "project_2.6.0+dfsg.orig.tar.gz",
        "project_2.6.0+dfsg.orig-extra.tar.gz",
    }


@needs_apt
def test_a_missing_file_on_the_mirror_is_an_error_with_a_hint(
    archive: DebianArchive, place: Place
) -> None:
    archive.withdraw("project_2.6.0+dfsg-7.debian.tar.xz")
    with pytest.raises(CommandFailed) as caught:
        place.fetch(source())
    last = str(caught.value).splitlines()[-1]
    assert last.startswith("the mirror lists project_2.6.0+dfsg-7.debian.tar.xz and does not have")
    assert "upstream_only" in last
    assert not place.destination.exists()
    # A second attempt starts afresh and says the same.
    with pytest.raises(CommandFailed, match="does not have it"):
        place.fetch(source())


@needs_apt
def test_a_file_of_another_content_is_refused_by_its_checksum(
    archive: DebianArchive, place: Place
) -> None:
    path = "/debian/pool/there/project/project_2.6.0+dfsg.orig.tar.gz"
    reply = archive.server.replies[path]
    reply.body = reply.body[:-1] + bytes([reply.body[-1] ^ 1])
    with pytest.raises(CommandFailed, match="Hash Sum mismatch"):
        place.fetch(source())
    assert not place.destination.exists()


@needs_apt
def test_a_package_that_the_suite_does_not_have(archive: DebianArchive, place: Place) -> None:
    unknown = SourceTable(debian=DebianSource(package="projekt", suite="there"))
    with pytest.raises(CommandFailed) as caught:
        place.fetch(unknown)
    assert "no source package projekt in there: correct source.debian.package" in str(caught.value)


@needs_apt
def test_a_version_that_the_suite_does_not_have(archive: DebianArchive, place: Place) -> None:
    with pytest.raises(CommandFailed, match=r"9\.9"):
        place.fetch(source(version="9.9-1"))
    place.fetch(source(version="1:2.6.0+dfsg-7"))
    assert place.identity(source()).version == "1:2.6.0+dfsg-7"


@needs_apt
def test_a_suite_that_the_mirror_does_not_have(archive: DebianArchive, place: Place) -> None:
    nowhere = SourceTable(debian=DebianSource(package="project", suite="nowhere"))
    with pytest.raises(CommandFailed, match=r"nowhere.*404"):
        place.fetch(nowhere)


@needs_apt
def test_update_takes_the_newest(archive: DebianArchive, place: Place) -> None:
    place.fetch(source())
    for path in [path for path in archive.server.replies if "/there/" in path]:
        del archive.server.replies[path]
    shutil.rmtree(archive.folder)
    archive.publish("there", "project", "2.7.0-1")
    place.update(source())
    assert place.identity(source()).version == "2.7.0-1"
    assert place.plan_update(source(version="2.7.0-1")).actions == ()


@needs_apt
def test_the_private_configuration_is_complete(
    archive: DebianArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.invalid:3128")
    folder = tmp_path / "private"
    perform_fetch(AptSources(folder=str(folder), suite="there"), progress=lambda _: None)
    option = "[trusted=yes check-valid-until=no]"
    assert (folder / "sources.list").read_text(encoding="utf-8").splitlines() == [
        f"deb {option} {archive.uri} there main",
        f"deb-src {option} {archive.uri} there main",
    ]
    dump = subprocess.run(
        ("apt-config", "-c", str(folder / "apt.conf"), "dump"),
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert 'Acquire::http::Proxy "http://proxy.invalid:3128";' in dump
    assert 'Acquire::Retries "0";' in dump
    assert 'APT::Sandbox::User "root";' in dump
    assert "hook ran" not in dump
    machine = str(tmp_path / "machine")
    places = [line for line in dump.splitlines() if line.startswith(("Dir::State", "Dir::Cache"))]
    assert places
    assert not [line for line in places if machine in line]
    assert (folder / "apt.conf").stat().st_mode & 0o777 == 0o600
    # Once more, and without source packages.
    action = AptSources(folder=str(folder), suite="there", sources=False)
    perform_fetch(action, progress=lambda _: None)
    assert "deb-src" not in (folder / "sources.list").read_text(encoding="utf-8")


@needs_apt
def test_a_machine_without_a_mirror(
    archive: DebianArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "machine" / "etc" / "sources.list.d" / "debian.sources").unlink()
    with pytest.raises(UsageError) as caught:
        perform_fetch(
            AptSources(folder=str(tmp_path / "p"), suite="there"), progress=lambda _: None
        )
    assert "no Debian mirror for suite 'there'" in caught.value.what
    assert "sources.list" in caught.value.hint


def test_a_machine_without_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingTool) as caught:
        perform_fetch(
            AptSources(folder=str(tmp_path / "p"), suite="there"), progress=lambda _: None
        )
    assert "apt-get" in caught.value.what
    assert "source.use" in caught.value.hint


def test_a_path_that_apt_cannot_write(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot hold an apt configuration"):
        perform_fetch(AptSources(folder=f'{tmp_path}/"', suite="x"), progress=lambda _: None)


def test_packages_fetch_side_by_side(place: Place) -> None:
    """They share no state: apt locks it."""
    folders = {
        action.folder
        for package in ("one-package", "two-package")
        for action in place.plan(
            SourceTable(debian=DebianSource(package=package, suite="there"))
        ).actions
        if isinstance(action, AptSources)
    }
    assert len(folders) == 2


@pytest.mark.slow
@needs_apt
def test_a_real_package_from_the_machines_own_mirror(place: Place) -> None:
    wanted = SourceTable(debian=DebianSource(package="openblas", suite="trixie"))
    try:
        place.fetch(wanted)
    except CommandFailed as error:
        if "resolve" in str(error) or "connect" in str(error):
            pytest.skip("no mirror can be reached here")
        raise
    assert (place.destination / "cblas.h").exists()
    identity = place.identity(wanted)
    assert identity.version.startswith("0.3.29")
    assert any(name.endswith(".dsc") for name in identity.files)
    assert "no-embedded-lapack.patch" in identity.patches

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builds.sources.fetching import CommandFailed, Place
from tests.builds.sources.file_server import FileServer, Reply
from torchyard.builds.plan import SdistDownload
from torchyard.builds.recipe import SdistSource, SourceTable
from torchyard.builds.sources import package_index
from torchyard.builds.sources.download import TransferSettings
from torchyard.builds.sources.package_index import PipSettings, read_pip_settings
from torchyard.errors import MissingTool, StepFailed, UsageError


def sdist(folder: str = "my_package-1.2.0") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member = tarfile.TarInfo(f"{folder}/pyproject.toml")
        member.size = 5
        archive.addfile(member, io.BytesIO(b"hello"))
    return buffer.getvalue()


BODY = sdist()
SHA256 = hashlib.sha256(BODY).hexdigest()
PAGE = """<!DOCTYPE html><html><head><title>Links</title></head><body>
<a href="../../files/my_package-1.2.0-py3-none-any.whl#sha256=00">wheel</a><br/>
<a href="../../files/my_package-1.1.0.tar.gz#sha256=00">old</a>
<a data-requires-python="&gt;=3.9" href="../../files/my_package-1.2.0.tar.gz#sha256={sha256}">x</a>
</body></html>"""


@pytest.fixture
def index(server: FileServer) -> FileServer:
    """An index with one package, as HTML."""
    page = PAGE.format(sha256=SHA256).encode()
    server.replies["/simple/my-package/"] = Reply(page, kind="text/html")
    server.replies["/files/my_package-1.2.0.tar.gz"] = Reply(BODY)
    return server


@pytest.fixture
def clean_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No settings of this machine; the file that pip reads is returned."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    file = tmp_path / "pip.conf"
    file.touch()
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    return file


def settings(*indexes: str, find_links: tuple[str, ...] = ()) -> PipSettings:
    return PipSettings(indexes=indexes, find_links=find_links, transfer=TransferSettings())


def action(
    path: Path, *, version: str = "1.2.0", name: str = "My.Package", sha256: str = ""
) -> SdistDownload:
    return SdistDownload(name=name, version=version, path=str(path), sha256=sha256)


def fetch(wanted: SdistDownload, where: PipSettings) -> list[str]:
    said: list[str] = []
    package_index.fetch_sdist(wanted, where, progress=said.append)
    return said


def test_an_sdist_through_the_configuration_of_pip(
    index: FileServer, place: Place, clean_pip: Path
) -> None:
    clean_pip.write_text(f"[global]\nindex-url = {index.address}/simple\n", encoding="utf-8")
    wanted = SourceTable(sdist=SdistSource(name="My.Package", version="1.2"))
    place.fetch(wanted)
    assert (place.destination / "pyproject.toml").read_text(encoding="utf-8") == "hello"
    identity = place.identity(wanted)
    assert (identity.kind, identity.version, identity.sha256) == ("sdist", "1.2", SHA256)
    assert identity.origin == "sdist:My.Package"
    assert not place.part.exists()
    assert place.plan_update(wanted).actions == ()


def test_a_json_index(server: FileServer, tmp_path: Path) -> None:
    body = {
        "meta": {"api-version": "1.0"},
        "name": "my-package",
        "files": [
            {"filename": "my_package-1.2.0-py3-none-any.whl", "url": "w.whl", "hashes": {}},
            {
                "filename": "my_package-1.2.0.tar.gz",
                "url": "/files/x.tar.gz",
                "hashes": {"sha256": SHA256},
                "yanked": "broken",
            },
        ],
    }
    server.replies["/simple/my-package/"] = Reply(
        json.dumps(body).encode(), kind="application/vnd.pypi.simple.v1+json"
    )
    server.replies["/files/x.tar.gz"] = Reply(BODY)
    said = fetch(action(tmp_path / "x"), settings(f"{server.address}/simple/"))
    assert (tmp_path / "x").read_bytes() == BODY
    assert "json" in server.asked("/simple/my-package/")[0]["accept"]
    assert any("yanked" in line for line in said)


def test_json_of_another_form(server: FileServer, tmp_path: Path) -> None:
    server.replies["/simple/my-package/"] = Reply(
        b'{"releases": {}}', kind="application/vnd.pypi.simple.v1+json"
    )
    with pytest.raises(StepFailed, match="is not a page of a package index"):
        fetch(action(tmp_path / "x"), settings(f"{server.address}/simple"))


def test_the_index_has_another_file_than_it_says(index: FileServer, tmp_path: Path) -> None:
    index.replies["/files/my_package-1.2.0.tar.gz"] = Reply(b"something else")
    with pytest.raises(StepFailed, match="wrong checksum") as caught:
        fetch(action(tmp_path / "x"), settings(f"{index.address}/simple"))
    assert SHA256 in caught.value.why
    assert list(tmp_path.iterdir()) == []


def test_the_recipe_wants_another_file_than_the_index_has(
    index: FileServer, tmp_path: Path
) -> None:
    with pytest.raises(StepFailed, match="wrong checksum") as caught:
        fetch(action(tmp_path / "x", sha256="e" * 64), settings(f"{index.address}/simple"))
    assert "e" * 64 in caught.value.why
    assert SHA256 in caught.value.why
    assert not index.asked("/files/my_package-1.2.0.tar.gz"), "not even downloaded"


def test_another_release_names_those_there_are(index: FileServer, tmp_path: Path) -> None:
    with pytest.raises(StepFailed) as caught:
        fetch(action(tmp_path / "x", version="9.9"), settings(f"{index.address}/simple"))
    assert "no source distribution of My.Package 9.9" in caught.value.what
    assert "1.2.0, 1.1.0" in caught.value.why
    assert "source.sdist.version" in caught.value.hint


def test_a_package_with_wheels_only(index: FileServer, tmp_path: Path) -> None:
    page = b'<a href="my_package-1.2.0-py3-none-any.whl">x</a>'
    index.replies["/simple/my-package/"] = Reply(page, kind="text/html")
    with pytest.raises(StepFailed) as caught:
        fetch(action(tmp_path / "x"), settings(f"{index.address}/simple"))
    assert "no release has one" in caught.value.why


def test_a_version_is_not_taken_for_a_longer_one_nor_a_name(
    index: FileServer, tmp_path: Path
) -> None:
    page = b'<a href="my_package-1.2.0.post1.tar.gz">x</a><a href="my_package_more-1.2.0.tar.gz">'
    index.replies["/simple/my-package/"] = Reply(page, kind="text/html")
    with pytest.raises(StepFailed) as caught:
        fetch(action(tmp_path / "x"), settings(f"{index.address}/simple"))
    assert "1.2.0.post1" in caught.value.why


def test_the_next_index_is_asked_when_one_does_not_know_the_package(
    index: FileServer, tmp_path: Path
) -> None:
    fetch(action(tmp_path / "x"), settings(f"{index.address}/empty", f"{index.address}/simple"))
    assert (tmp_path / "x").read_bytes() == BODY


def test_an_index_that_fails_is_an_error_and_not_skipped(index: FileServer, tmp_path: Path) -> None:
    index.replies["/bad/my-package/"] = Reply(status=500)
    with pytest.raises(StepFailed, match="cannot fetch"):
        fetch(action(tmp_path / "x"), settings(f"{index.address}/bad", f"{index.address}/simple"))


def test_logins_of_the_index_are_used_and_never_shown(index: FileServer, tmp_path: Path) -> None:
    for reply in index.replies.values():
        reply.login = "ann:s3cret"
    address = index.address.replace("://", "://ann:s3cret@")
    said = fetch(action(tmp_path / "x"), settings(f"{address}/nothing", f"{address}/simple"))
    assert (tmp_path / "x").read_bytes() == BODY
    assert "s3cret" not in "".join(said)
    wrong = address.replace("s3cret", "wr0ng")
    with pytest.raises(StepFailed) as caught:
        fetch(action(tmp_path / "y"), settings(f"{wrong}/simple"))
    error = caught.value
    assert "401" in error.why
    assert "wr0ng" not in error.what + error.why + error.hint
    with pytest.raises(StepFailed) as caught:
        fetch(action(tmp_path / "y", version="3"), settings(f"{address}/simple"))
    error = caught.value
    assert "s3cret" not in error.what + error.why + error.hint


def test_a_login_is_not_sent_to_the_host_that_keeps_the_files(
    index: FileServer, tmp_path: Path
) -> None:
    elsewhere = index.address.replace("127.0.0.1", "localhost")
    page = f'<a href="{elsewhere}/files/my_package-1.2.0.tar.gz#sha256={SHA256}">x</a>'
    index.replies["/simple/my-package/"] = Reply(
        page.encode(), kind="text/html", login="ann:s3cret"
    )
    address = index.address.replace("://", "://ann:s3cret@")
    fetch(action(tmp_path / "x"), settings(f"{address}/simple"))
    login = "Basic " + base64.b64encode(b"ann:s3cret").decode()
    assert index.asked("/simple/my-package/")[-1]["authorization"] == login
    assert "authorization" not in index.asked("/files/my_package-1.2.0.tar.gz")[0]


def test_a_base_element_and_a_redirect(index: FileServer, tmp_path: Path) -> None:
    page = b'<base href="/files/"><a href="my_package-1.2.0.tar.gz">x</a>'
    index.replies["/moved/my-package/"] = Reply(page, kind="text/html")
    index.replies["/simple/my-package/"] = Reply(status=301, location="/moved/my-package/")
    said = fetch(action(tmp_path / "x"), settings(f"{index.address}/simple"))
    assert (tmp_path / "x").read_bytes() == BODY
    assert any(f"no checksum; sha256 is {SHA256}" in line for line in said)


@pytest.mark.parametrize("form", ["folder", "file address", "page", "index on disk"])
def test_links_on_this_machine(tmp_path: Path, form: str) -> None:
    links = tmp_path / "links" / "my-package"
    links.mkdir(parents=True)
    (links / "my_package-1.2.0.tar.gz").write_bytes(BODY)
    page = f'<a href="my_package-1.2.0.tar.gz#sha256={SHA256}">x</a>'
    if form == "index on disk":
        (links / "index.html").write_text(page, encoding="utf-8")
        where = settings((tmp_path / "links").as_uri())
    elif form == "page":
        (links / "page.html").write_text(page, encoding="utf-8")
        where = settings(find_links=(str(links / "page.html"),))
    else:
        found = links.as_uri() if form == "file address" else str(links)
        where = settings(find_links=(found,))
    fetch(action(tmp_path / "x"), where)
    assert (tmp_path / "x").read_bytes() == BODY


def test_a_zip_is_unpacked_too(tmp_path: Path, place: Place, clean_pip: Path) -> None:
    if shutil.which("unzip") is None:
        pytest.skip("needs unzip")
    links = tmp_path / "links"
    links.mkdir()
    with zipfile.ZipFile(links / "my_package-1.2.0.zip", "w") as archive:
        archive.writestr("my_package-1.2.0/setup.py", "x")
    clean_pip.write_text(f"[global]\nno-index = true\nfind-links = {links}\n", encoding="utf-8")
    place.fetch(SourceTable(sdist=SdistSource(name="my-package", version="1.2.0")))
    assert (place.destination / "setup.py").exists()


def test_an_sdist_that_leads_out(tmp_path: Path, place: Place, clean_pip: Path) -> None:
    links = tmp_path / "links"
    links.mkdir()
    (links / "my_package-1.2.0.tar.gz").write_bytes(sdist("my_package-1.2.0/../../.."))
    clean_pip.write_text(f"[global]\nno-index = true\nfind-links = {links}\n", encoding="utf-8")
    with pytest.raises(CommandFailed, match="lead out of its folder"):
        place.fetch(SourceTable(sdist=SdistSource(name="my-package", version="1.2.0")))


def test_pips_own_settings(clean_pip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clean_pip.write_text(
        "[global]\nindex-url = https://one.invalid/simple\n"
        "extra-index-url =\n  https://two.invalid/simple\n  https://three.invalid/simple\n"
        "trusted-host = two.invalid\ncert = /etc/our.pem\nproxy = http://proxy.invalid:3128\n",
        encoding="utf-8",
    )
    found = read_pip_settings()
    assert found.indexes == tuple(f"https://{n}.invalid/simple" for n in ("one", "two", "three"))
    assert found.transfer.trusted_hosts == ("two.invalid",)
    assert found.transfer.ca_file == "/etc/our.pem"
    assert found.transfer.proxy == "http://proxy.invalid:3128"
    monkeypatch.setenv("PIP_INDEX_URL", "https://four.invalid/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", "/a /b")
    found = read_pip_settings()
    assert found.indexes[0] == "https://four.invalid/simple"
    assert found.find_links == ("/a", "/b")


def test_without_an_index_the_default_of_pip_is_asked(clean_pip: Path) -> None:
    (index,) = read_pip_settings().indexes
    assert index.startswith("https://")
    assert index.endswith("/simple")


def test_a_machine_without_pip(
    clean_pip: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingTool, match="pip"):
        read_pip_settings()


def test_pip_of_the_path_when_this_interpreter_has_none(
    clean_pip: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "pip3"
    fake.write_text(
        "#!/bin/sh\necho \"global.index-url='https://x.invalid/s'\"\n", encoding="utf-8"
    )
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_pip_settings().indexes == ("https://x.invalid/s",)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"name": "../x"}, "source.sdist.name"),
        ({"version": ">=1"}, "source.sdist.version"),
        ({"version": ""}, "source.sdist.version"),
        ({"sha256": "12"}, "source.sdist.sha256"),
    ],
)
def test_values_that_cannot_be_right(change: dict[str, str], key: str, place: Place) -> None:
    table = replace(SdistSource(name="a", version="1"), **change)
    with pytest.raises(UsageError) as caught:
        place.plan(SourceTable(sdist=table))
    assert key in caught.value.what


@pytest.mark.slow
def test_a_real_release_from_the_configured_index(place: Place) -> None:
    wanted = SourceTable(sdist=SdistSource(name="deepwave", version="0.1.0"))
    try:
        place.fetch(wanted)
    except StepFailed as error:
        if "the server responded with" in error.why or "no source distribution" in error.what:
            raise
        pytest.skip(f"no network here: {error.why}")
    assert "scikit_build_core" in (place.destination / "pyproject.toml").read_text(encoding="utf-8")
    assert len(place.identity(wanted).sha256) == 64

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.builds.sources.file_server import FileServer, Reply
from torchyard.builds.plan import Download
from torchyard.builds.running.steps import perform_fetch
from torchyard.builds.sources import download as download_module
from torchyard.errors import NotAllowed, StepFailed

BODY = os.urandom(700_000)
SHA256 = hashlib.sha256(BODY).hexdigest()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_module, "_FIRST_PAUSE_S", 0.005)


def fetch(url: str, path: Path, sha256: str = SHA256) -> list[str]:
    said: list[str] = []
    perform_fetch(Download(url=url, path=str(path), sha256=sha256), progress=said.append)
    return said


def test_over_http(server: FileServer, tmp_path: Path) -> None:
    server.replies["/a.tar.gz"] = Reply(BODY)
    path = tmp_path / "new" / "folders" / "a.tar.gz"
    fetch(f"{server.address}/a.tar.gz", path)
    assert path.read_bytes() == BODY
    assert [child.name for child in path.parent.iterdir()] == ["a.tar.gz"]
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


def test_without_a_length(server: FileServer, tmp_path: Path) -> None:
    server.replies["/a"] = Reply(BODY, length=False)
    fetch(f"{server.address}/a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == BODY


@pytest.mark.parametrize("form", ["plain", "file"])
def test_from_this_machine(tmp_path: Path, form: str) -> None:
    source = tmp_path / "a file with blanks"
    source.write_bytes(BODY)
    fetch(source.as_uri() if form == "file" else str(source), tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == BODY


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StepFailed) as caught:
        fetch(str(tmp_path / "nowhere"), tmp_path / "copy")
    assert str(tmp_path / "nowhere") in caught.value.what
    assert "No such file" in caught.value.why
    assert list(tmp_path.iterdir()) == []


def test_a_second_time_nothing_is_asked(server: FileServer, tmp_path: Path) -> None:
    server.replies["/a"] = Reply(BODY)
    fetch(f"{server.address}/a", tmp_path / "a")
    said = fetch(f"{server.address}/a", tmp_path / "a")
    assert said == ["a is already downloaded"]
    assert len(server.requests) == 1


def test_a_damaged_file_under_the_final_name_is_fetched_again(
    server: FileServer, tmp_path: Path
) -> None:
    server.replies["/a"] = Reply(BODY)
    (tmp_path / "a").write_bytes(BODY[:-1])
    fetch(f"{server.address}/a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == BODY


def test_a_wrong_checksum_names_file_and_both_sums_and_leaves_nothing(
    server: FileServer, tmp_path: Path
) -> None:
    server.replies["/project-1.0.tar.gz"] = Reply(b"another file", tag='"1"')
    with pytest.raises(StepFailed) as caught:
        fetch(f"{server.address}/project-1.0.tar.gz?token=s3cret", tmp_path / "p.tar.gz")
    error = caught.value
    assert "p.tar.gz" in error.what
    assert f"{server.address}/project-1.0.tar.gz" in error.what
    assert SHA256 in error.why
    assert hashlib.sha256(b"another file").hexdigest() in error.why
    assert "sha256" in error.hint
    assert "s3cret" not in error.what + error.why
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_transfer_is_resumed(server: FileServer, tmp_path: Path) -> None:
    server.replies["/a"] = Reply(BODY, tag='"v1"', cuts=[300_000, 100_000])
    said = fetch(f"{server.address}/a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == BODY
    ranges = [headers.get("range", "") for headers in server.asked("/a")]
    assert ranges == ["", "bytes=300000-", "bytes=400000-"]
    assert [headers.get("if-range") for headers in server.asked("/a")][1:] == ['"v1"', '"v1"']
    assert any("300,000 of 700,000 bytes" in line for line in said)


def test_without_a_validator_it_starts_again(server: FileServer, tmp_path: Path) -> None:
    server.replies["/a"] = Reply(BODY, cuts=[300_000])
    fetch(f"{server.address}/a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == BODY
    assert [headers.get("range") for headers in server.asked("/a")] == [None, None]


def test_a_weak_tag_is_no_validator(server: FileServer, tmp_path: Path) -> None:
    server.replies["/a"] = Reply(BODY, tag='W/"v1"', cuts=[300_000])
    fetch(f"{server.address}/a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == BODY
    assert [headers.get("range") for headers in server.asked("/a")] == [None, None]


@pytest.mark.parametrize("length", [True, False])
def test_a_transfer_that_always_breaks_off_is_a_clear_error(
    server: FileServer, tmp_path: Path, length: bool
) -> None:
    server.replies["/a"] = Reply(BODY, cuts=[1000] * 9, length=length)
    with pytest.raises(StepFailed) as caught:
        fetch(f"{server.address}/a", tmp_path / "a")
    assert "is incomplete" in caught.value.what
    assert "after 1,000" in caught.value.why
    assert "fetch again" in caught.value.hint
    assert not (tmp_path / "a").exists()
    assert 1 < len(server.requests) < 9


def test_a_partial_file_of_an_earlier_process_is_resumed(
    server: FileServer, tmp_path: Path
) -> None:
    server.replies["/a"] = Reply(BODY, tag='"v1"', cuts=[200_000, 0, 0, 0])
    with pytest.raises(StepFailed):
        fetch(f"{server.address}/a", tmp_path / "a")
    assert (tmp_path / "a.part").stat().st_size == 200_000
    server.requests.clear()
    fetch(f"{server.address}/a", tmp_path / "a")
    assert [headers.get("range") for headers in server.asked("/a")] == ["bytes=200000-"]
    assert (tmp_path / "a").read_bytes() == BODY
    assert [child.name for child in tmp_path.iterdir()] == ["a"]


def test_a_file_that_has_changed_meanwhile_is_fetched_from_its_start(
    server: FileServer, tmp_path: Path
) -> None:
    old = os.urandom(500_000)
    server.replies["/a"] = Reply(old, tag='"old"', cuts=[200_000, 0, 0, 0])
    with pytest.raises(StepFailed):
        fetch(f"{server.address}/a", tmp_path / "a")
    server.replies["/a"] = Reply(BODY, tag='"new"')
    fetch(f"{server.address}/a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == BODY


def test_a_wrong_partial_file_is_discarded(server: FileServer, tmp_path: Path) -> None:
    # A server whose tag does not change with the content.
    server.replies["/a"] = Reply(BODY, tag='"same"')
    (tmp_path / "a.part").write_bytes(b"x" * 1000)
    note = {"address": f"{server.address}/a", "validator": '"same"'}
    (tmp_path / "a.part.json").write_text(json.dumps(note), encoding="utf-8")
    fetch(f"{server.address}/a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == BODY
    assert [headers.get("range") for headers in server.asked("/a")] == ["bytes=1000-", None]


def test_a_part_of_another_address_is_not_used(server: FileServer, tmp_path: Path) -> None:
    server.replies["/a"] = Reply(BODY, tag='"same"')
    (tmp_path / "a.part").write_bytes(BODY[:1000])
    note = {"address": f"{server.address}/b", "validator": '"same"'}
    (tmp_path / "a.part.json").write_text(json.dumps(note), encoding="utf-8")
    fetch(f"{server.address}/a", tmp_path / "a")
    assert [headers.get("range") for headers in server.asked("/a")] == [None]


def test_a_part_that_is_whole_already(server: FileServer, tmp_path: Path) -> None:
    # Killed between the last byte and the rename: the range is empty, which servers refuse.
    server.replies["/a"] = Reply(BODY, tag='"v1"')
    (tmp_path / "a.part").write_bytes(BODY)
    note = {"address": f"{server.address}/a", "validator": '"v1"'}
    (tmp_path / "a.part.json").write_text(json.dumps(note), encoding="utf-8")
    fetch(f"{server.address}/a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == BODY


def test_a_part_without_a_note_or_with_a_broken_one(server: FileServer, tmp_path: Path) -> None:
    server.replies["/a"] = Reply(BODY, tag='"v1"')
    (tmp_path / "a.part").write_bytes(b"rubbish")
    (tmp_path / "a.part.json").write_text("{", encoding="utf-8")
    fetch(f"{server.address}/a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == BODY


@pytest.mark.parametrize(
    ("status", "requests", "hint"),
    [(404, 1, "check the URL"), (403, 1, "netrc"), (503, 4, "try again later")],
)
def test_what_the_server_refuses(
    server: FileServer, tmp_path: Path, status: int, requests: int, hint: str
) -> None:
    server.replies["/a"] = Reply(b"no", status=status)
    with pytest.raises(StepFailed) as caught:
        fetch(f"{server.address}/a", tmp_path / "a")
    assert str(status) in caught.value.why
    assert hint in caught.value.hint
    assert len(server.requests) == requests


def test_connection_refused(tmp_path: Path, server: FileServer) -> None:
    with pytest.raises(StepFailed) as caught:
        fetch("http://127.0.0.1:9/a", tmp_path / "a")
    assert "http://127.0.0.1:9/a" in caught.value.what
    assert "refused" in caught.value.why
    assert "proxy" in caught.value.hint


def test_a_proxy_of_the_environment_is_used(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.address)
    monkeypatch.delenv("no_proxy", raising=False)
    server.replies["http://unknown.invalid/a"] = Reply(BODY)
    fetch("http://unknown.invalid/a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == BODY


def test_a_login_of_netrc_goes_to_its_host_and_not_along_a_redirect(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login ann password s3cret\n", encoding="utf-8")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    elsewhere = server.address.replace("127.0.0.1", "localhost")
    server.replies["/a"] = Reply(status=302, location="/b", login="ann:s3cret")
    server.replies["/b"] = Reply(status=302, location=f"{elsewhere}/c", login="ann:s3cret")
    server.replies["/c"] = Reply(BODY)
    fetch(f"{server.address}/a", tmp_path / "a")
    wanted = "Basic " + base64.b64encode(b"ann:s3cret").decode()
    assert server.asked("/b")[0]["authorization"] == wanted
    assert "authorization" not in server.asked("/c")[0]


def test_a_redirect_to_a_file_of_this_machine_is_not_followed(
    server: FileServer, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes(BODY)
    server.replies["/a"] = Reply(status=302, location=(tmp_path / "secret").as_uri())
    with pytest.raises(StepFailed):
        fetch(f"{server.address}/a", tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_two_at_once_fetch_it_once(server: FileServer, tmp_path: Path) -> None:
    server.replies["/a"] = Reply(BODY)
    threads = [
        threading.Thread(target=fetch, args=(f"{server.address}/a", tmp_path / "a"))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.requests) == 1
    assert [child.name for child in tmp_path.iterdir()] == ["a"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_permission(server: FileServer, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(NotAllowed):
        fetch(f"{server.address}/a", tmp_path / "a")


_ON_A_SMALL_DISK = """
import sys
from pathlib import Path
from torchyard.builds.running.steps import perform_fetch
from torchyard.builds.plan import Download
from torchyard.errors import StepFailed
folder, url, sha256 = sys.argv[1:]
try:
    perform_fetch(Download(url=url, path=folder + "/a", sha256=sha256), progress=print)
except StepFailed as error:
    print(error.what, error.why, error.hint, sorted(Path(folder).iterdir()), sep="|")
"""


@pytest.mark.parametrize("way", ["known length", "unknown length", "file"])
def test_a_full_disk(server: FileServer, tmp_path: Path, way: str) -> None:
    """On a tmpfs in a mount namespace of its own, which is gone with its process."""
    user = () if os.geteuid() == 0 else ("--map-root-user",)
    small = tmp_path / "small"
    small.mkdir()
    script = 'mount -t tmpfs -o size=256k tmpfs "$1" && exec "$2" -c "$3" "$1" "$4" "$5"'
    start = ("unshare", "--mount", *user, "sh", "-c", script, "sh", str(small), sys.executable)
    if (
        shutil.which("unshare") is None
        or subprocess.run((*start, "pass", "", ""), check=False, capture_output=True).returncode
    ):
        pytest.skip("cannot start anything on a small file system here")
    server.replies["/a"] = Reply(BODY, length=way == "known length")
    (tmp_path / "body").write_bytes(BODY)
    url = (tmp_path / "body").as_uri() if way == "file" else f"{server.address}/a"
    argv = (*start, _ON_A_SMALL_DISK, url, SHA256)
    ended = subprocess.run(argv, check=True, capture_output=True, text=True)
    what, why, hint, left = ended.stdout.splitlines()[-1].split("|")
    assert what == f"the disk of {small} is full"
    assert "No space left" in why or "bytes are needed" in why
    assert "TORCHYARD_HOME" in hint
    assert left == "[]"

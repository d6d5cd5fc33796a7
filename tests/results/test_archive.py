"""Archives of runs: creation, import, and refusal of unsafe ones."""

from __future__ import annotations

import gzip
import io
import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.results.run_directories import compared, day, write_run
from torchyard.errors import ResultsDamaged, TorchyardError, UsageError
from torchyard.results.archive import is_run_name, plain_files, unpack, write_archive


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "runs"
    for number in (1, 2):
        folder = write_run(home, day(number), [compared()])
        (folder / "logs" / "deep").mkdir()
        (folder / "logs" / "deep" / "worker.txt").write_text("log")
    return home


def made(path: Path, fill: Callable[[tarfile.TarFile], None], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        fill(archive)
    return path


def member(name: str, content: bytes = b"x", **attributes: object) -> Callable[..., None]:
    def fill(archive: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        for key, value in attributes.items():
            setattr(info, key, value)
        archive.addfile(info, io.BytesIO(content))

    return fill


def test_an_archived_run_is_imported_unchanged(home: Path, tmp_path: Path) -> None:
    folders = [home / day(1), home / day(2)]
    seen: list[tuple[int, int]] = []
    size = write_archive(tmp_path / "new" / "a.tar.gz", folders, progress=lambda *n: seen.append(n))
    assert size == (tmp_path / "new" / "a.tar.gz").stat().st_size
    assert seen == [(1, 2), (2, 2)]
    assert unpack(tmp_path / "new" / "a.tar.gz", tmp_path / "out") == [day(1), day(2)]
    for folder in folders:
        names = list(plain_files(folder))
        assert list(plain_files(tmp_path / "out" / folder.name)) == names
        for name in names:
            assert (folder / name).read_bytes() == (
                tmp_path / "out" / folder.name / name
            ).read_bytes()


def test_what_an_archive_does_not_contain(home: Path, tmp_path: Path) -> None:
    (home / day(1) / "logs" / "link").symlink_to("/etc/passwd")
    os.mkfifo(home / day(1) / "logs" / "pipe")
    write_archive(tmp_path / "a.tar.gz", [home / day(1)])
    with tarfile.open(tmp_path / "a.tar.gz") as archive:
        members = archive.getmembers()
    assert {(m.uid, m.gid, m.uname, m.gname) for m in members} == {(0, 0, "", "")}
    assert all(m.isreg() for m in members)
    assert not [m.name for m in members if m.name.endswith(("link", "pipe"))]


def test_a_half_written_archive_is_never_seen(home: Path, tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_text("the earlier one")
    with pytest.raises(TorchyardError):
        write_archive(tmp_path / "a.tar.gz" / "b.tar.gz", [home / day(1)])
    assert (tmp_path / "a.tar.gz").read_text() == "the earlier one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz", "runs"]


@pytest.mark.parametrize(
    "name",
    [
        "/etc/cron.d/evil",
        "../evil",
        "run/../../evil",
        "run/./x",
        "run//x",
        "run/..",
        ".hidden/run.json",
        "-rf/run.json",
        "run/a\\b",
        "lonely.txt",
        "",
        "a" * 300 + "/run.json",
        "run/" + "a" * 300,
    ],
)
def test_names_that_lead_elsewhere(tmp_path: Path, name: str) -> None:
    path = made(tmp_path / "a.tar.gz", member(name))
    with pytest.raises(ResultsDamaged, match="was rejected") as caught:
        unpack(path, tmp_path / "out")
    assert "nothing was imported" in caught.value.hint
    assert not list(tmp_path.glob("**/evil"))


@pytest.mark.parametrize(
    "kind",
    [
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        tarfile.FIFOTYPE,
        tarfile.CONTTYPE,
        b"?",
    ],
)
def test_members_that_are_no_plain_files(tmp_path: Path, kind: bytes) -> None:
    path = made(
        tmp_path / "a.tar.gz", member("run/run.json", b"", type=kind, linkname="/etc/passwd")
    )
    with pytest.raises(ResultsDamaged, match="was rejected") as caught:
        unpack(path, tmp_path / "out")
    assert "special file" in caught.value.why
    assert not (tmp_path / "out" / "run" / "run.json").exists()


def test_a_link_and_then_a_file_through_it(tmp_path: Path) -> None:
    def fill(archive: tarfile.TarFile) -> None:
        member("run/logs", b"", type=tarfile.SYMTYPE, linkname=str(tmp_path))(archive)
        member("run/logs/evil")(archive)

    with pytest.raises(ResultsDamaged, match="was rejected"):
        unpack(made(tmp_path / "a.tar.gz", fill), tmp_path / "out")
    assert not (tmp_path / "evil").exists()


def test_two_members_of_one_name(tmp_path: Path) -> None:
    def fill(archive: tarfile.TarFile) -> None:
        member("run/run.json", b"one")(archive)
        member("run/run.json", b"two")(archive)

    with pytest.raises(ResultsDamaged, match="was rejected") as caught:
        unpack(made(tmp_path / "a.tar.gz", fill), tmp_path / "out")
    assert "twice" in caught.value.why


def test_progress_of_a_large_archive(tmp_path: Path) -> None:
    noise = random.Random(1).randbytes(3 * 2**20)
    path = made(tmp_path / "a.tar.gz", member("run/samples.jsonl", noise))
    seen: list[tuple[int, int]] = []
    unpack(path, tmp_path / "out", progress=lambda *numbers: seen.append(numbers))
    assert seen[0][1] == seen[-1][0] == path.stat().st_size >> 20
    assert seen == sorted(seen)


def test_more_than_was_allowed(tmp_path: Path) -> None:
    def fill(archive: tarfile.TarFile) -> None:
        for number in range(4):
            member(f"run/{number}", bytes(300_000))(archive)

    path = made(tmp_path / "a.tar.gz", fill)
    assert path.stat().st_size < 10_000
    with pytest.raises(UsageError, match="was rejected") as caught:
        unpack(path, tmp_path / "out", largest_bytes=1_000_000)
    assert "--max-size" in caught.value.hint
    assert unpack(path, tmp_path / "again", largest_bytes=1_200_000) == ["run"]


def test_a_wrong_member_size(tmp_path: Path) -> None:
    """A header of a terabyte with nothing behind it."""
    info = tarfile.TarInfo("run/samples.jsonl")
    info.size = 2**40
    with gzip.open(tmp_path / "a.tar.gz", "wb") as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(UsageError, match="was rejected"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "out")


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
def test_a_long_name_that_would_fill_the_memory(tmp_path: Path, kind: bytes) -> None:
    info = tarfile.TarInfo("name")
    info.type, info.size = kind, 2**30
    with gzip.open(tmp_path / "a.tar.gz", "wb", compresslevel=1) as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        for _ in range(64):
            file.write(bytes(2**17))
    with pytest.raises(ResultsDamaged, match="was rejected") as caught:
        unpack(tmp_path / "a.tar.gz", tmp_path / "out")
    assert "too long" in caught.value.why


@pytest.mark.parametrize(
    "content",
    [b"", b"not an archive", gzip.compress(b"not a tar" * 200, mtime=0)],
    ids=["empty", "text", "compressed text"],
)
def test_files_that_are_no_archives(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tar.gz").write_bytes(content)
    with pytest.raises(ResultsDamaged, match="not a complete archive"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "out")
    with pytest.raises(UsageError, match="no file"):
        unpack(tmp_path / "none", tmp_path / "out")


def test_damaged_archives_end_in_one_of_our_errors(home: Path, tmp_path: Path) -> None:
    """Whatever the bytes: our error or whole files, and nothing outside of the folder."""
    write_archive(tmp_path / "a.tar.gz", [home / day(1)])
    compressed = (tmp_path / "a.tar.gz").read_bytes()
    plain = gzip.decompress(compressed)
    chance = random.Random(3)
    outcomes = set()
    for number in range(120):
        if number % 2:
            content = bytearray(plain)
            for _ in range(chance.randint(1, 8)):
                content[chance.randrange(min(len(content), 4096))] = chance.randrange(256)
            data = gzip.compress(bytes(content), compresslevel=1)
        else:
            content = bytearray(compressed[: chance.randint(1, len(compressed))])
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            data = bytes(content)
        (tmp_path / "bad.tar.gz").write_bytes(data)
        try:
            unpack(tmp_path / "bad.tar.gz", tmp_path / "out" / str(number))
            outcomes.add("read")
        except TorchyardError as error:
            outcomes.add(type(error).__name__)
    assert "ResultsDamaged" in outcomes
    assert {path.name for path in tmp_path.iterdir()} == {"a.tar.gz", "bad.tar.gz", "runs", "out"}


def test_names_of_runs() -> None:
    for name in (day(1), "first-run", "a", "run_2.1+x"):
        assert is_run_name(name)
    for name in ("", ".", "..", ".x", "-x", "a/b", "a b", "a\n", "é", "x" * 256):
        assert not is_run_name(name)

"""The index under kills, many writers, full and read-only disks, and damage."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.results.run_directories import change_facts, compared, day, write_run
from tests.results.run_samples import GPT
from torchyard.results.index import store as refreshing
from torchyard.results.index.database import VERSION
from torchyard.results.index.entries import INDEX_FILE, marks_in, marks_of
from torchyard.results.index.store import Store
from torchyard.results.model import RunFilter
from torchyard.results.run_changes import delete_run

RUNS = 40


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of many runs, to be copied."""
    home = tmp_path_factory.mktemp("many") / "runs"
    first = write_run(home, day(1, "0000"), [compared(), compared(GPT, speedup=0.9)])
    for number in range(1, RUNS):
        shutil.copytree(first, home / day(1, f"{number:04x}"))
    return home


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "torchyard"


@pytest.fixture
def home(kept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept, tmp_path / "runs"))


def check_answers(home: Path, *, runs: int = RUNS, warnings: int = 0) -> None:
    """Every answer is right, whatever happened to the index before."""
    with Store.open(home) as store:
        refreshed = store.refresh()
        assert refreshed.runs == runs
        assert len(refreshed.warnings) == warnings
        assert len(store.runs(RunFilter())) == runs
        assert len(store.comparisons(RunFilter())) == 2 * runs
        series = store.series(RunFilter())
        assert [len(store.points(one)) for one in series] == [runs, runs]
        assert (store.place is None) == bool(warnings)
        if store.place is not None:
            check_sound(store.place)


def check_sound(place: Path) -> None:
    with closing(sqlite3.connect(place)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def started(code: str, home: Path) -> subprocess.Popen[str]:
    """A process that does something to the store again and again, and is under way."""
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from torchyard.results.model import RunFilter\n"
        "from torchyard.results.index import store as module\n"
        "from torchyard.results.index.store import Store\n"
        "module._BATCH_S = 0.0\n"  # many small transactions: more places to be killed at
        f"store = Store.open(Path(sys.argv[1]))\nprint('ready', flush=True)\n{code}\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(home)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_killed_at_any_moment(home: Path) -> None:
    chance = random.Random(7)
    for _ in range(6):
        process = started("while True: store.rebuild()", home)
        time.sleep(chance.uniform(0.0, 0.4))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        check_answers(home)


def test_several_processes_at_once(home: Path) -> None:
    code = "for _ in range(4):\n    store.rebuild()\n    store.refresh()\nassert not store.warnings"
    writers = [started(code, home) for _ in range(2)]
    shutil.copytree(home / day(1), home / day(2))
    reader = started(
        "for _ in range(200): assert len(store.runs(RunFilter())) <= 41\nassert store.place", home
    )
    change_facts(home / day(1), notes=["while others read"])
    for process in (*writers, reader):
        process.communicate(timeout=120)
        assert process.returncode == 0
    check_answers(home, runs=RUNS + 1)
    with Store.open(home) as store:
        assert store.run(day(1)).notes == ("while others read",)


def test_runs_that_are_removed_while_others_read(home: Path) -> None:
    """A reader may see a run or not, but never a damaged one."""
    code = (
        "for _ in range(60):\n"
        "    store.rebuild()\n"
        "    assert not [run for run in store.runs(RunFilter()) if run.damage]\n"
    )
    readers = [started(code, home) for _ in range(2)]
    for number in range(1, RUNS):
        delete_run(home / day(1, f"{number:04x}"))
        time.sleep(0.01)
    for process in readers:
        process.communicate(timeout=120)
        assert process.returncode == 0
    check_answers(home, runs=1)


def test_several_threads_of_one_store(home: Path) -> None:
    """As a dashboard asks: each question waits for the one before it."""
    with Store.open(home) as store, ThreadPoolExecutor(4) as threads:
        store.refresh()
        series = store.series(RunFilter())[0]
        waiting = [
            threads.submit(question)
            for _ in range(10)
            for question in (
                lambda: len(store.runs(RunFilter())),
                lambda: len(store.points(series)),
                lambda: len(store.comparisons(RunFilter())) // 2,
                lambda: store.refresh().runs,
            )
        ]
        assert {done.result(timeout=60) for done in waiting} == {RUNS}
    check_answers(home)


@pytest.mark.parametrize("content", [b"", b"not a database at all" * 500, b"SQLite format 3\x00"])
def test_a_file_that_is_no_index(home: Path, content: bytes) -> None:
    (home / INDEX_FILE).write_bytes(content)
    check_answers(home)
    check_answers(home)


@pytest.mark.parametrize("part", [0.0, 0.1, 0.3, 0.6, 0.9])
def test_a_damaged_index_is_rebuilt(home: Path, part: float) -> None:
    check_answers(home)
    path = home / INDEX_FILE
    content = bytearray(path.read_bytes())
    place = int(len(content) * part) & ~0xFFF
    content[place : place + 8192] = random.Random(1).randbytes(len(content[place : place + 8192]))
    path.write_bytes(content)
    with Store.open(home) as store:
        store.rebuild()
        assert len(store.runs(RunFilter())) == RUNS
    check_answers(home)


def test_damage_found_during_a_query(home: Path) -> None:
    check_answers(home)
    with Store.open(home) as store:
        path = home / INDEX_FILE
        content = bytearray(path.read_bytes())
        content[4096:] = b"\xff" * (len(content) - 4096)
        path.write_bytes(content)
        os.utime(path)
        # Another connection sees the damage; this one has some pages still in memory.
        assert len(store.comparisons(RunFilter())) == 2 * RUNS
    check_answers(home)


def test_a_truncated_index(home: Path) -> None:
    check_answers(home)
    path = home / INDEX_FILE
    os.truncate(path, path.stat().st_size // 2)
    check_answers(home)


@pytest.mark.parametrize("version", [0, VERSION - 1, VERSION + 1, 99])
def test_an_index_of_another_version(home: Path, version: int) -> None:
    check_answers(home)
    with closing(sqlite3.connect(home / INDEX_FILE)) as connection:
        connection.executescript("DROP TABLE comparisons; CREATE TABLE comparisons (x);")
        connection.execute(f"PRAGMA user_version = {version}")
    check_answers(home)


def test_a_database_of_something_else_is_not_touched(home: Path, cache: Path) -> None:
    with closing(sqlite3.connect(home / INDEX_FILE)) as connection:
        connection.executescript("CREATE TABLE runs (mine); INSERT INTO runs VALUES ('years');")
    check_answers(home)
    with closing(sqlite3.connect(home / INDEX_FILE)) as connection:
        assert connection.execute("SELECT * FROM runs").fetchall() == [("years",)]
    assert len(list(cache.glob("index-*.sqlite"))) == 1


def test_an_index_that_is_taken_away_while_it_is_open(home: Path) -> None:
    with Store.open(home) as store:
        store.refresh()
        (home / INDEX_FILE).unlink()
        shutil.rmtree(home / day(1))
        assert store.refresh().runs == RUNS - 1
        assert len(store.runs(RunFilter())) == RUNS - 1
        assert (store.place, store.warnings) == (home / INDEX_FILE, [])
    check_answers(home, runs=RUNS - 1)


def test_an_index_that_another_process_rebuilt(home: Path) -> None:
    with Store.open(home) as store, Store.open(home) as other:
        store.refresh()
        (home / INDEX_FILE).unlink()
        shutil.rmtree(home / day(1))
        check_answers(home, runs=RUNS - 1)
        shutil.copytree(home / day(1, "0001"), home / day(2))
        for one in (store, other):
            assert one.refresh().runs == RUNS
            assert one.run(day(2)).verdicts
            assert one.place == home / INDEX_FILE
    check_answers(home)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to be another user")
def test_an_index_of_another_user(kept: Path) -> None:
    home = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        shutil.copytree(kept, home / "runs")
        check_answers(home / "runs")
        for folder in (home, home / "runs"):
            folder.chmod(0o777)
        place = seen_by(65534, home)
        assert place.parent == home / "cache" / "torchyard"
        (home / "runs" / INDEX_FILE).unlink()
        assert seen_by(65534, home) == home / "runs" / INDEX_FILE
        check_answers(home / "runs")
    finally:
        shutil.rmtree(home)


def seen_by(user: int, home: Path) -> Path:
    """Where another user's index is, who gets the same answers without a warning."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            os.environ["XDG_CACHE_HOME"] = str(home / "cache")
            with Store.open(home / "runs") as store:
                assert store.refresh().warnings == ()
                assert len(store.comparisons(RunFilter())) == 2 * RUNS
                os.write(writer, str(store.place).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as file:
        place = file.read()
    assert os.waitpid(child, 0)[1] == 0
    return Path(place)


def test_a_lock_that_is_held_for_long(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_answers(home)
    shutil.rmtree(home / day(1))
    with closing(sqlite3.connect(home / INDEX_FILE, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        monkeypatch.setattr("torchyard.results.index.database._WAIT_S", 0.1)
        with Store.open(home) as store:
            assert store.place != home / INDEX_FILE
            assert store.refresh().runs == RUNS - 1
            assert len(store.runs(RunFilter())) == RUNS - 1
    check_answers(home, runs=RUNS - 1)


def test_no_writable_location(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (home / INDEX_FILE).mkdir()
    check_answers(home, warnings=1)


def test_wal_is_left(home: Path) -> None:
    check_answers(home)
    with closing(sqlite3.connect(home / INDEX_FILE)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    check_answers(home)
    assert not list(home.glob(f"{INDEX_FILE}-wal"))
    with closing(sqlite3.connect(home / INDEX_FILE)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)


@contextmanager
def mounted(*arguments: str, at: Path) -> Iterator[None]:
    at.mkdir(exist_ok=True)
    completed = subprocess.run(["mount", *arguments, str(at)], capture_output=True, check=False)
    if completed.returncode:
        pytest.skip("needs the right to mount")
    try:
        yield
    finally:
        subprocess.run(["umount", str(at)], check=True)


def fill(folder: Path) -> None:
    """Leave not one free byte on the disk."""
    with (folder / "filler").open("wb", buffering=0) as file:
        for size in (2**16, 2**12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def test_a_full_disk(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = tmp_path / "disk"
    with mounted("-t", "tmpfs", "-o", "size=2m", "none", at=disk):
        shutil.copytree(kept, disk / "runs")
        fill(disk)
        # The cache folder serves when the home's disk is full, and memory when both are.
        check_answers(disk / "runs")
        monkeypatch.setenv("XDG_CACHE_HOME", str(disk))
        check_answers(disk / "runs", warnings=1)
        (disk / "filler").unlink()
        check_answers(disk / "runs")


def test_a_disk_that_fills_up_meanwhile(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "disk"
    with mounted("-t", "tmpfs", "-o", "size=3m", "none", at=disk):
        monkeypatch.setenv("XDG_CACHE_HOME", str(disk))
        shutil.copytree(kept, disk / "runs")
        check_answers(disk / "runs")
        with Store.open(disk / "runs") as store:
            for number in range(60):
                shutil.copytree(kept / day(1), disk / "runs" / day(3, f"{number:04x}"))
            fill(disk)
            refreshed = store.refresh()
            assert refreshed.runs == RUNS + 60
            assert len(refreshed.warnings) == 1
            assert "every command reads all run folders" in refreshed.warnings[0]
            assert len(store.comparisons(RunFilter())) == 2 * (RUNS + 60)
        check_sound(disk / "runs" / INDEX_FILE)
        (disk / "filler").unlink()
        check_answers(disk / "runs", runs=RUNS + 60)


def test_a_read_only_results_directory(home: Path, tmp_path: Path, cache: Path) -> None:
    seen = tmp_path / "seen"
    with mounted("--bind", str(home), at=seen):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(seen)], check=True)
        check_answers(seen)
        assert len(list(cache.glob("index-*.sqlite"))) == 1
        with Store.open(seen) as store:
            assert store.refresh().added == 0
    assert not (home / INDEX_FILE).exists()


def test_marks_by_many_threads_are_the_same(home: Path) -> None:
    (home / "notes").mkdir()
    names = sorted(path.name for path in home.iterdir())
    marks = marks_of(home, names)
    assert len(marks) == RUNS == len(set(names)) - 1
    assert marks_of(home, names, threads=16) == marks == marks_in(home)


def test_batches_are_written_as_they_are_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refreshing, "_BATCH_S", 0.0)
    seen = []
    with Store.open(home) as store, Store.open(home) as other:
        store.refresh(
            lambda number, total: seen.append((number, total, len(other.runs(RunFilter()))))
        )
    assert seen == [(number, RUNS, number) for number in range(1, RUNS + 1)]

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.results.run_samples import FAILED, FASTER, GPT, MATMUL, STUDY, block
from torchyard import __version__
from torchyard.errors import NotAllowed, StepFailed, TorchyardError, UsageError
from torchyard.results.directory import PROGRESS_FILE
from torchyard.results.run_reader import read_run
from torchyard.results.run_writer import LARGEST_BYTES, ProgressFile, ProgressTail, RunWriter


def create(folder: Path) -> RunWriter:
    return RunWriter.create(
        folder,
        study=STUDY,
        command=["torchyard", "compare", "--time", "20s"],
        machine={"cpu": "Example 9000", "cores": 2, "kernel": Path("/boot/vmlinuz")},
    )


def test_a_finished_run_reads_back_as_it_was_written(tmp_path: Path) -> None:
    writer = create(tmp_path / "one")
    writer.add_target("this", {"torch": "2.9.0", "python": "3.12.1"})
    writer.add_launch({"launch": 0, "pids": [7, 8]})
    blocks = [block(0, 0, "eager"), block(0, 0, "inductor", dirty=("steal",))]
    writer.add_blocks(MATMUL, blocks)
    writer.add_blocks(GPT, [block(1, 0, "eager")])
    writer.add_comparison(FASTER)
    writer.add_comparison(FAILED)
    writer.finish("finished")

    run = read_run(tmp_path / "one")
    assert run.state == "finished"
    assert run.id == "one"
    assert run.study == STUDY
    assert run.comparisons == (FASTER, FAILED)
    assert list(run.blocks(MATMUL)) == [(MATMUL.label, item) for item in blocks]
    assert [label for label, _ in run.blocks()] == [MATMUL.label, MATMUL.label, GPT.label]
    assert run.launches() == [{"launch": 0, "pids": [7, 8]}]
    assert run.torn_lines == 0
    assert run.info["torchyard"] == __version__
    assert run.info["command"] == ["torchyard", "compare", "--time", "20s"]
    assert run.info["machine"]["kernel"] == "/boot/vmlinuz"
    assert run.info["targets"] == {"this": {"torch": "2.9.0", "python": "3.12.1"}}
    assert run.info["started"].endswith("Z")
    assert run.info["finished"] >= run.info["started"]


def test_numbers_that_are_no_numbers_survive(tmp_path: Path) -> None:
    assert FASTER.estimate is not None
    writer = create(tmp_path / "one")
    writer.add_comparison(
        replace(FASTER, estimate=replace(FASTER.estimate, time_needed_s=float("inf")))
    )
    writer.finish("finished")
    estimate = read_run(tmp_path / "one").comparisons[0].estimate
    assert estimate is not None
    assert estimate.time_needed_s == float("inf")


def test_the_last_record_of_a_comparison_counts(tmp_path: Path) -> None:
    assert FASTER.estimate is not None
    adjusted = replace(FASTER, estimate=replace(FASTER.estimate, p_adjusted=0.001))
    writer = create(tmp_path / "one")
    for comparison in (FASTER, FAILED, adjusted):
        writer.add_comparison(comparison)
    writer.finish("finished")
    assert read_run(tmp_path / "one").comparisons == (adjusted, FAILED)


def test_the_folder_is_plain_files(tmp_path: Path) -> None:
    writer = create(tmp_path / "one")
    assert writer.logs.is_dir()
    names = sorted(path.name for path in writer.folder.iterdir())
    assert names == ["comparisons.jsonl", "launches.jsonl", "logs", "run.json", "samples.jsonl"]
    writer.finish("failed")
    facts = json.loads((writer.folder / "run.json").read_text())
    assert facts["format"] == 1
    assert facts["state"] == "failed"
    assert (writer.folder / "run.json").stat().st_mode & 0o777 == 0o666 & ~current_umask()


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_an_empty_folder_is_taken_and_a_full_one_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    create(empty)
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="not empty") as caught:
        create(full)
    assert "--replace" in caught.value.hint
    assert [path.name for path in full.iterdir()] == ["thesis.tex"]
    with pytest.raises(UsageError):
        create(full / "thesis.tex")


def test_two_at_once_cannot_share_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    create(folder)
    (folder / "run.json").unlink()
    with pytest.raises(UsageError):
        create(folder)
    with pytest.raises(FileExistsError):
        RunWriter(folder, {})


def test_a_run_cannot_end_as_anything_else(tmp_path: Path) -> None:
    with pytest.raises(TorchyardError, match="'done'"):
        create(tmp_path / "one").finish("done")


def test_finishing_twice_keeps_the_last_state(tmp_path: Path) -> None:
    writer = create(tmp_path / "one")
    writer.finish("finished")
    writer.finish("failed")
    assert read_run(tmp_path / "one").state == "failed"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_not_ours_to_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(NotAllowed, match="Permission denied"):
            create(tmp_path / "one")
    finally:
        tmp_path.chmod(0o700)


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """Every file of this process may grow to that size: the kernel's own refusal, as on a quota."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_an_interrupted_write_keeps_the_old_content(tmp_path: Path) -> None:
    writer = create(tmp_path / "one")
    writer.add_blocks(MATMUL, [block(0, 0, "eager")])
    one_line = (writer.folder / "samples.jsonl").stat().st_size
    with file_size_limit(one_line + 100):
        with pytest.raises(StepFailed, match=r"samples\.jsonl: File too large") as caught:
            writer.add_blocks(MATMUL, [block(0, 1, "eager")])
        assert "1 record in this file" in caught.value.why
        assert "kept" in caught.value.why
        assert "free some space" in caught.value.hint
    # Half a line was written and taken back, so the next write makes no torn middle line.
    writer.add_blocks(MATMUL, [block(0, 2, "eager")])
    writer.finish("failed")
    assert [item.round for _, item in read_run(writer.folder).blocks()] == [0, 2]


def test_facts_that_cannot_be_replaced_stay_as_they_were(tmp_path: Path) -> None:
    writer = create(tmp_path / "one")
    before = (writer.folder / "run.json").read_bytes()
    with file_size_limit(64), pytest.raises(StepFailed, match="File too large"):
        writer.add_target("this", {"config": "x" * 1000})
    assert (writer.folder / "run.json").read_bytes() == before
    assert not list(writer.folder.glob(".run.json*"))


def test_a_full_disk(tmp_path: Path) -> None:
    """A real one: a tmpfs of 64 KiB, mounted where only the child process sees it."""
    script = f"""
import sys
sys.path[:0] = [{str(Path(__file__).parents[2])!r}]
from pathlib import Path
from tests.results.run_samples import MATMUL, STUDY, block
from torchyard.errors import StepFailed
from torchyard.results.run_writer import RunWriter
from torchyard.results.run_reader import read_run
writer = RunWriter.create(Path("disk/run"), study=STUDY, command=["x"], machine={{}})
written = 0
try:
    while True:
        writer.add_blocks(MATMUL, [block(0, written, "eager")])
        written += 1
except StepFailed as error:
    assert "No space left on device" in error.what, error.what
    assert f"{{written}} records" in error.why, error.why
run = read_run(Path("disk/run"))
assert len(list(run.blocks())) == written > 10
assert run.torn_lines == 0
print("kept")
"""
    (tmp_path / "fill.py").write_text(script)
    (tmp_path / "disk").mkdir()
    mount = "mount -t tmpfs -o size=64k tmpfs disk || exit 77; exec "
    answer = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f"{mount}{sys.executable} fill.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if answer.returncode == 77 or "unshare" in answer.stderr:
        pytest.skip("mounting is not allowed here")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "kept\n"


def test_space_errors_are_distinguished() -> None:
    from torchyard.files.safe_writing import write_error

    full = write_error(Path("/run/x"), OSError(errno.ENOSPC, "No space left"), kept="all")
    broken = write_error(Path("/run/x"), OSError(errno.EIO, "Input/output error"), kept="all")
    denied = write_error(Path("/run/x"), OSError(errno.EROFS, "Read-only"), kept="all")
    assert (full.exit_code, broken.exit_code, denied.exit_code) == (5, 5, 4)
    assert "free some space" in full.hint
    assert "check the disk" in broken.hint
    nowhere = write_error(Path("/proc/x"), OSError(errno.ENOENT, "No such file"), kept="all")
    assert (nowhere.exit_code, nowhere.why) == (5, "all is kept")
    assert "choose another directory" in nowhere.hint


class Clock:
    """A clock that tests advance."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_reader_sees_each_line_once_and_in_order(tmp_path: Path) -> None:
    file, tail = ProgressFile(tmp_path), ProgressTail(tmp_path)
    assert tail.more() == []
    file.add({"n": 1}, passing=False)
    file.add({"n": 2}, passing=False)
    assert tail.more() == [{"n": 1}, {"n": 2}]
    assert tail.more() == []
    file.add({"n": 3}, passing=False)
    assert tail.more() == [{"n": 3}]
    assert ProgressTail(tmp_path).more() == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_half_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / PROGRESS_FILE
    path.write_bytes(b'{"n": 1}\n{"n"')
    tail = ProgressTail(tmp_path)
    assert tail.more() == [{"n": 1}]
    with path.open("ab") as file:
        file.write(b": 2}\n")
    assert tail.more() == [{"n": 2}]


def test_what_is_no_record_is_left_out(tmp_path: Path) -> None:
    deep = b"[" * 100_000
    (tmp_path / PROGRESS_FILE).write_bytes(b'7\nnull\n\xff\xfe\n{"n": 1}\n' + deep + b"\n")
    assert ProgressTail(tmp_path).more() == [{"n": 1}]


def test_passing_events_are_thinned_out_and_others_are_not(tmp_path: Path) -> None:
    clock = Clock()
    file = ProgressFile(tmp_path, now_s=clock)
    for number in range(100):
        clock.now_s += 0.01
        file.add({"n": number}, passing=True)
    file.add({"n": "kept"}, passing=False)
    numbers = [record["n"] for record in ProgressTail(tmp_path).more()]
    assert numbers == [0, 50, "kept"]


def test_the_longer_the_file_the_longer_the_pause(tmp_path: Path) -> None:
    clock = Clock()
    file = ProgressFile(tmp_path, now_s=clock)
    for _ in range(24 * 3600 * 4):
        clock.now_s += 0.25
        file.add({"text": "x" * 180}, passing=True)
    size_bytes = (tmp_path / PROGRESS_FILE).stat().st_size
    assert 512 << 10 < size_bytes < 1200 << 10


def test_it_ends_at_its_largest_size_with_a_whole_line(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path)
    for _ in range(3000):
        file.add({"text": "x" * 1000}, passing=False)
    data = (tmp_path / PROGRESS_FILE).read_bytes()
    assert LARGEST_BYTES - 1100 < len(data) <= LARGEST_BYTES
    assert json.loads(data.splitlines()[-1])
    tail = ProgressTail(tmp_path)
    assert sum(len(tail.more()) for _ in range(20)) == data.count(b"\n")


def test_a_huge_file_of_somebody_else_is_not_read_whole(tmp_path: Path) -> None:
    with (tmp_path / PROGRESS_FILE).open("wb") as file:
        file.truncate(1 << 33)
    tail = ProgressTail(tmp_path)
    assert all(tail.more() == [] for _ in range(20))


def test_an_unwritable_folder_is_harmless(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path / "missing")
    file.add({"n": 1}, passing=False)
    file.close()
    file.close()


def test_a_full_disk_ends_the_file_and_not_the_run() -> None:
    # /dev/full refuses every write as a full disk does.
    import os

    from torchyard.files.safe_writing import RecordFile

    file = ProgressFile(Path("/proc/self/no-such-folder"))
    record_file = RecordFile.__new__(RecordFile)
    record_file.path = Path("/dev/full")
    record_file._descriptor = os.open("/dev/full", os.O_WRONLY)
    record_file._size_bytes = 0
    record_file.records = 0
    file._file = record_file
    file.add({"n": 1}, passing=False)
    assert file._file is None


@pytest.mark.parametrize("passing", [True, False])
def test_closed_means_closed(tmp_path: Path, passing: bool) -> None:
    file = ProgressFile(tmp_path)
    file.close()
    file.add({"n": 1}, passing=passing)
    assert (tmp_path / PROGRESS_FILE).read_bytes() == b""

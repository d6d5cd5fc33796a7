"""A bad run folder blocks nothing: it is reported as damaged, and other runs stay listed.

Every case runs in bounded time and memory: the limits below are enforced on the test process, and a
read that blocks is ended by an alarm.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.results.run_directories import compared, day, write_run
from tests.results.run_samples import GPT, MATMUL, block
from torchyard.bench.report.formats import to_csv, to_json
from torchyard.errors import ResultsDamaged, TorchyardError
from torchyard.files.safe_reading import LARGEST_LINE_BYTES
from torchyard.results.directory import latest_run
from torchyard.results.index.store import Store
from torchyard.results.integrity import verify_run
from torchyard.results.model import RunFilter
from torchyard.results.run_changes import import_runs
from torchyard.results.run_reader import read_run
from torchyard.results.run_writer import ProgressTail, RunWriter

SECONDS = 60
MEMORY_BYTES = 2 << 30
FILES = ("run.json", "launches.jsonl", "samples.jsonl", "comparisons.jsonl")
GOOD, BAD = day(1), day(9)

Spoil = Callable[[Path], None]


@contextmanager
def bounded() -> Iterator[None]:
    """End what takes too long or too much memory."""

    def too_long(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError("blocked, or too slow")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, too_long)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_BYTES, hard))
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = tmp_path / "runs"
    write_run(home, GOOD, [compared(), compared(GPT, speedup=0.9)])
    writer = RunWriter.create(home / BAD, study=read_run(home / GOOD).study, command=[], machine={})
    for number in range(3):
        writer.add_launch({"launch": number})
        writer.add_blocks(MATMUL, [block(number, number, "eager")])
    writer.add_comparison(compared())
    writer.finish("finished")
    return home


def fifo(path: Path) -> None:
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.mkdir()


def bound_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def link_to_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_terminal(path: Path) -> None:
    path.symlink_to("/dev/tty")


def link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def link_in_a_circle(path: Path) -> None:
    other = path.with_name("other")
    other.symlink_to(path)
    path.symlink_to(other)


def device(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root makes devices")
    try:
        os.mknod(path, 0o666 | 0o020000, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("devices cannot be made here")


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(3 << 40)


def sparse_below_the_limit(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 30)


def one_long_line(path: Path) -> None:
    path.write_bytes(b'{"a": "' + b"x" * (60 << 20) + b'"}\n')


def a_long_line_without_end(path: Path) -> None:
    path.write_bytes(b"x" * (60 << 20))


def deep(path: Path) -> None:
    path.write_bytes(b'{"a": ' * 100_000 + b"1" + b"}" * 100_000 + b"\n{}\n")


def just_too_deep(path: Path) -> None:
    path.write_bytes(b'{"workload": ' + b"[" * 800 + b"]" * 800 + b"}\n{}\n")


def no_text(path: Path) -> None:
    path.write_bytes(b'{"a": "\xff\xfe"}\n{}\n')


def endless_digits(path: Path) -> None:
    path.write_bytes(b'{"format": ' + b"9" * 100_000 + b"}\n{}\n")


SPOILED: list[Spoil] = [
    *(fifo, directory, bound_socket, link_to_zeros, link_to_terminal, link_to_itself),
    *(link_in_a_circle, device, sparse, one_long_line, a_long_line_without_end, deep),
    *(just_too_deep, no_text, endless_digits, sparse_below_the_limit),
]


def spoil(path: Path, how: Spoil) -> None:
    path.unlink()
    how(path)


def read_everything(folder: Path) -> None:
    """As `report`, `compare` and the dashboard do."""
    run = read_run(folder)
    list(run.blocks())
    run.launches()
    to_json(run)
    to_csv(run)


@pytest.mark.parametrize("how", SPOILED)
@pytest.mark.parametrize("name", FILES)
def test_a_bad_file_is_named_and_blocks_nothing(home: Path, name: str, how: Spoil) -> None:
    bad = home / BAD
    spoil(bad / name, how)
    with bounded():
        # The home stays listed, and the good run is whole.
        with Store.open(home) as store:
            store.refresh()
            runs = {run.id: run for run in store.runs(RunFilter())}
            assert GOOD in runs
            assert runs[GOOD].damage == ""
            assert len(store.comparisons(RunFilter(run=GOOD))) == 2
            damage = runs[BAD].damage if BAD in runs else "not a run any more"
        if name in ("run.json", "comparisons.jsonl"):
            assert damage
            assert latest_run(home) is not None
        read_everything(home / GOOD)
        # Reading the bad one names the file and the fix.
        with pytest.raises(TorchyardError) as caught:
            read_everything(bad)
        assert name in f"{caught.value.what} {caught.value.why}"
        assert caught.value.hint
        verified = verify_run(bad)
        assert name in {item.file for item in verified.damage}
        # Nor does it block bringing runs to another home.
        import_runs(home, home.parent / "other", largest_bytes=1 << 20)
        assert (home.parent / "other" / GOOD).is_dir()


@pytest.mark.parametrize("how", SPOILED)
def test_a_bad_progress_file_has_no_progress(home: Path, how: Spoil) -> None:
    how(home / BAD / "progress.jsonl")
    with bounded():
        assert ProgressTail(home / BAD).more() in ([], [{}])
        with Store.open(home) as store:
            store.refresh()
            assert store.run(BAD).damage == ""


@pytest.mark.parametrize("how", [fifo, link_to_zeros, one_long_line, deep])
def test_a_bad_baseline_file_blocks_nothing(home: Path, how: Spoil) -> None:
    from torchyard.results.baselines import read_baseline_file

    path = home / "main.json"
    how(path)
    with bounded(), pytest.raises(TorchyardError, match=r"main\.json"):
        read_baseline_file(path)


def test_a_file_that_grows_is_read_as_of_now(home: Path) -> None:
    """A writer that is faster than the reader must not keep it for ever."""
    path = home / BAD / "samples.jsonl"
    line = path.read_bytes().splitlines(keepends=True)[0]
    seen = 0
    for _ in read_run(home / BAD).blocks():
        seen += 1
        with path.open("ab") as file:
            file.write(line * 2)
        assert seen < 10
    assert seen == 3


def test_the_longest_line_that_is_read(home: Path) -> None:
    path = home / BAD / "launches.jsonl"
    text = b'{"a": "' + b"x" * (LARGEST_LINE_BYTES - 9) + b'"}'
    assert len(text) == LARGEST_LINE_BYTES
    path.write_bytes(text + b"\n" + text)
    assert len(read_run(home / BAD).launches()) == 2
    assert read_run(home / BAD).torn_lines == 0
    path.write_bytes(text + b" \n{}\n")
    with pytest.raises(TorchyardError, match="line 1"):
        read_run(home / BAD).launches()


def set_at(record: dict[str, Any], path: str, value: object) -> None:
    *way, last = path.split(".")
    place: Any = record
    for key in way:
        place = place[int(key) if key.isdecimal() else key]
    place[int(last) if last.isdecimal() else last] = value


def change_last(path: Path, field: str, value: object) -> None:
    lines = path.read_text().splitlines()
    record = json.loads(lines[-1])
    set_at(record, field, value)
    path.write_text("\n".join([*lines[:-1], json.dumps(record)]) + "\n")


NAN, INF = float("nan"), float("inf")
ROWS = [
    *(("estimate.speedup", value) for value in (-1.0, 0.0, -0.0, NAN, INF, -INF, 0, 10**400)),
    *(("estimate.mean_speedup", value) for value in (-1.0, NAN)),
    *(("estimate.interval.low", value) for value in (-1.0, 0.0, 5.0, NAN, -INF)),
    *(("estimate.interval.high", value) for value in (-1.0, 0.5, NAN, INF)),
    *(("estimate.interval.confidence", value) for value in (0.0, 1.0, 95.0, NAN, -1.0)),
    *(("estimate.p_value", value) for value in (-0.1, 1.1, NAN)),
    *(("estimate.launches", value) for value in (-1, 2**63)),
    *(("estimate.pairs", value) for value in (-1, 2**70)),
    *(("estimate.pairs_dropped", value) for value in (-1,)),
    *(("estimate.launch_sd", value) for value in (-1.0, NAN, INF)),
    *(("estimate.time_needed_s", value) for value in (-1.0, NAN)),
    *(("baseline_metrics.time_ns", value) for value in (-1.0, 0.0, NAN, INF)),
    *(("candidate_metrics.time_ns", value) for value in (-1.0, 0.0, NAN, INF)),
    *(("candidate_metrics.compile_cold_s", value) for value in (-1.0, NAN, INF)),
    *(("candidate_metrics.peak_memory_bytes", value) for value in (-1, 2**80)),
    *(("candidate_metrics.flops", value) for value in (-1.0, NAN)),
    *(("candidate_metrics.batch_size", value) for value in (0, -4)),
    *(("candidate_metrics.graph_breaks", value) for value in ([["x", -1]],)),
    *(("accuracy.max_error", value) for value in (-1.0,)),
    *(("accuracy.compared", value) for value in (-1,)),
    *(("guards.blocks", value) for value in (-1,)),
    *(("guards.dirty", value) for value in (5,)),
    *(("elapsed_s", value) for value in (-1.0, NAN, INF)),
    *(("workload.batch_size", value) for value in (-2, 0)),
]


@pytest.mark.parametrize(("field", "value"), ROWS)
def test_impossible_numbers_of_a_comparison_are_damage(
    home: Path, field: str, value: object
) -> None:
    path = home / BAD / "comparisons.jsonl"
    change_last(path, field, value)
    with pytest.raises(TorchyardError) as caught:
        read_run(home / BAD)
    assert caught.value.exit_code == 8
    assert "comparisons.jsonl, line 1" in caught.value.what
    assert caught.value.hint
    with Store.open(home) as store:
        store.refresh()
        assert store.run(BAD).damage
        assert store.run(GOOD).damage == ""
    assert "comparisons.jsonl" in {item.file for item in verify_run(home / BAD).damage}


BLOCKS = [
    *(("block.samples_ns", value) for value in ([], [1.0, -1.0], [0.0], [NAN], [INF], [0])),
    *(("block.inner", value) for value in (0, -1)),
    *(("block.launch", value) for value in (-1,)),
    *(("block.round", value) for value in (-1,)),
    *(("block.wall_ns", value) for value in (-1, 2**64)),
    *(("block.guard.cpu_ns", value) for value in (-1,)),
    *(("block.guard.steal_ns", value) for value in (-1,)),
    *(("block.guard.cpu_temperature_c", value) for value in (NAN, INF)),
]


@pytest.mark.parametrize(("field", "value"), BLOCKS)
def test_impossible_numbers_of_a_block_are_damage(home: Path, field: str, value: object) -> None:
    change_last(home / BAD / "samples.jsonl", field, value)
    with pytest.raises(TorchyardError, match=r"samples\.jsonl, line 3") as caught:
        list(read_run(home / BAD).blocks())
    assert caught.value.exit_code == 8
    assert "samples.jsonl" in {item.file for item in verify_run(home / BAD).damage}


STUDIES = [
    *(("study.budget.alpha", value) for value in (0.0, 1.0, 5.0, -1.0, NAN)),
    *(("study.budget.margin", value) for value in (-1.0, NAN, INF)),
    *(("study.budget.precision_goal", value) for value in (-1.0, NAN, INF)),
    *(("study.budget.max_launches", value) for value in (0, -1)),
    *(("study.budget.time_s", value) for value in (-1.0, NAN)),
    *(("study.settings.block_s", value) for value in (-1.0, 0.0, NAN)),
    *(("study.settings.threads", value) for value in (0, -3)),
    *(("study.workloads.1.batch_size", value) for value in (0, -3)),
]


@pytest.mark.parametrize(("field", "value"), STUDIES)
def test_impossible_numbers_of_a_study_are_damage(home: Path, field: str, value: object) -> None:
    path = home / BAD / "run.json"
    record = json.loads(path.read_text())
    set_at(record, field, value)
    path.write_text(json.dumps(record))
    with pytest.raises(TorchyardError, match=r"run\.json") as caught:
        read_run(home / BAD)
    assert caught.value.exit_code == 8


def test_what_a_measurement_can_give_is_no_damage(home: Path) -> None:
    """Errors of results that are NaN, and times that can never be reached, are findings."""
    path = home / BAD / "comparisons.jsonl"
    for field, value in (
        ("accuracy.max_error", NAN),
        ("accuracy.candidate_rmse", INF),
        ("estimate.time_needed_s", INF),
        ("estimate.p_value", 0.0),
        ("estimate.interval", None),
        ("elapsed_s", 0.0),
    ):
        change_last(path, field, value)
    assert len(read_run(home / BAD).comparisons) == 1


ODD: list[Any] = [None, True, -1, NAN, 10**400, "x" * 10_000, [[]], {"a": 1}, "\ud800"]


def test_odd_values_in_any_fact_of_a_run_are_damage_or_harmless(home: Path) -> None:
    """Each top-level fact and each fact of the machine in turn, by everything that lists and shows."""
    path = home / BAD / "run.json"
    text = path.read_text()
    facts = json.loads(text)
    with Store.open(home) as store:
        for key in (*facts, "machine.cpu", "machine.cores", "targets.this"):
            for value in ODD:
                changed = json.loads(text)
                set_at(changed, key, value)
                path.write_text(json.dumps(changed))
                store.refresh()
                assert store.run(GOOD).damage == ""
                with suppress(ResultsDamaged):  # anything else is a mistake of ours
                    read_everything(home / BAD)
        assert verify_run(home / BAD).damage


def test_a_results_directory_of_bad_folders_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = tmp_path / "runs"
    first = write_run(home, day(0), [compared()])
    for number, how in enumerate(SPOILED, start=1):
        copy = home / f"{day(1)[:-4]}{number:04x}"
        shutil.copytree(first, copy)
        spoil(copy / "run.json", how)
    shutil.rmtree(first)
    with bounded(), Store.open(home) as store:
        store.refresh()
        for run in store.runs(RunFilter()):
            assert run.damage

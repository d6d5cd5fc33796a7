from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.results.run_directories import compared, day, write_run
from tests.results.run_samples import FAILED, FASTER, MATMUL, STUDY, block
from torchyard.errors import ResultsDamaged
from torchyard.process.owner import is_gone, this_process
from torchyard.results.run_reader import (
    CI_VARIABLES,
    read_run,
    revision_from_ci,
    revision_of_run,
    revision_of_variant,
    target_facts,
)
from torchyard.results.run_writer import RunWriter

DATA = Path(__file__).parent / "data"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished run with two of everything."""
    writer = RunWriter.create(tmp_path / "run", study=STUDY, command=["torchyard"], machine={})
    writer.add_launch({"launch": 0})
    writer.add_launch({"launch": 1})
    writer.add_blocks(MATMUL, [block(0, 0, "eager"), block(0, 0, "inductor")])
    writer.add_comparison(FASTER)
    writer.add_comparison(FAILED)
    writer.finish("finished")
    return writer.folder


def cut_last_line(path: Path, keep: int) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:keep])


def change_facts(folder: Path, **changes: object) -> None:
    facts = json.loads((folder / "run.json").read_text())
    facts.update(changes)
    (folder / "run.json").write_text(json.dumps(facts))


def read_everything(folder: Path) -> None:
    run = read_run(folder)
    list(run.blocks())
    run.launches()


@pytest.mark.parametrize("keep", [1, 40, 200])
def test_a_torn_last_line_is_skipped_and_counted(folder: Path, keep: int) -> None:
    for name in ("launches.jsonl", "samples.jsonl", "comparisons.jsonl"):
        cut_last_line(folder / name, min(keep, 10) if name == "launches.jsonl" else keep)
    run = read_run(folder)
    assert run.comparisons == (FASTER,)
    assert [item.variant for _, item in run.blocks()] == ["eager"]
    assert run.launches() == [{"launch": 0}]
    assert run.torn_lines == 3


def test_a_whole_line_without_its_newline_counts(folder: Path) -> None:
    path = folder / "comparisons.jsonl"
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    run = read_run(folder)
    assert run.comparisons == (FASTER, FAILED)
    assert run.torn_lines == 0


def test_zeros_at_the_end_as_after_a_power_cut(folder: Path) -> None:
    with (folder / "comparisons.jsonl").open("ab") as file:
        file.write(b"\0" * 300_000)
    run = read_run(folder)
    assert run.comparisons == (FASTER, FAILED)
    assert run.torn_lines == 1


@pytest.mark.parametrize("name", ["launches.jsonl", "samples.jsonl", "comparisons.jsonl"])
def test_a_torn_middle_line_is_damage_with_its_place(folder: Path, name: str) -> None:
    path = folder / name
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first[:12] + b"\n" + second)
    with pytest.raises(ResultsDamaged, match=rf"{name}, line 1") as caught:
        read_everything(folder)
    assert caught.value.exit_code == 8
    assert caught.value.hint


def test_a_line_of_another_kind_is_damage(folder: Path) -> None:
    path = folder / "comparisons.jsonl"
    lines = path.read_text().splitlines()
    changed = json.loads(lines[1])
    changed["verdict"] = "great"
    path.write_text(lines[0] + "\n" + json.dumps(changed) + "\n")
    with pytest.raises(ResultsDamaged, match=r"comparisons\.jsonl, line 2") as caught:
        read_run(folder)
    assert "'great'" in caught.value.why


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"format": 1,\n "id": ', "line 2: not JSON"),
        (b"", "line 1: not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[1]", "not the facts of a run"),
        (b'{"format": "one"}', "not the facts of a run"),
        (b'{"format": 2, "torchyard": "9.1"}', r"newer Torchyard \(9\.1\)"),
        (b'{"format": 1, "state": "dreaming"}', "'dreaming'"),
        (b'{"format": 1, "state": "finished"}', "not a study"),
        (b"[" * 200_000, "not JSON"),
    ],
)
def test_damaged_facts(folder: Path, content: bytes, said: str) -> None:
    (folder / "run.json").write_bytes(content)
    with pytest.raises(ResultsDamaged, match=said) as caught:
        read_run(folder)
    assert "run.json" in caught.value.what
    assert caught.value.exit_code == 8


def test_missing_parts(folder: Path, tmp_path: Path) -> None:
    (folder / "samples.jsonl").unlink()
    run = read_run(folder)
    assert run.comparisons == (FASTER, FAILED)
    with pytest.raises(ResultsDamaged, match=r"samples\.jsonl is missing"):
        list(run.blocks())
    (folder / "run.json").unlink()
    with pytest.raises(ResultsDamaged, match="not a run folder"):
        read_run(folder)
    with pytest.raises(ResultsDamaged, match="not a run folder"):
        read_run(tmp_path / "nowhere")


def test_keys_of_a_newer_minor_version_are_skipped(folder: Path) -> None:
    path = folder / "comparisons.jsonl"
    record = json.loads(path.read_text().splitlines()[0])
    record["carbon_g"] = 3
    record["estimate"]["sparkle"] = True
    path.write_text(json.dumps(record) + "\n")
    change_facts(folder, weather="fine")
    run = read_run(folder)
    assert run.comparisons == (FASTER,)
    assert run.info["weather"] == "fine"


WRITE_AND_WAIT = """
import sys, time
sys.path[:0] = [sys.argv[2]]
from pathlib import Path
from tests.results.run_samples import FASTER, MATMUL, STUDY, block
from torchyard.results.run_writer import RunWriter
writer = RunWriter.create(Path(sys.argv[1]), study=STUDY, command=["x"], machine={})
writer.add_comparison(FASTER)
print("ready", flush=True)
number = 0
while True:
    writer.add_blocks(MATMUL, [block(0, number, "eager")])
    number += 1
"""


def test_a_killed_run_reads_as_interrupted(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-c", WRITE_AND_WAIT, str(folder), str(Path(__file__).parents[2])],
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert read_run(folder).state == "running"
        process.send_signal(signal.SIGKILL)
        process.wait()
    run = read_run(folder)
    assert run.info["state"] == "running"
    assert run.state == "interrupted"
    assert run.comparisons == (FASTER,)
    assert [item.round for _, item in run.blocks()] == list(range(len(list(run.blocks()))))


def test_a_process_is_gone_only_where_that_can_be_known() -> None:
    here = this_process()
    assert not is_gone(here)
    assert is_gone({**here, "started_ticks": 1})
    assert is_gone({**here, "boot": "an earlier one"})
    assert not is_gone({**here, "host": "elsewhere", "started_ticks": 1})
    assert not is_gone({**here, "namespace": "pid:[1]", "started_ticks": 1})
    assert not is_gone({})


def test_a_zombie_is_gone(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert is_gone({**this_process(), "pid": pid})
    finally:
        os.waitpid(pid, 0)


def test_format_one_stays_readable(tmp_path: Path) -> None:
    """The folder in `data` was written once and is never written again."""
    folder = tmp_path / "format-1"
    shutil.copytree(DATA / "format-1", folder)
    run = read_run(folder)
    assert run.id == "20250102T030405.678Z-4f2a"
    assert run.state == "finished"
    assert run.info["torchyard"] == "0.1.0"
    assert run.study.name == "eager against inductor"
    assert run.study.workloads[0].label == "kernels/matmul inference size=256"
    assert [item.verdict.value for item in run.comparisons] == ["faster", "failed"]
    assert run.comparisons[0].estimate is not None
    assert run.comparisons[0].estimate.p_adjusted == 0.0008
    assert run.comparisons[1].failure is not None
    assert run.comparisons[1].failure.log_tail.endswith("\x1b[31mred")
    blocks = list(run.blocks(run.study.workloads[0]))
    assert [item.dirty for _, item in blocks] == [(), ("run-queue wait",)]
    assert blocks[0][1].guard.throttle_reasons == ("sw_power_cap",)
    assert run.launches() == [{"launch": 0, "started": "2025-01-02T03:04:06Z"}]
    assert (run.folder / "logs" / "launch-1.txt").read_text() == "Segmentation fault\n"


@pytest.mark.parametrize("name", CI_VARIABLES)
def test_what_a_ci_job_says(name: str) -> None:
    assert revision_from_ci({name: "4f2a", "PATH": "/bin"}) == "4f2a"


def test_outside_of_a_ci_job() -> None:
    assert revision_from_ci({}) == ""
    assert revision_from_ci({"GITHUB_SHA": "", "CI_COMMIT_SHA": "b"}) == "b"
    assert revision_from_ci({"GITHUB_SHA": "a", "CI_COMMIT_SHA": "b"}) == "a"


def test_an_explicit_revision_overrides_that_of_torch(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, day(1), [compared()], revision="v1"))
    assert revision_of_run(run.info, run.study) == "v1"
    assert run.info["revision"] == "v1"
    not_said = read_run(write_run(tmp_path, day(2), [compared()]))
    assert revision_of_run(not_said.info, not_said.study) == "ab" * 20


def test_a_torch_of_each_candidate() -> None:
    (first,) = STUDY.candidates
    second = replace(first, name="new", target=replace(first.target, name="new"))
    study = replace(STUDY, candidates=(first, second))
    info = {"targets": {"this": {"torch_git": "a"}, "new+tcmalloc": {"torch_git": "b"}}}
    assert revision_of_variant(info, first) == "a"
    assert revision_of_variant(info, second) == "b"
    assert revision_of_run(info, study) == "a, b"
    assert revision_of_run({**info, "revision": "v1"}, study) == "v1"


@pytest.mark.parametrize("info", [{}, {"targets": 3}, {"targets": {"this": 3}}, {"revision": None}])
def test_runs_without_the_information(info: dict[str, object]) -> None:
    (variant,) = STUDY.candidates
    assert target_facts(info, variant) == {}
    assert revision_of_variant(info, variant) == ""
    assert revision_of_run(info, STUDY) == ""


def test_folders_of_earlier_releases_have_neither_revision_nor_notes() -> None:
    run = read_run(Path(__file__).parent / "data" / "format-1")
    assert "revision" not in run.info
    assert revision_of_run(run.info, run.study) == ""

"""Job records in the folder of a sweep, files of jobs, and valid locations."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchyard.errors import MissingTool, ResultsDamaged, UsageError
from torchyard.results.index.entries import file_system_of
from torchyard.sweep.executors.slurm.job_states import JobRecords, is_void, new_name
from torchyard.sweep.executors.slurm.node_job import CellJob, end_path, read_end, read_time_left
from torchyard.sweep.executors.slurm.submission import (
    SlurmExecutor,
    check_sweep_folder,
)

MOUNTS = """\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
25 22 0:5 / /dev rw - devtmpfs udev rw
26 25 0:23 / /dev/shm rw - tmpfs tmpfs rw
40 22 0:50 / /data/with\\040space rw - nfs4 server:/data rw
41 22 0:51 / /box rw - overlay overlay rw
"""


def test_records_are_read_back(tmp_path: Path) -> None:
    records = JobRecords(tmp_path)
    assert records.open_arrays() == []
    records.intend("one", ["a", "b", "c"])
    records.submitted("one", "12")
    records.intend("two", ["d"])
    records.mark_reported([("one", 1, "finished"), ("one", 0, "died")])
    records.mark_reported([])
    again = JobRecords(tmp_path)
    assert again.arrays == records.arrays
    one, two = again.open_arrays()
    assert (one.job, one.open_indexes, one.reported) == ("12", [2], {1: "finished", 0: "died"})
    assert [one.job_of(2), two.job] == ["12_2", ""]
    again.void("two", "it is not in Slurm")
    again.mark_reported([("one", 2, "finished")])
    assert JobRecords(tmp_path).open_arrays() == []
    assert is_void(tmp_path, "two")
    assert not is_void(tmp_path, "one")
    assert not is_void(tmp_path / "elsewhere", "two")


@pytest.mark.parametrize(
    "line",
    [
        '{"event": "submitted", "name": "nobody", "job": "1"}',
        '{"event": "intent", "name": "one"}',
        '{"event": "told", "name": "one", "index": "x", "outcome": "died"}',
        '{"name": "one"}',
    ],
)
def test_damaged_records_name_the_line(tmp_path: Path, line: str) -> None:
    JobRecords(tmp_path).intend("one", ["a"])
    path = tmp_path / "jobs.jsonl"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ResultsDamaged) as caught:
        JobRecords(tmp_path)
    assert caught.value.what == f"{path}, line 2: not a record of a job"


def test_names_of_jobs_are_safe_and_never_the_same() -> None:
    names = {new_name(Path("/x/a b,c;ü")) for _ in range(50)}
    assert len(names) == 50
    assert all(name.startswith("torchyard-a-b-c-") for name in names)
    assert new_name(Path("/x/ü")).startswith("torchyard-sweep-")


def cell_job(folder: Path, *argv: str, limit_s: float | None = None) -> CellJob:
    return CellJob(
        folder=str(folder),
        name="one",
        index=3,
        cell="c",
        argv=argv,
        log=str(folder / "c.log"),
        limit_s=limit_s,
    )


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143)]
)
def test_a_job_says_how_its_command_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, code: int
) -> None:
    (tmp_path / "slurm").mkdir()
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "12")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    monkeypatch.setenv("TORCHYARD_DRIVER", "1")
    job = cell_job(tmp_path, "/bin/sh", "-c", f"echo driver=$TORCHYARD_DRIVER; {script}")
    for _ in range(2):  # a job that is put back into the queue runs again
        with pytest.raises(SystemExit) as caught:
            job()
        assert caught.value.code == code
    assert (tmp_path / "c.log").read_text() == "driver=\n" * 2
    end = read_end(tmp_path, "one", 3)
    assert end is not None
    assert (end["code"], end["job"], end["cell"]) == (code, "12_3", "c")


@pytest.mark.parametrize(
    ("text", "left_s"),
    [
        ("9:59\n", 599.0),
        ("1:00:00", 3600.0),
        ("2-03:00:01", 183601.0),
        ("0:00", 0.0),
        ("UNLIMITED", None),
        ("INVALID", None),
        ("", None),
    ],
)
def test_the_time_that_a_job_has_left(text: str, left_s: float | None) -> None:
    assert read_time_left(text) == left_s


def test_a_job_ends_its_command_before_slurm_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slurm").mkdir()
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 11))
    with pytest.raises(SystemExit) as caught:
        cell_job(tmp_path, "/bin/sleep", "60", limit_s=30.0)()
    assert caught.value.code == 124
    assert capsys.readouterr().out == "time limit of the command: 1 s\n"


def test_a_job_over_the_limit_of_its_cell(tmp_path: Path) -> None:
    (tmp_path / "slurm").mkdir()
    with pytest.raises(SystemExit) as caught:
        cell_job(tmp_path, "/bin/sleep", "60", limit_s=0.2)()
    assert caught.value.code == 124


def test_a_job_that_was_given_up_runs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = JobRecords(tmp_path)
    records.intend("one", ["a", "b", "x", "c"])
    records.void("one", "it is not in Slurm")
    with pytest.raises(SystemExit) as caught:
        cell_job(tmp_path, "/bin/sh", "-c", f"touch {tmp_path}/ran")()
    assert caught.value.code == 0
    assert not (tmp_path / "ran").exists()
    assert capsys.readouterr().out == "one was abandoned by the driver: nothing to run\n"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"code": "7"}'])
def test_a_partial_end_record_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "slurm").mkdir()
    assert read_end(tmp_path, "one", 3) is None
    end_path(tmp_path, "one", 3).write_text(text)
    assert read_end(tmp_path, "one", 3) is None


@pytest.mark.parametrize(
    ("folder", "kind", "words"),
    [
        ("/home/me/sweep", "ext4", ""),
        ("/data/with space/sweep", "nfs4", ""),
        ("/data/with", "ext4", ""),
        ("/dev/shm/sweep", "tmpfs", "jobs on other nodes cannot see it"),
        ("/box/sweep", "overlay", "jobs may not see it"),
    ],
)
def test_file_systems_that_other_nodes_see(
    tmp_path: Path, folder: str, kind: str, words: str
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert file_system_of(Path(folder), mounts) == kind
    notes = check_sweep_folder(Path(folder), mounts)
    assert len(notes) == bool(words)
    assert words in "".join(notes)
    assert file_system_of(Path(folder), tmp_path / "nothing") == ""


@pytest.mark.parametrize("name", ["100%", "a\\b", "a\nb"])
def test_folders_whose_names_slurm_would_misread(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the folder of a sweep on Slurm"):
        check_sweep_folder(Path("/home") / name)


def test_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingTool) as caught:
        SlurmExecutor(tmp_path, lambda cell: [cell], lambda _: tmp_path / "log")
    assert caught.value.what == "sbatch, squeue, scancel, scontrol not found"
    assert "slurm-client on Debian" in caught.value.hint
    assert caught.value.exit_code == 4


def test_without_submitit(tmp_path: Path) -> None:
    for name in ("sbatch", "squeue", "scancel", "scontrol"):
        (tmp_path / name).touch(mode=0o755)
    code = (
        "import sys\n"
        "sys.path[:] = [one for one in sys.path if 'site-packages' not in one] + sys.argv[1:]\n"
        "from torchyard.errors import MissingTool\n"
        "from torchyard.sweep.executors.slurm.job_states import check_tools\n"
        "try: check_tools()\n"
        "except MissingTool as error: print(error.what, '/', error.hint)\n"
    )
    source = str(Path(__file__).resolve().parents[3] / "src")
    completed = subprocess.run(
        [sys.executable, "-c", code, source],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": str(tmp_path)},
    )
    assert completed.stdout == "submitit is not installed / pip install 'torchyard[cluster]'\n", (
        completed.stderr
    )

"""A failure of a workload or target is a row with its reason, and the run continues."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.tiny_bench import HERE, QUICK, bench, write_file
from torchyard.bench.bench_run import run_bench
from torchyard.bench.report.formats import to_json
from torchyard.core.comparison import AccuracyStatus, Failure, Verdict
from torchyard.core.events import ignore_events
from torchyard.core.study import DEFAULT_ENVIRONMENT, Budget, Environment, Study, Target, Variant
from torchyard.errors import NothingToDo
from torchyard.results.run_reader import read_run

TROUBLED = """
    import ctypes, os, time
    import torch

    def raises(x):
        raise ValueError("the model says no")

    def hangs(x):
        while True:
            time.sleep(1)

    def crashes(x):
        ctypes.string_at(0)

    def hoards(x):
        held = []
        while True:
            held.append(torch.ones(10_000_000))
            time.sleep(0.03)

    def leaves(x):
        os._exit(9)

    def with_function(function):
        return lambda: (function, torch.ones(4))

    make_raises, make_hangs = with_function(raises), with_function(hangs)
    make_crashes, make_hoards = with_function(crashes), with_function(hoards)
    make_leaves = with_function(leaves)
"""


def only_failure(folder: Path, *names: str) -> Failure:
    """The failure of the run's rows, as they lie in the folder and in the JSON report."""
    run = read_run(folder)
    assert run.state == "finished"
    assert [row.candidate for row in run.comparisons] == list(names)
    assert all(row.verdict is Verdict.FAILED for row in run.comparisons)
    document = json.loads(to_json(run))
    for row in document["comparisons"]:
        assert row["verdict"] == "failed"
        assert row["failure"]["message"]
    failure = run.comparisons[0].failure
    assert failure is not None
    return failure


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("raises", "raised", "ValueError: the model says no"),
        ("hangs", "timeout", "timed out after 6 s during the reference run"),
        ("crashes", "crashed", "SIGSEGV"),
        pytest.param(
            "hoards", "out-of-memory", "above its memory limit of 900 MiB", marks=pytest.mark.slow
        ),
        pytest.param("leaves", "crashed", "exited with code 9", marks=pytest.mark.slow),
    ],
)
def test_a_failure_of_the_workload_is_a_row(
    tmp_path: Path, name: str, kind: str, words: str
) -> None:
    file = write_file(tmp_path, "troubled.py", TROUBLED)
    settings = QUICK
    if name == "hangs":
        settings = replace(QUICK, step_limit_s=6.0)
    elif name == "hoards":
        settings = replace(QUICK, memory_limit_bytes=900 << 20)
    bench(tmp_path / "run", f"{file}:make_{name}", settings=settings)
    failure = only_failure(tmp_path / "run", "other")
    assert failure.kind == kind
    assert words in failure.message
    assert failure.phase in {"build", "check"}
    assert failure.variant == "base"
    if name == "crashes":
        assert "troubled.py" in failure.log_tail


BREAKS_THE_BASELINE = """
    import ctypes

    def make(module, *args):
        forward = module.forward
        module.forward = lambda *a: ctypes.string_at(0)  # what the baseline calls next
        return forward
"""


@pytest.mark.torch
def test_a_candidate_that_crashes_the_shared_process_leaves_the_others(tmp_path: Path) -> None:
    work = write_file(
        tmp_path,
        "work.py",
        """
        import torch

        class Net(torch.nn.Module):
            def forward(self, x):
                return x + 1

        def make():
            return Net(), torch.ones(4)
        """,
    )
    backend = write_file(tmp_path, "breaks.py", BREAKS_THE_BASELINE) + ":make"
    rows = bench(
        tmp_path / "run",
        f"{work}:make",
        Variant(name="bad", target=HERE, backend=backend),
        Variant(name="good", target=HERE),
    )
    bad, good = rows
    assert (bad.verdict, good.failure) == (Verdict.FAILED, None)
    assert good.estimate is not None
    assert good.estimate.pairs > 0
    assert bad.failure is not None
    assert (bad.failure.kind, bad.failure.variant) == ("crashed", "bad")


def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    nowhere = Target(name="nowhere", python=str(tmp_path / "bin/python"))
    rows = bench(tmp_path / "run", "x.py", baseline=Variant(name="base", target=nowhere))
    failure = only_failure(tmp_path / "run", "other")
    assert failure.kind == "no-python"
    assert "does not exist" in failure.message
    assert failure.hint
    assert rows[0].failure == failure


def test_an_interpreter_without_torch(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")]
    subprocess.run(command, check=True)
    bare = Target(name="bare", python=str(tmp_path / "bare/bin/python"))
    bench(
        tmp_path / "run",
        "x.py",
        Variant(name="other", target=bare),
        baseline=Variant(name="base", target=bare),
    )
    failure = only_failure(tmp_path / "run", "other")
    assert (failure.kind, failure.phase) == ("no-torch", "start")
    assert "No module named 'torch'" in failure.message


def test_a_torch_that_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    write_file(tmp_path / "torch", "__init__.py", "raise RuntimeError('a broken build')\n")
    broken = replace(HERE, name="broken", variables=(("PYTHONPATH", str(tmp_path)),))
    bench(
        tmp_path / "run",
        "x.py",
        Variant(name="other", target=broken),
        baseline=Variant(name="base", target=broken),
    )
    failure = only_failure(tmp_path / "run", "other")
    assert failure.kind == "no-torch"
    assert "a broken build" in failure.message
    assert "torch/__init__.py" in failure.log_tail


def test_a_torch_that_is_too_old(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    write_file(tmp_path / "torch", "__init__.py", "__version__ = '1.13.1+cpu'\n")
    old = replace(HERE, name="old", variables=(("PYTHONPATH", str(tmp_path)),))
    bench(
        tmp_path / "run",
        "x.py",
        Variant(name="other", target=old),
        baseline=Variant(name="base", target=old),
    )
    assert "1.13.1+cpu is too old" in only_failure(tmp_path / "run", "other").message


def test_a_study_that_compares_nothing(tmp_path: Path) -> None:
    study = Study(name="x", baseline=Variant(name="a", target=HERE), candidates=(), workloads=())
    with pytest.raises(NothingToDo):
        run_bench(study, folder=tmp_path / "run", command=[], listener=ignore_events)
    assert not (tmp_path / "run").exists()


SLOW_STEP = """
    import time
    import torch

    def step(x):
        time.sleep(0.001)
        return x + 1

    def make():
        return step, torch.ones(4)
"""

BACKENDS = """
    import ctypes, pathlib

    SAMPLES = pathlib.Path(__file__).with_name("run") / "samples.jsonl"

    def raises(module):
        def call(x):
            raise ValueError("the backend says no")
        return call

    def cannot_be_made(module):
        raise OSError("no compiler here")

    def crashes_later(module):
        def call(x):
            if SAMPLES.exists() and "crashes_later" in SAMPLES.read_text():
                ctypes.string_at(0)  # a block of this backend is in the run folder
            return module(x)
        return call

    def wrong(module):
        return lambda x: module(x) * 1.01

    def healthy(module):
        return lambda x: module(x)
"""


@pytest.mark.torch
def test_a_failing_candidate_does_not_affect_the_others(tmp_path: Path) -> None:
    # GIVEN candidates in one process: two that raise, one that is wrong, one that ends the process
    # once one of its blocks is kept, and a good one
    file = write_file(tmp_path, "slow_step.py", SLOW_STEP)
    mine = write_file(tmp_path, "mine.py", BACKENDS)
    names = ("raises", "cannot_be_made", "crashes_later", "wrong", "healthy")
    candidates = [Variant(name=name, target=HERE, backend=f"{mine}:{name}") for name in names]
    # WHEN they are measured
    rows = {row.candidate: row for row in bench(tmp_path / "run", file, *candidates)}
    # THEN each has its own verdict
    assert list(rows) == list(names)
    verdicts = {name: (row.verdict, row.failure and row.failure.kind) for name, row in rows.items()}
    assert verdicts["raises"] == (Verdict.FAILED, "raised")
    assert verdicts["cannot_be_made"] == (Verdict.FAILED, "raised")
    assert verdicts["crashes_later"] == (Verdict.FAILED, "crashed")
    assert verdicts["wrong"] == (Verdict.WRONG, None)
    assert verdicts["healthy"][0] not in {Verdict.FAILED, Verdict.WRONG}
    good = rows["healthy"]
    assert good.estimate is not None
    assert good.accuracy is not None
    assert good.accuracy.status is AccuracyStatus.PASS
    assert good.baseline_metrics.time_ns is not None
    assert good.baseline_metrics.time_ns >= 1e6
    later = rows["crashes_later"].failure
    assert later is not None
    # Whose fault the crash of a shared process was is known once each candidate has its own.
    assert later.phase in {"timing", "warm-up"}
    assert any("in its own process" in note for note in good.notes)
    assert "SIGSEGV" in later.message
    failure = rows["cannot_be_made"].failure
    assert failure is not None
    assert "no compiler here" in failure.message
    # AND what the crashed candidate had measured is in the run folder
    run = read_run(tmp_path / "run")
    assert {block.variant for _, block in run.blocks()} >= {"base", "crashes_later", "healthy"}


ODD = """
    import os, sys
    import torch

    def make():
        line = "x" * 99_999 + "\\n"
        for _ in range(2000):
            sys.stdout.write(line)
        print("the end", flush=True)
        os.chdir("/")
        os.fork()
        return torch.nn.Linear(4, 4), torch.ones(4)
"""


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_workload_that_prints_much_moves_away_and_forks_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN 200 MB of output, another working folder and a child that returns into our code
    file = write_file(tmp_path, "odd.py", ODD)
    monkeypatch.chdir(tmp_path)
    # WHEN it is measured into a folder that is named relative to the present one
    (row,) = bench(Path("run"), file)
    # THEN there is a result, and the logs are small
    assert row.verdict not in {Verdict.FAILED, Verdict.WRONG}
    assert row.accuracy is not None
    assert row.accuracy.status is AccuracyStatus.PASS
    logs = [path for path in (tmp_path / "run/logs").rglob("*") if path.is_file()]
    assert logs
    assert sum(path.stat().st_size for path in logs) < 20 << 20
    assert not (tmp_path / "run/scratch").exists()


LATE = """
    import ctypes, os
    from pathlib import Path
    import torch

    STARTS = Path(__file__).with_name("starts")

    def make():
        doomed = "DOOMED" in os.environ
        if doomed:
            with STARTS.open("a") as file:
                file.write("x")
        started = len(STARTS.read_text()) if doomed else 0

        def work(x):
            if started == 3:
                ctypes.string_at(0)
            return x + 1

        return work, torch.ones(20_000)
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    "doomed", ["other", pytest.param("base", marks=pytest.mark.slow)], ids=["candidate", "baseline"]
)
def test_a_crash_in_a_later_launch_keeps_the_launches_before(tmp_path: Path, doomed: str) -> None:
    file = write_file(tmp_path, "late.py", LATE)
    doom = Environment(name="doomed", variables=(("DOOMED", "1"),))
    variants = {
        name: Variant(
            name=name, target=HERE, environment=doom if name == doomed else DEFAULT_ENVIRONMENT
        )
        for name in ("base", "other")
    }
    settings = replace(QUICK, check_accuracy=False)
    (row,) = bench(
        tmp_path / "run",
        f"{file}:make",
        variants["other"],
        baseline=variants["base"],
        settings=settings,
        # Time enough for any machine: launches are as short as they can be.
        budget=Budget(time_s=600.0, min_launches=4, max_launches=4, launch_s=0.1),
    )
    assert row.verdict is Verdict.FAILED
    assert row.failure is not None
    assert (row.failure.variant, row.failure.kind) == (doomed, "crashed")
    assert row.estimate is None
    assert row.before_failure is not None
    assert row.before_failure.launches <= 2  # a noisy one has no clean pair
    stored = read_run(tmp_path / "run").comparisons[0]
    assert stored.before_failure == row.before_failure
    assert {block.launch for _, block in read_run(tmp_path / "run").blocks()} >= {0, 1}

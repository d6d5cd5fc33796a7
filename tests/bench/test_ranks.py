"""Several ranks of one workload: which results are wrong, and what happens when a rank fails."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench.rank_programs import NET
from tests.bench.tiny_bench import HERE, leftover_processes, write_file
from torchyard.bench.bench_run import run_bench
from torchyard.bench.launch import LaunchProcesses, VariantFailed, draw_launch
from torchyard.core.comparison import AccuracyStatus, Failure, Verdict
from torchyard.core.events import ignore_events
from torchyard.core.study import Budget, MeasureSettings, Study, Variant, Workload

pytestmark = pytest.mark.torch

WITHOUT_SUM = """
    def without_sum(module):
        "Tensor parallelism that does not add up the parts."
        for part in module.modules():
            if hasattr(part, "feed"):
                part.feed[2].register_forward_hook(lambda module, inputs, output: output / 2)
        return module
"""


def variant(backend: str, **options: bool | int) -> Variant:
    text = "+".join([backend.rpartition(":")[2], *options])
    chosen = tuple(sorted((name.replace("__", "."), value) for name, value in options.items()))
    return Variant(name=text, target=HERE, backend=backend, options=chosen)


@contextmanager
def launched(
    folder: Path,
    *variants: Variant,
    name: str = "make",
    mode: Any = "training",
    workload: Workload | None = None,
) -> Iterator[LaunchProcesses]:
    (folder / "scratch").mkdir(exist_ok=True)
    file = f"{folder / 'own.py'}:{name}"
    with LaunchProcesses(
        workload or Workload(suite="file", name=file, mode=mode, ranks=2),
        variants,
        MeasureSettings(threads=1),
        draw=draw_launch(random.Random(1)),
        log_folder=folder,
        scratch=folder / "scratch",
    ) as processes:
        yield processes
    assert leftover_processes(os.getpid()) == []


def checked(processes: LaunchProcesses, baseline: Variant, candidate: Variant) -> dict[str, Any]:
    ask = {"phase": "check", "limit_s": 120.0, "path": ""}
    if not processes.has_reference:
        processes.ask(baseline, "reference", **ask, variant=baseline.name, keep=True)  # type: ignore[arg-type]
        processes.has_reference = True
    return processes.ask(candidate, "judge", **ask, variant=candidate.name)  # type: ignore[arg-type]


def block(processes: LaunchProcesses, which: Variant, *, limit_s: float = 60.0) -> dict[str, Any]:
    return processes.ask(
        which,
        "block",
        phase="timing",
        limit_s=limit_s,
        variant=which.name,
        inner=1,
        samples=10,
        prime=1,
        settle=False,
        flush_l2=False,
        draw=7,
        varied="floats",
    )


@pytest.mark.parametrize("name", ["make", "make_fixed", "make_shared"])
def test_gradients_that_are_not_averaged_over_all_ranks_are_wrong(
    tmp_path: Path, name: str
) -> None:
    own = write_file(tmp_path, "own.py", NET)
    ddp = variant("eager", ddp=True)
    right = [
        variant("eager", ddp__gradient_as_bucket_view=True),
        variant("eager", ddp__static_graph=True, ddp__bucket_cap_mb=1),
        variant("eager", fsdp2=True),
        variant(f"{own}:by_hand"),
    ]
    wrong = [variant(f"{own}:{one}") for one in ("no_sync", "only_rank_0_is_right", "summed")]
    with launched(tmp_path, ddp, *right, *wrong, name=name) as processes:
        statuses = {one.name: checked(processes, ddp, one) for one in (*right, *wrong)}
        for one in right:
            assert statuses[one.name]["status"] == "pass", (one.name, statuses[one.name])
            assert statuses[one.name]["comparable"]
        for one in wrong:
            assert statuses[one.name]["status"] == "fail", (one.name, statuses[one.name])
        assert "rank 1 has another gradient" in statuses["only_rank_0_is_right"]["detail"]
        # The same in timed blocks, and after parameters have moved in memory.
        for _ in range(2):
            processes.ask(ddp, "reseat", phase="relocation", limit_s=60, seed=3, method="pages")
            for one in (*right, *wrong):
                block(processes, one)
                verified = processes.ask(one, "verify", phase="check", limit_s=60, variant=one.name)
                assert verified["checked"] > 0
                assert (verified["failure"] is not None) == (one in wrong), (one.name, verified)


def test_the_optimizer_step_is_part_of_an_iteration_and_ranks_that_drift_apart_are_wrong(
    tmp_path: Path,
) -> None:
    own = write_file(tmp_path, "own.py", NET)
    ddp = variant("eager", ddp=True)
    right = [
        variant("eager", ddp__gradient_as_bucket_view=True),
        variant("eager", fsdp2=True),
        variant(f"{own}:by_hand"),
    ]
    wrong = [variant(f"{own}:{one}") for one in ("no_sync", "summed", "drifts", "skips_a_step")]
    workload = Workload(
        suite="file", name=f"{own}:Trained", mode="training", ranks=2, optimizer_step=True
    )
    with launched(tmp_path, ddp, *right, *wrong, workload=workload) as processes:
        records = {one.name: checked(processes, ddp, one) for one in (*right, *wrong)}
        for one in (*right, *wrong):
            status = "pass" if one in right else "fail"
            assert records[one.name]["status"] == status, (one.name, records[one.name])
        text = "rank 1 has another parameter first.weight than rank 0 after the optimizer step"
        assert text in records["drifts"]["detail"]
        assert "parameter" in records["skips_a_step"]["detail"]
        # The pairs without communication leave different optimizer states in the ranks.
        processes.ask(ddp, "measure", phase="metrics", limit_s=120, variant=ddp.name)
        for turn in range(2):
            processes.ask(ddp, "reseat", phase="relocation", limit_s=60, seed=turn, method="pages")
            for one in (ddp, *right):
                block(processes, one)
                verified = processes.ask(one, "verify", phase="check", limit_s=60, variant=one.name)
                assert verified["checked"] > 0
                assert verified["failure"] is None, (one.name, verified)


def test_communication_that_is_not_hidden_is_measured_and_leaves_the_variant_unchanged(
    tmp_path: Path,
) -> None:
    own = write_file(tmp_path, "own.py", NET)
    slow, hand = variant(f"{own}:slow_communication"), variant(f"{own}:by_hand")
    static = variant("eager", ddp__static_graph=True)
    with launched(tmp_path, slow, hand, static) as processes:
        answers = {
            one.name: processes.ask(one, "measure", phase="metrics", limit_s=120, variant=one.name)
            for one in (slow, hand, static)
        }
        pairs = answers[slow.name]["communication"]["pairs"]
        assert len(pairs) >= 6
        # A lower bound: without communication, load of the machine only adds to both times.
        assert min(on for on, _ in pairs) >= 0.03e9
        assert min(off for _, off in pairs) < 0.03e9
        assert "eager DistributedDataParallel" in answers[hand.name]["communication"]["why_not"]
        assert "static_graph" in answers[static.name]["communication"]["why_not"]
        assert checked(processes, slow, slow)["status"] == "pass"  # it synchronizes again


@pytest.mark.parametrize("name", ["no_sync", "only_rank_0_is_right"])
def test_metrics_do_not_repair_a_wrong_variant(tmp_path: Path, name: str) -> None:
    own = write_file(tmp_path, "own.py", NET)
    ddp, wrong = variant("eager", ddp=True), variant(f"{own}:{name}")
    with launched(tmp_path, ddp, wrong) as processes:
        processes.ask(wrong, "measure", phase="metrics", limit_s=120, variant=wrong.name)
        assert checked(processes, ddp, wrong)["status"] == "fail"


def test_the_slowest_rank_counts_and_each_rank_has_its_own_cores(tmp_path: Path) -> None:
    code = (
        NET
        + """
    class Sleeper(torch.nn.Module):
        def forward(self, x):
            time.sleep(0.03 if dist.get_rank() == 1 else 0.001)
            return x + 1

    def sleeper():
        return Sleeper(), torch.ones(8)
    """
    )
    write_file(tmp_path, "own.py", code)
    eager = variant("eager")
    with launched(tmp_path, eager, name="sleeper", mode="inference") as processes:
        answer = block(processes, eager)
        assert len(answer["samples_ns"]) == 10
        assert min(answer["samples_ns"]) >= 0.03e9
        logs = sorted(path.name for path in tmp_path.glob("*.log"))
        assert logs == ["here+default-rank-0.log", "here+default-rank-1.log"]
        hello = processes.hellos[eager.process_key]
        cores = os.sched_getaffinity(int(hello["pid"]))
        assert len(cores) == max(1, len(os.sched_getaffinity(0)) // 2)


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_the_example_of_tensor_parallelism_is_correct(tmp_path: Path, mode: Any) -> None:
    example = Path(__file__).parents[2] / "examples/tensor_parallel.py"
    whole, split = (
        replace(variant(f"{example}:{name}"), options=(("same-batch", True),))
        for name in ("whole", "split")
    )
    own = write_file(tmp_path, "own.py", NET + WITHOUT_SUM)
    wrong = replace(variant(f"{own}:without_sum"), options=(("same-batch", True),))
    workload = Workload(
        suite="models",
        name="gpt",
        mode=mode,
        ranks=2,
        batch_size=2,
        parameters=(("width", 32), ("layers", 2), ("length", 16), ("vocabulary", 64)),
    )
    with launched(tmp_path, whole, split, wrong, workload=workload) as processes:
        assert checked(processes, whole, split)["status"] == "pass"
        assert checked(processes, whole, wrong)["status"] == "fail"
        answer = processes.ask(
            split,
            "recheck",
            phase="check",
            limit_s=120,
            variant=split.name,
            varied="all",
            more=True,
        )
        assert answer["failure"] is None
        assert answer["untrusted"] == []


def failure_in_a_block(folder: Path, name: str, *, limit_s: float = 60.0) -> Failure:
    """The failure of blocks of a wrapper that fails after some calls; all ranks are gone."""
    troubled = variant(f"{write_file(folder, 'own.py', NET)}:{name}")
    with launched(folder, troubled) as processes:
        # The first call imports much of torch, which the limit of a block must not include.
        warm_up = {"variant": troubled.name, "seconds": 0}
        processes.ask(troubled, "warm", phase="warm-up", limit_s=180.0, **warm_up)
        with pytest.raises(VariantFailed) as raised:  # noqa: PT012 - the number of calls varies
            for _ in range(3):
                block(processes, troubled, limit_s=limit_s)
        assert not raised.value.process_alive
        until_gone = time.monotonic() + 30
        while leftover_processes(os.getpid()):
            assert time.monotonic() < until_gone, "a rank is left"
            time.sleep(0.05)
    failure = raised.value.failure
    assert (failure.phase, failure.variant) == ("timing", name)
    return failure


def test_a_killed_rank_is_a_failure_with_its_log(tmp_path: Path) -> None:
    failure = failure_in_a_block(tmp_path, "dies")
    assert failure.kind == "killed"
    assert "rank 1: was killed by SIGKILL during a timed block" in failure.message
    assert "rank 1 says goodbye" in failure.log_tail
    assert failure.log.endswith("rank-1.log")


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("leaves", "crashed", "rank 1: exited with code 3"),
        ("raises", "raised", "rank 1: ValueError: rank 1 says no"),
        ("raises_in_rank_0", "raised", "rank 0: ValueError: rank 0 says no"),
    ],
)
def test_a_rank_that_ends_or_raises_ends_the_others(
    tmp_path: Path, name: str, kind: str, words: str
) -> None:
    failure = failure_in_a_block(tmp_path, name)
    assert failure.kind == kind
    assert words in failure.message


def test_a_hanging_rank_is_a_timeout_that_names_it(tmp_path: Path) -> None:
    failure = failure_in_a_block(tmp_path, "hangs", limit_s=8.0)
    assert failure.kind == "timeout"
    assert "timed out after 8 s during a timed block" in failure.message
    assert "rank 1 is in" in failure.message
    assert "in hang" in failure.message
    assert "rank 0 is in" not in failure.message
    assert "rank 0:" in failure.log_tail
    assert "in hang" in failure.log_tail.partition("rank 1:")[2]


def test_a_rank_that_hangs_in_a_collective_is_a_timeout(tmp_path: Path) -> None:
    failure = failure_in_a_block(tmp_path, "waits_alone", limit_s=8.0)
    assert failure.kind == "timeout"
    assert "all ranks wait for each other" in failure.message
    assert "in recv" in failure.log_tail.partition("rank 1:")[2]


@pytest.mark.parametrize("name", ["asks_for_more", "other_order"])
def test_collectives_that_do_not_match_never_pass(tmp_path: Path, name: str) -> None:
    """The operations of torch hang, raise or crash then; a result is impossible."""
    failure = failure_in_a_block(tmp_path, name, limit_s=8.0)
    assert failure.kind in ("timeout", "raised", "crashed"), failure
    assert failure.log


@pytest.mark.parametrize("name", ["needs", "needs_device"])
def test_a_lack_of_memory_in_one_rank_is_named(tmp_path: Path, name: str) -> None:
    failure = failure_in_a_block(tmp_path, name)
    assert failure.kind == "out-of-memory"
    assert "rank 1" in failure.message


def test_a_failed_build_of_one_rank_does_not_hang(tmp_path: Path) -> None:
    code = (
        NET
        + """
    def make_one():
        if dist.get_rank() == 1:
            raise OSError("no data for rank 1")
        return make()
    """
    )
    write_file(tmp_path, "own.py", code)
    with (
        pytest.raises(VariantFailed) as raised,
        launched(tmp_path, variant("eager", ddp=True), name="make_one"),
    ):
        pytest.fail("it was built")
    assert "no data for rank 1" in raised.value.failure.message
    assert leftover_processes(os.getpid()) == []


def test_a_run_keeps_its_rows_and_says_what_failed(tmp_path: Path) -> None:
    own = write_file(tmp_path, "own.py", NET)
    workload = Workload(suite="file", name=f"{own}:make", mode="training", ranks=2)
    study = Study(
        name="ranks",
        baseline=variant("eager", ddp=True),
        candidates=(
            variant("eager", ddp__gradient_as_bucket_view=True),
            variant(f"{own}:no_sync"),
            variant(f"{own}:dies"),
        ),
        workloads=(workload,),
        budget=Budget(time_s=3.0, min_launches=1, max_launches=1),
        settings=MeasureSettings(block_s=0.02, threads=1),
    )
    rows = run_bench(study, folder=tmp_path / "run", command=["x"], listener=ignore_events)
    assert leftover_processes(os.getpid()) == []
    good, unsynchronised, dead = rows
    assert good.estimate is not None
    assert good.accuracy is not None
    assert good.accuracy.status is AccuracyStatus.PASS
    assert unsynchronised.accuracy is not None
    assert unsynchronised.accuracy.status is AccuracyStatus.FAIL
    assert dead.verdict is Verdict.FAILED
    assert dead.failure is not None
    assert "rank 1: was killed" in dead.failure.message


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_leaves_no_rank_behind(tmp_path: Path, number: signal.Signals) -> None:
    own = write_file(tmp_path, "own.py", NET)
    command = [sys.executable, "-m", "torchyard", "bench", f"{own}:make", "--mode", "training"]
    command += ["--baseline", "ddp", "--candidate", f"{own}:by_hand", "--ranks", "2"]
    command += ["--time", "5m", "--precision-goal", "0%", "--run-dir", str(tmp_path / "run")]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    signal.signal(signal.SIGINT, before)
    samples = tmp_path / "run/samples.jsonl"
    try:
        deadline = time.monotonic() + 180
        while not (samples.exists() and samples.read_bytes().count(b"\n") >= 4):
            assert process.poll() is None
            assert time.monotonic() < deadline, "it took too long"
            time.sleep(0.1)
        assert len(leftover_processes(process.pid)) >= 2
        process.send_signal(number)
        process.wait(timeout=60)
        deadline = time.monotonic() + 60
        while leftover_processes(process.pid):
            assert time.monotonic() < deadline, "a rank is left"
            time.sleep(0.1)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()

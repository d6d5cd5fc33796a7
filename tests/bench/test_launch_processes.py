"""The processes of a launch: equal weights and inputs, and idle while another one computes."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from torchyard.bench.launch import LaunchProcesses, VariantFailed, draw_launch
from torchyard.bench.preparation import PreparationState, check_accuracy
from torchyard.bench.target_checks import check_backends, inspect_target
from torchyard.core.study import Environment, MeasureSettings, Study, Target, Variant, Workload
from torchyard.errors import UsageError
from torchyard.process.ending import WorkerFailure

ONE = Variant(name="one", target=Target(name="first", python=sys.executable))
TWO = Variant(name="two", target=Target(name="second", python=sys.executable))

# Weights and inputs that no seed makes equal: only the state file can.
CODE = """
    import os
    import torch
    def make():
        torch.manual_seed(os.getpid())
        return torch.nn.Linear(512, 512), torch.randn(64, 512)
"""


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaunchProcesses]:
    folder = tmp_path_factory.mktemp("processes")
    (folder / "own.py").write_text(dedent(CODE))
    (folder / "scratch").mkdir()
    with LaunchProcesses(
        Workload(suite="file", name=str(folder / "own.py")),
        [ONE, TWO],
        MeasureSettings(threads=2),
        draw=draw_launch(random.Random(1)),
        log_folder=folder,
        scratch=folder / "scratch",
    ) as processes:
        yield processes


@pytest.mark.torch
def test_two_targets_run_the_same_weights_and_inputs(
    processes: LaunchProcesses, tmp_path: Path
) -> None:
    prepared = PreparationState()
    check_accuracy(processes, ONE, TWO, tmp_path / "reference.pt", prepared)
    accuracy = prepared.accuracy["two"]
    assert accuracy.status == "pass"
    assert accuracy.max_error == 0.0


@pytest.mark.torch
def test_an_idle_worker_uses_no_cpu_while_the_other_computes(processes: LaunchProcesses) -> None:
    pids = {key: hello["pid"] for key, hello in processes.hellos.items()}
    busy, idle = psutil.Process(pids["first", "default"]), psutil.Process(pids["second", "default"])

    def block(who: Variant, samples: int) -> None:
        processes.ask(
            who,
            "block",
            phase="timing",
            limit_s=60,
            variant=who.name,
            inner=10,
            samples=samples,
            prime=0,
            settle=True,
            flush_l2=False,
        )

    def used_s(process: psutil.Process) -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    block(TWO, 20)
    before = used_s(busy), used_s(idle)
    for _ in range(20):
        block(ONE, 20)
        if used_s(busy) - before[0] > 0.5:
            break
    assert used_s(busy) - before[0] > 0.5
    assert used_s(idle) - before[1] <= 0.02


@pytest.mark.torch
def test_every_process_describes_itself(processes: LaunchProcesses) -> None:
    assert processes.several_processes
    assert [variant.name for variant in processes.one_variant_per_process()] == ["one", "two"]
    for hello in processes.hellos.values():
        assert hello["threads"] == 2
        assert hello["torch"]
    assert {built["parameters"] for built in processes.built.values()} == {512 * 512 + 512}


@pytest.mark.torch
def test_a_failure_is_attributed_to_the_variant_that_was_asked(processes: LaunchProcesses) -> None:
    with pytest.raises(VariantFailed) as caught:
        processes.ask(TWO, "warm", phase="warm-up", limit_s=60, variant="nobody", seconds=1.0)
    failure = caught.value.failure
    assert (failure.variant, failure.phase, failure.kind) == ("two", "warm-up", "cannot-build")
    assert caught.value.process_alive


@pytest.mark.torch
@pytest.mark.slow
def test_a_target_describes_itself() -> None:
    facts = inspect_target(ONE.target)
    assert facts["executable"] == sys.executable
    assert facts["devices"][0] == "cpu"


def test_an_invalid_target_is_an_error() -> None:
    with pytest.raises(WorkerFailure):
        inspect_target(Target(name="none", python="/nowhere/python"))


@pytest.mark.torch
def test_a_dynamo_backend_that_the_target_does_not_have_is_an_error() -> None:
    here = Target(name="here", python=sys.executable)
    study = Study(
        name="backends",
        baseline=Variant(name="eager", target=here),
        candidates=(Variant(name="known", target=here, backend="dynamo:aot_eager"),),
        workloads=(Workload(suite="kernels", name="matmul"),),
    )
    check_backends([study])
    unknown = Variant(name="unknown", target=here, backend="dynamo:aot_egaer")
    with pytest.raises(UsageError) as caught:
        check_backends([replace(study, candidates=(*study.candidates, unknown))])
    assert "aot_egaer" in caught.value.what
    assert caught.value.hint == "did you mean 'aot_eager'?"


def test_no_target_is_started_to_check_other_backends() -> None:
    gone = Target(name="gone", python="/nowhere/python")
    study = Study(
        name="backends",
        baseline=Variant(name="eager", target=gone),
        candidates=(Variant(name="inductor", target=gone, backend="inductor"),),
        workloads=(Workload(suite="kernels", name="matmul"),),
    )
    check_backends([study])


def _sides(*environments: str) -> list[Variant]:
    here = Target(name="here", python=sys.executable)
    return [
        Variant(name=name, target=here, environment=Environment(name=name)) for name in environments
    ]


@pytest.mark.torch
def test_a_removed_variant_ends_its_process_only_if_it_was_alone(
    tmp_path: Path,
) -> None:
    alone, first = _sides("alone", "shared")
    second = replace(first, name="second", backend="aot_eager")
    (tmp_path / "scratch").mkdir()
    with LaunchProcesses(
        Workload(suite="kernels", name="matmul", parameters=(("size", 64),)),
        [first, second, alone],
        MeasureSettings(threads=1),
        draw=draw_launch(random.Random(1)),
        log_folder=tmp_path,
        scratch=tmp_path / "scratch",
    ) as processes:
        pids = {name: processes.hellos["here", name]["pid"] for name in ("alone", "shared")}
        assert {key for _, key in processes.built} == {"alone", "shared"}
        processes.remove(second)
        assert [one.name for one in processes.variants] == ["shared", "alone"]
        processes.remove(alone)
        assert processes.one_variant_per_process() == [first]
        assert not psutil.pid_exists(pids["alone"])
        assert psutil.pid_exists(pids["shared"])
        processes.ask(first, "warm", phase="warm-up", limit_s=60, variant=first.name, seconds=0.0)


@pytest.mark.torch
def test_user_workloads_are_built_in_one_process_at_a_time(tmp_path: Path) -> None:
    """The first one may fetch or unpack what the others need."""
    source = tmp_path / "own.py"
    source.write_text(
        dedent("""
            import os, pathlib, time, torch
            def make():
                marks = pathlib.Path(__file__).parent
                (marks / f"begun-{os.getpid()}").touch()
                time.sleep(0.3)
                assert len(list(marks.glob("begun-*"))) == 1 + len(list(marks.glob("ended-*")))
                (marks / f"ended-{os.getpid()}").touch()
                return torch.nn.Linear(8, 8), torch.ones(2, 8)
        """)
    )
    (tmp_path / "scratch").mkdir()
    with LaunchProcesses(
        Workload(suite="file", name=str(source)),
        _sides("one", "two", "three"),
        MeasureSettings(threads=1),
        draw=draw_launch(random.Random(1)),
        log_folder=tmp_path,
        scratch=tmp_path / "scratch",
    ):
        assert len(list(tmp_path.glob("ended-*"))) == 3
